//! Asks one server again and again whether it is well.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::control::{self, ControlError, FailureExtent, ServedName};
use super::{ModelsInner, ServerHandle};

/// What a server says of itself.
#[derive(Debug)]
pub(super) struct HealthReply {
    pub(super) model: ServedName,
    pub(super) version: Option<u64>,
}

/// Watches a server until it is removed, or nobody uses the models any more.
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
    let said_before = handle.said.load(Ordering::Acquire);
    let knows_it = models.with(|table| table.board.seat(id).is_some_and(super::registry::is_known));
    let asked = async {
        control::check(&handle.server, timeout).await?;
        // Whoever was away may have come back with other weights.
        if knows_it { Ok(None) } else { identify(handle, timeout).await.map(Some) }
    };
    match asked.await {
        Ok(said) => models.passed(handle, said, said_before),
        Err(error) => models.failed(handle, &error.message, error.kind == FailureExtent::Gone),
    }
}

async fn identify(handle: &ServerHandle, timeout: Duration) -> Result<HealthReply, ControlError> {
    let model = control::model_name(&handle.server, timeout).await?;
    let version = control::version(&handle.server, timeout).await?;
    Ok(HealthReply { model, version })
}
