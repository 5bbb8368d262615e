//! Periodic health checks of a server: its health, the version of its weights, its pause
//! and its sleep.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rollway_model_api::server_api::PauseMode;

use super::control::{self, ControlError, FailureExtent};
use super::routing::{Health, ServerDuty};
use super::{ModelsInner, ServerHandle, restart};

/// Checks a server until it is removed or the models are dropped.
pub(super) async fn watch(inner: Weak<ModelsInner>, handle: Arc<ServerHandle>) {
    loop {
        let Some(models) = inner.upgrade() else { return };
        let interval = models.options.health_interval;
        tokio::select! {
            () = handle.removed.cancelled() => return,
            () = check(&models, &handle) => {}
        }
        restart::consider(&models, &handle);
        drop(models);
        tokio::select! {
            () = handle.removed.cancelled() => return,
            () = handle.check_now.notified() => {}
            () = tokio::time::sleep(interval) => {}
        }
    }
}

const SLEEPS: &str = "it sleeps: wake it up, on vLLM with POST /wake_up";
/// vLLM reports a pause as sleep, and sleep as a pause.
const PAUSED: &str = "it was paused by another program, or sleeps: resume it, on vLLM with \
    POST /resume, or with POST /wake_up if it sleeps";

async fn check(models: &Arc<ModelsInner>, handle: &ServerHandle) {
    let timeout = models.options.health_timeout;
    let (id, server) = (handle.server.id, &handle.server);
    let marks_before = handle.update_marks.load(Ordering::Acquire);
    let (is_known, is_new) = models.with(|table| {
        let slot = table.routing.slot(id);
        let is_new = slot.is_some_and(|slot| matches!(slot.health, Health::Unknown(_)));
        (slot.is_some_and(super::registry::is_known), is_new)
    });
    let reply_of_check = async {
        control::check(server, timeout).await?;
        // After an outage the server may be another one.
        let reply = match is_known {
            true => None,
            false => Some(control::identify(server, timeout).await?),
        };
        let version = control::version(server, timeout).await?;
        let is_paused = control::is_paused(server, timeout).await? == Some(true);
        let is_sleeping = control::is_sleeping(server, timeout).await? == Some(true);
        Ok((reply, version, is_paused, is_sleeping))
    };
    let (reply, version, is_paused, is_sleeping) = match reply_of_check.await {
        Ok(replies) => replies,
        Err(ControlError { kind: FailureExtent::Unsent, message }) => {
            let url = &server.spec.url;
            let remedy = "raise the hard limit of open files (`ulimit -Hn`)";
            return tracing::warn!(url, reason = message, remedy, "health of a server not checked");
        }
        Err(ControlError { kind, message }) => {
            return models.failed(handle, &message, kind == FailureExtent::Gone);
        }
    };
    if (is_paused || is_sleeping) && !is_updating(models, handle, marks_before) {
        let ended = match is_paused {
            true => end_pause(handle, is_new, timeout).await,
            false => Err(SLEEPS.to_owned()),
        };
        if let Err(reason) = ended {
            return models.found_paused(handle, &reason);
        }
    }
    models.check_passed(handle, reply, &version, marks_before);
}

/// Returns whether an update of the server is in progress, or was since a number of marks.
fn is_updating(models: &ModelsInner, handle: &ServerHandle, marks_before: u64) -> bool {
    models.with(|table| {
        let slot = table.routing.slot(handle.server.id);
        let duty = slot.map(|slot| &slot.duty);
        matches!(duty, Some(ServerDuty::Draining | ServerDuty::Updating))
            || handle.update_marks.load(Ordering::Acquire) != marks_before
    })
}

/// Resumes a server that an update has left paused, or an earlier process. Others may have been
/// paused on purpose, such as by a trainer that sends weights itself. A server that sleeps is left
/// asleep: its memory may be in use.
async fn end_pause(handle: &ServerHandle, is_new: bool, timeout: Duration) -> Result<(), String> {
    let own = handle.info().paused;
    let Some(mode) = own.or_else(|| is_new.then_some(PauseMode::Keep)) else {
        return Err(PAUSED.to_owned());
    };
    let resumed = control::resume(handle, mode, timeout).await;
    resumed.map_err(|error| format!("it is paused and could not be resumed: {error}"))?;
    handle.info().paused = None;
    let is_sleeping = control::is_sleeping(&handle.server, timeout).await;
    if is_sleeping.map_err(|error| error.to_string())? == Some(true) {
        return Err(SLEEPS.to_owned());
    }
    tracing::warn!(url = handle.server.spec.url, "a paused server was resumed");
    Ok(())
}
