//! Servers that are paused, restarted or given other weights behind the gateway.

use std::time::Duration;

use rollway_base::ServerKind;
use rollway_gateway::models::{Models, RoutingOptions, ServerState, ServerUpdateOutcome};
use rollway_mock_server::{MockServer, MockServerOptions};

use crate::fleet::{DRAIN, Fleet, held_streams, outcomes, spec};
use crate::stand_in::options;

#[tokio::test]
async fn a_lost_resume_is_repeated() {
    for lost in [1, 3] {
        let fleet = Fleet::single(ServerKind::Vllm).await;
        assert!(fleet.update(1, DRAIN).await.is_complete());
        fleet.control(0).fail_updates(1);
        fleet.control(0).lose_resumes(lost);
        let report = fleet.update(2, DRAIN).await;
        assert!(matches!(outcomes(&report)[..], [ServerUpdateOutcome::RolledBack(_)]));
        assert!(!fleet.control(0).is_paused());
        assert_eq!(fleet.pick().await.version(), Some(1));
    }
}

#[tokio::test]
async fn a_server_that_an_earlier_process_left_paused_is_resumed() {
    let mut fleet = Fleet::start(ServerKind::Vllm, 0, options()).await;
    let server = MockServer::start(fleet.mock()).unwrap();
    server.control().pause();
    fleet.models.add(spec(ServerKind::Vllm, server.url())).unwrap();
    fleet.servers.push(server);
    fleet.wait_for(|servers| servers[0].state == ServerState::Running).await;
    assert!(!fleet.control(0).is_paused());
}

#[tokio::test]
async fn a_server_that_is_paused_from_outside_is_not_used() {
    let fleet = Fleet::single(ServerKind::Vllm).await;
    fleet.control(0).pause();
    let is_paused = |state: &ServerState| match state {
        ServerState::Unhealthy(reason) => reason.contains("paused by another program"),
        _ => false,
    };
    fleet.wait_for(|servers| is_paused(&servers[0].state)).await;
    // Its pause may have a purpose, and is left to the component that began it.
    assert!(fleet.control(0).is_paused());
    fleet.control(0).resume();
    fleet.wait_for(|servers| servers[0].state == ServerState::Running).await;
}

fn sleeps(state: &ServerState) -> bool {
    matches!(state, ServerState::Unhealthy(reason) if reason.starts_with("it sleeps"))
}

#[tokio::test]
async fn a_server_that_sleeps_is_not_used() {
    let fleet = Fleet::single(ServerKind::Vllm).await;
    fleet.control(0).fall_asleep();
    fleet.wait_for(|servers| sleeps(&servers[0].state)).await;
    fleet.control(0).wake_up();
    fleet.wait_for(|servers| servers[0].state == ServerState::Running).await;
}

#[tokio::test]
async fn a_server_that_sleeps_from_the_start_is_not_used() {
    let mut fleet = Fleet::start(ServerKind::Vllm, 0, options()).await;
    let server = MockServer::start(fleet.mock()).unwrap();
    // vLLM is paused while it sleeps. It looks like one that an update has left paused.
    server.control().pause();
    server.control().fall_asleep();
    fleet.models.add(spec(ServerKind::Vllm, server.url())).unwrap();
    fleet.servers.push(server);
    fleet.wait_for(|servers| sleeps(&servers[0].state)).await;
    fleet.control(0).wake_up();
    fleet.wait_for(|servers| servers[0].state == ServerState::Running).await;
}

#[tokio::test]
async fn weights_that_are_changed_from_outside_are_noticed() {
    for kind in [ServerKind::Vllm, ServerKind::Sglang] {
        let fleet = Fleet::single(kind).await;
        fleet.control(0).hold(5);
        let mut streams = held_streams(&fleet, 1).await;
        assert_eq!(streams[0].permit.version(), Some(0));
        fleet.control(0).set_version(42, "42");
        fleet.wait_for(|servers| servers[0].version == Some(42)).await;
        // Its tokens may be of both versions.
        assert_eq!(streams[0].permit.version(), None);
        assert_eq!(fleet.pick().await.version(), Some(42));
        fleet.control(0).release();
        streams[0].finish().await;
    }
}

#[tokio::test]
async fn a_server_that_returns_has_the_latest_weights_before_it_is_used() {
    let options = RoutingOptions { max_wait: Duration::from_secs(60), ..options() };
    for kind in [ServerKind::Vllm, ServerKind::Sglang] {
        let mut fleet = Fleet::start(kind, 1, options.clone()).await;
        assert!(fleet.update(3, DRAIN).await.is_complete());
        let server = fleet.servers.remove(0);
        let address = server.address();
        server.stop().await;
        fleet.wait_for(|servers| matches!(servers[0].state, ServerState::Unhealthy(_))).await;
        // This call waits for the server.
        let waiting = tokio::spawn({
            let models = fleet.models.clone();
            async move { models.pick(Default::default()).await.unwrap().version() }
        });
        let slow = Duration::from_millis(50);
        let again = MockServerOptions { address, update_time: slow, ..fleet.mock() };
        fleet.servers.push(MockServer::start(again).unwrap());
        assert_eq!(waiting.await.unwrap(), Some(3));
    }
}

