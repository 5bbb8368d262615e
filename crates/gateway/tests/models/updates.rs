//! Successful weight updates.

use std::sync::Arc;
use std::time::Duration;

use rollway_base::ServerKind;
use rollway_gateway::models::{
    InFlightPolicy, RouteNeeds, RoutingOptions, ServerState, ServerUpdateOutcome,
};

use crate::fleet::{DRAIN, Fleet, Stream, held_streams, outcomes, versions};
use crate::stand_in::{StandIn, healthy, options};

const KINDS: [ServerKind; 2] = [ServerKind::Vllm, ServerKind::Sglang];

/// Clients stream during three updates: every stream completes, with the version of its permit.
async fn under_load(kind: ServerKind, in_flight: InFlightPolicy) {
    let options = RoutingOptions { min_running: 2, ..options() };
    let fleet = Fleet::start(kind, 3, options).await;
    for server in 0..3 {
        fleet.control(server).set_speed(Duration::ZERO, 400.0);
    }
    let stop = tokio_util::sync::CancellationToken::new();
    let clients = (0..24).map(|client| {
        let (fleet, stop) = (&fleet, &stop);
        async move {
            let mut streams = 0_u32;
            let mut labelled = 0_usize;
            loop {
                // The last stream of each client begins after the updates: its version is known.
                let is_last = stop.is_cancelled();
                let wanted = RouteNeeds { session: Some(client), ..RouteNeeds::default() };
                let permit = fleet.models.pick(wanted).await.unwrap();
                let mut stream = Stream::open(permit, &format!("{client} {streams}")).await;
                let mut labels = Vec::new();
                while let Some(event) = stream.next().await {
                    // The first event has the role only, and may precede the first token by long.
                    if event["choices"][0]["delta"]["role"].is_null() {
                        labels.push(stream.permit.version());
                    }
                }
                assert!(stream.is_done, "a stream was lost");
                stream.permit.record_success();
                let made = versions(&fleet.servers, &stream.id).await;
                // Unknown versions are allowed, wrong ones are not.
                for label in labels.iter().flatten() {
                    assert!(made.contains(label), "{labels:?} for {made:?}");
                }
                if let (Some(Some(first)), Some(Some(last))) = (labels.first(), labels.last()) {
                    assert_eq!(first, last);
                    assert!(made.iter().all(|version| version == first), "{made:?} as {first}");
                    labelled += 1;
                }
                streams += 1;
                if is_last {
                    return (streams, labelled);
                }
            }
        }
    });
    let updates = async {
        for version in 1..=3 {
            let report = fleet.update(version, in_flight).await;
            assert_eq!(outcomes(&report), [&ServerUpdateOutcome::Updated; 3]);
            assert!(report.is_complete());
            assert!(report.servers.iter().all(|server| server.aborted == 0));
        }
        stop.cancel();
    };
    let (counts, ()) = futures_util::join!(futures_util::future::join_all(clients), updates);
    let streams: u32 = counts.iter().map(|count| count.0).sum();
    let labelled: usize = counts.iter().map(|count| count.1).sum();
    assert!(labelled >= 24, "{streams} streams, {labelled} labelled");
    for server in &fleet.servers {
        let control = server.control();
        assert_eq!((control.version(), control.version_name()), (3, "3".to_owned()));
        assert_eq!(control.counts().aborted + control.counts().left, 0);
    }
    assert!(fleet.view().iter().all(|it| it.version == Some(3) && it.in_flight == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drained_updates_under_load_lose_nothing() {
    for kind in KINDS {
        under_load(kind, DRAIN).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_updates_under_load_lose_nothing() {
    for kind in KINDS {
        under_load(kind, InFlightPolicy::Keep).await;
    }
}

#[tokio::test]
async fn kept_requests_continue_with_unknown_versions() {
    for kind in KINDS {
        let fleet = Fleet::single(kind).await;
        let control = fleet.control(0);
        control.hold(5);
        let mut streams = held_streams(&fleet, 16).await;
        control.wait_for(|counts| counts.frozen == 16).await;
        assert!(streams.iter().all(|stream| stream.permit.version() == Some(0)));
        let report = fleet.update(1, InFlightPolicy::Keep).await;
        assert_eq!(outcomes(&report), [&ServerUpdateOutcome::Updated]);
        assert_eq!((report.servers[0].in_flight, report.servers[0].aborted), (16, 0));
        assert!(streams.iter().all(|stream| stream.permit.version().is_none()));
        assert_eq!(fleet.pick().await.version(), Some(1));
        control.release();
        for stream in &mut streams {
            stream.finish().await;
            assert!(stream.is_done);
            let made = versions(&fleet.servers, &stream.id).await;
            assert_eq!((made.first(), made.last()), (Some(&0), Some(&1)));
        }
    }
}

#[tokio::test]
async fn calls_wait_while_a_single_server_is_updated() {
    for kind in KINDS {
        let fleet = Fleet::single(kind).await;
        let control = fleet.control(0);
        control.hold(5);
        let mut stream = held_streams(&fleet, 1).await.remove(0);
        let mut update = Box::pin(fleet.update(1, DRAIN));
        assert!(futures_util::poll!(&mut update).is_pending());
        fleet.wait_for(|servers| servers[0].state == ServerState::Draining).await;
        let mut pick = Box::pin(fleet.pick());
        assert!(futures_util::poll!(&mut pick).is_pending());
        control.release();
        stream.finish().await;
        assert_eq!(versions(&fleet.servers, &stream.id).await.last(), Some(&0));
        assert_eq!(stream.permit.version(), Some(0));
        drop(stream);
        let (report, permit) = futures_util::join!(update, pick);
        assert_eq!(outcomes(&report), [&ServerUpdateOutcome::Updated]);
        assert_eq!(permit.version(), Some(1));
    }
}

#[tokio::test]
async fn an_update_aborts_requests_if_allowed() {
    for kind in KINDS {
        let at_once = InFlightPolicy::Drain { timeout: Duration::ZERO, then_abort: true };
        for in_flight in [InFlightPolicy::Abort, at_once] {
            let fleet = Fleet::single(kind).await;
            fleet.control(0).hold(5);
            let streams = held_streams(&fleet, 4).await;
            let ends = streams.into_iter().map(|mut stream| async move {
                let permit = Arc::clone(&stream.permit);
                tokio::select! {
                    reason = stream.finish() => assert_eq!(reason.as_deref(), Some("abort")),
                    () = permit.aborted() => {}
                }
            });
            let ends = futures_util::future::join_all(ends);
            let (report, _) = futures_util::join!(fleet.update(1, in_flight), ends);
            assert_eq!(outcomes(&report), [&ServerUpdateOutcome::Updated]);
            assert_eq!((report.servers[0].in_flight, report.servers[0].aborted), (4, 4));
            // It notices disconnects with a delay.
            let counts = fleet.control(0).wait_for(|counts| counts.running == 0).await;
            assert_eq!((counts.completed, counts.aborted + counts.left), (0, 4));
        }
    }
}

#[tokio::test]
async fn a_newer_update_supersedes_a_waiting_one() {
    let fleet = Fleet::single(ServerKind::Vllm).await;
    fleet.control(0).hold(5);
    let stream = held_streams(&fleet, 1).await;
    let mut first = Box::pin(fleet.update(1, DRAIN));
    assert!(futures_util::poll!(&mut first).is_pending());
    fleet.wait_for(|servers| servers[0].state == ServerState::Draining).await;
    let mut second = Box::pin(fleet.update(2, DRAIN));
    assert!(futures_util::poll!(&mut second).is_pending());
    let mut third = Box::pin(fleet.update(3, DRAIN));
    assert!(futures_util::poll!(&mut third).is_pending());
    tokio::task::yield_now().await;
    drop(stream);
    let (first, second, third) = futures_util::join!(first, second, third);
    assert!(first.is_complete() && third.is_complete());
    assert_eq!((second.superseded_by, second.is_complete()), (Some(3), false));
    let loads = || {
        let calls = fleet.control(0).calls();
        calls.iter().filter(|call| *call == "POST /collective_rpc").count()
    };
    let before = loads();
    let again = fleet.update(3, DRAIN).await;
    assert_eq!(outcomes(&again), [&ServerUpdateOutcome::AlreadyCurrent]);
    assert_eq!((before, loads()), (2, 2));
}

#[tokio::test]
async fn late_and_returning_servers_get_the_latest_weights() {
    for kind in KINDS {
        let mut fleet = Fleet::start(kind, 2, options()).await;
        assert!(fleet.update(7, DRAIN).await.is_complete());
        let dead = fleet.servers.remove(0);
        let again =
            rollway_mock_server::MockServerOptions { address: dead.address(), ..fleet.mock() };
        dead.stop().await;
        fleet.wait_for(|servers| matches!(servers[0].state, ServerState::Unhealthy(_))).await;
        let back = rollway_mock_server::MockServer::start(again).unwrap();
        fleet.servers.insert(0, back);
        fleet.add(fleet.mock()).await;
        let is_there = |server: &rollway_gateway::models::ServerView| {
            server.state == ServerState::Running && server.version == Some(7)
        };
        fleet.wait_for(|servers| servers.iter().all(is_there)).await;
        for server in 0..3 {
            assert_eq!(fleet.control(server).version(), 7);
        }
    }
}

#[tokio::test]
async fn servers_without_updates_are_skipped_with_a_reason() {
    let llama = StandIn::start(healthy("m")).await;
    let mut fleet = Fleet::start(ServerKind::Vllm, 0, options()).await;
    fleet.models.add(llama.spec("trained", ServerKind::LlamaCpp)).unwrap();
    fleet.wait_for(|servers| servers[0].state == ServerState::Running).await;
    let report = fleet.update(1, DRAIN).await;
    let ServerUpdateOutcome::Skipped(reason) = &report.servers[0].outcome else {
        panic!("{report:?}")
    };
    assert!(reason.starts_with("llama-server cannot update its weights"), "{reason}");
    assert!(!report.is_complete());
    fleet.servers.clear();
}

#[tokio::test]
async fn weights_over_a_group_reach_all_servers_at_once() {
    for kind in KINDS {
        let fleet = Fleet::start(kind, 2, options()).await;
        let report = fleet.models.update(fleet.over_group(1)).await;
        assert_eq!(outcomes(&report), [&ServerUpdateOutcome::Updated; 2]);
        for server in 0..2 {
            assert_eq!(fleet.control(server).version_name(), "1");
        }
    }
}

#[tokio::test]
async fn a_call_waits_as_long_as_an_update_of_its_only_server() {
    let options = RoutingOptions { max_wait: Duration::from_millis(30), ..options() };
    let fleet = Fleet::start(ServerKind::Vllm, 1, options).await;
    fleet.control(0).hold(5);
    let mut streams = held_streams(&fleet, 1).await;
    let update = tokio::spawn({
        let (models, update) = (fleet.models.clone(), fleet.to(1, DRAIN));
        async move { models.update(update).await }
    });
    fleet.wait_for(|servers| servers[0].state == ServerState::Draining).await;
    let mut call = Box::pin(fleet.models.pick(RouteNeeds::default()));
    let waited = tokio::time::timeout(Duration::from_millis(300), &mut call).await;
    assert!(waited.is_err(), "ten times the limit, during the update");
    fleet.control(0).release();
    streams[0].finish().await;
    drop(streams);
    assert_eq!(call.await.unwrap().version(), Some(1));
    assert!(update.await.unwrap().is_complete());
}

#[tokio::test]
async fn an_update_waits_for_the_only_server_while_it_is_away() {
    let fleet = Fleet::single(ServerKind::Vllm).await;
    fleet.control(0).set_healthy(false);
    fleet.wait_for(|servers| matches!(servers[0].state, ServerState::Unhealthy(_))).await;
    let mut update = Box::pin(fleet.update(1, DRAIN));
    let waited = tokio::time::timeout(Duration::from_millis(100), &mut update).await;
    assert!(waited.is_err(), "{waited:?}");
    fleet.control(0).set_healthy(true);
    assert!(update.await.is_complete());
    assert_eq!(fleet.pick().await.version(), Some(1));
}

#[tokio::test]
async fn an_update_does_not_wait_for_ever_for_a_server_that_is_away() {
    let options = RoutingOptions { max_wait: Duration::from_millis(50), ..options() };
    let fleet = Fleet::start(ServerKind::Vllm, 1, options).await;
    fleet.control(0).set_healthy(false);
    fleet.wait_for(|servers| matches!(servers[0].state, ServerState::Unhealthy(_))).await;
    let report = fleet.update(1, DRAIN).await;
    assert!(matches!(outcomes(&report)[..], [ServerUpdateOutcome::Skipped(_)]), "{report:?}");
}
