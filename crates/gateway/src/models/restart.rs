//! Restart of unusable servers by a command of the user.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollway_model_api::{CallError, ErrorKind};
use tokio::process::Command;

use super::ServerId;
use super::registry::{ModelsInner, ServerHandle};
use super::routing::{Health, ServerDuty};

/// Command that restarts a server of the trained model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartHook {
    /// Program and arguments. It gets the URL of the server in `ROLLWAY_SERVER_URL`, and returns
    /// after the old process has ended.
    pub command: Vec<String>,
    /// Time for which a server must be unusable. Also the time from the end of the command to its
    /// repetition, so that the server can start.
    pub after: Duration,
    /// Maximum duration of the command.
    pub timeout: Duration,
}

/// State of the restart of one server.
#[derive(Debug, Default)]
pub(super) struct RestartState {
    unusable_since: Option<Instant>,
    is_running: bool,
}

/// Starts the command if a server is unusable for long enough.
pub(super) fn consider(inner: &Arc<ModelsInner>, handle: &Arc<ServerHandle>) {
    let Some(hook) = inner.options.restart.clone() else { return };
    if handle.server.spec.trained && is_due(inner, handle, hook.after) {
        start(inner, handle, hook);
    }
}

/// Starts the command for a server on request.
pub(super) fn request(inner: &Arc<ModelsInner>, id: ServerId) -> Result<(), CallError> {
    let refused = |kind, message: String| Err(CallError::new(kind, message));
    let Some(handle) = inner.with(|table| table.handles.get(&id).cloned()) else {
        return refused(ErrorKind::NotFound, format!("server {}: there is no such server", id.0));
    };
    let Some(hook) = inner.options.restart.clone().filter(|_| handle.server.spec.trained) else {
        let message = "it has no restart command: set `explorer.server_restart.command`";
        return refused(ErrorKind::Conflict, format!("server {}: {message}", id.0));
    };
    if std::mem::replace(&mut handle.info().restart.is_running, true) {
        let message = format!("server {}: its restart command is running", id.0);
        return refused(ErrorKind::Conflict, message);
    }
    start(inner, &handle, hook);
    Ok(())
}

fn start(inner: &Arc<ModelsInner>, handle: &Arc<ServerHandle>, hook: RestartHook) {
    let (inner, handle) = (Arc::clone(inner), Arc::clone(handle));
    tokio::spawn(async move {
        let outcome = run(&hook, &handle.server.spec.url).await;
        let url = &handle.server.spec.url;
        match &outcome {
            Ok(()) => tracing::warn!(url, "restart command of an unusable server succeeded"),
            Err(reason) => tracing::warn!(url, reason, "restart command of a server failed"),
        }
        let is_restarted = outcome.is_ok();
        inner.with(|table| table.routing.restarted(handle.server.id, is_restarted));
        let now = Some(Instant::now());
        handle.info().restart = RestartState { unusable_since: now, is_running: false };
        handle.check_now.notify_one();
    });
}

/// Returns whether the command is due, and marks it as running if so.
fn is_due(inner: &ModelsInner, handle: &ServerHandle, after: Duration) -> bool {
    let is_unusable = inner.with(|table| {
        table.routing.slot(handle.server.id).is_some_and(|slot| match slot.duty {
            ServerDuty::Broken(_) => true,
            ServerDuty::Open => slot.health != Health::Healthy,
            ServerDuty::Draining | ServerDuty::Updating | ServerDuty::Leaving => false,
        })
    });
    let mut info = handle.info();
    let state = &mut info.restart;
    if state.is_running {
        return false;
    }
    if !is_unusable {
        state.unusable_since = None;
        return false;
    }
    let since = *state.unusable_since.get_or_insert_with(Instant::now);
    state.is_running = since.elapsed() >= after;
    state.is_running
}

/// Runs the command. The error is the reason why it failed.
async fn run(hook: &RestartHook, url: &str) -> Result<(), String> {
    let [program, arguments @ ..] = &hook.command[..] else {
        return Err("the command is empty".to_owned());
    };
    let mut command = Command::new(program);
    command.args(arguments).env("ROLLWAY_SERVER_URL", url).stdin(Stdio::null());
    command.kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("`{program}`: {error}"))?;
    match tokio::time::timeout(hook.timeout, child.wait()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("`{program}`: {status}")),
        Ok(Err(error)) => Err(format!("`{program}`: {error}")),
        Err(_) => Err(format!("`{program}` exceeded {} s", hook.timeout.as_secs_f64())),
    }
}
