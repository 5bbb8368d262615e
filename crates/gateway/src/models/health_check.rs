//! Periodic health checks of a server.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::control::{self, FailureExtent};
use super::{ModelsInner, ServerHandle};

/// Checks a server until it is removed or the models are dropped.
pub(super) async fn watch(inner: Weak<ModelsInner>, handle: Arc<ServerHandle>) {
    loop {
        let Some(models) = inner.upgrade() else { return };
        let interval = models.options.health_interval;
        tokio::select! {
            () = handle.gone.cancelled() => return,
            () = check(&models, &handle) => {}
        }
        drop(models);
        tokio::select! {
            () = handle.gone.cancelled() => return,
            () = handle.check_now.notified() => {}
            () = tokio::time::sleep(interval) => {}
        }
    }
}

async fn check(models: &Arc<ModelsInner>, handle: &ServerHandle) {
    let timeout = models.options.health_timeout;
    let id = handle.server.id;
    let marks_before = handle.update_marks.load(Ordering::Acquire);
    let is_known =
        models.with(|table| table.routing.slot(id).is_some_and(super::registry::is_known));
    let reply_of_check = async {
        control::check(&handle.server, timeout).await?;
        // After an outage the server may have other weights.
        if is_known { Ok(None) } else { control::identify(&handle.server, timeout).await.map(Some) }
    };
    match reply_of_check.await {
        Ok(reply) => models.passed(handle, reply, marks_before),
        Err(error) => models.failed(handle, &error.message, error.kind == FailureExtent::Gone),
    }
}
