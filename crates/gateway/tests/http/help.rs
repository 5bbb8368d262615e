//! A gateway in front of mock servers, and its clients.

use std::sync::Arc;
use std::time::Duration;

use rollway_base::{Secret, ServerKind};
use rollway_experience::{Experience, deserialize_many};
use rollway_gateway::gateway::{Gateway, GatewayHandle, GatewayOptions};
use rollway_gateway::http::TurnStore;
use rollway_gateway::keys::RunRef;
use rollway_gateway::models::ServerSpec;
use rollway_mock_server::{MockControl, MockServer, MockServerOptions};
use serde_json::{Value, json};

pub(crate) const ADMIN: &str = "the admin key";

/// Agent key of serve mode.
pub(crate) const AGENT: &str = "the agent key";

pub(crate) const MODEL: &str = "trained";

pub(crate) struct World {
    pub(crate) gateway: Gateway,
    pub(crate) handle: GatewayHandle,
    pub(crate) servers: Vec<MockServer>,
    pub(crate) client: reqwest::Client,
}

/// Options with short intervals.
pub(crate) fn options() -> GatewayOptions {
    let mut options = GatewayOptions::new(Secret::new(ADMIN).unwrap());
    options.agent_key = Some(Secret::new(AGENT).unwrap());
    options.models.health_interval = Duration::from_millis(50);
    options.models.max_wait = Duration::from_secs(30);
    options
}

pub(crate) fn spec(server: &MockServer, kind: ServerKind) -> ServerSpec {
    ServerSpec::new(MODEL, true, kind, server.url())
}

pub(crate) fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

impl World {
    /// One mock vLLM server.
    pub(crate) async fn new() -> Self {
        Self::with(options(), vec![MockServerOptions::default()]).await
    }

    pub(crate) async fn of(kind: ServerKind) -> Self {
        Self::with(options(), vec![MockServerOptions::new(kind)]).await
    }

    pub(crate) async fn with(options: GatewayOptions, servers: Vec<MockServerOptions>) -> Self {
        Self::with_store(options, servers, None).await
    }

    pub(crate) async fn with_store(
        options: GatewayOptions,
        servers: Vec<MockServerOptions>,
        store: Option<Arc<dyn TurnStore>>,
    ) -> Self {
        let client = client();
        let (servers, specs) = servers
            .into_iter()
            .map(|options| {
                let kind = options.kind;
                let server = MockServer::start(options).unwrap();
                let spec = spec(&server, kind);
                (server, spec)
            })
            .unzip();
        let gateway = Gateway::start_with(options, specs, store).await.unwrap();
        let handle = gateway.handle();
        Self { gateway, handle, servers, client }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.gateway.url())
    }

    pub(crate) fn control(&self) -> MockControl {
        self.servers[0].control()
    }

    pub(crate) fn open(&self, attempt: u64) -> Run {
        let key = self.handle.open(attempt, 0, 1).remove(0);
        let name = RunRef { attempt, run: 0 };
        Run { url: self.gateway.url().to_owned(), client: self.client.clone(), key, name }
    }

    /// A client with the agent key, which belongs to no run.
    pub(crate) fn agent(&self) -> Run {
        Run { key: AGENT.to_owned(), ..self.open(1) }
    }

    pub(crate) fn experiences(&self, run: &Run) -> Vec<Experience> {
        let (payload, _) = self.handle.experiences(run.name, 0).unwrap();
        deserialize_many(payload.into()).unwrap()
    }

    /// Sums a metric over its labels.
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

    pub(crate) async fn send(&self, body: &Value) -> reqwest::Response {
        self.chat(body).send().await.unwrap()
    }

    /// Sends a chat, and returns status and JSON.
    pub(crate) async fn call(&self, body: &Value) -> (u16, Value) {
        read(self.send(body).await).await
    }

    /// Fetches the model usage of the run.
    pub(crate) async fn usage(&self) -> Value {
        let url = format!("{}/rollway/v1/run/usage", self.url);
        let response = self.client.get(url).bearer_auth(&self.key).send().await.unwrap();
        let (status, usage) = read(response).await;
        assert_eq!(status, 200, "{usage}");
        usage
    }

    /// Sends a chat, and returns the body of the response.
    pub(crate) async fn text(&self, body: &Value) -> String {
        self.send(body).await.text().await.unwrap()
    }
}

pub(crate) fn says(text: &str) -> Value {
    json!({ "model": MODEL, "messages": [{ "role": "user", "content": text }] })
}

pub(crate) fn streams(text: &str) -> Value {
    let mut body = says(text);
    body["stream"] = json!(true);
    body
}

pub(crate) async fn read(response: reqwest::Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}")))
}

pub(crate) fn events(body: &str) -> Vec<String> {
    let events = body.split("\n\n").filter(|event| !event.is_empty());
    events.map(|event| event.strip_prefix("data: ").unwrap().to_owned()).collect()
}

pub(crate) fn text_of(events: &[String]) -> String {
    let mut text = String::new();
    for event in events.iter().filter(|event| *event != "[DONE]") {
        let event: Value = serde_json::from_str(event).unwrap();
        text.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
    }
    text
}
