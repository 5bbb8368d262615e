//! Interface of serve mode to the gateway.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use axum::Router;
use prometheus_client::registry::Registry;

use rollway_recording::{RecordError, Turn};

pub type StoreFuture<'a> = Pin<Box<dyn Future<Output = Result<(), RecordError>> + Send + 'a>>;

/// Stores turns of the trained model whose callers belong to no run.
pub trait TurnStore: Debug + Send + Sync {
    /// Stores the turns of one response durably. The client receives the end of the response only
    /// after success, otherwise an error. Once begun it is not cancelled.
    fn store_turns(&self, turns: Vec<Turn>) -> StoreFuture<'_>;

    /// Returns whether agents need a key. Otherwise a client without a key is an agent.
    fn needs_key(&self) -> bool {
        true
    }

    /// Further endpoints, for agents and the admin key.
    fn routes(&self) -> Router {
        Router::new()
    }

    /// Registers further metrics below the prefix `rollway_gateway`.
    fn register(&self, registry: &mut Registry) {
        let _ = registry;
    }
}
