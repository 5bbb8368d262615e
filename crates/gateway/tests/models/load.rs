//! Routing and concurrency by the load that servers report.

use std::time::Duration;

use rollway_base::ServerKind;
use rollway_gateway::models::{InFlightPolicy, Models, RouteNeeds, RoutingOptions, ServerPermit};
use rollway_mock_server::MockServerOptions;

use crate::fleet::{Fleet, Stream, held_streams, spec};
use crate::stand_in::options;

/// Options with loads that are read all the time.
fn adaptive() -> RoutingOptions {
    RoutingOptions {
        is_adaptive: true,
        load_interval: Some(Duration::from_millis(5)),
        min_in_flight: 2,
        max_in_flight: 64,
        ..options()
    }
}

/// A server that runs four requests at once, each until it is released.
async fn small(options: RoutingOptions) -> Fleet {
    let mut fleet = Fleet::start(ServerKind::Vllm, 0, options).await;
    let mock = MockServerOptions { max_running: 4, ..fleet.mock() };
    fleet.add(mock).await;
    fleet.control(0).hold(1);
    fleet
}

#[tokio::test]
async fn a_queue_at_the_server_moves_into_the_gateway() {
    let fleet = small(RoutingOptions { max_wait: Duration::from_millis(30), ..adaptive() }).await;
    // Four run, and those that wait at the server get no response yet.
    let permits = fleet.pick_many(20).await;
    let opened = permits.into_iter().map(|permit| Stream::open(permit, "hello"));
    let all = tokio::spawn(futures_util::future::join_all(opened));
    fleet.wait_for(|servers| servers[0].limit < 20).await;
    let server = fleet.view().remove(0);
    let load = server.load.unwrap();
    assert_eq!((load.running, load.waiting), (4, 16));
    assert_eq!(load.cache_usage, Some(0.0));
    assert!(server.counts.limit_reductions > 0);
    assert!((2..=8).contains(&server.limit), "{}", server.limit);
    // Longer than `max_wait`: the server is healthy, and has room later.
    let models = fleet.models.clone();
    let late = tokio::spawn(async move { models.pick(RouteNeeds::default()).await });
    fleet.wait_for(|_| fleet.models.view()[0].waiting == 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!late.is_finished(), "a call must not fail while a healthy server has too much to do");
    fleet.control(0).release();
    for mut stream in all.await.unwrap() {
        stream.finish().await;
    }
    late.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_limit_rises_again_when_the_server_has_room() {
    let fleet = small(adaptive()).await;
    let permits = fleet.pick_many(20).await;
    let opened = permits.into_iter().map(|permit| Stream::open(permit, "hello"));
    let all = tokio::spawn(futures_util::future::join_all(opened));
    fleet.wait_for(|servers| servers[0].limit <= 8).await;
    fleet.control(0).release();
    all.await.unwrap();
    let low = fleet.view()[0].limit;
    // Permits without a request: the limit is reached, and the server's queue is empty.
    let mut held: Vec<ServerPermit> = Vec::new();
    while fleet.view()[0].limit <= low {
        held.push(fleet.pick().await);
    }
    assert!(fleet.view()[0].counts.limit_raises > 0);
}

#[tokio::test]
async fn a_full_cache_and_the_requests_of_others_are_avoided() {
    let fleet = Fleet::start(ServerKind::Vllm, 2, adaptive()).await;
    let congested = fleet.view()[0].id;
    fleet.control(0).report_cache(0.99, 0);
    fleet.wait_for(|servers| has_usage(servers[0].load, 0.99)).await;
    for permit in fleet.pick_many(6).await {
        assert_ne!(permit.server().id, congested);
    }
    fleet.control(0).report_cache(0.1, 0);
    fleet.wait_for(|servers| has_usage(servers[0].load, 0.1)).await;
    // Another gateway sends requests to the other server.
    let others = Models::new(options());
    others.add(spec(ServerKind::Vllm, fleet.view()[1].url.clone())).unwrap();
    fleet.control(1).hold(1);
    let mut streams = Vec::new();
    for _ in 0..3 {
        let permit = others.pick(RouteNeeds::default()).await.unwrap();
        streams.push(Stream::open(permit, "hello").await);
    }
    fleet.wait_for(|servers| servers[1].load.is_some_and(|load| load.running == 3)).await;
    let permits = fleet.pick_many(2).await;
    assert!(permits.iter().all(|permit| permit.server().id == congested));
    fleet.control(1).release();
}

fn has_usage(load: Option<rollway_model_api::server_api::ServerLoad>, usage: f64) -> bool {
    load.is_some_and(|load| load.cache_usage == Some(usage))
}

#[tokio::test]
async fn preemptions_by_a_weight_update_do_not_lower_the_limit() {
    let fleet = Fleet::start(ServerKind::Vllm, 1, adaptive()).await;
    let permits = fleet.pick_many(32).await;
    // The first report may belong to the start of the server. The second one counts from there.
    for usage in [0.3, 0.4] {
        fleet.control(0).report_cache(usage, 0);
        fleet.wait_for(|servers| has_usage(servers[0].load, usage)).await;
    }
    fleet.control(0).report_cache(0.5, 3);
    fleet.wait_for(|servers| servers[0].counts.limit_reductions == 1).await;
    let before = fleet.view()[0].limit;
    assert_eq!(before, 28);
    // The update itself preempts everything.
    let update = fleet.update(1, InFlightPolicy::Keep);
    let (report, ()) = tokio::join!(update, async {
        fleet.wait_for(|servers| servers[0].version != Some(0)).await;
        fleet.control(0).report_cache(0.5, 50);
    });
    assert!(report.is_complete(), "{report:?}");
    fleet.wait_for(|servers| servers[0].load.is_some_and(|it| it.preemptions == Some(50))).await;
    let after = fleet.view().remove(0);
    assert_eq!((after.limit, after.counts.limit_reductions), (before, 1));
    drop(permits);
}

#[tokio::test]
async fn a_server_without_metrics_keeps_its_limit() {
    let mut fleet = Fleet::start(ServerKind::Vllm, 0, adaptive()).await;
    let missing_endpoints = vec!["/metrics".to_owned()];
    let mock = MockServerOptions { max_running: 4, missing_endpoints, ..fleet.mock() };
    fleet.add(mock).await;
    fleet.control(0).hold(1);
    let streams = held_streams(&fleet, 4).await;
    let server = fleet.view().remove(0);
    assert_eq!((server.limit, server.load), (64, None));
    fleet.control(0).release();
    drop(streams);
}