#[tokio::test]
async fn weights_of_an_earlier_process_are_loaded_into_a_server_that_returns() {
    let mut fleet = Fleet::single(ServerKind::Vllm).await;
    assert!(fleet.update(3, DRAIN).await.is_complete());
    // The gateway of the resumed job finds the server with the weights.
    fleet.models = Models::new(options());
    fleet.models.add(spec(ServerKind::Vllm, fleet.servers[0].url())).unwrap();
    fleet.wait_for(|servers| servers[0].loaded == Some(3)).await;
    let report = fleet.update(3, DRAIN).await;
    assert_eq!(outcomes(&report), [&ServerUpdateOutcome::AlreadyCurrent]);
    fleet.restart(0).await;
    assert_eq!(fleet.pick().await.version(), Some(3));
}

#[tokio::test]
async fn a_server_that_misses_weights_sent_over_a_group_is_not_used_beside_others() {
    let mut fleet = Fleet::start(ServerKind::Vllm, 2, options()).await;
    assert!(fleet.models.update(fleet.over_group(1)).await.is_complete());
    fleet.restart(0).await;
    fleet.wait_for(|servers| servers[0].state == ServerState::Updating).await;
    let versions = fleet.pick_many(4).await.into_iter().map(|permit| permit.version());
    assert_eq!(versions.collect::<Vec<_>>(), [Some(1); 4]);
    // Without another server, it is used with the weights that it has.
    fleet.servers.remove(1).stop().await;
    fleet.wait_for(|servers| servers[0].state == ServerState::Running).await;
    assert_eq!(fleet.pick().await.version(), Some(0));
}

#[tokio::test]
async fn a_restart_between_two_checks_is_noticed() {
    let options = RoutingOptions { health_interval: Duration::from_millis(300), ..options() };
    let mut fleet = Fleet::start(ServerKind::Vllm, 1, options).await;
    assert!(fleet.update(3, DRAIN).await.is_complete());
    let server = fleet.servers.remove(0);
    let address = server.address();
    server.stop().await;
    fleet.servers.push(MockServer::start(MockServerOptions { address, ..fleet.mock() }).unwrap());
    let inside = fleet.control(0);
    inside.wait_for(|counts| counts.updates == 1).await;
    fleet.wait_for(|servers| servers[0].state == ServerState::Running).await;
    assert_eq!((inside.version(), fleet.pick().await.version()), (3, Some(3)));
}

#[tokio::test]
async fn a_change_between_two_checks_is_noticed_at_the_end_of_a_response() {
    let rare = RoutingOptions { health_interval: Duration::from_secs(3600), ..options() };
    for kind in [ServerKind::Vllm, ServerKind::Sglang] {
        let fleet = Fleet::start(kind, 1, rare.clone()).await;
        let (before, after) = (fleet.pick().await, fleet.pick().await);
        assert!(before.confirm_version().await);
        fleet.control(0).set_version(42, "42");
        let confirmed = futures_util::join!(after.confirm_version(), before.confirm_version());
        assert_eq!(confirmed, (false, false));
        assert_eq!(fleet.pick().await.version(), Some(42));
        assert!(fleet.pick().await.confirm_version().await);
    }
}

#[tokio::test]
async fn responses_that_end_together_share_a_version_request() {
    let rare = RoutingOptions { health_interval: Duration::from_secs(3600), ..options() };
    let fleet = Fleet::start(ServerKind::Vllm, 1, rare).await;
    let requests = || {
        let calls = fleet.control(0).calls();
        calls.iter().filter(|call| *call == "GET /weight_info").count()
    };
    let before = requests();
    let permits: Vec<_> = futures_util::future::join_all((0..64).map(|_| fleet.pick())).await;
    let all = permits.iter().map(|permit| permit.confirm_version());
    assert!(futures_util::future::join_all(all).await.into_iter().all(|is_right| is_right));
    assert!((1..=2).contains(&(requests() - before)), "{}", requests() - before);
}

#[tokio::test]
async fn a_version_that_is_no_number_is_an_unknown_version() {
    let fleet = Fleet::single(ServerKind::Vllm).await;
    fleet.control(0).set_version(7, "of another trainer");
    fleet.wait_for(|servers| servers[0].version.is_none()).await;
    assert_eq!(fleet.view()[0].state, ServerState::Running);
    assert_eq!(fleet.pick().await.version(), None);
    fleet.control(0).set_version(8, "v8");
    fleet.wait_for(|servers| servers[0].version == Some(8)).await;
}
