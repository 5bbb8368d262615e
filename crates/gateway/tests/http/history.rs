//! What serve mode builds on: callers without a run, whose turns somebody else keeps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::get;
use rollway_base::ServerKind;
use rollway_gateway::gateway::Gateway;
use rollway_gateway::http::{KeepFuture, TurnStore};
use rollway_gateway::recording::{RecordError, Turn};
use rollway_mock_server::{MockServer, MockServerOptions};
use serde_json::json;

use super::help::{ADMIN, World, events, options, read, says, spec, streams};

#[derive(Debug, Default)]
struct Shelf {
    turns: Mutex<Vec<Turn>>,
    is_full: AtomicBool,
}

impl TurnStore for Shelf {
    fn keep(&self, turns: Vec<Turn>) -> KeepFuture<'_> {
        Box::pin(async {
            tokio::task::yield_now().await;
            if self.is_full.load(Ordering::Relaxed) {
                return Err(RecordError::Misread("the shelf is full".to_owned()));
            }
            self.turns.lock().unwrap().extend(turns);
            Ok(())
        })
    }

    fn routes(&self) -> Router {
        Router::new().route("/feedback", get(|| async { "heard" }))
    }
}

async fn world(shelf: &Arc<Shelf>) -> World {
    let mut world = World::with(options(), Vec::new()).await;
    let server = MockServer::start(MockServerOptions::default()).unwrap();
    let specs = vec![spec(&server, ServerKind::Vllm)];
    let history: Arc<dyn TurnStore> = Arc::<Shelf>::clone(shelf);
    world.gateway = Gateway::start_with(options(), specs, Some(history)).await.unwrap();
    world.handle = world.gateway.handle();
    world.servers.push(server);
    world
}

#[tokio::test]
async fn turns_of_callers_without_a_run_are_kept_before_their_end_is_known() {
    let shelf = Arc::new(Shelf::default());
    let world = world(&shelf).await;
    let mut caller = world.open(1);
    ADMIN.clone_into(&mut caller.key);
    let mut body = says("two");
    body["n"] = json!(2);
    let (status, answer) = read(caller.chat(&body).send().await.unwrap()).await;
    assert_eq!(status, 200, "{answer}");
    let id = answer["id"].as_str().unwrap();
    let ids = || shelf.turns.lock().unwrap().iter().map(|turn| turn.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(), [id.to_owned(), format!("{id}/1")]);
    let text = caller.chat(&streams("more")).send().await.unwrap().text().await.unwrap();
    assert!(text.ends_with("[DONE]\n\n"));
    assert_eq!(ids().len(), 3);

    shelf.is_full.store(true, Ordering::Relaxed);
    let (status, error) = read(caller.chat(&says("x")).send().await.unwrap()).await;
    assert_eq!(status, 502);
    assert!(error["error"]["message"].as_str().unwrap().contains("the shelf is full"));
    let text = caller.chat(&streams("x")).send().await.unwrap().text().await.unwrap();
    assert!(events(&text).last().unwrap().contains("the shelf is full"));
    assert_eq!(world.metric("recording_failures_total").await, 2.0);

    // Runs have recordings of their own.
    shelf.is_full.store(false, Ordering::Relaxed);
    let run = world.open(2);
    assert_eq!(run.chat(&says("x")).send().await.unwrap().status(), 200);
    assert_eq!((ids().len(), world.experiences(&run).len()), (3, 1));
}

#[tokio::test]
async fn further_endpoints_need_the_admin_key() {
    let world = world(&Arc::default()).await;
    let run = world.open(1);
    let url = world.url("/feedback");
    assert_eq!(world.client.get(&url).send().await.unwrap().status(), 401);
    assert_eq!(world.client.get(&url).bearer_auth(&run.key).send().await.unwrap().status(), 403);
    let heard = world.client.get(&url).bearer_auth(ADMIN).send().await.unwrap();
    assert_eq!(heard.text().await.unwrap(), "heard");
}
