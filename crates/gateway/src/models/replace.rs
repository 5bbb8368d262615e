//! Replaces the weights of one server, and makes sure what it has afterwards.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rollway_model_api::server_api::PauseMode;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::board::Duty;

use super::control::{self, ControlError, Wrong};
use super::rolling::text;
use super::update::{InFlight, Outcome, ServerReport, Update, Weights};
use super::{Handle, Inner};

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
    inner: &Arc<Inner>,
    handle: &Arc<Handle>,
    update: &Update,
    index: u32,
) -> ServerReport {
    let began = Instant::now();
    handle.said.fetch_add(1, Ordering::AcqRel);
    let id = handle.server.id;
    let seat = inner.with(|table| table.board.seat(id).map(|seat| (seat.in_flight, seat.version)));
    let (in_flight, version) = seat.unwrap_or_default();
    let before = Before { version, path: handle.told().weights.clone() };
    let mut aborted = 0;
    let outcome = match make_room(inner, handle, update.in_flight, &mut aborted).await {
        Ok(()) => exchange(inner, handle, update, index, &before, &mut aborted).await,
        Err(why) => Outcome::PutBack(why),
    };
    finish(inner, handle, update, &before, &outcome);
    let (url, took) = (handle.server.spec.url.clone(), began.elapsed());
    let version = update.version;
    match &outcome {
        // Who asked for it knows: with every step this would be said.
        Outcome::Updated | Outcome::HadIt => {
            tracing::debug!(url, version, ?outcome, "update of a server ended");
        }
        _ => tracing::info!(url, version, ?outcome, "update of a server ended"),
    }
    ServerReport { id, url, outcome, took, in_flight, aborted }
}

