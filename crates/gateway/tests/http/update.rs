//! Weight updates under load: no call is lost, and every token has the version that its server
//! generated it with.

use std::time::Duration;

use futures_util::future::join_all;
use rollway_base::ServerKind;
use rollway_gateway::models::ServerState;
use rollway_mock_server::{CompletionLengths, MockServer, MockServerOptions, RecordedRequest};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::help::{ADMIN, Run, World, options, read, streams};

const STREAMS: u64 = 256;

/// Tokens of every response before the update.
const HELD: u32 = 4;

/// Longer than the hold, so that the weights change within every response.
const LENGTHS: CompletionLengths = CompletionLengths::Uniform(8, 24);

async fn world(kind: ServerKind) -> World {
    let server = MockServerOptions {
        lengths: LENGTHS,
        max_records: 2048,
        version_spans: true,
        version_name: Some("0".to_owned()),
        ..MockServerOptions::new(kind)
    };
    let mut options = options();
    options.limits.calls_per_run = 1;
    let servers = vec![server.clone(), MockServerOptions { seed: 1, ..server }];
    let world = World::with(options, servers).await;
    wait_for(&world, |states| states.iter().all(|state| *state == ServerState::Running)).await;
    world
}

async fn wait_for(world: &World, wanted: impl Fn(&[ServerState]) -> bool) {
    let states = || {
        let servers = world.handle.models().view().remove(0).servers;
        servers.into_iter().map(|server| server.state).collect::<Vec<_>>()
    };
    while !wanted(&states()) {
        tokio::task::yield_now().await;
    }
}

