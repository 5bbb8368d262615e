//! Removal of servers in use.

use std::time::Duration;

use rollway_base::ServerKind;
use rollway_gateway::models::{RemovalReport, RouteNeeds, ServerState};
use rollway_model_api::ErrorKind;

use crate::fleet::{DRAIN, Fleet, held_streams};
use crate::stand_in::options;

#[tokio::test]
async fn a_removed_server_finishes_its_requests() {
    let fleet = Fleet::start(ServerKind::Vllm, 2, options()).await;
    let ids: Vec<_> = fleet.view().iter().map(|server| server.id).collect();
    fleet.control(0).hold(5);
    fleet.control(1).hold(5);
    let streams = held_streams(&fleet, 6).await;
    let mut removal = Box::pin(fleet.models.remove(ids[0], Duration::from_secs(60)));
    assert!(futures_util::poll!(&mut removal).is_pending());
    assert_eq!(fleet.view()[0].state, ServerState::Draining);
    assert_eq!(fleet.pick().await.server().id, ids[1]);
    let again = fleet.models.remove(ids[0], Duration::ZERO).await.unwrap_err();
    assert_eq!(again.kind, ErrorKind::NotFound);
    fleet.control(0).release();
    for mut stream in streams.into_iter().filter(|it| it.permit.server().id == ids[0]) {
        stream.finish().await;
        assert!(
            stream.is_done && futures_util::poll!(Box::pin(stream.permit.aborted())).is_pending()
        );
    }
    assert_eq!(removal.await, Ok(RemovalReport { aborted: 0 }));
    assert_eq!(fleet.view().len(), 1);
}

#[tokio::test]
async fn requests_left_at_the_deadline_are_aborted() {
    let fleet = Fleet::single(ServerKind::Sglang).await;
    let id = fleet.view()[0].id;
    fleet.control(0).hold(5);
    let stream = held_streams(&fleet, 1).await.remove(0);
    let removed = fleet.models.remove(id, Duration::from_millis(5)).await;
    assert_eq!(removed, Ok(RemovalReport { aborted: 1 }));
    stream.permit.aborted().await;
    drop(stream);
    fleet.control(0).wait_for(|counts| counts.left == 1).await;
    let error = fleet.models.pick(RouteNeeds::default()).await.unwrap_err();
    assert_eq!(error.message, "the gateway has no models: add a server with the name of its model");
    assert!(fleet.update(1, DRAIN).await.servers.is_empty());
}
