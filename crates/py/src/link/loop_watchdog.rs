//! Detects a workflow that blocks the event loop, and reports the other runners of its worker lost
//! without suspicion, so that only the blocking run is charged.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollway_protocol::{EngineMessage, StopCause, WorkerMessage, WorkerReport};
use tokio::sync::watch;
use tokio::time::sleep;

use super::Inbox;
use super::outbox::LinkOutbox;

/// Maximum time that one step of a workflow may block the event loop before the other runners are
/// reported lost. At most half of the attempt timeout.
pub(super) const LOOP_BLOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks of the execution marks per timeout.
const CHECKS_PER_TIMEOUT: u32 = 8;

/// Execution mark of code in a thread (see `rollway/worker/execution_marks.py`).
const THREAD: u8 = 255;

/// Returns the block timeout for the newest attempt in these messages.
pub(super) fn block_timeout(messages: &[EngineMessage]) -> Option<Duration> {
    messages.iter().rev().find_map(|message| match message {
        EngineMessage::StartAttempt(start) => Some(LOOP_BLOCK_TIMEOUT.min(start.timeout / 2)),
        _ => None,
    })
}

/// Watches the execution marks. If one step blocks for too long, the other runners are reported
/// lost without suspicion; the engine retries their runs in another process before they time out.
pub(super) async fn watch_blocking(
    mut block_timeout: watch::Receiver<Duration>,
    marks: PathBuf,
    outbox: Arc<LinkOutbox>,
    inbox: Arc<Inbox>,
) {
    let mut step = None;
    let mut since = Instant::now();
    loop {
        let limit = *block_timeout.borrow_and_update();
        let sample = sleep((limit / CHECKS_PER_TIMEOUT).max(Duration::from_millis(10)));
        tokio::select! {
            () = sample => {}
            // The link was closed.
            changed = block_timeout.changed() => if changed.is_err() { return },
        }
        let marks = fs::read(&marks).unwrap_or_default();
        let executed =
            marks.iter().zip(0..).find(|(executing, _)| !matches!(**executing, 0 | THREAD));
        let now = executed.map(|(executing, index)| (*executing, index));
        if now != step {
            (step, since) = (now, Instant::now());
        }
        let Some((_, index)) = step.filter(|_| since.elapsed() >= limit) else { continue };
        let WorkerMessage::Heartbeat(states) = outbox.sender().heartbeat() else { continue };
        let is_blocking = |runner: u32| runner as usize % marks.len() == index;
        for state in states.into_iter().filter(|state| !is_blocking(state.runner.0)) {
            let (runner, incarnation) = (state.runner, state.incarnation);
            let message = "another runner blocks the event loop of its worker".into();
            let report = WorkerReport::Stopped(StopCause::Lost { message, suspect: false });
            let _ = outbox.send(Some(WorkerMessage::Runner { runner, incarnation, report })).await;
            // If the event loop ever comes round, what is left of them is cancelled.
            inbox.put([EngineMessage::StopRunner { runner, incarnation }]);
        }
    }
}