async fn send_stream(kind: ServerKind, run: Run, number: u64) -> String {
    let text = format!("say {number}");
    let request = match kind {
        // SGLang reports versions in full chats only; the gateway synthesizes the stream.
        ServerKind::Sglang => run.chat(&streams(&text)),
        _ => run.post("/v1/completions", &json!({ "prompt": text, "stream": true })),
    };
    let response = request.send().await.unwrap();
    let (status, text) = (response.status(), response.text().await.unwrap());
    assert_eq!(status, 200, "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    text
}

fn records(world: &World) -> Vec<RecordedRequest> {
    world.servers.iter().flat_map(|server| server.control().records()).collect()
}

/// Returns the recorded and the actual version of every token of a run.
fn labels(world: &World, records: &[RecordedRequest], run: &Run) -> Vec<(Option<u64>, u64)> {
    let experiences = world.experiences(run);
    assert_eq!(experiences.len(), 1);
    let experience = &experiences[0];
    let tokens: Vec<i32> = experience.tokens.iter().collect();
    let (prompt, completion) = tokens.split_at(experience.prompt_length);
    let record = records.iter().find(|record| {
        record.prompts[0] == prompt
            && record.choices[0].tokens.iter().map(|token| token.id).eq(completion.iter().copied())
    });
    let record = record.expect("what was recorded is what a server made");
    let made = record.choices[0].tokens.iter().map(|token| token.version);
    let labels: Vec<_> = experience.model_versions.as_ref().unwrap().iter().collect();
    assert_eq!(labels.len(), completion.len());
    labels.into_iter().zip(made).collect()
}

/// Checks all labels; returns the number of tokens of each version.
fn check(world: &World, runs: &[Run]) -> [usize; 2] {
    let records = records(world);
    let mut counts = [0; 2];
    for (label, made) in runs.iter().flat_map(|run| labels(world, &records, run)) {
        assert_eq!(label, Some(made));
        counts[usize::try_from(made).unwrap()] += 1;
    }
    counts
}

async fn update(world: &World, weights: &TempDir, in_flight: &str) -> Value {
    let path = weights.path().join("v1");
    std::fs::create_dir_all(&path).unwrap();
    let body = json!({ "version": 1, "path": path, "in_flight": in_flight }).to_string();
    let request = world.client.post(world.url("/rollway/v1/models/update")).bearer_auth(ADMIN);
    let request = request.header("content-type", "application/json");
    let (status, report) = read(request.body(body).send().await.unwrap()).await;
    assert_eq!(status, 200, "{report}");
    report
}

fn open(world: &World, first: u64, count: u64) -> Vec<Run> {
    (first..first + count).map(|attempt| world.open(attempt)).collect()
}

fn start(kind: ServerKind, runs: &[Run]) -> Vec<tokio::task::JoinHandle<String>> {
    runs.iter()
        .zip(0..)
        .map(|(run, number)| tokio::spawn(send_stream(kind, run.clone(), number)))
        .collect()
}

async fn wait_until_frozen(world: &World, count: u64) {
    let [one, other] = [0, 1].map(|server| world.servers[server].control());
    loop {
        let frozen = one.counts().frozen + other.counts().frozen;
        if frozen == count {
            return;
        }
        // Woken by either.
        let (before, between) = (one.counts(), other.counts());
        tokio::select! {
            _ = one.wait_for(|counts| *counts != before) => {}
            _ = other.wait_for(|counts| *counts != between) => {}
        }
    }
}

async fn keep(world: &World, kind: ServerKind) -> Vec<Run> {
    let weights = TempDir::new().unwrap();
    for server in &world.servers {
        server.control().hold(HELD);
    }
    let runs = open(world, 1, STREAMS);
    let in_flight = start(kind, &runs);
    wait_until_frozen(world, STREAMS).await;
    let report = update(world, &weights, "keep").await;
    assert_eq!(report["complete"], true, "{report}");
    for server in &world.servers {
        server.control().release();
    }
    for answer in join_all(in_flight).await {
        answer.unwrap();
    }
    assert_eq!(world.metric("upstream_aborted_total").await, 0.0);
    runs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_requests_continue_with_the_new_weights() {
    let world = world(ServerKind::Sglang).await;
    let runs = keep(&world, ServerKind::Sglang).await;
    let [old, new] = check(&world, &runs);
    assert_eq!(old, (u64::from(HELD) * STREAMS) as usize);
    assert!(new > old);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_are_unknown_if_the_server_does_not_report_them() {
    let world = world(ServerKind::Vllm).await;
    let runs = keep(&world, ServerKind::Vllm).await;
    let records = records(&world);
    let mut known = 0;
    for run in &runs {
        for (label, made) in labels(&world, &records, run) {
            // Tokens received before the update have the old version; the others are unknown.
            assert!(label.is_none() || (label, made) == (Some(0), 0), "{label:?} {made}");
            known += u64::from(label.is_some());
        }
    }
    assert!(known > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drained_requests_end_with_the_old_weights() {
    for kind in [ServerKind::Vllm, ServerKind::Sglang] {
        let (world, weights) = (world(kind).await, TempDir::new().unwrap());
        for server in &world.servers {
            server.control().hold(HELD);
        }
        let runs = open(&world, 1, STREAMS);
        let in_flight = start(kind, &runs);
        wait_until_frozen(&world, STREAMS).await;
        let updated = update(&world, &weights, "drain");
        let meanwhile = async {
            wait_for(&world, |states| states.contains(&ServerState::Draining)).await;
            // New calls go to the other server, or wait.
            let later = open(&world, 1000, 32);
            let answers = start(kind, &later);
            for server in &world.servers {
                server.control().release();
            }
            (later, join_all(answers).await)
        };
        let (report, (later, answers)) = tokio::join!(updated, meanwhile);
        assert_eq!(report["complete"], true, "{report}");
        for answer in join_all(in_flight).await.into_iter().chain(answers) {
            answer.unwrap();
        }
        let [_, new] = check(&world, &runs);
        assert_eq!(new, 0, "nothing under way saw the new weights");
        check(&world, &later);
        let last = open(&world, 2000, 8);
        for answer in join_all(start(kind, &last)).await {
            answer.unwrap();
        }
        assert_eq!(check(&world, &last)[0], 0);
        assert_eq!(world.metric("upstream_aborted_total").await, 0.0);
        assert_eq!(world.metric("server_updates_total").await, 2.0);
    }
}

#[tokio::test]
async fn servers_are_added_and_removed_during_calls() {
    let world = World::new().await;
    let extra = MockServer::start(MockServerOptions::default()).unwrap();
    let post = |path: &str, body: Value| {
        let request = world.client.post(world.url(path)).bearer_auth(ADMIN);
        let request = request.header("content-type", "application/json");
        request.body(body.to_string()).send()
    };
    let judge = json!({ "model": "judge", "engine": "openai", "url": extra.url() });
    let (status, added) = read(post("/rollway/v1/models", judge).await.unwrap()).await;
    assert_eq!(status, 201, "{added}");
    let run = world.open(1);
    let body = json!({ "model": "judge", "messages": [{ "role": "user", "content": "x" }] });
    let (status, answer) = run.call(&body).await;
    assert_eq!((status, answer["model"].as_str()), (200, Some("judge")), "{answer}");
    assert_eq!(world.handle.experiences(run.name, 0).unwrap().1, 0, "judges are not trained");

    let url = world.url(&format!("/rollway/v1/models/{}", added["id"]));
    let remove = || world.client.delete(&url).bearer_auth(ADMIN).send();
    let (status, removed) = read(remove().await.unwrap()).await;
    assert_eq!((status, &removed["aborted"]), (200, &json!(0)));
    assert_eq!(read(remove().await.unwrap()).await.0, 404);
    assert!(run.call(&body).await.0 >= 400);
    for (body, status) in [
        (json!({}), 400),
        (json!({ "model": "m", "engine": "abacus", "url": "http://x" }), 400),
        (json!({ "model": "m", "engine": "vllm", "url": "no url" }), 400),
    ] {
        let (got, error) = read(post("/rollway/v1/models", body).await.unwrap()).await;
        assert_eq!(got, status, "{error}");
    }
    let wait = Duration::from_secs(30);
    tokio::time::timeout(wait, world.gateway.stop(wait)).await.unwrap();
}
