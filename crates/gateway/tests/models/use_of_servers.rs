//! Routing, health checks and errors without a usable server.

use std::time::Duration;

use rollway_base::ServerKind;
use rollway_gateway::models::{
    Models, RouteNeeds, RoutingOptions, ServerId, ServerPermit, ServerSpec, ServerState,
};
use rollway_model_api::ErrorKind;

use crate::fleet::Fleet;
use crate::stand_in::{StandIn, healthy, models, options, spec};

#[tokio::test]
async fn a_call_gets_a_server_of_its_model() {
    let (one, two) =
        (StandIn::start(healthy("weights")).await, StandIn::start(healthy("judge")).await);
    let models = models();
    models.add(one.spec("trained", ServerKind::LlamaCpp)).unwrap();
    let judge = models.add(two.spec("judge", ServerKind::Openai)).unwrap();
    let permit = models.pick(RouteNeeds::default()).await.unwrap();
    assert_eq!(permit.server().spec.model, "trained");
    assert_eq!(permit.server_model(), "weights");
    assert_eq!(permit.version(), Some(0));
    let other =
        models.pick(RouteNeeds { model: Some("judge"), ..RouteNeeds::default() }).await.unwrap();
    assert_eq!((other.server().id, other.server_model()), (judge, "judge"));
    let error =
        models.pick(RouteNeeds { model: Some("x"), ..RouteNeeds::default() }).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert_eq!(error.message, r#"unknown model "x"; known models: "trained", "judge""#);
}

#[tokio::test]
async fn without_models_calls_are_refused() {
    let error = models().pick(RouteNeeds::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert_eq!(error.message, "the gateway has no models: add a server with the name of its model");
}

#[tokio::test]
async fn permits_are_limited_and_granted_in_order() {
    let one = StandIn::start(healthy("m")).await;
    let models = Models::new(RoutingOptions { max_in_flight: 1, ..options() });
    models.add(one.spec("trained", ServerKind::LlamaCpp)).unwrap();
    let first = models.pick(RouteNeeds::default()).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let models = models.clone();
        let mut pick = Box::pin(async move { models.pick(RouteNeeds::default()).await.unwrap() });
        // Once polled it is in the queue.
        assert!(futures_util::poll!(&mut pick).is_pending());
        waiting.push(pick);
    }
    // The first leaves the queue; the others follow in order.
    drop(waiting.remove(0));
    assert_eq!(models.view()[0].waiting, 2);
    drop(first);
    assert!(futures_util::poll!(&mut waiting[1]).is_pending());
    let second = waiting.remove(0).await;
    assert!(futures_util::poll!(&mut waiting[0]).is_pending());
    drop(second);
    waiting.remove(0).await;
}

#[tokio::test]
async fn the_error_explains_each_server() {
    let address = StandIn::start(healthy("m")).await.stop().await;
    let models = Models::new(RoutingOptions { max_wait: Duration::from_millis(50), ..options() });
    models.add(spec(address, "trained", ServerKind::LlamaCpp)).unwrap();
    let error = models.pick(RouteNeeds::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    let start = r#"no server of model "trained" could take the call within 0.05 s: "#;
    let end = format!("http://{address} is starting (/health: connection refused)");
    assert_eq!(error.message, format!("{start}{end}"));
}

#[tokio::test(start_paused = true)]
async fn retries_do_not_wait_again_for_a_server_that_was_never_reached() {
    let address = StandIn::start(healthy("m")).await.stop().await;
    let max_wait = Duration::from_secs(60);
    let models = Models::new(RoutingOptions { max_wait, ..options() });
    models.add(spec(address, "trained", ServerKind::LlamaCpp)).unwrap();
    let begin = tokio::time::Instant::now();
    for _ in 0..11 {
        let error = models.pick(RouteNeeds::default()).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
    }
    let waited = begin.elapsed().as_secs();
    assert!((60..=72).contains(&waited), "{waited} s");
    // It is used as soon as it is there.
    let server = StandIn::start_at(address, healthy("m")).await;
    while models.pick(RouteNeeds::default()).await.is_err() {}
    // One that was reached is waited for by every call.
    server.stop().await;
    let permit = models.pick(RouteNeeds::default()).await;
    permit.iter().for_each(|permit| permit.unreachable("connection refused"));
    let begin = tokio::time::Instant::now();
    assert!(models.pick(RouteNeeds::default()).await.is_err());
    assert!(begin.elapsed() >= max_wait);
}

#[tokio::test]
async fn a_stopped_server_is_not_used_until_it_is_back() {
    let one = StandIn::start(healthy("m")).await;
    let models =
        Models::new(RoutingOptions { health_interval: Duration::from_secs(3600), ..options() });
    models.add(one.spec("trained", ServerKind::LlamaCpp)).unwrap();
    let permit = models.pick(RouteNeeds::default()).await.unwrap();
    let address = one.stop().await;
    permit.unreachable("connection refused");
    // It is checked at once, not after an hour.
    let mut pick = Box::pin(models.pick(RouteNeeds::default()));
    assert!(futures_util::poll!(&mut pick).is_pending());
    let is_gone = |state: &ServerState| match state {
        ServerState::Unhealthy(reason) => reason.contains("connection refused"),
        _ => false,
    };
    while !is_gone(&models.view()[0].servers[0].state) {
        tokio::task::yield_now().await;
    }
    let _again = StandIn::start_at(address, healthy("m")).await;
    permit.unreachable("connection refused");
    pick.await.unwrap();
}

#[tokio::test]
async fn an_unhealthy_server_is_not_used_until_it_is_healthy() {
    let mut fleet = Fleet::start(ServerKind::Vllm, 2, options()).await;
    fleet.control(0).set_healthy(false);
    fleet.wait_for(|servers| matches!(servers[0].state, ServerState::Unhealthy(_))).await;
    let ServerState::Unhealthy(reason) = &fleet.view()[0].state else { panic!("it came back") };
    assert_eq!(reason, "/health responded with status 503 Service Unavailable");
    let permits: Vec<ServerPermit> =
        futures_util::future::join_all((0..8).map(|_| fleet.pick())).await;
    assert!(permits.iter().all(|permit| permit.server().id == fleet.view()[1].id));
    fleet.control(0).set_healthy(true);
    fleet.wait_for(|servers| servers[0].state == ServerState::Running).await;
    assert_eq!(fleet.pick().await.server().id, fleet.view()[0].id);
    fleet.servers.clear();
}

#[tokio::test]
async fn consecutive_failures_make_a_server_unhealthy() {
    let one = StandIn::start(healthy("m")).await;
    let hour = Duration::from_secs(3600);
    let max_wait = Duration::from_millis(20);
    let models = Models::new(RoutingOptions { health_interval: hour, max_wait, ..options() });
    models.add(one.spec("trained", ServerKind::LlamaCpp)).unwrap();
    let permit = pick_when_healthy(&models).await;
    for _ in 0..2 {
        permit.record_failure("answered 500");
    }
    permit.record_success();
    for _ in 0..2 {
        permit.record_failure("answered 500");
    }
    assert_eq!(models.view()[0].servers[0].state, ServerState::Running);
    permit.record_failure("answered 500");
    assert_eq!(models.view()[0].servers[0].state, ServerState::Unhealthy("answered 500".into()));
    let error = models.pick(RouteNeeds::default()).await.unwrap_err();
    assert!(error.message.ends_with("is unhealthy (answered 500)"), "{error}");
    assert_eq!(models.view()[0].servers[0].counts.failed_requests, 5);
}

#[tokio::test]
async fn errors_are_counted_by_kind_and_the_last_one_is_kept() {
    let one = StandIn::start(healthy("m")).await;
    let hour = Duration::from_secs(3600);
    let models = Models::new(RoutingOptions { health_interval: hour, ..options() });
    models.add(one.spec("trained", ServerKind::LlamaCpp)).unwrap();
    let permit = pick_when_healthy(&models).await;
    assert_eq!(models.view()[0].servers[0].last_error, None);
    permit.record_failure("503 Service Unavailable");
    permit.record_failure("503 Service Unavailable");
    permit.record_failure("idle timeout in a stream");
    permit.unreachable("connection refused");
    let server = &models.view()[0].servers[0];
    let errors: Vec<_> = server.errors.iter().map(|(kind, n)| (kind.as_str(), *n)).collect();
    assert_eq!(errors, [("broken_response", 1), ("http_503", 2), ("unreachable", 1)]);
    let last = server.last_error.as_ref().unwrap();
    assert_eq!((last.kind.as_str(), last.message.as_str()), ("unreachable", "connection refused"));
}

async fn pick_when_healthy(models: &Models) -> ServerPermit {
    loop {
        if let Ok(permit) = models.pick(RouteNeeds::default()).await {
            return permit;
        }
    }
}

#[tokio::test]
async fn sessions_stay_and_calls_avoid_failed_servers() {
    let fleet = Fleet::start(ServerKind::Vllm, 3, options()).await;
    let of = |session, avoid| {
        let models = fleet.models.clone();
        async move {
            let wanted = RouteNeeds { session: Some(session), avoid, ..RouteNeeds::default() };
            models.pick(wanted).await.unwrap()
        }
    };
    // New sessions spread; known ones return to their server.
    let mut permits = Vec::new();
    for session in 0..9 {
        permits.push(of(session, &[]).await);
    }
    assert!(fleet.view().iter().all(|server| server.in_flight == 3));
    for session in 0..9 {
        assert_eq!(of(session, &[]).await.server().id, permits[session as usize].server().id);
    }
    // A server that failed the call is avoided while there is another.
    let ids: Vec<ServerId> = fleet.view().iter().map(|server| server.id).collect();
    let avoid: &'static [ServerId] = ids[..2].to_vec().leak();
    assert_eq!(of(0, avoid).await.server().id, ids[2]);
    let avoid: &'static [ServerId] = ids.clone().leak();
    of(0, avoid).await;
}

#[tokio::test]
async fn ten_thousand_waiters_are_all_served() {
    let one = StandIn::start(healthy("m")).await;
    let models = Models::new(RoutingOptions { max_in_flight: 16, ..options() });
    models.add(one.spec("trained", ServerKind::LlamaCpp)).unwrap();
    let calls = (0..10_000_u64).map(|session| {
        let models = models.clone();
        tokio::spawn(async move {
            let wanted = RouteNeeds { session: Some(session), ..RouteNeeds::default() };
            let permit = models.pick(wanted).await.unwrap();
            tokio::task::yield_now().await;
            permit.record_success();
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    let view = models.view().remove(0);
    assert_eq!((view.waiting, view.servers[0].in_flight), (0, 0));
    assert_eq!(view.servers[0].counts.succeeded_requests, 10_000);
}

#[tokio::test]
async fn invalid_server_descriptions_are_refused() {
    let models = models();
    let address = "127.0.0.1:1".parse().unwrap();
    let good = || spec(address, "trained", ServerKind::Vllm);
    let with_url = |url: &str| ServerSpec { url: url.into(), ..good() };
    for (spec, reason) in [
        (with_url("localhost:80"), "must begin with http:// or https://"),
        (with_url("127.0.0.1"), "write it as http://host:port"),
        (with_url("http://h/v1/"), "remove /v1 at its end"),
        (with_url("http://u:p@h"), "use `api_key`"),
        (with_url("http://h/?a=b"), "remove what follows ? or #"),
        (ServerSpec { model: " ".into(), ..good() }, "the model has no name"),
        (ServerSpec { model: "m".repeat(257), ..good() }, "`model` has 257 bytes, of 256 at most"),
        (with_url(&format!("http://{}", "h".repeat(2048))), "`url` has 2055 bytes"),
    ] {
        let error = models.add(spec).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidRequest);
        assert!(error.message.contains(reason), "{error}");
    }
    models.add(good()).unwrap();
    models.add(with_url("https://127.0.0.1:2/below/")).unwrap();
    for (spec, reason) in [
        (good(), "already has the server http://127.0.0.1:1"),
        (ServerSpec { trained: false, ..with_url("http://h") }, "servers of one name must agree"),
        (ServerSpec { model: "x".into(), ..with_url("http://h") }, "is already the trained model"),
    ] {
        let error = models.add(spec).unwrap_err();
        assert!(error.message.contains(reason), "{error}");
    }
    let urls: Vec<_> = models.view()[0].servers.iter().map(|it| it.url.clone()).collect();
    assert_eq!(urls, ["http://127.0.0.1:1", "https://127.0.0.1:2/below"]);
}
