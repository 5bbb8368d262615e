//! Serve mode over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use rollway_core::metrics::Metrics;
use rollway_gateway::gateway::GatewayOptions;
use rollway_gateway::http::{StoreFuture, TurnStore};
use rollway_gateway::serve::{self, CommitDelivery, CommitStep, Committer, ServeMode};
use rollway_mock_server::{CompletionLengths, MockServerOptions};
use rollway_recording::{RecordError, Turn};
use serde_json::json;
use tokio::sync::mpsc;

use super::help::{ADMIN, AGENT, Run, World, options, read, says, streams};

#[derive(Debug)]
struct Trainer;

impl Committer for Trainer {
    fn deliver(&self, step: CommitStep) -> CommitDelivery<'_> {
        let payloads = step.payloads.len() as f64;
        Box::pin(async move { Ok(Metrics::from_iter([("payloads".to_owned(), payloads)])) })
    }
}

/// Serve mode that reports stored turns, and can fail.
#[derive(Debug)]
struct ObservedStore {
    serve: ServeMode,
    kept: mpsc::UnboundedSender<Vec<Turn>>,
    fails: Arc<AtomicBool>,
}

impl TurnStore for ObservedStore {
    fn store_turns(&self, turns: Vec<Turn>) -> StoreFuture<'_> {
        Box::pin(async move {
            if self.fails.load(Ordering::Relaxed) {
                return Err(RecordError::Misread("the disk is full".to_owned()));
            }
            TurnStore::store_turns(&self.serve, turns.clone()).await?;
            let _ = self.kept.send(turns);
            Ok(())
        })
    }

    fn needs_key(&self) -> bool {
        self.serve.needs_key()
    }

    fn routes(&self) -> Router {
        self.serve.routes()
    }
}

struct Served {
    world: World,
    agent: Run,
    fails: Arc<AtomicBool>,
    kept: mpsc::UnboundedReceiver<Vec<Turn>>,
    _folder: tempfile::TempDir,
}

impl Served {
    async fn new(needs_key: bool, model: MockServerOptions) -> Self {
        Self::with(options(), needs_key, model).await
    }

    async fn with(options: GatewayOptions, needs_key: bool, model: MockServerOptions) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.db");
        let history = serve::ServeStoreOptions { needs_key, ..serve::ServeStoreOptions::new(path) };
        let serve = ServeMode::open(history, Arc::new(Trainer)).await.expect("a history");
        let (sender, kept) = mpsc::unbounded_channel();
        let fails: Arc<AtomicBool> = Arc::default();
        let store = ObservedStore { serve, kept: sender, fails: Arc::clone(&fails) };
        let world = World::with_store(options, vec![model], Some(Arc::new(store))).await;
        let agent = world.agent();
        Self { world, agent, fails, kept, _folder: folder }
    }
}

#[tokio::test]
async fn retries_are_deduplicated_per_session() {
    let mut served = Served::new(true, MockServerOptions::default()).await;
    let retry = |session: &'static str| {
        let request = served.agent.chat(&says("hello")).header("x-rollway-session", session);
        let request = request.header("x-stainless-retry-count", "1");
        async move { read(request.send().await.unwrap()).await.1["id"].clone() }
    };
    let (first, again, other) = (retry("a").await, retry("a").await, retry("b").await);
    assert_eq!(first, again);
    assert_ne!(first, other);
    for id in [&first, &other] {
        assert_eq!(json!(served.kept.recv().await.unwrap()[0].id), *id);
    }
    assert!(served.kept.try_recv().is_err(), "two answers, two samples");

    // Without the retry header the same call is another sample.
    for _ in 0..2 {
        served.agent.call(&says("hello")).await;
        served.kept.recv().await.unwrap();
    }
    let body = json!({ "reward": 1, "msg_ids": [first, other], "task_id": 1 });
    let (status, reply) = read(served.agent.post("/feedback", &body).send().await.unwrap()).await;
    assert_eq!((status, &reply["accepted"]), (200, &json!(2)), "{reply}");
    let (status, reply) =
        read(served.agent.post("/commit", &json!(null)).send().await.unwrap()).await;
    assert_eq!((status, &reply["experiences"]), (200, &json!(2)), "{reply}");
}

#[tokio::test]
async fn turns_are_stored_before_the_end_of_the_response() {
    let mut served = Served::new(true, MockServerOptions::default()).await;
    let agent = served.agent.clone();
    let mut body = says("two");
    body["n"] = json!(2);
    let (status, response) = agent.call(&body).await;
    assert_eq!(status, 200, "{response}");
    let id = response["id"].as_str().unwrap();
    let ids: Vec<_> = served.kept.try_recv().unwrap().into_iter().map(|turn| turn.id).collect();
    assert_eq!(ids, [id.to_owned(), format!("{id}/1")]);
    assert!(agent.text(&streams("more")).await.ends_with(
        "[DONE]

"
    ));
    assert_eq!(served.kept.try_recv().unwrap().len(), 1);

    served.fails.store(true, Ordering::Relaxed);
    let (status, error) = agent.call(&says("x")).await;
    assert_eq!(status, 502, "{error}");
    assert!(error["error"]["message"].as_str().unwrap().contains("the disk is full"), "{error}");
    let text = agent.text(&streams("x")).await;
    assert!(text.contains("the disk is full") && !text.contains("[DONE]"), "{text}");
    assert_eq!(served.world.metric("recording_failures_total").await, 2.0);

    // Runs have recordings of their own.
    let run = served.world.open(2);
    assert_eq!(run.send(&says("x")).await.status(), 200);
    assert_eq!(served.world.experiences(&run).len(), 1);
    assert!(served.kept.try_recv().is_err());
}

