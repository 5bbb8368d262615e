//! Replaces the weights of one server, and makes sure what it has afterwards.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rollway_model_api::server_api::PauseMode;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::routing::ServerDuty;

use super::control::{self, ControlError, FailureExtent};
use super::rolling_update::text;
use super::weight_update::{
    InFlightPolicy, ServerUpdateOutcome, ServerUpdateReport, WeightSource, WeightUpdate,
};
use super::{ModelsInner, ServerHandle};

/// How long a server may take to let go of requests that it has aborted.
const ABORT_GRACE: Duration = Duration::from_secs(5);

/// What was so before.
struct Before {
    version: Option<u64>,
    /// Where its weights were loaded from, if we know.
    path: Option<String>,
}

/// Updates a server that the board has as draining, and gives it back to the board.
pub(super) async fn replace(
    inner: &Arc<ModelsInner>,
    handle: &Arc<ServerHandle>,
    update: &WeightUpdate,
    index: u32,
) -> ServerUpdateReport {
    let began = Instant::now();
    handle.said.fetch_add(1, Ordering::AcqRel);
    let id = handle.server.id;
    let seat = inner.with(|table| table.board.seat(id).map(|seat| (seat.in_flight, seat.version)));
    let (in_flight, version) = seat.unwrap_or_default();
    let before = Before { version, path: handle.info().weights.clone() };
    let mut aborted = 0;
    let outcome = match make_room(inner, handle, update.in_flight, &mut aborted).await {
        Ok(()) => exchange(inner, handle, update, index, &before, &mut aborted).await,
        Err(why) => ServerUpdateOutcome::RolledBack(why),
    };
    finish(inner, handle, update, &before, &outcome);
    let (url, took) = (handle.server.spec.url.clone(), began.elapsed());
    let version = update.version;
    match &outcome {
        // Who asked for it knows: with every step this would be said.
        ServerUpdateOutcome::Updated | ServerUpdateOutcome::AlreadyCurrent => {
            tracing::debug!(url, version, ?outcome, "update of a server ended");
        }
        _ => tracing::info!(url, version, ?outcome, "update of a server ended"),
    }
    ServerUpdateReport { id, url, outcome, took, in_flight, aborted }
}

/// Waits until nothing is under way that must be finished first.
async fn make_room(
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
        return Err(format!("{left} requests were still under way after {waited} s"));
    }
    *aborted = left;
    handle.abort_all();
    match drained(inner, handle, ABORT_GRACE).await {
        0 => Ok(()),
        left => Err(format!("{left} requests did not end although they were aborted")),
    }
}

/// Waits until nothing is under way at a server. Returns how much is, if that takes too long.
pub(super) async fn drained(inner: &ModelsInner, handle: &ServerHandle, timeout: Duration) -> u32 {
    let deadline = Instant::now() + timeout;
    loop {
        // Registered before looking, so that nothing that happens in between is missed.
        let mut empty = Box::pin(handle.is_empty.notified());
        empty.as_mut().enable();
        let left = in_flight(inner, handle);
        if left == 0 || tokio::time::timeout_at(deadline, empty).await.is_err() {
            return left;
        }
    }
}

/// Halts the server, gives it the new weights, makes sure, and lets it go on, whatever happens.
async fn exchange(
    inner: &ModelsInner,
    handle: &ServerHandle,
    update: &WeightUpdate,
    index: u32,
    before: &Before,
    aborted: &mut u32,
) -> ServerUpdateOutcome {
    let id = handle.server.id;
    let server = &handle.server;
    let is_ours = inner.with(|table| match table.board.seat_mut(id) {
        Some(seat) if seat.duty == ServerDuty::Draining => {
            seat.duty = ServerDuty::Updating;
            true
        }
        _ => false,
    });
    if !is_ours {
        return ServerUpdateOutcome::RolledBack("it is being removed".to_owned());
    }
    let halt = match update.in_flight {
        InFlightPolicy::Drain { .. } => PauseMode::Empty,
        InFlightPolicy::Keep => PauseMode::Keep,
        InFlightPolicy::Abort => PauseMode::Abort,
    };
    // Counted before: what the server aborts may be gone by the time that it says so.
    let under_way = in_flight(inner, handle);
    let halted = control::halt(server, halt, update.timeout).await;
    let outcome = match halted {
        Err(error) => ServerUpdateOutcome::RolledBack(error.message),
        Ok(()) => {
            if halt == PauseMode::Abort {
                *aborted += under_way;
                abort_rest(inner, handle).await;
            }
            // From now on nobody can say which weights a token comes from.
            inner.with(|table| {
                handle.weights.fetch_add(1, Ordering::AcqRel);
                if let Some(seat) = table.board.seat_mut(id) {
                    seat.version = None;
                }
            });
            load(handle, update, index, before).await
        }
    };
    // A server that stays halted hangs every request it has. It must go on even if it is broken;
    // what it says then has no version.
    match control::resume(server, halt, update.timeout).await {
        Ok(()) => outcome,
        Err(error) if error.kind == FailureExtent::Gone => outcome,
        // It does not know how to halt, so that it does not know how to go on either.
        Err(error)
            if error.kind == FailureExtent::Refused
                && matches!(outcome, ServerUpdateOutcome::RolledBack(_)) =>
        {
            outcome
        }
        Err(error) => {
            ServerUpdateOutcome::Broken(format!("it could not be made to go on: {error}"))
        }
    }
}

