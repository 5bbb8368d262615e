//! A server with scripted responses, which records its requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use rollway_base::ServerKind;
use rollway_gateway::models::{Models, RoutingOptions, ServerSpec};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Method, path with query, and body.
pub(crate) type ReceivedRequest = (String, String, Value);
type Respond = dyn Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync;

#[derive(Clone)]
struct StandInState {
    respond: Arc<Respond>,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

pub(crate) struct StandIn {
    pub(crate) address: SocketAddr,
    pub(crate) requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl StandIn {
    pub(crate) async fn start(
        respond: impl Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync + 'static,
    ) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), respond).await
    }

    /// Starts a server at an address, like a restarted one.
    pub(crate) async fn start_at(
        address: SocketAddr,
        respond: impl Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let state = StandInState { respond: Arc::new(respond), requests: Arc::clone(&requests) };
        let app = Router::new().fallback(handle).with_state(state);
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let task = tokio::spawn(async move {
            tokio::select! {
                result = async { axum::serve(listener, app).await } => result.unwrap(),
                () = stopped => {}
            }
        });
        Self { address, requests, stop, task }
    }

    pub(crate) async fn stop(self) -> SocketAddr {
        self.stop.cancel();
        self.task.await.unwrap();
        self.address
    }

    pub(crate) fn spec(&self, model: &str, engine: ServerKind) -> ServerSpec {
        spec(self.address, model, engine)
    }
}

async fn handle(State(state): State<StandInState>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let path = parts.uri.path_and_query().unwrap().to_string();
    let requests = (parts.method.to_string(), path, body);
    state.requests.lock().unwrap().push(requests.clone());
    let (status, body) = (state.respond)(&requests);
    Response::builder().status(status).body(Body::from(body.to_string())).unwrap()
}

/// A healthy server with a model `name`.
pub(crate) fn healthy(
    name: &'static str,
) -> impl Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync + 'static {
    move |(_, path, _)| match path.as_str() {
        "/health" => (200, Value::Null),
        "/v1/models" => (200, json!({ "data": [{ "id": name }] })),
        _ => (404, json!({ "error": "no such thing" })),
    }
}

/// The trained model if it is called `trained`.
pub(crate) fn spec(address: SocketAddr, model: &str, engine: ServerKind) -> ServerSpec {
    ServerSpec::new(model, model == "trained", engine, format!("http://{address}"))
}

pub(crate) fn models() -> Models {
    Models::new(options())
}

pub(crate) fn options() -> RoutingOptions {
    RoutingOptions {
        health_interval: Duration::from_millis(20),
        max_wait: Duration::from_secs(20),
        ..RoutingOptions::default()
    }
}