#[tokio::test]
async fn a_response_whose_client_disconnected_is_marked_as_aborted() {
    let model = MockServerOptions {
        lengths: CompletionLengths::Fixed(10_000),
        tokens_per_second: 200.0,
        ..MockServerOptions::default()
    };
    let mut served = Served::new(true, model).await;
    let mut response = served.agent.send(&streams("hello")).await;
    while let Some(chunk) = response.chunk().await.unwrap() {
        if chunk.windows(9).any(|window| window == b"\"content\"") {
            break;
        }
    }
    drop(response);
    let turns = served.kept.recv().await.unwrap();
    assert!(turns[0].aborted && turns[0].tokens.len() < 10_000, "{}", turns[0].tokens.len());
}

#[tokio::test]
async fn requests_without_a_key_are_refused_unless_the_gateway_is_open() {
    for (needs_key, expected) in [(true, 401), (false, 200)] {
        let served = Served::new(needs_key, MockServerOptions::default()).await;
        let url = |path: &str| served.world.url(path);
        let client = &served.world.client;
        let chat = client.post(url("/v1/chat/completions")).body(says("hello").to_string());
        let chat = chat.header("content-type", "application/json");
        for request in [chat, client.post(url("/commit")), client.get(url("/v1/models"))] {
            assert_eq!(request.send().await.unwrap().status(), expected);
        }
        let run = served.world.open(2);
        assert_eq!(run.post("/commit", &json!({})).send().await.unwrap().status(), 403);
    }
}

#[tokio::test]
async fn agents_do_not_administer_the_gateway() {
    let server =
        json!({ "model": "x", "engine": "vllm", "trained": true, "url": "http://127.0.0.1:9" });
    for needs_key in [true, false] {
        let served = Served::new(needs_key, MockServerOptions::default()).await;
        let mut agent = served.agent.clone();
        let keys: &[&str] = if needs_key { &[AGENT] } else { &[AGENT, ""] };
        for key in keys {
            agent.key = (*key).to_owned();
            let weights = json!({ "version": 7, "path": "/elsewhere" });
            for (path, body) in
                [("/rollway/v1/models", &server), ("/rollway/v1/models/update", &weights)]
            {
                assert_eq!(agent.post(path, body).send().await.unwrap().status(), 403, "{path}");
            }
            for path in ["/metrics", "/rollway/v1/models"] {
                let request = agent.client.get(served.world.url(path)).bearer_auth(key);
                assert_eq!(request.send().await.unwrap().status(), 403, "{path}");
            }
            assert_eq!(agent.send(&says("hello")).await.status(), 200);
        }
        let admin = Run { key: ADMIN.to_owned(), ..agent };
        let added = admin.post("/rollway/v1/models", &json!({ "engine": "vllm" })).send().await;
        assert_eq!(added.unwrap().status(), 400, "admitted, and the body is incomplete");
    }
}

#[tokio::test]
async fn without_authentication_web_pages_of_other_sites_are_refused() {
    let served = Served::new(false, MockServerOptions::default()).await;
    let own = served.world.gateway.url().to_owned();
    let port = own.rsplit_once(':').unwrap().1;
    let local = format!("localhost:{port}");
    for (name, value, expected) in [
        ("host", "evil.example", 403),
        ("host", "127.0.0.1.evil.example", 403),
        ("host", local.as_str(), 200),
        ("origin", "https://evil.example", 403),
        ("origin", "null", 403),
        ("origin", own.as_str(), 200),
    ] {
        let commit = served.world.client.post(served.world.url("/commit")).header(name, value);
        let status = commit.send().await.unwrap().status();
        assert_eq!(status, expected, "{name}: {value}");
        // A key is proof enough: no page of another site has it.
        let keyed = served.world.client.post(served.world.url("/commit")).header(name, value);
        assert_eq!(keyed.bearer_auth(AGENT).send().await.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn feedback_has_the_limits_of_requests() {
    let mut limited = options();
    limited.limits.json_nodes = 1000;
    let served = Served::with(limited, true, MockServerOptions::default()).await;
    let feedback = async |ids: Vec<String>| {
        let body = json!({ "reward": 1, "msg_ids": ids, "task_id": 1 });
        read(served.agent.post("/feedback", &body).send().await.unwrap()).await
    };
    assert_eq!(feedback(vec!["unknown".to_owned()]).await.0, 404);
    let (status, body) = feedback((0..2000).map(|id| format!("{id}")).collect()).await;
    assert_eq!(status, 413, "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("json_nodes"), "{body}");
    let (status, body) = feedback(vec!["x".repeat(5 << 20)]).await;
    assert_eq!(status, 413, "{body}");

    let mut limited = options();
    limited.limits.calls = 0;
    let served = Served::with(limited, true, MockServerOptions::default()).await;
    let body = json!({ "reward": 1, "msg_ids": ["a"], "task_id": 1 });
    let response = served.agent.post("/feedback", &body).send().await.unwrap();
    assert_eq!(response.status(), 429);
}
