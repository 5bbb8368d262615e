//! Reads that can be given up while they wait.

use std::time::{Duration, Instant};

use crate::buffer::{ExperienceReader, ReadEnd, ReadRequest, ReadResult, Result};

/// How long a reader waits before it is asked whether anybody still wants to know. A buffer cannot
/// be interrupted.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Reads what is asked for into `taken`, as one read would, until `given_up` says that nobody
/// waits any more. What was taken by then is in `taken`, also after an error, and is lost only by
/// the caller.
pub fn read_until(
    reader: &mut dyn ExperienceReader,
    ask: &ReadRequest,
    taken: &mut ReadResult,
    given_up: &dyn Fn() -> bool,
) -> Result<()> {
    let until = Instant::now().checked_add(ask.timeout);
    let mut keep = ask.keep;
    loop {
        let left =
            until.map_or(POLL_INTERVAL, |until| until.saturating_duration_since(Instant::now()));
        let slice = ReadRequest {
            count: ask.count.saturating_sub(taken.samples.len()),
            timeout: left.min(POLL_INTERVAL),
            min_model_version: ask.min_model_version,
            keep,
        };
        let more = reader.read(&slice)?;
        taken.samples.extend(more.samples);
        taken.stale += more.stale;
        taken.end = more.end;
        if more.end != ReadEnd::TimedOut || left <= POLL_INTERVAL && until.is_some() || given_up() {
            return Ok(());
        }
        // What was acknowledged is, and what was just read is not.
        keep = true;
    }
}
