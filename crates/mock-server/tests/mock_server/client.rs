//! HTTP client of a mock server.

use futures_util::StreamExt as _;
use reqwest::Response;
use rollway_mock_server::{MockServer, MockServerOptions};
use serde_json::{Value, json};

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) server: MockServer,
    http: reqwest::Client,
}

impl Client {
    pub(crate) fn start(options: MockServerOptions) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = MockServer::start(options).unwrap();
        Self { server, http: reqwest::Client::new() }
    }

    pub(crate) async fn send(&self, path: &str, body: &Value) -> reqwest::Result<Response> {
        let request = self.http.post(format!("{}{path}", self.server.url()));
        request.header("content-type", "application/json").body(body.to_string()).send().await
    }

    /// Posts, and returns status and JSON; null for a body without JSON.
    pub(crate) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        read(self.send(path, &body).await.unwrap()).await
    }

    /// Sends a request with any method; null: without a body.
    pub(crate) async fn request(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let url = format!("{}{path}", self.server.url());
        let mut request = self.http.request(method.parse().unwrap(), url);
        if !body.is_null() {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        read(request.send().await.unwrap()).await
    }

    /// Posts a request that must succeed.
    pub(crate) async fn good(&self, path: &str, body: Value) -> Value {
        let (status, body) = self.post(path, body).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        let url = format!("{}{path}", self.server.url());
        read(self.http.get(url).send().await.unwrap()).await
    }

    pub(crate) async fn get_with_key(&self, path: &str, key: &str) -> u16 {
        let url = format!("{}{path}", self.server.url());
        self.http.get(url).bearer_auth(key).send().await.unwrap().status().as_u16()
    }

    pub(crate) async fn stream(&self, path: &str, body: Value) -> Vec<Value> {
        let mut events = Events::open(self, path, body).await;
        let mut all = Vec::new();
        while let Some(event) = events.next().await {
            all.push(event);
        }
        assert!(events.is_done, "the stream did not end with [DONE]");
        all
    }
}

async fn read(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

pub(crate) struct Events {
    bytes:
        std::pin::Pin<Box<dyn futures_util::Stream<Item = reqwest::Result<bytes::Bytes>> + Send>>,
    buffer: String,
    pub(crate) is_done: bool,
    pub(crate) is_broken: bool,
}

impl Events {
    pub(crate) async fn open(client: &Client, path: &str, mut body: Value) -> Self {
        body["stream"] = true.into();
        let response = client.send(path, &body).await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        let kind = response.headers()["content-type"].to_str().unwrap();
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        let bytes = Box::pin(response.bytes_stream());
        Self { bytes, buffer: String::new(), is_done: false, is_broken: false }
    }

    /// Returns the next event. `None`: the stream ended or broke.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let data = event.strip_prefix("data: ").unwrap().to_owned();
                self.buffer = rest.to_owned();
                if data == "[DONE]" {
                    self.is_done = true;
                    return None;
                }
                return Some(serde_json::from_str(&data).unwrap());
            }
            match self.bytes.next().await {
                Some(Ok(bytes)) => self.buffer.push_str(str::from_utf8(&bytes).unwrap()),
                Some(Err(_)) => {
                    self.is_broken = true;
                    return None;
                }
                None => return None,
            }
        }
    }
}

pub(crate) fn chat(text: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": text }] })
}

/// Returns the body with more fields.
pub(crate) fn with(mut body: Value, fields: Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

pub(crate) fn ids(value: &Value) -> Vec<i32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| i32::try_from(id.as_i64().unwrap()).unwrap())
        .collect()
}

/// Returns the log-probabilities of a choice or chunk of a chat.
pub(crate) fn logprobs(choice: &Value) -> Vec<f32> {
    let content = choice["logprobs"]["content"].as_array().unwrap();
    content.iter().map(|entry| entry["logprob"].as_f64().unwrap() as f32).collect()
}
