//! HTTP interface of the dashboard: authentication, responses, events and address file.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollway_base::Secret;
use rollway_base::tls::{TlsMode, TlsOptions};
use rollway_config::Config;
use rollway_dashboard::{CARD, Dashboard, DashboardAddress, DashboardError, DashboardOptions};
use rollway_net::{ListenerKind, ListenerLimits};
use rollway_telemetry::DropCounters;
use rollway_telemetry::prometheus::PrometheusExporter;
use rollway_telemetry::view::{
    ActionResult, FailureRow, JobInfo, JobState, JobView, MetricSeries, Overview, RunKey, RunPage,
    RunQuery, RunnerRow, ServerSummary, TaskPage, TaskQuery, ViewFuture, WaitRow,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

const TOKEN: &str = "token-of-a-test";

/// A job whose step changes, with the requests that it received.
#[derive(Debug, Default)]
struct TestJob {
    step: Mutex<u64>,
    requests: Mutex<Vec<String>>,
}

impl JobView for TestJob {
    fn job(&self) -> JobInfo {
        let step = *self.step.lock().unwrap();
        JobInfo {
            name: "test".into(),
            state: JobState::Running,
            live: true,
            step,
            ..JobInfo::default()
        }
    }

    fn overview(&self) -> Overview {
        let wait = WaitRow { message: "a sentence".to_owned(), ..WaitRow::default() };
        let servers = ServerSummary { total: 2, usable: 1, ..ServerSummary::default() };
        let failures = vec![FailureRow { count: 3, ..FailureRow::default() }];
        Overview { wait: Some(wait), servers, failures, ..Overview::default() }
    }

    fn tasks(&self, query: &TaskQuery) -> Option<TaskPage> {
        self.requests.lock().unwrap().push(format!("{query:?}"));
        (query.batch == "3/quiz").then(TaskPage::default)
    }

    fn series(&self, names: &[String]) -> Vec<MetricSeries> {
        names.iter().map(|name| MetricSeries { name: name.clone(), points: Vec::new() }).collect()
    }

    fn runners(&self) -> ViewFuture<'_, Vec<RunnerRow>> {
        Box::pin(async { vec![RunnerRow { stuck: true, ..RunnerRow::default() }] })
    }

    fn runs(&self, query: &RunQuery) -> RunPage {
        self.requests.lock().unwrap().push(format!("{query:?}"));
        RunPage::default()
    }

    fn cancel_run<'a>(&'a self, key: &'a RunKey) -> ViewFuture<'a, ActionResult> {
        self.requests
            .lock()
            .unwrap()
            .push(format!("cancel {}/{}/{}", key.batch, key.task, key.run));
        Box::pin(async { ActionResult { done: true, message: "done".into() } })
    }

    fn abort_batch<'a>(
        &'a self,
        batch: &'a str,
        keep_partial: bool,
    ) -> ViewFuture<'a, ActionResult> {
        self.requests.lock().unwrap().push(format!("abort {batch} {keep_partial}"));
        Box::pin(async { ActionResult { done: false, message: "it is over".into() } })
    }
}

struct TestDashboard {
    dashboard: Dashboard,
    job: Arc<TestJob>,
    host: String,
}

async fn serve() -> TestDashboard {
    serve_with(TlsOptions::off()).await
}

async fn serve_with(tls: TlsOptions) -> TestDashboard {
    let job = Arc::new(TestJob::default());
    let options = DashboardOptions {
        listen: "127.0.0.1:0".into(),
        limits: ListenerLimits::of(ListenerKind::Dashboard),
        tls,
        token: Some(Secret::new(TOKEN).unwrap()),
        view: Arc::clone(&job) as _,
        metrics: Some(PrometheusExporter::new(&Config::default(), DropCounters::default())),
    };
    let dashboard = Dashboard::open(options).await.unwrap();
    let host = dashboard.card().url.split_once("://").unwrap().1.to_owned();
    TestDashboard { dashboard, job, host }
}

impl TestDashboard {
    /// Sends a request with these headers, and returns status, head and body.
    async fn request(&self, line: &str, headers: &[&str], body: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.host).await.unwrap();
        let mut head = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|header| header.starts_with("Host:")) {
            head += &format!("Host: {}\r\n", self.host);
        }
        for header in headers {
            head += &format!("{header}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), head.to_lowercase(), body.to_owned())
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.job.requests.lock().unwrap())
    }
}

const BEARER: &str = "Authorization: Bearer token-of-a-test";
const JSON: &str = "Content-Type: application/json";

