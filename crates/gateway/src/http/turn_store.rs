//! The place where serve mode joins in.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use axum::Router;
use prometheus_client::registry::Registry;

use crate::recording::{RecordError, Turn};

/// The answer to whoever waits for turns to be kept.
pub type KeepFuture<'a> = Pin<Box<dyn Future<Output = Result<(), RecordError>> + Send + 'a>>;

/// Keeps what the trained model says to callers that belong to no run of the engine.
pub trait TurnStore: Debug + Send + Sync {
    /// Keeps the turns of one answer for good. The client learns the end of the answer only after
    /// this has gone well; if it has not, the client gets an error in its place. Once begun it is
    /// not given up, even if the client is.
    fn keep(&self, turns: Vec<Turn>) -> KeepFuture<'_>;

    /// Whether callers must show a key. Otherwise whoever reaches the gateway may use it like its
    /// admin.
    fn needs_key(&self) -> bool {
        true
    }

    /// Further endpoints. They are reached with the admin key alone, which was checked before.
    fn routes(&self) -> Router {
        Router::new()
    }

    /// Further metrics, below the prefix `rollway_gateway`.
    fn register(&self, registry: &mut Registry) {
        let _ = registry;
    }
}
