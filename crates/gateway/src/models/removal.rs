//! Removal of servers.

use std::sync::Arc;
use std::time::Duration;

use rollway_model_api::{CallError, ErrorKind};

use super::routing::ServerDuty;
use super::server_update::drained;
use super::{ModelsInner, ServerHandle, ServerId};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovalReport {
    pub aborted: u32,
}

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
        match table.routing.slot_mut(id) {
            Some(slot) if slot.duty != ServerDuty::Leaving => slot.duty = ServerDuty::Leaving,
            _ => return unknown("it is being removed already"),
        }
        Ok(handle)
    })?;
    let task = tokio::spawn(finish(Arc::clone(inner), handle, deadline));
    // The task ends early only with the runtime.
    Ok(task.await.unwrap_or_default())
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
    handle.removed.cancel();
    let id = handle.server.id;
    inner.change(|table| {
        table.routing.remove(id);
        table.handles.remove(&id);
    });
    inner.changed.notify_waiters();
    let url = &handle.server.spec.url;
    tracing::info!(url, aborted, "server was removed");
    RemovalReport { aborted }
}