/// Waits until nothing is under way that must be finished first.
async fn make_room(
    inner: &Inner,
    handle: &Handle,
    in_flight: InFlight,
    aborted: &mut u32,
) -> Result<(), String> {
    let InFlight::Drain { timeout, then_abort } = in_flight else { return Ok(()) };
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
pub(super) async fn drained(inner: &Inner, handle: &Handle, timeout: Duration) -> u32 {
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
    inner: &Inner,
    handle: &Handle,
    update: &Update,
    index: u32,
    before: &Before,
    aborted: &mut u32,
) -> Outcome {
    let id = handle.server.id;
    let server = &handle.server;
    let is_ours = inner.with(|table| match table.board.seat_mut(id) {
        Some(seat) if seat.duty == Duty::Draining => {
            seat.duty = Duty::Updating;
            true
        }
        _ => false,
    });
    if !is_ours {
        return Outcome::PutBack("it is being removed".to_owned());
    }
    let halt = match update.in_flight {
        InFlight::Drain { .. } => PauseMode::Empty,
        InFlight::Keep => PauseMode::Keep,
        InFlight::Abort => PauseMode::Abort,
    };
    // Counted before: what the server aborts may be gone by the time that it says so.
    let under_way = in_flight(inner, handle);
    let halted = control::halt(server, halt, update.timeout).await;
    let outcome = match halted {
        Err(error) => Outcome::PutBack(error.message),
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
    match control::go_on(server, halt, update.timeout).await {
        Ok(()) => outcome,
        Err(error) if error.kind == Wrong::Gone => outcome,
        // It does not know how to halt, so that it does not know how to go on either.
        Err(error) if error.kind == Wrong::Refused && matches!(outcome, Outcome::PutBack(_)) => {
            outcome
        }
        Err(error) => Outcome::Broken(format!("it could not be made to go on: {error}")),
    }
}

/// The server has aborted what it had; what it has forgotten about is ended here.
async fn abort_rest(inner: &Inner, handle: &Handle) {
    if drained(inner, handle, ABORT_GRACE).await > 0 {
        handle.abort_all();
        drained(inner, handle, ABORT_GRACE).await;
    }
}

fn in_flight(inner: &Inner, handle: &Handle) -> u32 {
    inner.with(|table| table.board.seat(handle.server.id).map_or(0, |seat| seat.in_flight))
}

/// Loads the new weights and makes sure that they are what the server has now; or puts it back.
async fn load(handle: &Handle, update: &Update, index: u32, before: &Before) -> Outcome {
    let server = &handle.server;
    let timeout = update.timeout;
    let loaded = match &update.weights {
        Weights::Path(path) => control::load(server, &text(path), update.version, timeout).await,
        Weights::Group(group) => {
            control::receive(server, group, update.version, index, timeout).await
        }
    };
    let error = match loaded {
        Ok(()) => return verify(handle, update, before).await,
        Err(error) => error,
    };
    match error.kind {
        // It will be asked what it has when it is back.
        Wrong::Gone => Outcome::Broken(error.message),
        Wrong::Refused => put_back(handle, before, error, timeout).await,
        Wrong::Failed => match (&before.path, before.version) {
            // What it has now may be anything, whatever it calls it: it gets the old weights anew.
            (Some(path), Some(version)) => {
                let again = control::load(server, path, version, timeout).await;
                match again {
                    Ok(()) => put_back(handle, before, error, timeout).await,
                    Err(second) => Outcome::Broken(format!(
                        "{error}; the old weights could not be loaded again either: {second}"
                    )),
                }
            }
            _ => Outcome::Broken(format!("{error}; where its old weights are is not known")),
        },
    }
}

/// Asks which version the server has after a load that went well.
async fn verify(handle: &Handle, update: &Update, before: &Before) -> Outcome {
    let version = update.version;
    match control::version(&handle.server, update.timeout).await {
        Ok(Some(said)) if said == version => Outcome::Updated,
        Ok(Some(said)) if Some(said) == before.version => Outcome::PutBack(format!(
            "it says that it has version {said} although it accepted version {version}"
        )),
        Ok(said) => {
            let said = said.map_or_else(|| "none".to_owned(), |said| format!("version {said}"));
            let message = format!("it says that it has {said} after an update to {version}");
            Outcome::Broken(message)
        }
        Err(error) => Outcome::Broken(format!("its version could not be read back: {error}")),
    }
}

/// Makes sure that the server still has, or has again, what it had.
async fn put_back(
    handle: &Handle,
    before: &Before,
    error: ControlError,
    timeout: Duration,
) -> Outcome {
    match control::version(&handle.server, timeout).await {
        Ok(said) if said == before.version && said.is_some() => Outcome::PutBack(error.message),
        Ok(said) => {
            let (said, was) = (tell(said), tell(before.version));
            Outcome::Broken(format!("{error}; it says that it has {said}, and had {was}"))
        }
        Err(second) => {
            Outcome::Broken(format!("{error}; its version could not be read back: {second}"))
        }
    }
}

fn tell(version: Option<u64>) -> String {
    version.map_or_else(|| "no version".to_owned(), |version| format!("version {version}"))
}

/// Gives the server back to the board.
fn finish(
    inner: &Arc<Inner>,
    handle: &Handle,
    update: &Update,
    before: &Before,
    outcome: &Outcome,
) {
    let id = handle.server.id;
    if *outcome == Outcome::Updated {
        handle.told().weights = match &update.weights {
            Weights::Path(path) => Some(text(path)),
            Weights::Group(_) => None,
        };
    }
    inner.change(|table| {
        handle.said.fetch_add(1, Ordering::AcqRel);
        let Some(seat) = table.board.seat_mut(id) else { return };
        let duty = match outcome {
            Outcome::Updated => {
                seat.counts.updates += 1;
                seat.version = Some(update.version);
                Duty::Open
            }
            Outcome::Broken(why) => {
                seat.counts.failed_updates += 1;
                seat.version = None;
                Duty::Broken(why.clone())
            }
            _ => {
                seat.counts.failed_updates += 1;
                seat.version = before.version;
                // One that was broken before stays so.
                before.version.map_or_else(
                    || Duty::Broken("its last update failed".to_owned()),
                    |_| Duty::Open,
                )
            }
        };
        if seat.duty != Duty::Leaving {
            seat.duty = duty;
        }
    });
    inner.changed.notify_waiters();
    handle.check_now.notify_one();
}

impl Handle {
    /// Ends what is under way. What begins later is not concerned.
    pub(super) fn abort_all(&self) {
        let ended = std::mem::replace(&mut self.told().abort, CancellationToken::new());
        ended.cancel();
    }
}
