//! Reader of queues.

use std::sync::Arc;

use parking_lot::{Condvar, MutexGuard};

use super::store::{ReaderId, TakeOutcome};
use super::wait_queue::WaitDeadline;
use super::{QueueShared, QueueState};
use crate::buffer::{ExperienceReader, ReadEnd, ReadRequest, ReadResult, Result};

#[derive(Debug)]
pub(super) struct QueueReader {
    shared: Arc<QueueShared>,
    id: ReaderId,
    wakeup: Arc<Condvar>,
}

impl QueueReader {
    pub(super) fn new(shared: Arc<QueueShared>, id: ReaderId) -> Self {
        Self { shared, id, wakeup: Arc::default() }
    }

    /// Takes available samples up to the requested number.
    fn gather(
        &self,
        state: &mut QueueState,
        request: &ReadRequest,
        taken: &mut ReadResult,
    ) -> Result<()> {
        let oldest = self.shared.options.max_staleness;
        let oldest = oldest.map_or(0, |staleness| state.newest.saturating_sub(staleness));
        let floor = request.min_model_version.max(oldest);
        let before = (taken.samples.len(), taken.stale);
        while taken.samples.len() < request.count {
            match state.store.take(self.id, floor, &mut state.seen) {
                Ok(TakeOutcome::Given(sample)) => taken.samples.push(sample),
                Ok(TakeOutcome::Stale) => taken.stale += 1,
                Ok(TakeOutcome::Empty) => break,
                // Samples taken before the error are returned; the error recurs with the next read.
                Err(_) if !taken.samples.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        if before != (taken.samples.len(), taken.stale) {
            state.waiting_writers.call();
        }
        Ok(())
    }

    /// Takes available samples and waits for more.
    fn wait_for<'a>(
        &'a self,
        mut state: MutexGuard<'a, QueueState>,
        ticket: u64,
        request: &ReadRequest,
    ) -> (MutexGuard<'a, QueueState>, Result<ReadResult>) {
        let deadline = WaitDeadline::after(request.timeout);
        let mut taken = ReadResult { samples: Vec::new(), stale: 0, end: ReadEnd::TimedOut };
        loop {
            let mut rest = None;
            if state.waiting_readers.is_first(ticket) {
                rest = state.store.end_cooldowns(self.shared.options.clock.now());
                if let Err(error) = self.gather(&mut state, request, &mut taken) {
                    return (state, Err(error));
                }
                if taken.samples.len() == request.count {
                    taken.end = ReadEnd::Full;
                    break;
                }
                if state.has_ended() {
                    taken.end = ReadEnd::Finished;
                    break;
                }
                // Writers wait for room that only this reader can free by acknowledging.
                if !state.waiting_writers.is_empty() && state.store.is_blocked_by(self.id) {
                    if taken.samples.is_empty() {
                        let error = self.shared.full(
                            "unacknowledged samples read with keep take all of bytes_max; read \
                             without keep, or raise bytes_max",
                        );
                        return (state, Err(error));
                    }
                    break;
                }
            }
            if deadline.is_past() {
                break;
            }
            deadline.wait(&self.wakeup, &mut state, rest);
        }
        (state, Ok(taken))
    }
}

impl ExperienceReader for QueueReader {
    fn read(&mut self, request: &ReadRequest) -> Result<ReadResult> {
        let mut state = self.shared.state.lock();
        if !request.keep {
            let QueueState { store, seen, .. } = &mut *state;
            store.acknowledge(self.id, seen);
            state = self.shared.settle(state)?;
        }
        if request.count == 0 {
            return Ok(ReadResult { samples: Vec::new(), stale: 0, end: ReadEnd::Full });
        }
        let ticket = state.waiting_readers.join(&self.wakeup);
        let (mut state, taken) = self.wait_for(state, ticket, request);
        state.waiting_readers.leave(ticket);
        taken
    }

    fn position(&self) -> String {
        self.shared.state.lock().store.position(self.id).to_string()
    }

    fn seek(&mut self, position: &str) -> Result<()> {
        let refuse = |message| self.shared.unsupported(format!("seek {position:?}: {message}"));
        let Ok(number) = position.parse() else {
            return Err(refuse("a position is a number, as `position` returned it".to_owned()));
        };
        let mut state = self.shared.state.lock();
        let QueueState { store, seen, waiting_readers, .. } = &mut *state;
        store.seek(number, seen).map_err(refuse)?;
        waiting_readers.call();
        self.shared.settle(state).map(drop)
    }
}

impl Drop for QueueReader {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.store.give_back(self.id);
        state.waiting_readers.call();
    }
}