#[tokio::test]
async fn all_queries_need_the_token() {
    let served = serve().await;
    for path in [
        "job",
        "overview",
        "timeline",
        "batches",
        "runners",
        "runs",
        "runs/1/2/3",
        "bias",
        "servers",
        "failures",
        "metrics",
        "series?names=a",
        "config",
        "tasks/1",
        "tasks/1/2",
        "events",
    ] {
        let line = format!("GET /api/{path}");
        let (status, _, body) = served.request(&line, &[], "").await;
        assert_eq!(status, 401, "{path}");
        assert!(body.contains("dashboard.json"), "{body}");
        let wrong = "Authorization: Bearer token-of-a-tesu";
        assert_eq!(served.request(&line, &[wrong], "").await.0, 401, "{path}");
    }
    let (status, head, body) = served.request("GET /runs", &[], "").await;
    assert_eq!(status, 401);
    assert!(body.contains("needs its token") && !head.contains("set-cookie"), "{head}");
    assert_eq!(served.request("POST /api/runs/1/2/3/cancel", &["X-Rollway: 1"], "{}").await.0, 401);
    assert_eq!(served.requests(), [""; 0]);
}

#[tokio::test]
async fn a_token_in_the_address_becomes_a_cookie() {
    let served = serve().await;
    let (status, head, _) = served.request(&format!("GET /?token={TOKEN}"), &[], "").await;
    assert_eq!(status, 200);
    let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.contains("httponly") && cookie.contains("samesite=strict"), "{cookie}");
    assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self'"));
    let cookie = format!("Cookie: a=b; {}", cookie.split(';').next().unwrap());
    let (status, head, body) = served.request("GET /api/job", &[&cookie], "").await;
    assert_eq!(status, 200, "{body}");
    let tag = head.lines().find(|line| line.starts_with("etag: ")).unwrap();
    let known = tag.replace("etag: ", "If-None-Match: ");
    assert_eq!(served.request("GET /api/job", &[&cookie, &known], "").await.0, 304);
    *served.job.step.lock().unwrap() += 1;
    assert_eq!(served.request("GET /api/job", &[&cookie, &known], "").await.0, 200);
}

#[tokio::test]
async fn foreign_origins_and_host_names_are_rejected() {
    let served = serve().await;
    // DNS rebinding.
    for host in ["Host: evil.example", "Host: evil.example:80", "Host: 127.0.0.1.evil.example"] {
        assert_eq!(served.request("GET /api/job", &[BEARER, host], "").await.0, 421, "{host}");
    }
    assert_eq!(served.request("GET /api/job", &[BEARER, "Host: localhost:9"], "").await.0, 200);
    let act = "POST /api/runs/a%2Fb/2/3/cancel";
    let origin = format!("Origin: http://{}", served.host);
    for headers in [
        &[BEARER][..],
        &[BEARER, "X-Rollway: 1", "Origin: http://evil.example"],
        &[BEARER, "X-Rollway: 1", "Sec-Fetch-Site: cross-site"],
        &[BEARER, &origin],
    ] {
        assert_eq!(served.request(act, headers, "{}").await.0, 403, "{headers:?}");
    }
    assert_eq!(served.requests(), [""; 0]);
    let own = [BEARER, JSON, "X-Rollway: 1", &origin, "Sec-Fetch-Site: same-origin"];
    assert_eq!(served.request(act, &own, "{}").await.0, 200);
    assert_eq!(served.requests(), ["cancel a/b/2/3"]);
    let abort = "POST /api/batches/7/abort";
    let (status, _, body) = served.request(abort, &own, r#"{"keep_partial": true}"#).await;
    assert_eq!((status, body.contains("it is over")), (409, true), "{body}");
    assert_eq!(served.requests(), ["abort 7 true"]);
}

#[tokio::test]
async fn queries_are_limited_and_invalid_ones_are_errors() {
    let served = serve().await;
    let line = "GET /api/runs?state=running&text=a%20b&sort=reward&desc=true&limit=99999";
    assert_eq!(served.request(line, &[BEARER], "").await.0, 200);
    let requests = served.requests().concat();
    assert!(requests.contains("limit: 500") && requests.contains("\"a b\""), "{requests}");
    let (status, _, body) = served.request("GET /api/runs?task=seven", &[BEARER], "").await;
    assert!(status == 400 && body.contains("error"), "{status} {body}");
    let line = "GET /api/tasks/3%2Fquiz?sort=spread&desc=true&offset=7";
    assert_eq!(served.request(line, &[BEARER], "").await.0, 200);
    let requests = served.requests().concat();
    assert!(requests.contains("sort: Spread") && requests.contains("offset: 7"), "{requests}");
    assert_eq!(served.request("GET /api/tasks/4", &[BEARER], "").await.0, 404);
    assert_eq!(served.request("GET /api/tasks/4/1", &[BEARER], "").await.0, 404);
    let (_, _, body) = served.request("GET /api/series?names=a%2Fb%0Ac", &[BEARER], "").await;
    assert!(body.contains("\"a/b\"") && body.contains("\"c\""), "{body}");
    let many = "x%0A".repeat(150);
    let (_, _, body) =
        served.request(&format!("GET /api/series?names={many}"), &[BEARER], "").await;
    assert_eq!(body.matches("\"x\"").count(), 100);
    assert_eq!(served.request("GET /api/runs/1/2/3", &[BEARER], "").await.0, 404);
    assert_eq!(served.request("GET /assets/nothing.js", &[], "").await.0, 404);
    let wants = "Accept: application/openmetrics-text; version=1.0.0";
    let (status, _, _) = served.request("GET /metrics", &[wants], "").await;
    assert_eq!(status, 401, "the metrics name servers and weights");
    let (status, head, _) = served.request("GET /metrics", &[wants, BEARER], "").await;
    assert!(status == 200 && head.contains("openmetrics"), "{head}");
}

/// Reads the next message of a stream.
async fn message(lines: &mut BufReader<TcpStream>) -> Value {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(lines.read_line(&mut line).await.unwrap() > 0, "the stream ended");
        if let Some(text) = line.strip_prefix("data: ") {
            return serde_json::from_str(text).unwrap();
        }
    }
}

