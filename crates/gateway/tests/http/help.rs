//! A gateway in front of simulated servers, and clients of it.

use std::time::Duration;

use rollway_base::Secret;
use rollway_base::ServerKind;
use rollway_experience::{Experience, deserialize_many};
use rollway_gateway::gateway::{Gateway, GatewayHandle, GatewayLimits, GatewayOptions};
use rollway_gateway::keys::RunRef;
use rollway_gateway::models::{self, ServerSpec};
use rollway_gateway::recording;
use rollway_mock_server::{MockControl, MockServer, MockServerOptions};
use serde_json::{Map, Value, json};

/// Opens everything.
pub(crate) const ADMIN: &str = "the admin key";

/// The name that clients know the trained model by.
pub(crate) const MODEL: &str = "trained";

/// A gateway, its servers and a client.
pub(crate) struct World {
    pub(crate) gateway: Gateway,
    pub(crate) handle: GatewayHandle,
    pub(crate) servers: Vec<MockServer>,
    pub(crate) client: reqwest::Client,
}

/// The options of a gateway that is in a hurry.
pub(crate) fn options() -> GatewayOptions {
    GatewayOptions {
        listen: "127.0.0.1:0".to_owned(),
        admin_key: Secret::new(ADMIN).unwrap(),
        limits: GatewayLimits::default(),
        record: recording::RecorderLimits::default(),
        models: models::RoutingOptions {
            health_interval: Duration::from_millis(50),
            max_wait: Duration::from_secs(30),
            ..models::RoutingOptions::default()
        },
        sampling: Map::new(),
        force_sampling: false,
        host: None,
        watcher: None,
    }
}

/// What the gateway is told of a server.
pub(crate) fn spec(server: &MockServer, kind: ServerKind) -> ServerSpec {
    ServerSpec {
        model: MODEL.to_owned(),
        trained: true,
        engine: kind,
        url: server.url(),
        api_key: None,
        server_model: None,
    }
}

pub(crate) fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

impl World {
    /// One server that imitates vLLM.
    pub(crate) async fn new() -> Self {
        Self::with(options(), vec![MockServerOptions::default()]).await
    }

    pub(crate) async fn with(options: GatewayOptions, servers: Vec<MockServerOptions>) -> Self {
        let client = client();
        let kinds: Vec<_> = servers.iter().map(|options| options.kind).collect();
        let servers: Vec<_> =
            servers.into_iter().map(|options| MockServer::start(options).unwrap()).collect();
        let specs = servers.iter().zip(kinds).map(|(server, kind)| spec(server, kind)).collect();
        let gateway = Gateway::start(options, specs).await.unwrap();
        let handle = gateway.handle();
        Self { gateway, handle, servers, client }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.gateway.url())
    }

    /// The inside of the first server.
    pub(crate) fn control(&self) -> MockControl {
        self.servers[0].control()
    }

    /// Lets one run in.
    pub(crate) fn open(&self, attempt: u64) -> Run {
        let key = self.handle.open(attempt, 0, 1).remove(0);
        let name = RunRef { attempt, run: 0 };
        Run { url: self.gateway.url().to_owned(), client: self.client.clone(), key, name }
    }

    pub(crate) fn experiences(&self, run: &Run) -> Vec<Experience> {
        let (payload, _) = self.handle.experiences(run.name, 0).unwrap();
        deserialize_many(payload.into()).unwrap()
    }

    /// The value of a metric, all its labels together.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let request = self.client.get(self.url("/metrics")).bearer_auth(ADMIN);
        let text = request.send().await.unwrap().text().await.unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let mut values = lines.filter_map(|line| {
            let (key, value) = line.rsplit_once(' ')?;
            let key = key.split('{').next()?;
            (key == format!("rollway_gateway_{name}")).then(|| value.parse::<f64>().unwrap())
        });
        let first = values.next().unwrap_or_else(|| panic!("no {name} in\n{text}"));
        values.fold(first, |sum, value| sum + value)
    }
}

/// A client of one run.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) url: String,
    pub(crate) client: reqwest::Client,
    pub(crate) key: String,
    pub(crate) name: RunRef,
}

impl Run {
    pub(crate) fn post(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        self.client
            .post(format!("{}{path}", self.url))
            .bearer_auth(&self.key)
            .header("content-type", "application/json")
            .body(body.to_string())
    }

    pub(crate) fn chat(&self, body: &Value) -> reqwest::RequestBuilder {
        self.post("/v1/chat/completions", body)
    }
}

/// A chat with one message.
pub(crate) fn says(text: &str) -> Value {
    json!({ "model": MODEL, "messages": [{ "role": "user", "content": text }] })
}

/// The same, as a stream.
pub(crate) fn streams(text: &str) -> Value {
    let mut body = says(text);
    body["stream"] = json!(true);
    body
}

/// Reads an answer as JSON.
pub(crate) async fn read(response: reqwest::Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}")))
}

/// Takes the events of a stream apart.
pub(crate) fn events(body: &str) -> Vec<String> {
    let events = body.split("\n\n").filter(|event| !event.is_empty());
    events.map(|event| event.strip_prefix("data: ").unwrap().to_owned()).collect()
}

/// The text that the events of a chat make.
pub(crate) fn text_of(events: &[String]) -> String {
    let mut text = String::new();
    for event in events.iter().filter(|event| *event != "[DONE]") {
        let event: Value = serde_json::from_str(event).unwrap();
        text.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
    }
    text
}
