//! Servers that lack control endpoints.

use std::time::Duration;

use rollway_base::ServerKind;
use rollway_gateway::models::{
    InFlightPolicy, RoutingOptions, ServerCapabilities, ServerState, ServerUpdateOutcome, reach,
};
use rollway_mock_server::{MockServer, MockServerOptions};

use crate::fleet::{DRAIN, Fleet, Stream, held_streams, outcomes, spec};
use crate::stand_in::options;

const ALL_OF_DEV_MODE: &[&str] = &[
    "/collective_rpc",
    "/pause",
    "/resume",
    "/is_paused",
    "/weight_info",
    "/update_weight_version",
    "/start_weight_update",
    "/abort_requests",
    "/reset_prefix_cache",
];

async fn fleet(missing: &[&str]) -> Fleet {
    let mut fleet = Fleet::start(ServerKind::Vllm, 0, options()).await;
    fleet.add(without(&fleet, missing)).await;
    fleet
}

fn without(fleet: &Fleet, missing: &[&str]) -> MockServerOptions {
    let missing_endpoints = missing.iter().map(|path| (*path).to_owned()).collect();
    MockServerOptions { missing_endpoints, ..fleet.mock() }
}

fn missing(capabilities: &ServerCapabilities) -> Vec<&'static str> {
    capabilities.missing().iter().map(|endpoint| endpoint.path).collect()
}

#[tokio::test]
async fn a_complete_server_lacks_nothing() {
    for kind in [ServerKind::Vllm, ServerKind::Sglang] {
        let fleet = Fleet::single(kind).await;
        let capabilities = &fleet.view()[0].capabilities;
        assert_eq!(missing(capabilities), [""; 0]);
        assert!(capabilities.reports_version() && capabilities.describe_missing().is_none());
        let reached = reach(&spec(kind, fleet.servers[0].url()), Duration::from_secs(5)).await;
        assert_eq!(reached.unwrap().cannot_load_folder(), None);
        // Nothing was executed.
        assert!(fleet.control(0).calls().iter().all(|call| !call.starts_with("POST")));
    }
}

#[tokio::test]
async fn a_server_without_version_endpoints_is_updated_and_its_tokens_have_no_version() {
    let fleet = fleet(&["/weight_info", "/update_weight_version"]).await;
    let view = fleet.view();
    assert!(!view[0].capabilities.reports_version());
    assert_eq!((view[0].version, view[0].loaded), (None, Some(0)));
    for version in [1, 2] {
        let report = fleet.update(version, DRAIN).await;
        assert_eq!(outcomes(&report), [&ServerUpdateOutcome::Updated]);
        let view = fleet.view();
        assert_eq!((view[0].version, view[0].loaded), (None, Some(version)));
        assert_eq!(view[0].state, ServerState::Running);
        assert_eq!(fleet.pick().await.version(), None);
        assert_eq!(fleet.control(0).version(), version);
    }
    let report = fleet.update(2, DRAIN).await;
    assert_eq!(outcomes(&report), [&ServerUpdateOutcome::AlreadyCurrent]);
    // A failed update is rolled back without a version to read.
    fleet.control(0).fail_updates(1);
    let report = fleet.update(3, DRAIN).await;
    assert!(matches!(outcomes(&report)[..], [ServerUpdateOutcome::RolledBack(_)]), "{report:?}");
    assert_eq!((fleet.view()[0].loaded, fleet.control(0).version()), (Some(2), 2));
}

#[tokio::test]
async fn a_restarted_server_without_version_endpoints_gets_the_latest_weights() {
    let options = RoutingOptions { max_wait: Duration::from_secs(60), ..options() };
    let mut fleet = Fleet::start(ServerKind::Vllm, 0, options).await;
    let old = ["/weight_info", "/update_weight_version"];
    fleet.add(without(&fleet, &old)).await;
    assert!(fleet.update(3, DRAIN).await.is_complete());
    let server = fleet.servers.remove(0);
    let address = server.address();
    server.stop().await;
    fleet.wait_for(|servers| matches!(servers[0].state, ServerState::Unhealthy(_))).await;
    let again = MockServerOptions { address, ..without(&fleet, &old) };
    fleet.servers.push(MockServer::start(again).unwrap());
    drop(fleet.pick().await);
    assert_eq!(fleet.control(0).version(), 3);
}

#[tokio::test]
async fn requests_of_a_server_without_pause_finish_first() {
    for in_flight in [InFlightPolicy::Keep, DRAIN] {
        let fleet = fleet(&["/pause", "/resume", "/is_paused"]).await;
        fleet.control(0).hold(5);
        let mut streams = held_streams(&fleet, 2).await;
        let finish = async {
            fleet.wait_for(|servers| servers[0].state == ServerState::Draining).await;
            fleet.control(0).release();
            for stream in &mut streams {
                stream.finish().await;
                assert!(stream.is_done);
            }
            drop(streams);
        };
        let (report, ()) = futures_util::join!(fleet.update(1, in_flight), finish);
        assert_eq!(outcomes(&report), [&ServerUpdateOutcome::Updated]);
        assert_eq!(fleet.pick().await.version(), Some(1));
    }
}

#[tokio::test]
async fn requests_of_a_server_without_pause_are_aborted_by_the_gateway() {
    let fleet = fleet(&["/pause", "/resume", "/is_paused"]).await;
    fleet.control(0).hold(5);
    let streams = held_streams(&fleet, 2).await;
    let leave = async {
        for Stream { permit, .. } in streams {
            permit.aborted().await;
        }
    };
    let (report, ()) = futures_util::join!(fleet.update(1, InFlightPolicy::Abort), leave);
    assert_eq!(outcomes(&report), [&ServerUpdateOutcome::Updated]);
    assert_eq!(report.servers[0].aborted, 2);
}

#[tokio::test]
async fn a_server_without_dev_mode_is_used_with_its_first_weights() {
    let fleet = fleet(ALL_OF_DEV_MODE).await;
    let server = spec(ServerKind::Vllm, fleet.servers[0].url());
    let reached = reach(&server, Duration::from_secs(5)).await;
    let reason = reached.unwrap().cannot_load_folder().unwrap();
    assert_eq!(reason, "it has no /collective_rpc: start vLLM with VLLM_SERVER_DEV_MODE=1");
    let report = fleet.update(1, DRAIN).await;
    assert_eq!(outcomes(&report), [&ServerUpdateOutcome::Skipped(reason)]);
    assert_eq!(fleet.view()[0].state, ServerState::Running);
    // Its weights cannot change.
    assert_eq!(fleet.pick().await.version(), Some(0));
}
