//! Weight update of one server, verified by reading back its version.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rollway_model_api::server_api::PauseMode;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::control::{self, ControlError, FailureExtent, ServerVersion, operate};
use super::rolling_update::text;
use super::routing::ServerDuty;
use super::weight_update::{
    InFlightPolicy, ServerUpdateOutcome, ServerUpdateReport, WeightSource, WeightUpdate,
};
use super::{ModelsInner, ServerHandle, version_check};

/// Maximum wait for aborted requests to end.
const ABORT_GRACE: Duration = Duration::from_secs(5);

struct PreviousWeights {
    /// Version of its tokens.
    label: Option<u64>,
    /// Version of its weights.
    version: Option<u64>,
    /// Path of its weights, if known.
    path: Option<String>,
}

/// Updates a draining server and makes it available again.
pub(super) async fn update_server(
    inner: &Arc<ModelsInner>,
    handle: &Arc<ServerHandle>,
    update: &WeightUpdate,
    index: u32,
) -> ServerUpdateReport {
    let began = Instant::now();
    handle.update_marks.fetch_add(1, Ordering::AcqRel);
    let id = handle.server.id;
    let slot = inner.with(|table| {
        table.routing.slot(id).map(|slot| (slot.in_flight, slot.version, slot.loaded))
    });
    let (in_flight, label, version) = slot.unwrap_or_default();
    let before = PreviousWeights { label, version, path: handle.info().weights.clone() };
    let mut aborted = 0;
    let policy = supported_policy(handle, update);
    let outcome = match drain_if_required(inner, handle, policy, &mut aborted).await {
        Ok(()) => load_paused(inner, handle, update, index, &before, &mut aborted).await,
        Err(reason) => ServerUpdateOutcome::RolledBack(reason),
    };
    finish(inner, handle, update, &before, &outcome);
    let (url, took) = (handle.server.spec.url.clone(), began.elapsed());
    let version = update.version;
    match &outcome {
        // Debug level: the caller has the report, and it would repeat every step.
        ServerUpdateOutcome::Updated | ServerUpdateOutcome::AlreadyCurrent => {
            tracing::debug!(url, version, ?outcome, "update of a server ended");
        }
        _ => tracing::warn!(url, version, ?outcome, "update of a server failed"),
    }
    ServerUpdateReport { id, url, outcome, took, in_flight, aborted }
}

/// Returns the policy, or the closest one at a server that cannot pause requests.
fn supported_policy(handle: &ServerHandle, update: &WeightUpdate) -> InFlightPolicy {
    if handle.info().capabilities.can_pause() {
        return update.in_flight;
    }
    match update.in_flight {
        InFlightPolicy::Keep => {
            InFlightPolicy::Drain { timeout: update.timeout, then_abort: false }
        }
        InFlightPolicy::Abort => {
            InFlightPolicy::Drain { timeout: Duration::ZERO, then_abort: true }
        }
        drain @ InFlightPolicy::Drain { .. } => drain,
    }
}

/// Drains the server if the policy requires it.
async fn drain_if_required(
    inner: &ModelsInner,
    handle: &ServerHandle,
    in_flight: InFlightPolicy,
    aborted: &mut u32,
) -> Result<(), String> {
    let InFlightPolicy::Drain { timeout, then_abort } = in_flight else { return Ok(()) };
    let left = drained(inner, handle, timeout).await;
    if left == 0 {
        return Ok(());
    }
    if !then_abort {
        let waited = timeout.as_secs_f64();
        return Err(format!("{left} requests were still in flight after {waited} s"));
    }
    *aborted = left;
    handle.abort_all();
    match drained(inner, handle, ABORT_GRACE).await {
        0 => Ok(()),
        left => Err(format!("{left} requests did not end although they were aborted")),
    }
}

/// Waits until the server has no requests. Returns the number of remaining ones after the timeout.
pub(super) async fn drained(inner: &ModelsInner, handle: &ServerHandle, timeout: Duration) -> u32 {
    let deadline = Instant::now() + timeout;
    loop {
        // Registered before the check, so that no notification is missed.
        let mut empty = Box::pin(handle.is_empty.notified());
        empty.as_mut().enable();
        let left = in_flight(inner, handle);
        if left == 0 || tokio::time::timeout_at(deadline, empty).await.is_err() {
            return left;
        }
    }
}

