//! Closing an attempt or a connection aborts its calls, also in the servers.

use rollway_base::ServerKind;
use rollway_mock_server::RequestEnd;

use serde_json::{Value, json};

use super::help::{World, events, read};

/// SGLang has no chat streams.
const PATH: &str = "/v1/completions";

fn whole(text: &str) -> Value {
    json!({ "prompt": text })
}

fn stream(text: &str) -> Value {
    json!({ "prompt": text, "stream": true })
}

#[tokio::test]
async fn closing_an_attempt_aborts_its_calls_in_the_server_and_refuses_its_keys() {
    for kind in [ServerKind::Vllm, ServerKind::Sglang] {
        let world = World::of(kind).await;
        let (closed, other) = (world.open(1), world.open(2));
        world.control().hold(2);
        let answer = tokio::spawn(closed.post(PATH, &whole("a")).send());
        let mut events_of = closed.post(PATH, &stream("b")).send().await.unwrap();
        events_of.chunk().await.unwrap().unwrap();
        let kept = tokio::spawn(other.post(PATH, &stream("c")).send());
        world.control().wait_for(|counts| counts.frozen == 3).await;
        world.handle.close(1);
        let counts = world.control().wait_for(|counts| counts.running == 1).await;
        assert_eq!(counts.left + counts.aborted, 2);
        world.control().release();
        let (status, error) = read(answer.await.unwrap().unwrap()).await;
        assert_eq!((status, error["error"]["type"].as_str()), (409, Some("conflict_error")));
        let events = events(&events_of.text().await.unwrap());
        assert!(events.last().unwrap().contains("conflict_error"), "{events:?}");
        let kept = kept.await.unwrap().unwrap().text().await.unwrap();
        assert!(kept.ends_with("[DONE]\n\n"));

        let (status, _) = read(closed.post(PATH, &whole("more")).send().await.unwrap()).await;
        assert_eq!(status, 401);
        assert_eq!(world.handle.experiences(closed.name, 0).unwrap().1, 0);
        assert_eq!(world.experiences(&other).len(), 1);
        assert_eq!(world.control().ended(RequestEnd::Complete).len(), 1);
        assert_eq!(world.metric("upstream_aborted_total").await, 2.0);
    }
}

#[tokio::test]
async fn a_disconnect_aborts_the_request() {
    for kind in [ServerKind::Vllm, ServerKind::Sglang] {
        let world = World::of(kind).await;
        let run = world.open(1);
        world.control().hold(3);
        let mut events_of = run.post(PATH, &stream("d")).send().await.unwrap();
        events_of.chunk().await.unwrap().unwrap();
        let answer = tokio::spawn(run.post(PATH, &whole("e")).send());
        world.control().wait_for(|counts| counts.frozen == 2).await;
        drop(events_of);
        answer.abort();
        world.control().wait_for(|counts| counts.running == 0).await;
        // The stream had begun and is recorded partially; the other call is not.
        while world.metric("in_flight").await > 0.0 {}
        let experiences = world.experiences(&run);
        assert_eq!(experiences.len(), 1);
        assert!(experiences[0].response_length() <= 3);
        assert_eq!(world.metric("completions_aborted_total").await, 1.0);
    }
}
