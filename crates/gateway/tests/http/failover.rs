//! Calls survive failing servers.

use rollway_gateway::gateway::GatewayLimits;
use rollway_mock_server::{MockFault, MockServerOptions};

use serde_json::Value;

use super::help::{Run, World, options, says, streams};

async fn assert_answered(run: &Run, body: &Value) {
    let response = run.send(body).await;
    let (status, text) = (response.status(), response.text().await.unwrap());
    assert_eq!(status, 200, "{text}");
}

async fn two_servers() -> World {
    let servers = vec![MockServerOptions::default(); 2];
    let mut options = options();
    options.limits = GatewayLimits { max_retries: 1, ..GatewayLimits::default() };
    let world = World::with(options, servers).await;
    // Both are healthy once each has taken a request.
    let mut number = 0;
    while world.servers.iter().any(|server| server.control().counts().completed == 0) {
        number += 1;
        let run = world.open(1000 + number);
        assert_eq!(run.send(&says("warm")).await.status(), 200);
    }
    world
}

#[tokio::test]
async fn a_call_that_fails_before_its_answer_is_sent_to_another_server() {
    for fault in
        [MockFault::Status(500), MockFault::Status(503), MockFault::Status(429), MockFault::Cut]
    {
        for body in [says("x"), streams("x")] {
            let world = two_servers().await;
            let run = world.open(1);
            for server in &world.servers {
                server.control().inject(fault, 1);
            }
            // Both tries of the first call fail; the next call succeeds.
            let (status, error) = run.call(&body).await;
            let expected = match fault {
                MockFault::Status(503) => 503,
                MockFault::Status(429) => 429,
                _ => 502,
            };
            assert_eq!(status, expected, "{fault:?}: {error}");
            assert_answered(&run, &body).await;
            assert_eq!(world.experiences(&run).len(), 1, "{fault:?}");
            assert_eq!(world.metric("calls_rerouted_total").await, 1.0);

            world.servers[0].control().inject(fault, 1);
            let others = (2..6).map(|attempt| world.open(attempt));
            for run in others {
                assert_answered(&run, &body).await;
                assert_eq!(world.experiences(&run).len(), 1);
            }
        }
    }
}

#[tokio::test]
async fn a_broken_full_response_is_requested_from_another_server() {
    let world = two_servers().await;
    for server in &world.servers {
        server.control().inject(MockFault::CutAfter(1), 1);
    }
    let runs = [world.open(1), world.open(2), world.open(3)];
    let mut good = 0;
    for run in &runs {
        good += u32::from(run.send(&says("x")).await.status() == 200);
    }
    assert!(good >= 2);
}

#[tokio::test]
async fn a_stopped_server_is_not_used() {
    let mut world = two_servers().await;
    world.servers.remove(0).stop().await;
    for attempt in 1..=8 {
        let run = world.open(attempt);
        let response = run.send(&streams("x")).await;
        assert!(response.text().await.unwrap().ends_with("[DONE]\n\n"));
        assert_eq!(world.experiences(&run).len(), 1);
    }
}
