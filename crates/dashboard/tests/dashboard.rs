//! The dashboard as programs see it: who is let in, what is sent, and what a job leaves behind.

#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test, and says where")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollway_base::Secret;
use rollway_config::Config;
use rollway_dashboard::{CARD, Dashboard, DashboardAddress, DashboardError, DashboardOptions};
use rollway_telemetry::DropCounters;
use rollway_telemetry::prometheus::PrometheusExporter;
use rollway_telemetry::view::{
    ActionResult, AlarmRow, BatchRow, BiasReport, JobInfo, JobState, JobView, Overview, RunDetail,
    RunKey, RunPage, RunQuery, RunnerRow, Timeline, ViewFuture,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

const TOKEN: &str = "token-of-a-test";

/// A job of which only its step changes, and that remembers what was asked of it.
#[derive(Debug, Default)]
struct Stage {
    step: Mutex<u64>,
    asked: Mutex<Vec<String>>,
}

impl JobView for Stage {
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
        Overview::default()
    }

    fn timeline(&self) -> Timeline {
        Timeline::default()
    }

    fn batches(&self) -> Vec<BatchRow> {
        Vec::new()
    }

    fn runners(&self) -> ViewFuture<'_, Vec<RunnerRow>> {
        Box::pin(async { vec![RunnerRow { stuck: true, ..RunnerRow::default() }] })
    }

    fn runs(&self, query: &RunQuery) -> RunPage {
        self.asked.lock().unwrap().push(format!("{query:?}"));
        RunPage::default()
    }

    fn run(&self, _: &RunKey) -> Option<RunDetail> {
        None
    }

    fn bias(&self) -> BiasReport {
        BiasReport::default()
    }

    fn alarms(&self) -> Vec<AlarmRow> {
        Vec::new()
    }

    fn cancel_run<'a>(&'a self, key: &'a RunKey) -> ViewFuture<'a, ActionResult> {
        self.asked.lock().unwrap().push(format!("cancel {}/{}/{}", key.batch, key.task, key.run));
        Box::pin(async { ActionResult { done: true, message: "done".into() } })
    }

    fn abort_batch<'a>(
        &'a self,
        batch: &'a str,
        keep_partial: bool,
    ) -> ViewFuture<'a, ActionResult> {
        self.asked.lock().unwrap().push(format!("abort {batch} {keep_partial}"));
        Box::pin(async { ActionResult { done: false, message: "it is over".into() } })
    }
}

struct World {
    dashboard: Dashboard,
    stage: Arc<Stage>,
    place: String,
}

async fn world() -> World {
    let stage = Arc::new(Stage::default());
    let options = DashboardOptions {
        listen: "127.0.0.1:0".into(),
        token: Some(Secret::new(TOKEN).unwrap()),
        scene: Arc::clone(&stage) as _,
        metrics: Some(PrometheusExporter::new(&Config::default(), DropCounters::default())),
    };
    let dashboard = Dashboard::open(options).await.unwrap();
    let place = dashboard.card().url.strip_prefix("http://").unwrap().to_owned();
    World { dashboard, stage, place }
}

impl World {
    /// Sends a request with these headers, and returns status, head and body.
    async fn ask(&self, line: &str, headers: &[&str], body: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.place).await.unwrap();
        let mut head = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|header| header.starts_with("Host:")) {
            head += &format!("Host: {}\r\n", self.place);
        }
        for header in headers {
            head += &format!("{header}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), head.to_lowercase(), body.to_owned())
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.stage.asked.lock().unwrap())
    }
}

const BEARER: &str = "Authorization: Bearer token-of-a-test";
const JSON: &str = "Content-Type: application/json";

#[tokio::test]
async fn nobody_gets_anything_without_the_token() {
    let world = world().await;
    for path in [
        "job",
        "overview",
        "timeline",
        "batches",
        "runners",
        "runs",
        "runs/1/2/3",
        "bias",
        "events",
    ] {
        let line = format!("GET /api/{path}");
        let (status, _, body) = world.ask(&line, &[], "").await;
        assert_eq!(status, 401, "{path}");
        assert!(body.contains("dashboard.json"), "{body}");
        let wrong = "Authorization: Bearer token-of-a-tesu";
        assert_eq!(world.ask(&line, &[wrong], "").await.0, 401, "{path}");
    }
    let (status, head, body) = world.ask("GET /runs", &[], "").await;
    assert_eq!(status, 401);
    assert!(body.contains("needs its token") && !head.contains("set-cookie"), "{head}");
    assert_eq!(world.ask("POST /api/runs/1/2/3/cancel", &["X-Rollway: 1"], "{}").await.0, 401);
    assert_eq!(world.requests(), [""; 0]);
}

#[tokio::test]
async fn the_token_in_the_address_becomes_a_cookie_that_opens_everything() {
    let world = world().await;
    let (status, head, _) = world.ask(&format!("GET /?token={TOKEN}"), &[], "").await;
    assert_eq!(status, 200);
    let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.contains("httponly") && cookie.contains("samesite=strict"), "{cookie}");
    assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self'"));
    let cookie = format!("Cookie: a=b; {}", cookie.split(';').next().unwrap());
    let (status, head, body) = world.ask("GET /api/job", &[&cookie], "").await;
    assert_eq!(status, 200, "{body}");
    let tag = head.lines().find(|line| line.starts_with("etag: ")).unwrap();
    let known = tag.replace("etag: ", "If-None-Match: ");
    assert_eq!(world.ask("GET /api/job", &[&cookie, &known], "").await.0, 304);
    *world.stage.step.lock().unwrap() += 1;
    assert_eq!(world.ask("GET /api/job", &[&cookie, &known], "").await.0, 200);
}

