//! Mock servers behind models, and streams through both.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::Response;
use rollway_base::ServerKind;
use rollway_core::sync::{TensorSpec, TransferGroup};
use rollway_gateway::models::{
    InFlightPolicy, Models, RouteNeeds, RoutingOptions, ServerPermit, ServerSpec, ServerState,
    ServerUpdateOutcome, ServerView, WeightSource, WeightUpdate, WeightUpdateReport,
};
use rollway_mock_server::{CompletionLengths, MockControl, MockServer, MockServerOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::stand_in::options;

/// Upper bound of waits that normally end at once.
const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Fleet {
    pub(crate) models: Models,
    pub(crate) servers: Vec<MockServer>,
    kind: ServerKind,
    weights: TempDir,
}

impl Fleet {
    pub(crate) async fn start(kind: ServerKind, servers: usize, options: RoutingOptions) -> Self {
        let mut fleet = Self {
            models: Models::new(options),
            servers: Vec::new(),
            kind,
            weights: TempDir::new().unwrap(),
        };
        for _ in 0..servers {
            fleet.add(fleet.mock()).await;
        }
        fleet
    }

    pub(crate) async fn single(kind: ServerKind) -> Self {
        Self::start(kind, 1, options()).await
    }

    pub(crate) fn mock(&self) -> MockServerOptions {
        let lengths = CompletionLengths::Uniform(16, 24);
        // Different seeds make different response ids.
        let seed = self.servers.len() as u64;
        let max_records = 256;
        MockServerOptions { lengths, seed, max_records, ..MockServerOptions::new(self.kind) }
    }

    pub(crate) async fn add(&mut self, options: MockServerOptions) {
        let server = MockServer::start(options).unwrap();
        self.models.add(spec(self.kind, server.url())).unwrap();
        self.servers.push(server);
        let many = self.servers.len();
        self.wait_for(|servers| {
            servers.len() == many && servers.iter().all(|it| it.state == ServerState::Running)
        })
        .await;
    }

    pub(crate) fn view(&self) -> Vec<ServerView> {
        self.models.view().into_iter().next().map(|model| model.servers).unwrap_or_default()
    }

    pub(crate) async fn wait_for(&self, wanted: impl Fn(&[ServerView]) -> bool) {
        let wait = async {
            while !wanted(&self.view()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(LONG, wait).await.is_err() {
            panic!("{:#?}", self.view());
        }
    }

    pub(crate) fn control(&self, server: usize) -> MockControl {
        self.servers[server].control()
    }

    pub(crate) fn path(&self, version: u64) -> PathBuf {
        let path = self.weights.path().join(format!("v{version}"));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    pub(crate) fn to(&self, version: u64, in_flight: InFlightPolicy) -> WeightUpdate {
        let weights = WeightSource::Path(self.path(version));
        WeightUpdate { version, weights, in_flight, timeout: LONG }
    }

    /// Returns an update whose weights are sent over a group.
    pub(crate) fn over_group(&self, version: u64) -> WeightUpdate {
        let tensor = |name: &str| TensorSpec {
            name: name.to_owned(),
            dtype: "bfloat16".to_owned(),
            shape: vec![2, 3],
        };
        let weights = WeightSource::Group(TransferGroup {
            master_address: "127.0.0.1".to_owned(),
            master_port: 1,
            world_size: 1 + u32::try_from(self.servers.len()).unwrap(),
            ranks_per_server: 1,
            name: "weights".to_owned(),
            backend: "nccl".to_owned(),
            join: true,
            tensors: vec![tensor("a"), tensor("b")],
        });
        WeightUpdate { version, weights, in_flight: InFlightPolicy::Keep, timeout: LONG }
    }

    /// Replaces a server by a new process at its address, after the gateway has lost it.
    pub(crate) async fn restart(&mut self, server: usize) {
        let stopped = self.servers.remove(server);
        let options = MockServerOptions { address: stopped.address(), ..self.mock() };
        stopped.stop().await;
        let is_lost = |state: &ServerState| matches!(state, ServerState::Unhealthy(_));
        self.wait_for(|servers| is_lost(&servers[server].state)).await;
        self.servers.insert(server, MockServer::start(options).unwrap());
    }

    pub(crate) async fn update(
        &self,
        version: u64,
        in_flight: InFlightPolicy,
    ) -> WeightUpdateReport {
        self.models.update(self.to(version, in_flight)).await
    }

    pub(crate) async fn pick_many(&self, many: usize) -> Vec<ServerPermit> {
        let mut permits = Vec::new();
        for _ in 0..many {
            permits.push(self.pick().await);
        }
        permits
    }

    pub(crate) async fn pick(&self) -> ServerPermit {
        self.models.pick(RouteNeeds::default()).await.unwrap()
    }
}

pub(crate) fn spec(engine: ServerKind, url: String) -> ServerSpec {
    ServerSpec::new("trained", true, engine, url)
}

pub(crate) const DRAIN: InFlightPolicy = InFlightPolicy::Drain { timeout: LONG, then_abort: false };

pub(crate) fn outcomes(report: &WeightUpdateReport) -> Vec<&ServerUpdateOutcome> {
    report.servers.iter().map(|server| &server.outcome).collect()
}

pub(crate) struct Stream {
    pub(crate) permit: Arc<ServerPermit>,
    response: Response,
    buffer: String,
    pub(crate) id: String,
    pub(crate) is_done: bool,
}

impl Stream {
    pub(crate) async fn open(permit: ServerPermit, text: &str) -> Self {
        let url = format!("{}/v1/chat/completions", permit.server().spec.url);
        let body = json!({
            "model": permit.server_model(),
            "messages": [{ "role": "user", "content": text }],
            "stream": true,
        });
        let request = permit.server().client.post(url).header("content-type", "application/json");
        let response = request.body(body.to_string()).send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        Self {
            permit: Arc::new(permit),
            response,
            buffer: String::new(),
            id: String::new(),
            is_done: false,
        }
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
                let event: Value = serde_json::from_str(&data).unwrap();
                self.id = event["id"].as_str().unwrap().to_owned();
                return Some(event);
            }
            let Ok(Some(bytes)) = self.response.chunk().await else { return None };
            self.buffer.push_str(str::from_utf8(&bytes).unwrap());
        }
    }

    /// Reads to the end. Returns the finish reason.
    pub(crate) async fn finish(&mut self) -> Option<String> {
        let mut reason = None;
        while let Some(event) = self.next().await {
            if let Some(ended) = event["choices"][0]["finish_reason"].as_str() {
                reason = Some(ended.to_owned());
            }
        }
        reason
    }
}

/// Returns the actual versions of the tokens of a response.
pub(crate) async fn versions(servers: &[MockServer], id: &str) -> Vec<u64> {
    loop {
        let record = servers.iter().find_map(|server| server.control().record(id)).unwrap();
        if record.end.is_some() {
            return record.choices[0].tokens.iter().map(|token| token.version).collect();
        }
        // The end is sent before it is recorded.
        tokio::task::yield_now().await;
    }
}

/// Opens streams that a hold stops.
pub(crate) async fn held_streams(fleet: &Fleet, many: usize) -> Vec<Stream> {
    let opened = (0..many).map(|number| async move {
        let mut stream = Stream::open(fleet.pick().await, &format!("hello {number}")).await;
        stream.next().await.unwrap();
        stream
    });
    futures_util::stream::iter(opened).buffer_unordered(many).collect().await
}
