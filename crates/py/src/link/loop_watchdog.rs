//! A workflow that keeps the event loop to itself, and its neighbours, which have no share in that.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollway_protocol::{EngineMessage, StopCause, WorkerMessage, WorkerReport};
use tokio::sync::watch;
use tokio::time::sleep;

use super::Inbox;
use super::outbox::LinkOutbox;

/// How long one step of a workflow may take before the runners that wait for the event loop are
/// given up; half of the time that an attempt has, if that is shorter.
pub(super) const LOOP_BLOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// How often it is looked, as a part of the patience.
const CHECKS_PER_TIMEOUT: u32 = 8;

/// The mark of code in a thread (see `rollway/marks.py`).
const THREAD: u8 = 255;

/// Returns how long one step may take, when attempts like the last of these may last as long.
pub(super) fn patience(messages: &[EngineMessage]) -> Option<Duration> {
    messages.iter().rev().find_map(|message| match message {
        EngineMessage::StartAttempt(start) => Some(LOOP_BLOCK_TIMEOUT.min(start.timeout / 2)),
        _ => None,
    })
}

/// Watches the marks. If one step lasts too long, the other runners are given up: they are lost
/// without suspicion and begin again in another process, before they run out of time here.
pub(super) async fn evacuate(
    mut patience: watch::Receiver<Duration>,
    marks: PathBuf,
    outbox: Arc<LinkOutbox>,
    inbox: Arc<Inbox>,
) {
    let mut step = None;
    let mut since = Instant::now();
    loop {
        let limit = *patience.borrow_and_update();
        let look = sleep((limit / CHECKS_PER_TIMEOUT).max(Duration::from_millis(10)));
        tokio::select! {
            () = look => {}
            // Nobody listens any more.
            changed = patience.changed() => if changed.is_err() { return },
        }
        let marks = fs::read(&marks).unwrap_or_default();
        let executed = marks.iter().zip(0..).find(|(mark, _)| !matches!(**mark, 0 | THREAD));
        let now = executed.map(|(mark, place)| (*mark, place));
        if now != step {
            (step, since) = (now, Instant::now());
        }
        let Some((_, place)) = step.filter(|_| since.elapsed() >= limit) else { continue };
        let WorkerMessage::Heartbeat(states) = outbox.sender().heartbeat() else { continue };
        let is_culprit = |runner: u32| runner as usize % marks.len() == place;
        for state in states.into_iter().filter(|state| !is_culprit(state.runner.0)) {
            let (runner, life) = (state.runner, state.life);
            let message = "another runner keeps its worker from doing anything else".into();
            let report = WorkerReport::Stopped(StopCause::Lost { message, suspect: false });
            let _ = outbox.send(Some(WorkerMessage::Runner { runner, life, report })).await;
            // If the event loop ever comes round, what is left of them is cancelled.
            inbox.put([EngineMessage::StopRunner { runner, life }]);
        }
    }
}
