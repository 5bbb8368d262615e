//! Every sample is recorded once, despite failing clients and servers.

use futures_util::future::join_all;
use rollway_mock_server::{CompletionLengths, MockFault, MockServerOptions};
use serde_json::Value;

use super::help::{Run, World, events, options, read, says, streams, text_of};

#[tokio::test]
async fn a_retry_gets_the_same_answer_and_is_no_second_sample() {
    for header in [("x-stainless-retry-count", "1"), ("idempotency-key", "k")] {
        for stream in [false, true] {
            let world = World::new().await;
            let run = world.open(1);
            let body = if stream { streams("hello") } else { says("hello") };
            let send = || {
                let request = run.chat(&body);
                async move { request.header(header.0, header.1).send().await.unwrap() }
            };
            let (first, second) = (send().await, send().await);
            for name in ["content-type", "x-request-id"] {
                assert_eq!(second.headers()[name], first.headers()[name]);
            }
            if stream {
                let first = events(&first.text().await.unwrap());
                let second = events(&second.text().await.unwrap());
                assert_eq!(text_of(&first), text_of(&second));
                assert_eq!(second.last().unwrap(), "[DONE]");
                let id =
                    |event: &String| serde_json::from_str::<Value>(event).unwrap()["id"].clone();
                assert_eq!(id(&first[0]), id(&second[0]));
            } else {
                assert_eq!(read(first).await, read(second).await);
            }
            assert_eq!(world.experiences(&run).len(), 1);
            assert_eq!(world.control().counts().requests, 1);
            assert_eq!(world.metric("calls_deduplicated_total").await, 1.0);
        }
    }
}

#[tokio::test]
async fn equal_calls_give_two_samples() {
    let world = World::new().await;
    let run = world.open(1);
    for body in [says("hello"), says("hello"), streams("hello"), streams("hello")] {
        run.text(&body).await;
    }
    assert_eq!(world.handle.experiences(run.name, 0).unwrap().1, 4);
    assert_eq!(world.control().counts().requests, 4);
}

#[tokio::test]
async fn an_idempotency_key_belongs_to_one_request() {
    let world = World::new().await;
    let run = world.open(1);
    let send = |text| run.chat(&says(text)).header("idempotency-key", "k").send();
    assert_eq!(send("one").await.unwrap().status(), 200);
    let (status, error) = read(send("other").await.unwrap()).await;
    assert_eq!(status, 409, "{error}");
    assert_eq!(send("one").await.unwrap().status(), 200);
    assert_eq!(world.experiences(&run).len(), 1);
}

#[tokio::test]
async fn concurrent_requests_with_one_idempotency_key_are_one() {
    let world = World::new().await;
    let run = world.open(1);
    world.control().hold(1);
    let send = || tokio::spawn(run.chat(&says("x")).header("idempotency-key", "k").send());
    let (first, second) = (send(), send());
    world.control().wait_for(|counts| counts.frozen == 1).await;
    world.control().release();
    let first = read(first.await.unwrap().unwrap()).await;
    assert_eq!(first, read(second.await.unwrap().unwrap()).await);
    assert_eq!(world.control().counts().requests, 1);
    assert_eq!(world.experiences(&run).len(), 1);
}

#[tokio::test]
async fn a_retry_replaces_an_abandoned_call() {
    for stream in [false, true] {
        let world = World::new().await;
        let run = world.open(1);
        let body = if stream { streams("hello") } else { says("hello") };
        world.control().hold(2);
        let first = tokio::spawn(run.chat(&body).send());
        world.control().wait_for(|counts| counts.frozen == 1).await;
        first.abort();
        world.control().release();
        let retry = run.chat(&body).header("x-stainless-retry-count", "1").send().await.unwrap();
        assert_eq!(retry.status(), 200);
        retry.text().await.unwrap();
        let experiences = world.experiences(&run);
        assert_eq!(experiences.len(), 1);
        let records = world.control().records();
        let last = &records.last().unwrap().choices[0].tokens;
        assert_eq!(experiences[0].response_length(), last.len());
    }
}

#[tokio::test]
async fn a_failed_call_is_new_when_it_is_retried() {
    let world = World::new().await;
    let run = world.open(1);
    world.control().inject(MockFault::Status(400), 1);
    assert_eq!(run.send(&says("x")).await.status(), 400);
    let retry = run.chat(&says("x")).header("x-stainless-retry-count", "1").send().await.unwrap();
    assert_eq!(retry.status(), 200);
    assert_eq!(world.experiences(&run).len(), 1);
}

/// Deterministic pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % limit
    }
}

/// A client that disconnects at random and retries. Returns the text of a complete response.
async fn retrying_client(run: Run, text: String, mut dice: Dice) -> Option<String> {
    for retry in 0..5 {
        let request = run.chat(&streams(&text)).header("x-stainless-retry-count", retry);
        // `None`: it reads to the end.
        let chunk_limit = (dice.below(2) == 0).then(|| dice.below(4));
        let Ok(mut response) = request.send().await else { continue };
        if response.status() != 200 {
            continue;
        }
        let mut body = Vec::new();
        let mut chunks = 0;
        while chunk_limit.is_none_or(|chunk_limit| chunks < chunk_limit) {
            let Ok(Some(chunk)) = response.chunk().await else { break };
            body.extend_from_slice(&chunk);
            chunks += 1;
        }
        let body = String::from_utf8(body).unwrap_or_default();
        if body.ends_with("data: [DONE]\n\n") {
            return Some(text_of(&events(&body)));
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_failures_leave_every_sample_recorded_once() {
    const CALLS: u64 = 24;
    let server = MockServerOptions {
        fail_rate: 0.1,
        cut_rate: 0.2,
        lengths: CompletionLengths::Uniform(4, 16),
        ..MockServerOptions::default()
    };
    let mut options = options();
    // Failures must reach the clients, and not make the server unhealthy.
    options.limits.max_retries = 0;
    options.models.max_failures = u32::MAX;
    let world = World::with(options, vec![server]).await;
    let runs: Vec<_> = (0..6).map(|attempt| world.open(attempt)).collect();
    let calls: Vec<_> = runs
        .iter()
        .flat_map(|run| (0..CALLS).map(move |call| (run, call)))
        .map(|(run, call)| {
            let text = format!("number {call}");
            let dice = Dice(1000 * run.name.attempt + call);
            tokio::spawn(retrying_client(run.clone(), text, dice))
        })
        .collect();
    let mut got = join_all(calls).await.into_iter().map(Result::unwrap);
    while world.metric("in_flight").await > 0.0 {}

    let mut complete = 0;
    for run in &runs {
        let experiences = world.experiences(run);
        for call in 0..CALLS {
            let prompt = format!("number {call}");
            let is_of_call = |messages: &Value| messages[0]["content"] == prompt;
            let matching: Vec<_> = experiences
                .iter()
                .filter(|it| it.messages.as_ref().is_some_and(|json| is_of_call(&json.value())))
                .collect();
            assert!(matching.len() <= 1, "{prompt} was recorded {} times", matching.len());
            if let Some(text) = got.next().unwrap() {
                complete += 1;
                let reply = matching[0].response_text.as_ref().unwrap();
                assert_eq!(*reply, text, "what the client has is what was recorded");
            }
        }
    }
    assert!(complete > 50, "{complete}");
    assert!(
        world.metric("calls_deduplicated_total").await + world.metric("calls_replaced_total").await
            > 0.0
    );
}