/// Pauses the server, loads the weights, verifies them, and resumes in any case.
async fn load_paused(
    inner: &ModelsInner,
    handle: &ServerHandle,
    update: &WeightUpdate,
    index: u32,
    before: &PreviousWeights,
    aborted: &mut u32,
) -> ServerUpdateOutcome {
    let id = handle.server.id;
    let is_ours = inner.with(|table| match table.routing.slot_mut(id) {
        Some(slot) if slot.duty == ServerDuty::Draining => {
            slot.duty = ServerDuty::Updating;
            true
        }
        _ => false,
    });
    if !is_ours {
        return ServerUpdateOutcome::RolledBack("it is being removed".to_owned());
    }
    let mode = match update.in_flight {
        InFlightPolicy::Drain { .. } => PauseMode::Empty,
        InFlightPolicy::Keep => PauseMode::Keep,
        InFlightPolicy::Abort => PauseMode::Abort,
    };
    // Counted before: aborted requests may have ended when the pause returns.
    let requests_before = in_flight(inner, handle);
    handle.info().paused = Some(mode);
    let halted = operate(handle, update.timeout, |control| control.pause(mode)).await;
    let outcome = match halted {
        Err(error) => ServerUpdateOutcome::RolledBack(error.message),
        Ok(()) => {
            if mode == PauseMode::Abort {
                *aborted += requests_before;
                abort_rest(inner, handle).await;
            }
            version_check::before_update(handle, before.label, update.timeout).await;
            // From now on the version of a token is unknown.
            inner.with(|table| {
                handle.weights.fetch_add(1, Ordering::AcqRel);
                if let Some(slot) = table.routing.slot_mut(id) {
                    slot.version = None;
                    slot.loaded = None;
                }
            });
            load(handle, update, index, before).await
        }
    };
    if matches!(outcome, ServerUpdateOutcome::Broken(_)) {
        // vLLM ends if it generates a token after a failed load.
        *aborted += in_flight(inner, handle);
        handle.abort_all();
        drained(inner, handle, ABORT_GRACE).await;
    }
    // A paused server hangs all requests: it must resume even if its weights are broken.
    match control::resume(handle, mode, update.timeout).await {
        Ok(()) => {
            handle.info().paused = None;
            outcome
        }
        Err(error) if error.kind == FailureExtent::Gone => outcome,
        // It does not support pausing, so it cannot resume either.
        Err(error)
            if error.kind == FailureExtent::Refused
                && matches!(outcome, ServerUpdateOutcome::RolledBack(_)) =>
        {
            outcome
        }
        Err(error) => ServerUpdateOutcome::Broken(format!("it could not be resumed: {error}")),
    }
}

/// Ends requests that the server did not abort itself.
async fn abort_rest(inner: &ModelsInner, handle: &ServerHandle) {
    if drained(inner, handle, ABORT_GRACE).await > 0 {
        handle.abort_all();
        drained(inner, handle, ABORT_GRACE).await;
    }
}

fn in_flight(inner: &ModelsInner, handle: &ServerHandle) -> u32 {
    inner.with(|table| table.routing.slot(handle.server.id).map_or(0, |slot| slot.in_flight))
}

/// Loads and verifies the weights; restores the old ones on failure.
async fn load(
    handle: &ServerHandle,
    update: &WeightUpdate,
    index: u32,
    before: &PreviousWeights,
) -> ServerUpdateOutcome {
    let timeout = update.timeout;
    let loaded = match &update.weights {
        WeightSource::Path(path) => {
            operate(handle, timeout, |control| control.load(&text(path), update.version)).await
        }
        WeightSource::Group(group) => {
            let rank = 1 + index * group.ranks_per_server;
            operate(handle, timeout, |control| control.receive(group, update.version, rank)).await
        }
    };
    let error = match loaded {
        Ok(()) => return verify(handle, update, before).await,
        Err(error) => error,
    };
    match error.kind {
        // It is identified when it is back.
        FailureExtent::Gone => ServerUpdateOutcome::Broken(error.message),
        FailureExtent::Refused | FailureExtent::Unsent => {
            verify_rollback(handle, before, error, timeout).await
        }
        FailureExtent::Failed => match (&before.path, before.version) {
            // Its weights may be anything, whatever it reports: it gets the old ones again.
            (Some(path), Some(version)) => {
                match operate(handle, timeout, |control| control.load(path, version)).await {
                    Ok(()) => verify_rollback(handle, before, error, timeout).await,
                    Err(second) => ServerUpdateOutcome::Broken(format!(
                        "{error}; the old weights could not be loaded again either: {second}"
                    )),
                }
            }
            _ => ServerUpdateOutcome::Broken(format!(
                "{error}; the location of its old weights is unknown"
            )),
        },
    }
}

