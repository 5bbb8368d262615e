//! Periodic requests for the load of a server, which routing and the concurrency limit follow.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use rollway_model_api::server_api::{LoadMetrics, ServerLoad, server_api};

use super::control::{self, FailureExtent};
use super::registry::{ModelsInner, ServerHandle};

/// Number of intervals after which a server without load metrics is asked again.
const RARE: u32 = 30;

/// Reads the load until the server is removed or the models are dropped. Servers of kinds without
/// metrics are not asked.
pub(super) async fn watch(inner: Weak<ModelsInner>, handle: Arc<ServerHandle>) {
    let Some(metrics) = server_api(handle.server.spec.engine).load_metrics() else { return };
    // Number of begins and ends of updates at the last report.
    let mut marks = 0;
    loop {
        let Some(models) = inner.upgrade() else { return };
        let Some(interval) = models.options.load_interval else { return };
        let reports = tokio::select! {
            () = handle.removed.cancelled() => return,
            reports = read_load(&models, &handle, metrics, &mut marks) => reports,
        };
        drop(models);
        let pause = if reports { interval } else { interval.saturating_mul(RARE) };
        tokio::select! {
            () = handle.removed.cancelled() => return,
            () = handle.check_load.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Returns whether the server reports its load, or may do so when it is reachable.
async fn read_load(
    inner: &Arc<ModelsInner>,
    handle: &ServerHandle,
    metrics: &LoadMetrics,
    marks: &mut u64,
) -> bool {
    let reply = control::text(&handle.server, metrics.path, inner.options.health_timeout).await;
    let load = reply.as_ref().ok().and_then(|text| ServerLoad::parse(text, metrics));
    let now = handle.update_marks.load(Ordering::Acquire);
    let is_steady = std::mem::replace(marks, now) == now;
    inner.change(|table| table.routing.set_load(handle.server.id, load, is_steady));
    load.is_some() || reply.is_err_and(|error| error.kind != FailureExtent::Refused)
}
