//! Failing weight updates.

use std::sync::Mutex;
use std::time::Duration;

use rollway_base::ServerKind;
use rollway_gateway::models::{
    InFlightPolicy, Models, RouteNeeds, RoutingOptions, ServerState, ServerUpdateOutcome,
    WeightSource, WeightUpdate,
};
use rollway_mock_server::MockServer;
use serde_json::{Value, json};

use crate::fleet::{DRAIN, Fleet, held_streams, outcomes, spec};
use crate::stand_in::{StandIn, options};

#[tokio::test]
async fn a_failed_update_is_rolled_back() {
    for kind in [ServerKind::Vllm, ServerKind::Sglang] {
        for in_flight in [DRAIN, InFlightPolicy::Keep] {
            let fleet = Fleet::start(kind, 2, options()).await;
            assert!(fleet.update(1, DRAIN).await.is_complete());
            fleet.control(0).fail_updates(1);
            let report = fleet.update(2, in_flight).await;
            assert!(matches!(
                outcomes(&report)[..],
                [ServerUpdateOutcome::RolledBack(_), ServerUpdateOutcome::Updated]
            ));
            // It is used as before, and not paused.
            let view = fleet.view();
            assert_eq!((view[0].version, view[1].version), (Some(1), Some(2)));
            assert_eq!(view[0].state, ServerState::Running);
            assert_eq!(fleet.control(0).version(), 1);
            for mut stream in held_streams(&fleet, 4).await {
                stream.finish().await;
                assert!(stream.is_done);
            }
            // The next update brings both up.
            assert!(fleet.update(3, DRAIN).await.is_complete());
        }
    }
}

#[tokio::test]
async fn a_server_with_unknown_weights_is_broken_until_the_next_update() {
    let fleet = Fleet::start(
        ServerKind::Vllm,
        1,
        RoutingOptions { max_wait: Duration::from_millis(50), ..options() },
    )
    .await;
    // The path of its first weights is unknown.
    fleet.control(0).fail_updates(1);
    let report = fleet.update(1, DRAIN).await;
    assert!(matches!(outcomes(&report)[..], [ServerUpdateOutcome::Broken(_)]), "{report:?}");
    assert!(matches!(fleet.view()[0].state, ServerState::Broken(_)));
    assert_eq!(fleet.view()[0].version, None);
    let error = fleet.models.pick(RouteNeeds::default()).await.unwrap_err();
    assert!(
        error.message.contains("is broken (/collective_rpc responded with status 500"),
        "{error}"
    );
    assert!(fleet.update(2, DRAIN).await.is_complete());
    assert_eq!(fleet.pick().await.version(), Some(2));
}

#[tokio::test]
async fn a_server_that_does_not_drain_keeps_its_weights() {
    let fleet = Fleet::single(ServerKind::Vllm).await;
    fleet.control(0).hold(5);
    let mut streams = held_streams(&fleet, 2).await;
    let in_flight = InFlightPolicy::Drain { timeout: Duration::from_millis(20), then_abort: false };
    let report = fleet.update(1, in_flight).await;
    let reason = "2 requests were still in flight after 0.02 s".to_owned();
    assert_eq!(outcomes(&report), [&ServerUpdateOutcome::RolledBack(reason)]);
    assert_eq!(fleet.pick().await.version(), Some(0));
    fleet.control(0).release();
    for stream in &mut streams {
        stream.finish().await;
        assert!(stream.is_done);
        assert_eq!(stream.permit.version(), Some(0));
    }
}

#[tokio::test]
async fn an_update_continues_without_its_caller() {
    let fleet = Fleet::single(ServerKind::Vllm).await;
    let mut update = Box::pin(fleet.update(1, DRAIN));
    assert!(futures_util::poll!(&mut update).is_pending());
    drop(update);
    fleet.wait_for(|servers| servers[0].version == Some(1)).await;
    assert_eq!(fleet.control(0).version(), 1);
    fleet.wait_for(|servers| servers[0].state == ServerState::Running).await;
}

