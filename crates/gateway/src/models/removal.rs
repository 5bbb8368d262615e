//! Servers that are taken out while the gateway runs.

use std::sync::Arc;
use std::time::Duration;

use rollway_model_api::{CallError, ErrorKind};

use super::routing::ServerDuty;
use super::server_update::drained;
use super::{ModelsInner, ServerHandle, ServerId};

/// What became of a server that was taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovalReport {
    /// Requests that had to be aborted.
    pub aborted: u32,
}

/// Takes a server out.
pub(super) async fn remove(
    inner: &Arc<ModelsInner>,
    id: ServerId,
    deadline: Duration,
) -> Result<RemovalReport, CallError> {
    let handle = inner.with(|table| {
        let unknown =
            |why: &str| Err(CallError::new(ErrorKind::NotFound, format!("server {}: {why}", id.0)));
        let Some(handle) = table.handles.get(&id).cloned() else {
            return unknown("there is no such server");
        };
        match table.board.seat_mut(id) {
            Some(seat) if seat.duty != ServerDuty::Leaving => seat.duty = ServerDuty::Leaving,
            _ => return unknown("it is being removed already"),
        }
        Ok(handle)
    })?;
    let task = tokio::spawn(finish(Arc::clone(inner), handle, deadline));
    // It ends early only with the runtime.
    Ok(task.await.unwrap_or(RemovalReport { aborted: 0 }))
}

async fn finish(
    inner: Arc<ModelsInner>,
    handle: Arc<ServerHandle>,
    deadline: Duration,
) -> RemovalReport {
    let aborted = drained(&inner, &handle, deadline).await;
    if aborted > 0 {
        handle.abort_all();
    }
    handle.gone.cancel();
    let id = handle.server.id;
    inner.change(|table| {
        table.board.remove(id);
        table.handles.remove(&id);
    });
    inner.changed.notify_waiters();
    let url = &handle.server.spec.url;
    tracing::info!(url, aborted, "server was removed");
    RemovalReport { aborted }
}
