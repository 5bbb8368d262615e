//! Slow and idle connections to every listener that speaks HTTP: they are closed and counted, and
//! an honest request is served meanwhile. Listeners for workers and readers have tests of their own
//! in `rollway-protocol`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::time::Duration;

use rollway::dashboard::{Dashboard, DashboardOptions};
use rollway::history::live_view;
use rollway::tiny::{TinyServer, TinyServerOptions};
use rollway_base::Secret;
use rollway_base::listener::{ListenerKind, ListenerLimits};
use rollway_base::tls::TlsOptions;
use rollway_config::Config;
use rollway_gateway::gateway::{Gateway, GatewayLimits, GatewayOptions};
use rollway_mock_server::{MockServer, MockServerOptions};
use rollway_net::{CounterRow, counter_rows};
use rollway_sync::{Synchronizer, SynchronizerOptions};
use rollway_telemetry::DropCounters;
use rollway_telemetry::history::{HistoryOptions, RunHistory};
use rollway_telemetry::prometheus::{MetricsServer, PrometheusExporter};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_millis(300);

/// Limits under which slow connections end soon.
fn limits(kind: ListenerKind) -> ListenerLimits {
    ListenerLimits { header_timeout: TIMEOUT, idle_timeout: TIMEOUT, ..ListenerLimits::of(kind) }
}

fn counters(kind: ListenerKind) -> CounterRow {
    let found = counter_rows().into_iter().find(|row| row.listener == kind.name());
    found.unwrap_or_else(|| panic!("no counters of {}", kind.name()))
}

fn closed(kind: ListenerKind, reason: &str) -> u64 {
    let row = counters(kind);
    row.closed.iter().find(|(name, _)| *name == reason).unwrap().1
}

async fn connect(address: &str) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

/// Waits until the other end closes.
async fn until_closed(mut stream: TcpStream) -> String {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    String::from_utf8_lossy(&rest).into_owned()
}

async fn status(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    String::from_utf8(status.to_vec()).unwrap()
}

/// Checks a listener at `HOST:PORT`, whose path responds with status 200 under this header.
async fn check(kind: ListenerKind, address: &str, path: &str, header: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{header}\r\n");
    let silent = connect(address).await;
    let mut slow = connect(address).await;
    slow.write_all(b"GET / HTTP/1.1\r\nHost").await.unwrap();
    let mut idle = connect(address).await;
    assert_eq!(status(&mut idle, &request).await, "HTTP/1.1 200");
    let mut honest = connect(address).await;
    assert_eq!(status(&mut honest, &request).await, "HTTP/1.1 200");
    assert_eq!(until_closed(silent).await, "");
    assert_eq!(until_closed(slow).await, "");
    until_closed(idle).await;
    until_closed(honest).await;
    assert_eq!(closed(kind, "header_timeout"), 2);
    assert_eq!(closed(kind, "idle_timeout"), 2);
    assert_eq!(counters(kind).accepted, 4);
    // An honest client is still served.
    let mut honest = connect(address).await;
    assert_eq!(status(&mut honest, &request).await, "HTTP/1.1 200");
}

fn host(url: &str) -> &str {
    url.strip_prefix("http://").unwrap()
}

#[tokio::test]
async fn slow_connections_to_the_gateway() {
    let kind = ListenerKind::Gateway;
    let mut options = GatewayOptions::new(Secret::random().unwrap());
    options.limits = GatewayLimits { listener: limits(kind), ..GatewayLimits::default() };
    let gateway = Gateway::start(options, Vec::new()).await.unwrap();
    check(kind, host(gateway.url()), "/health", "").await;
}

#[tokio::test]
async fn slow_connections_to_the_dashboard() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.checkpoint_root_dir = folder.path().display().to_string();
    let history = RunHistory::open(&HistoryOptions::of(&config).unwrap()).unwrap();
    let options = DashboardOptions {
        listen: "127.0.0.1:0".to_owned(),
        limits: limits(ListenerKind::Dashboard),
        tls: TlsOptions::off(),
        token: Some(Secret::new("token").unwrap()),
        view: live_view(history),
        metrics: None,
    };
    let dashboard = Dashboard::open(options).await.unwrap();
    let address = host(&dashboard.card().url).to_owned();
    let header = "Authorization: Bearer token\r\n";
    check(ListenerKind::Dashboard, &address, "/api/job", header).await;
}

#[tokio::test]
async fn slow_connections_to_the_metrics() {
    let kind = ListenerKind::Metrics;
    let exporter = PrometheusExporter::new(&Config::default(), DropCounters::default());
    let exporting = Arc::clone(&exporter);
    let server = MetricsServer::start("127.0.0.1:0", limits(kind), &TlsOptions::off(), exporting)
        .await
        .unwrap();
    let url = server.url();
    let address = host(&url).strip_suffix("/metrics").unwrap();
    check(kind, address, "/metrics", "").await;
    // The counters are metrics.
    let mut stream = connect(address).await;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let text = until_closed(stream).await;
    let line = "rollway_connections_closed_total{listener=\"metrics\",reason=\"header_timeout\"} 2";
    assert!(text.contains(line), "{text}");
    // A name of another site that points at this machine.
    let mut stream = connect(address).await;
    let request = "GET /metrics HTTP/1.1\r\nHost: rebound.example\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let text = until_closed(stream).await;
    assert!(text.starts_with("HTTP/1.1 403 "), "{text}");
    assert!(!text.contains("rollway_connections"), "{text}");
}

#[tokio::test]
async fn slow_connections_to_the_synchronizer() {
    let kind = ListenerKind::Synchronizer;
    let job = tempfile::tempdir().unwrap();
    let options =
        SynchronizerOptions { limits: limits(kind), ..SynchronizerOptions::new(job.path()) };
    let synchronizer = Synchronizer::open_with(options).await.unwrap();
    check(kind, host(&synchronizer.url()), "/health", "").await;
}

#[tokio::test]
async fn slow_connections_to_the_embedded_model() {
    let kind = ListenerKind::EmbeddedModel;
    let options = TinyServerOptions { listener: limits(kind), ..TinyServerOptions::default() };
    let server = TinyServer::start(options).unwrap();
    check(kind, host(&server.url()), "/health", "").await;
}

#[tokio::test]
async fn slow_connections_to_the_mock_server() {
    let kind = ListenerKind::MockServer;
    let options = MockServerOptions { listener: limits(kind), ..MockServerOptions::default() };
    let server = MockServer::start(options).unwrap();
    check(kind, host(&server.url()), "/health", "").await;
}
