//! Interruptible reads.

use std::time::{Duration, Instant};

use crate::buffer::{ExperienceReader, ReadEnd, ReadRequest, ReadResult, Result};

/// Interval at which a waiting read checks for interruption; a buffer cannot be interrupted.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Reads into `taken`, as one read would, until `given_up` returns true. Samples taken by then are
/// in `taken`, also after an error.
pub fn read_until(
    reader: &mut dyn ExperienceReader,
    request: &ReadRequest,
    taken: &mut ReadResult,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<()> {
    let until = Instant::now().checked_add(request.timeout);
    let mut keep = request.keep;
    loop {
        let left =
            until.map_or(POLL_INTERVAL, |until| until.saturating_duration_since(Instant::now()));
        let slice = ReadRequest {
            count: request.count.saturating_sub(taken.samples.len()),
            timeout: left.min(POLL_INTERVAL),
            min_model_version: request.min_model_version,
            keep,
        };
        let more = reader.read(&slice)?;
        taken.samples.extend(more.samples);
        taken.stale += more.stale;
        taken.end = more.end;
        if more.end != ReadEnd::TimedOut
            || left <= POLL_INTERVAL && until.is_some()
            || is_cancelled()
        {
            return Ok(());
        }
        // The first slice acknowledged; later ones must not.
        keep = true;
    }
}