/// The server has aborted what it had; what it has forgotten about is ended here.
async fn abort_rest(inner: &ModelsInner, handle: &ServerHandle) {
    if drained(inner, handle, ABORT_GRACE).await > 0 {
        handle.abort_all();
        drained(inner, handle, ABORT_GRACE).await;
    }
}

fn in_flight(inner: &ModelsInner, handle: &ServerHandle) -> u32 {
    inner.with(|table| table.board.seat(handle.server.id).map_or(0, |seat| seat.in_flight))
}

/// Loads the new weights and makes sure that they are what the server has now; or puts it back.
async fn load(
    handle: &ServerHandle,
    update: &WeightUpdate,
    index: u32,
    before: &Before,
) -> ServerUpdateOutcome {
    let server = &handle.server;
    let timeout = update.timeout;
    let loaded = match &update.weights {
        WeightSource::Path(path) => {
            control::load(server, &text(path), update.version, timeout).await
        }
        WeightSource::Group(group) => {
            control::receive(server, group, update.version, index, timeout).await
        }
    };
    let error = match loaded {
        Ok(()) => return verify(handle, update, before).await,
        Err(error) => error,
    };
    match error.kind {
        // It will be asked what it has when it is back.
        FailureExtent::Gone => ServerUpdateOutcome::Broken(error.message),
        FailureExtent::Refused => put_back(handle, before, error, timeout).await,
        FailureExtent::Failed => match (&before.path, before.version) {
            // What it has now may be anything, whatever it calls it: it gets the old weights anew.
            (Some(path), Some(version)) => {
                let again = control::load(server, path, version, timeout).await;
                match again {
                    Ok(()) => put_back(handle, before, error, timeout).await,
                    Err(second) => ServerUpdateOutcome::Broken(format!(
                        "{error}; the old weights could not be loaded again either: {second}"
                    )),
                }
            }
            _ => ServerUpdateOutcome::Broken(format!(
                "{error}; where its old weights are is not known"
            )),
        },
    }
}

/// Asks which version the server has after a load that went well.
async fn verify(
    handle: &ServerHandle,
    update: &WeightUpdate,
    before: &Before,
) -> ServerUpdateOutcome {
    let version = update.version;
    match control::version(&handle.server, update.timeout).await {
        Ok(Some(said)) if said == version => ServerUpdateOutcome::Updated,
        Ok(Some(said)) if Some(said) == before.version => ServerUpdateOutcome::RolledBack(format!(
            "it says that it has version {said} although it accepted version {version}"
        )),
        Ok(said) => {
            let said = said.map_or_else(|| "none".to_owned(), |said| format!("version {said}"));
            let message = format!("it says that it has {said} after an update to {version}");
            ServerUpdateOutcome::Broken(message)
        }
        Err(error) => {
            ServerUpdateOutcome::Broken(format!("its version could not be read back: {error}"))
        }
    }
}

/// Makes sure that the server still has, or has again, what it had.
async fn put_back(
    handle: &ServerHandle,
    before: &Before,
    error: ControlError,
    timeout: Duration,
) -> ServerUpdateOutcome {
    match control::version(&handle.server, timeout).await {
        Ok(said) if said == before.version && said.is_some() => {
            ServerUpdateOutcome::RolledBack(error.message)
        }
        Ok(said) => {
            let (said, was) = (tell(said), tell(before.version));
            ServerUpdateOutcome::Broken(format!(
                "{error}; it says that it has {said}, and had {was}"
            ))
        }
        Err(second) => ServerUpdateOutcome::Broken(format!(
            "{error}; its version could not be read back: {second}"
        )),
    }
}

fn tell(version: Option<u64>) -> String {
    version.map_or_else(|| "no version".to_owned(), |version| format!("version {version}"))
}

/// Gives the server back to the board.
fn finish(
    inner: &Arc<ModelsInner>,
    handle: &ServerHandle,
    update: &WeightUpdate,
    before: &Before,
    outcome: &ServerUpdateOutcome,
) {
    let id = handle.server.id;
    if *outcome == ServerUpdateOutcome::Updated {
        handle.info().weights = match &update.weights {
            WeightSource::Path(path) => Some(text(path)),
            WeightSource::Group(_) => None,
        };
    }
    inner.change(|table| {
        handle.said.fetch_add(1, Ordering::AcqRel);
        let Some(seat) = table.board.seat_mut(id) else { return };
        let duty = match outcome {
            ServerUpdateOutcome::Updated => {
                seat.counts.updates += 1;
                seat.version = Some(update.version);
                ServerDuty::Open
            }
            ServerUpdateOutcome::Broken(why) => {
                seat.counts.failed_updates += 1;
                seat.version = None;
                ServerDuty::Broken(why.clone())
            }
            _ => {
                seat.counts.failed_updates += 1;
                seat.version = before.version;
                // One that was broken before stays so.
                before.version.map_or_else(
                    || ServerDuty::Broken("its last update failed".to_owned()),
                    |_| ServerDuty::Open,
                )
            }
        };
        if seat.duty != ServerDuty::Leaving {
            seat.duty = duty;
        }
    });
    inner.changed.notify_waiters();
    handle.check_now.notify_one();
}

impl ServerHandle {
    /// Ends what is under way. What begins later is not concerned.
    pub(super) fn abort_all(&self) {
        let ended = std::mem::replace(&mut self.info().abort, CancellationToken::new());
        ended.cancel();
    }
}
