//! What serve mode builds on: callers without a run, whose turns somebody else keeps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::get;
use rollway_gateway::http::{KeepFuture, TurnStore};
use rollway_gateway::recording::{RecordError, Turn};
use rollway_mock_server::MockServerOptions;
use serde_json::json;

use super::help::{ADMIN, World, events, options, says, streams};

#[derive(Debug, Default)]
struct FallibleStore {
    turns: Mutex<Vec<Turn>>,
    is_full: AtomicBool,
}

impl TurnStore for FallibleStore {
    fn keep(&self, turns: Vec<Turn>) -> KeepFuture<'_> {
        Box::pin(async {
            tokio::task::yield_now().await;
            if self.is_full.load(Ordering::Relaxed) {
                return Err(RecordError::Misread("the store is full".to_owned()));
            }
            self.turns.lock().unwrap().extend(turns);
            Ok(())
        })
    }

    fn routes(&self) -> Router {
        Router::new().route("/feedback", get(|| async { "ok" }))
    }
}

async fn world(store: &Arc<FallibleStore>) -> World {
    let store: Arc<dyn TurnStore> = Arc::<FallibleStore>::clone(store);
    World::with_store(options(), vec![MockServerOptions::default()], Some(store)).await
}

#[tokio::test]
async fn turns_of_callers_without_a_run_are_kept_before_their_end_is_known() {
    let store = Arc::new(FallibleStore::default());
    let world = world(&store).await;
    let agent = world.agent();
    let mut body = says("two");
    body["n"] = json!(2);
    let (status, response) = agent.call(&body).await;
    assert_eq!(status, 200, "{response}");
    let id = response["id"].as_str().unwrap();
    let ids = || store.turns.lock().unwrap().iter().map(|turn| turn.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(), [id.to_owned(), format!("{id}/1")]);
    let text = agent.text(&streams("more")).await;
    assert!(text.ends_with("[DONE]\n\n"));
    assert_eq!(ids().len(), 3);

    store.is_full.store(true, Ordering::Relaxed);
    let (status, error) = agent.call(&says("x")).await;
    assert_eq!(status, 502);
    assert!(error["error"]["message"].as_str().unwrap().contains("the store is full"));
    let text = agent.text(&streams("x")).await;
    assert!(events(&text).last().unwrap().contains("the store is full"));
    assert_eq!(world.metric("recording_failures_total").await, 2.0);

    // Runs have recordings of their own.
    store.is_full.store(false, Ordering::Relaxed);
    let run = world.open(2);
    assert_eq!(run.send(&says("x")).await.status(), 200);
    assert_eq!((ids().len(), world.experiences(&run).len()), (3, 1));
}

#[tokio::test]
async fn further_endpoints_need_the_admin_key() {
    let world = world(&Arc::default()).await;
    let run = world.open(1);
    let url = world.url("/feedback");
    assert_eq!(world.client.get(&url).send().await.unwrap().status(), 401);
    assert_eq!(world.client.get(&url).bearer_auth(&run.key).send().await.unwrap().status(), 403);
    let reply = world.client.get(&url).bearer_auth(ADMIN).send().await.unwrap();
    assert_eq!(reply.text().await.unwrap(), "ok");
}