/// Compares the version after a successful load.
async fn verify(
    handle: &ServerHandle,
    update: &WeightUpdate,
    before: &PreviousWeights,
) -> ServerUpdateOutcome {
    let version = update.version;
    match control::version(&handle.server, update.timeout).await {
        Ok(ServerVersion::Number(reported)) if reported == version => ServerUpdateOutcome::Updated,
        // It has accepted them. The version of its tokens is unknown.
        Ok(ServerVersion::Unsupported) => ServerUpdateOutcome::Updated,
        Ok(ServerVersion::Number(reported)) if Some(reported) == before.version => {
            ServerUpdateOutcome::RolledBack(format!(
                "it reports version {reported} although it accepted version {version}"
            ))
        }
        Ok(reported) => {
            let message = format!("it reports {reported} after an update to {version}");
            ServerUpdateOutcome::Broken(message)
        }
        Err(error) => {
            ServerUpdateOutcome::Broken(format!("its version could not be read back: {error}"))
        }
    }
}

/// Verifies that the server has its old weights.
async fn verify_rollback(
    handle: &ServerHandle,
    before: &PreviousWeights,
    error: ControlError,
    timeout: Duration,
) -> ServerUpdateOutcome {
    match control::version(&handle.server, timeout).await {
        Ok(ServerVersion::Unsupported) => ServerUpdateOutcome::RolledBack(error.message),
        Ok(ServerVersion::Number(reported)) if Some(reported) == before.version => {
            ServerUpdateOutcome::RolledBack(error.message)
        }
        Ok(reported) => {
            let was = describe(before.version);
            ServerUpdateOutcome::Broken(format!("{error}; it reports {reported}, and had {was}"))
        }
        Err(second) => ServerUpdateOutcome::Broken(format!(
            "{error}; its version could not be read back: {second}"
        )),
    }
}

fn describe(version: Option<u64>) -> String {
    version.map_or_else(|| "no version".to_owned(), |version| format!("version {version}"))
}

/// Applies the outcome to the routing table.
fn finish(
    inner: &Arc<ModelsInner>,
    handle: &ServerHandle,
    update: &WeightUpdate,
    before: &PreviousWeights,
    outcome: &ServerUpdateOutcome,
) {
    let id = handle.server.id;
    if *outcome == ServerUpdateOutcome::Updated {
        handle.info().weights = match &update.weights {
            WeightSource::Path(path) => Some(text(path)),
            WeightSource::Group(_) => None,
        };
    }
    if let ServerUpdateOutcome::RolledBack(reason) | ServerUpdateOutcome::Broken(reason) = outcome {
        handle.count_error("weight_update".to_owned(), reason);
    }
    inner.change(|table| {
        handle.update_marks.fetch_add(1, Ordering::AcqRel);
        let Some(slot) = table.routing.slot_mut(id) else { return };
        let duty = match outcome {
            ServerUpdateOutcome::Updated => {
                slot.counts.updates += 1;
                let is_reported = handle.info().capabilities.reports_version();
                slot.version = is_reported.then_some(update.version);
                slot.loaded = Some(update.version);
                slot.is_behind = false;
                ServerDuty::Open
            }
            ServerUpdateOutcome::Broken(reason) => {
                slot.counts.failed_updates += 1;
                slot.version = None;
                slot.loaded = None;
                ServerDuty::Broken(reason.clone())
            }
            _ => {
                slot.counts.failed_updates += 1;
                slot.version = before.label;
                slot.loaded = before.version;
                // A broken server stays broken.
                before.version.map_or_else(
                    || ServerDuty::Broken("its last update failed".to_owned()),
                    |_| ServerDuty::Open,
                )
            }
        };
        if slot.duty != ServerDuty::Leaving {
            slot.duty = duty;
        }
    });
    inner.changed.notify_waiters();
    handle.check_now.notify_one();
}

impl ServerHandle {
    /// Aborts requests in flight. Later ones are not affected.
    pub(super) fn abort_all(&self) {
        let ended = std::mem::replace(&mut self.info().abort, CancellationToken::new());
        ended.cancel();
    }
}