#[tokio::test]
async fn only_changes_are_sent_and_each_once() {
    let served = serve().await;
    let mut stream = TcpStream::connect(&served.host).await.unwrap();
    let host = &served.host;
    let request =
        format!("GET /api/events?watch=runners HTTP/1.1\r\nHost: {host}\r\n{BEARER}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(stream);
    let first = message(&mut lines).await;
    assert_eq!((&first["job"]["step"], &first["stuck"]), (&json!(0), &json!(1)));
    assert_eq!(first["changed"], json!(["runners"]));
    let overview = &first["overview"];
    assert_eq!(overview["wait"]["message"], json!("a sentence"));
    assert_eq!(overview["servers"]["usable"], json!(1));
    assert_eq!(overview["failures"][0]["count"], json!(3));
    // Many changes are one message without other parts.
    (0..1000).for_each(|_| *served.job.step.lock().unwrap() += 1);
    let mut step = json!(0);
    while step != json!(1000) {
        let next = message(&mut lines).await;
        assert_eq!(next.as_object().unwrap().len(), 1, "{next}");
        step = next["job"]["step"].clone();
    }
    drop(served.dashboard);
    let mut rest = Vec::new();
    lines.read_to_end(&mut rest).await.unwrap();
    assert!(!String::from_utf8_lossy(&rest).contains("data:"), "nothing was new");
}

#[tokio::test]
async fn the_number_of_subscribers_is_limited() {
    let served = serve().await;
    let mut subscribers = Vec::new();
    let host = &served.host;
    let request = format!("GET /api/events HTTP/1.1\r\nHost: {host}\r\n{BEARER}\r\n\r\n");
    for at in 0..33 {
        let mut stream = TcpStream::connect(host).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        let expected: &[u8] = if at < 32 { b"HTTP/1.1 200" } else { b"HTTP/1.1 503" };
        assert_eq!(status, expected, "subscriber {at}");
        subscribers.push(stream);
    }
}

#[tokio::test]
async fn a_busy_port_is_an_error_with_remedy() {
    let served = serve().await;
    let options = DashboardOptions {
        listen: served.host.clone(),
        limits: ListenerLimits::of(ListenerKind::Dashboard),
        tls: TlsOptions::off(),
        token: None,
        view: Arc::new(TestJob::default()),
        metrics: None,
    };
    let error = Dashboard::open(options).await.unwrap_err();
    assert!(matches!(&error, DashboardError::Listen { .. }));
    let message = error.to_string();
    assert!(message.contains(&served.host) && message.contains("another port"), "{message}");
}

#[tokio::test]
async fn an_address_file_is_valid_only_while_the_dashboard_responds() {
    let served = serve().await;
    let folder = tempfile::tempdir().unwrap();
    let card = served.dashboard.card().clone();
    assert_eq!(DashboardAddress::read(folder.path()).unwrap(), None);
    let text = serde_json::to_string(&card).unwrap();
    std::fs::write(folder.path().join(CARD), text).unwrap();
    let read = DashboardAddress::read(folder.path()).unwrap().unwrap();
    assert_eq!(read, card);
    assert!(read.is_served().await);
    assert!(!DashboardAddress { token: "another".into(), ..read.clone() }.is_served().await);
    assert!(!format!("{read:?}").contains(TOKEN));
    drop(served.dashboard);
    while TcpStream::connect(&served.host).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!read.is_served().await);
}

#[tokio::test]
async fn a_dashboard_with_tls_is_recognized_by_its_certificate() {
    let served = serve_with(TlsOptions { mode: TlsMode::Required, ..TlsOptions::off() }).await;
    let address = served.dashboard.card().clone();
    assert!(address.url.starts_with("https://"), "{address:?}");
    assert!(address.is_served().await);
    let other = Some("0a".repeat(32));
    assert!(!DashboardAddress { fingerprint: other, ..address.clone() }.is_served().await);
    // A client in clear text gets a reason.
    let (status, _, body) = served.request("GET /api/job", &[BEARER], "").await;
    assert!(status == 400 && body.contains("speaks TLS"), "{status}: {body}");
}
