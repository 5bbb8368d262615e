//! Restart of a gateway in the middle of streams.

use std::time::Duration;

use futures_util::future::join_all;
use rollway_base::ServerKind;
use rollway_experience::deserialize_many;
use rollway_gateway::gateway::Gateway;
use serde_json::Value;

use super::help::{Run, World, options, spec, streams};

const STREAMS: u64 = 32;

async fn send_stream(run: Run) -> String {
    let request = run.chat(&streams(&format!("say {}", run.name.attempt)));
    request.send().await.unwrap().text().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recordings_survive_a_restart_exactly_once() {
    let mut world = World::new().await;
    let done: Vec<_> = (0..STREAMS).map(|attempt| world.open(attempt)).collect();
    for answer in join_all(done.iter().map(|run| send_stream(run.clone()))).await {
        assert!(answer.ends_with("[DONE]\n\n"));
    }
    world.control().hold(5);
    let cut: Vec<_> = (STREAMS..2 * STREAMS).map(|attempt| world.open(attempt)).collect();
    let in_flight: Vec<_> = cut.iter().map(|run| tokio::spawn(send_stream(run.clone()))).collect();
    world.control().wait_for(|counts| counts.frozen == STREAMS).await;

    // The port is free after the stop, and the server has no requests.
    let address = world.gateway.url().strip_prefix("http://").unwrap().to_owned();
    let spec = spec(&world.servers[0], ServerKind::Vllm);
    let before = world.handle.clone();
    world.gateway.stop(Duration::ZERO).await;
    let counts = world.servers[0].control().wait_for(|counts| counts.running == 0).await;
    assert_eq!(counts.completed, STREAMS);
    for answer in join_all(in_flight).await {
        let answer = answer.unwrap();
        assert!(!answer.contains("[DONE]"), "{answer}");
        // The last event of the stream, or the body if it had not begun.
        let last = answer.trim_end().rsplit("data: ").next().unwrap();
        let last: Value = serde_json::from_str(last).unwrap();
        assert_eq!(last["error"]["type"], "model_unavailable", "{answer}");
    }
    for run in &done {
        let (payload, turns) = before.experiences(run.name, 0).unwrap();
        assert_eq!((turns, deserialize_many(payload.into()).unwrap().len()), (1, 1));
    }
    for run in &cut {
        // The partial response, marked as aborted.
        let (payload, _) = before.experiences(run.name, 0).unwrap();
        let experiences = deserialize_many(payload.into()).unwrap();
        assert!(experiences.len() <= 1);
        assert!(experiences.iter().all(|it| it.response_length() <= 5));
    }

    world.servers[0].control().release();
    let options = rollway_gateway::gateway::GatewayOptions { listen: address, ..options() };
    world.gateway = Gateway::start(options, vec![spec]).await.unwrap();
    world.handle = world.gateway.handle();
    let refused = done[0].chat(&streams("x")).send().await.unwrap();
    assert_eq!(refused.status(), 401, "keys do not outlive their gateway");
    let again: Vec<_> = (STREAMS..2 * STREAMS).map(|attempt| world.open(attempt)).collect();
    for answer in join_all(again.iter().map(|run| send_stream(run.clone()))).await {
        assert!(answer.ends_with("[DONE]\n\n"));
    }
    for run in &again {
        assert_eq!(world.experiences(run).len(), 1);
    }
    assert_eq!(world.servers[0].control().counts().completed, 2 * STREAMS);
}

#[tokio::test]
async fn a_stopping_gateway_finishes_calls_in_flight() {
    let world = World::new().await;
    let run = world.open(1);
    world.control().hold(3);
    let mut stream = run.send(&streams("x")).await;
    stream.chunk().await.unwrap().unwrap();
    let (inside, handle) = (world.control(), world.handle.clone());
    let stopping = tokio::spawn(world.gateway.stop(Duration::from_secs(60)));
    // New connections are refused once the stop has begun.
    while world.client.get(format!("{}/health", run.url)).send().await.is_ok() {}
    assert!(!stopping.is_finished());
    inside.release();
    assert!(stream.text().await.unwrap().ends_with("[DONE]\n\n"));
    stopping.await.unwrap();
    assert_eq!(handle.experiences(run.name, 0).unwrap().1, 1);
}