#[tokio::test]
async fn a_server_that_dies_in_an_update_does_not_stop_it() {
    let mut fleet = Fleet::start(ServerKind::Vllm, 2, options()).await;
    let slow = rollway_mock_server::MockServerOptions {
        update_time: Duration::from_secs(3600),
        ..fleet.mock()
    };
    let dying = MockServer::start(slow).unwrap();
    fleet.models.add(spec(ServerKind::Vllm, dying.url())).unwrap();
    fleet.wait_for(|servers| servers.len() == 3 && servers[2].state == ServerState::Running).await;
    let inside = dying.control();
    let kill = async {
        while !inside.calls().iter().any(|call| call == "POST /collective_rpc") {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        dying.stop().await;
    };
    let (report, ()) = futures_util::join!(fleet.update(1, DRAIN), kill);
    assert!(
        matches!(
            outcomes(&report)[..],
            [
                ServerUpdateOutcome::Updated,
                ServerUpdateOutcome::Updated,
                ServerUpdateOutcome::Broken(_)
            ]
        ),
        "{report:?}"
    );
    assert_eq!(fleet.pick().await.version(), Some(1));
    fleet.servers.clear();
}

/// A vLLM server that succeeds, and then reports this version.
async fn misreporting_server(reported: &'static str) -> (StandIn, Models) {
    let named = Mutex::new("default".to_owned());
    let server = StandIn::start(move |(method, path, body)| {
        let mut named = named.lock().unwrap();
        match path.split('?').next().unwrap() {
            "/v1/models" => (200, json!({ "data": [{ "id": "m" }] })),
            "/weight_info" => (200, json!({ "weight_version": *named })),
            "/update_weight_version" if method == "POST" => {
                assert_eq!(body["new_version"], "1");
                *named = reported.to_owned();
                (200, json!({ "success": true }))
            }
            _ => (200, Value::Null),
        }
    })
    .await;
    let models = Models::new(options());
    models.add(server.spec("trained", ServerKind::Vllm)).unwrap();
    // It is running once it grants a permit.
    models.pick(RouteNeeds::default()).await.unwrap();
    (server, models)
}

async fn update(models: &Models) -> ServerUpdateOutcome {
    let weights = WeightSource::Path("somewhere".into());
    let timeout = Duration::from_secs(60);
    let mut report = models
        .update(WeightUpdate { version: 1, weights, in_flight: InFlightPolicy::Keep, timeout })
        .await;
    report.servers.remove(0).outcome
}

#[tokio::test]
async fn a_server_that_reports_another_version_is_broken() {
    let (server, models) = misreporting_server("12").await;
    let reason = "it reports version 12 after an update to 1".to_owned();
    assert_eq!(update(&models).await, ServerUpdateOutcome::Broken(reason));
    assert!(matches!(models.view()[0].servers[0].state, ServerState::Broken(_)));
    // In this order, including the resume of a broken server.
    let requests = server.requests.lock().unwrap();
    let posts = requests.iter().filter(|(method, ..)| method == "POST");
    let posts: Vec<&str> = posts.map(|(_, path, _)| path.as_str()).collect();
    let wanted = [
        "/pause?mode=keep",
        "/reset_prefix_cache?reset_running_requests=true",
        "/collective_rpc",
        "/update_weight_version",
        "/resume",
    ];
    assert_eq!(posts, wanted);
}

#[tokio::test]
async fn a_server_that_reports_the_old_version_is_rolled_back() {
    let (_server, models) = misreporting_server("default").await;
    assert!(matches!(update(&models).await, ServerUpdateOutcome::RolledBack(_)));
    assert_eq!(models.pick(RouteNeeds::default()).await.unwrap().version(), Some(0));
}

#[tokio::test]
async fn no_token_is_generated_after_a_failed_load() {
    let fleet = Fleet::single(ServerKind::Vllm).await;
    fleet.control(0).hold(5);
    let streams = held_streams(&fleet, 3).await;
    // The path of its first weights is unknown.
    fleet.control(0).fail_updates(2);
    let leave = async {
        for stream in streams {
            stream.permit.aborted().await;
        }
    };
    let (report, ()) = futures_util::join!(fleet.update(1, InFlightPolicy::Keep), leave);
    assert!(matches!(outcomes(&report)[..], [ServerUpdateOutcome::Broken(_)]), "{report:?}");
    assert_eq!(report.servers[0].aborted, 3);
    fleet.control(0).release();
    fleet.control(0).wait_for(|counts| counts.running == 0).await;
    assert!(fleet.control(0).is_healthy() && !fleet.control(0).is_paused());
    assert!(fleet.update(2, DRAIN).await.is_complete());
    assert_eq!(fleet.pick().await.version(), Some(2));
}
