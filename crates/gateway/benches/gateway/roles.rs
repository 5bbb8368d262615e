//! Roles of child processes: mock server, bare proxy, gateway.

use std::io::{BufRead as _, Write as _};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::serve::ListenerExt as _;
use rollway_base::listener::{ListenerKind, ListenerLimits};
use rollway_base::{Secret, ServerKind};
use rollway_experience::deserialize_many;
use rollway_gateway::gateway::{Gateway, GatewayHandle, GatewayOptions};
use rollway_gateway::keys::RunRef;
use rollway_gateway::models::ServerSpec;
use rollway_mock_server::{CompletionLengths, MockServer, MockServerOptions};
use serde_json::{Value, json};

pub(super) fn play(role: &str) {
    // Arguments of cargo are not for us.
    let words: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let _inside = runtime.enter();
    match role {
        "simulated" => {
            let server = MockServer::start(simulation(&words)).expect("a free port");
            print_line(&json!({ "url": server.url() }));
            answer_lines(|_| Value::Null);
        }
        "proxy" => {
            let url = runtime.block_on(proxy(words[0].clone()));
            print_line(&json!({ "url": url }));
            answer_lines(|_| Value::Null);
        }
        "gateway" => {
            let runs: u32 = words[1].parse().expect("a number of runs");
            let gateway = runtime.block_on(gateway(&words));
            let handle = gateway.handle();
            print_line(&json!({ "url": gateway.url(), "keys": handle.open(0, 0, runs) }));
            answer_lines(|_| recorded(&handle, runs));
            runtime.block_on(gateway.stop(Duration::from_secs(1)));
        }
        _ => panic!("unknown role: {role}"),
    }
}

fn print_line(value: &Value) {
    println!("{value}");
    std::io::stdout().flush().expect("an open standard output");
}

fn answer_lines(mut answer: impl FnMut(&str) -> Value) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        print_line(&answer(&line));
    }
}

fn simulation(words: &[String]) -> MockServerOptions {
    MockServerOptions {
        first_token: Duration::from_secs(words[0].parse().expect("seconds")),
        tokens_per_second: words[1].parse().expect("a rate"),
        // Longer than any request: `max_tokens` limits the completions.
        lengths: CompletionLengths::Fixed(1024),
        // Records are not needed.
        max_records: 0,
        listener: ListenerLimits { is_main: true, ..ListenerLimits::of(ListenerKind::MockServer) },
        ..MockServerOptions::default()
    }
}

async fn gateway(words: &[String]) -> Gateway {
    let spec = ServerSpec::new("policy", true, ServerKind::Vllm, words[0].clone());
    let mut options = GatewayOptions::new(Secret::random().expect("random bytes"));
    options.limits.listener.is_main = true;
    options.models.max_in_flight = words[2].parse().expect("a number of places");
    options.models.max_wait = Duration::from_secs(600);
    Gateway::start(options, vec![spec]).await.expect("a gateway")
}

/// Returns the recorded turns and tokens of all runs.
fn recorded(handle: &GatewayHandle, runs: u32) -> Value {
    let (mut turns, mut tokens) = (0, 0);
    for run in 0..runs {
        let told = handle.experiences(RunRef { attempt: 0, run }, 0);
        let (payload, count) = told.expect("a record");
        turns += count;
        let experiences = deserialize_many(payload.into()).expect("a payload");
        tokens += experiences.iter().map(|one| one.response_length()).sum::<usize>();
    }
    json!({ "turns": turns, "tokens": tokens })
}

/// A reverse proxy that parses nothing: the lower bound of any proxy.
async fn proxy(upstream: String) -> String {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let app = Router::new().fallback(pass).with_state((client, upstream));
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = socket.local_addr().expect("an address");
    // Sends events at once.
    let socket = socket.tap_io(|stream| stream.set_nodelay(true).expect("a socket"));
    tokio::spawn(async move { axum::serve(socket, app).await });
    format!("http://{address}")
}

async fn pass(
    State((client, upstream)): State<(reqwest::Client, String)>,
    request: Request,
) -> Response {
    let (head, body) = request.into_parts();
    let url = format!("{upstream}{}", head.uri.path());
    let body = reqwest::Body::wrap_stream(body.into_data_stream());
    let mut asked = client.request(head.method, url).body(body);
    for name in ["content-type", "content-length", "authorization"] {
        if let Some(value) = head.headers.get(name) {
            asked = asked.header(name, value);
        }
    }
    let answer = asked.send().await.expect("a server");
    let mut response = Response::builder().status(answer.status());
    for name in ["content-type", "content-length"] {
        if let Some(value) = answer.headers().get(name) {
            response = response.header(name, value);
        }
    }
    response.body(Body::from_stream(answer.bytes_stream())).expect("a response")
}