#[tokio::test]
async fn other_sites_and_other_names_of_this_machine_are_turned_away() {
    let world = world().await;
    // A foreign page whose name was made to point at this machine.
    for host in ["Host: evil.example", "Host: evil.example:80", "Host: 127.0.0.1.evil.example"] {
        assert_eq!(world.ask("GET /api/job", &[BEARER, host], "").await.0, 421, "{host}");
    }
    assert_eq!(world.ask("GET /api/job", &[BEARER, "Host: localhost:9"], "").await.0, 200);
    let act = "POST /api/runs/a%2Fb/2/3/cancel";
    let origin = format!("Origin: http://{}", world.place);
    for headers in [
        &[BEARER][..],
        &[BEARER, "X-Rollway: 1", "Origin: http://evil.example"],
        &[BEARER, "X-Rollway: 1", "Sec-Fetch-Site: cross-site"],
        &[BEARER, &origin],
    ] {
        assert_eq!(world.ask(act, headers, "{}").await.0, 403, "{headers:?}");
    }
    assert_eq!(world.requests(), [""; 0]);
    let own = [BEARER, JSON, "X-Rollway: 1", &origin, "Sec-Fetch-Site: same-origin"];
    assert_eq!(world.ask(act, &own, "{}").await.0, 200);
    assert_eq!(world.requests(), ["cancel a/b/2/3"]);
    let abort = "POST /api/batches/7/abort";
    let (status, _, body) = world.ask(abort, &own, r#"{"keep_partial": true}"#).await;
    assert_eq!((status, body.contains("it is over")), (409, true), "{body}");
    assert_eq!(world.requests(), ["abort 7 true"]);
}

#[tokio::test]
async fn questions_are_bounded_and_mistakes_are_said() {
    let world = world().await;
    let line = "GET /api/runs?state=running&text=a%20b&sort=reward&desc=true&limit=99999";
    assert_eq!(world.ask(line, &[BEARER], "").await.0, 200);
    let asked = world.requests().concat();
    assert!(asked.contains("limit: 500") && asked.contains("\"a b\""), "{asked}");
    let (status, _, body) = world.ask("GET /api/runs?task=seven", &[BEARER], "").await;
    assert!(status == 400 && body.contains("error"), "{status} {body}");
    assert_eq!(world.ask("GET /api/runs/1/2/3", &[BEARER], "").await.0, 404);
    assert_eq!(world.ask("GET /assets/nothing.js", &[], "").await.0, 404);
    let wants = "Accept: application/openmetrics-text; version=1.0.0";
    let (status, head, _) = world.ask("GET /metrics", &[wants], "").await;
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
async fn changes_are_told_once_and_only_they() {
    let world = world().await;
    let mut stream = TcpStream::connect(&world.place).await.unwrap();
    let place = &world.place;
    let request =
        format!("GET /api/events?watch=runners HTTP/1.1\r\nHost: {place}\r\n{BEARER}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(stream);
    let first = message(&mut lines).await;
    assert_eq!((&first["job"]["step"], &first["stuck"]), (&json!(0), &json!(1)));
    assert_eq!(first["changed"], json!(["runners"]));
    // However often it changes, it is told as it is in the end, and nothing else with it.
    (0..1000).for_each(|_| *world.stage.step.lock().unwrap() += 1);
    let mut step = json!(0);
    while step != json!(1000) {
        let next = message(&mut lines).await;
        assert_eq!(next.as_object().unwrap().len(), 1, "{next}");
        step = next["job"]["step"].clone();
    }
    drop(world.dashboard);
    let mut rest = Vec::new();
    lines.read_to_end(&mut rest).await.unwrap();
    assert!(!String::from_utf8_lossy(&rest).contains("data:"), "nothing was new");
}

#[tokio::test]
async fn so_many_may_follow_and_no_more() {
    let world = world().await;
    let mut followers = Vec::new();
    let place = &world.place;
    let request = format!("GET /api/events HTTP/1.1\r\nHost: {place}\r\n{BEARER}\r\n\r\n");
    for at in 0..33 {
        let mut stream = TcpStream::connect(place).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        let expected: &[u8] = if at < 32 { b"HTTP/1.1 200" } else { b"HTTP/1.1 503" };
        assert_eq!(status, expected, "follower {at}");
        followers.push(stream);
    }
}

#[tokio::test]
async fn a_busy_port_is_said_with_a_remedy() {
    let world = world().await;
    let options = DashboardOptions {
        listen: world.place.clone(),
        token: None,
        scene: Arc::new(Stage::default()),
        metrics: None,
    };
    let error = Dashboard::open(options).await.unwrap_err();
    assert!(matches!(&error, DashboardError::Listen { .. }));
    let words = error.to_string();
    assert!(words.contains(&world.place) && words.contains("another port"), "{words}");
}

#[tokio::test]
async fn a_card_is_believed_only_if_somebody_answers() {
    let world = world().await;
    let folder = tempfile::tempdir().unwrap();
    let card = world.dashboard.card().clone();
    assert_eq!(DashboardAddress::read(folder.path()).unwrap(), None);
    let text = serde_json::to_string(&card).unwrap();
    std::fs::write(folder.path().join(CARD), text).unwrap();
    let read = DashboardAddress::read(folder.path()).unwrap().unwrap();
    assert_eq!(read, card);
    assert!(read.is_served().await);
    assert!(!DashboardAddress { token: "another".into(), ..read.clone() }.is_served().await);
    assert!(!format!("{read:?}").contains(TOKEN));
    drop(world.dashboard);
    while TcpStream::connect(&world.place).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!read.is_served().await);
}
