//! Many concurrent streams.

use futures_util::future::join_all;
use rollway_mock_server::{CompletionLengths, MockServerOptions};

use super::help::{World, options, streams};

const STREAMS: u64 = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_concurrent_streams_all_complete() {
    let lengths = CompletionLengths::Uniform(4, 12);
    let server = MockServerOptions { lengths, ..MockServerOptions::default() };
    let world = World::with(options(), vec![server]).await;
    world.control().hold(2);
    let runs: Vec<_> = (0..STREAMS).map(|attempt| world.open(attempt)).collect();
    let answers: Vec<_> = runs
        .iter()
        .map(|run| {
            let request = run.chat(&streams(&format!("say {}", run.name.attempt)));
            tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() })
        })
        .collect();
    world.control().wait_for(|counts| counts.frozen == STREAMS).await;
    assert_eq!(world.metric("in_flight").await, STREAMS as f64);
    world.control().release();
    for answer in join_all(answers).await {
        assert!(answer.unwrap().ends_with("data: [DONE]\n\n"));
    }
    let records = world.control().records();
    for run in &runs {
        let experiences = world.experiences(run);
        assert_eq!(experiences.len(), 1);
        let tokens: Vec<i32> = experiences[0].tokens.iter().collect();
        let made = records.iter().any(|record| {
            let completion = record.choices[0].tokens.iter().map(|token| token.id);
            record.prompts[0].iter().copied().chain(completion).eq(tokens.iter().copied())
        });
        assert!(made, "what was recorded is what the server made");
    }
    assert_eq!(world.metric("turns_total").await, STREAMS as f64);
    assert_eq!(world.metric("in_flight").await, 0.0);
}

#[tokio::test]
async fn a_client_that_does_not_read_ends_with_its_run() {
    let server =
        MockServerOptions { lengths: CompletionLengths::Fixed(20_000), ..Default::default() };
    let world = World::with(options(), vec![server]).await;
    let run = world.open(1);
    let mut body = streams("much");
    body["max_tokens"] = 20_000.into();
    // The client does not read, until all buffers are full.
    let response = run.send(&body).await;
    assert_eq!(response.status(), 200);
    world.control().wait_for(|counts| counts.running == 1).await;
    world.handle.close(1);
    world.control().wait_for(|counts| counts.running == 0).await;
    while world.metric("in_flight").await > 0.0 {}
    drop(response);
}
