//! Writer of queues.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Condvar;

use super::options::QueueFullPolicy;
use super::seen_ids::{IdHash, batch_name, sample_name};
use super::store::{InsertOutcome, NewWriteBatch, weight};
use super::wait_queue::WaitDeadline;
use super::{QueueShared, QueueState};
use crate::WriteBatch;
use crate::buffer::{BufferError, ExperienceWriter, Result, WriteInterrupt, WriteResult};

#[derive(Debug)]
pub(super) struct QueueWriter {
    shared: Arc<QueueShared>,
    name: String,
    wakeup: Arc<Condvar>,
    /// Set with the lock of the queue held.
    interrupted: Arc<AtomicBool>,
    closed: bool,
}

impl QueueWriter {
    pub(super) fn new(shared: Arc<QueueShared>, name: &str) -> Self {
        let (wakeup, interrupted) = (Arc::default(), Arc::default());
        Self { shared, name: name.to_owned(), wakeup, interrupted, closed: false }
    }

    /// Stores a write batch, or returns the limit reached.
    fn attempt(
        &self,
        state: &mut QueueState,
        batch: &WriteBatch,
        (key, ids): (IdHash, &[IdHash]),
    ) -> Result<Attempt> {
        if state.closed {
            return Err(self.shared.closed());
        }
        let count = batch.samples.len();
        if state.seen.contains(key) {
            return Ok(Ok(WriteResult { known: count, ..WriteResult::default() }));
        }
        let mut seen = HashSet::new();
        let mut new = |name: &IdHash| !state.seen.contains(*name) && seen.insert(*name);
        let pairs = ids.iter().copied().zip(&batch.samples);
        let fresh: Vec<_> = pairs
            .filter(|(name, _)| new(name))
            .map(|(name, sample)| (name, sample.clone()))
            .collect();
        let known = count - fresh.len();
        let weight = fresh.iter().map(|(_, sample)| weight(sample)).sum();
        let newest = fresh.iter().map(|(_, sample)| sample.model_version).max();
        let fresh = NewWriteBatch { key, samples: fresh, weight };
        if fresh.samples.is_empty() {
            state.seen.add_unstored(&fresh);
            return Ok(Ok(WriteResult { known, ..WriteResult::default() }));
        }
        let now = self.shared.options.clock.now();
        state.store.end_cooldowns(now);
        match state.store.offer(fresh, &mut state.seen)? {
            InsertOutcome::Full(limit) => Ok(Err(limit)),
            InsertOutcome::TooLarge(limit) => Err(self.shared.full(limit)),
            InsertOutcome::Done { stored, dropped } => {
                state.newest = state.newest.max(newest.unwrap_or(0));
                state.waiting_readers.call();
                Ok(Ok(WriteResult { stored, known, dropped }))
            }
        }
    }
}

/// Result of an attempt, or the limit reached.
type Attempt = std::result::Result<WriteResult, String>;

impl ExperienceWriter for QueueWriter {
    fn write(&mut self, batch: &WriteBatch) -> Result<WriteResult> {
        if self.closed {
            return Err(BufferError::Closed(format!("writer `{}`", self.name)));
        }
        // Hashed before locking.
        let ids: Vec<IdHash> = batch.samples.iter().map(|sample| sample_name(&sample.id)).collect();
        let ids = (batch_name(&batch.key), ids.as_slice());
        let mut state = self.shared.state.lock();
        if state.waiting_writers.is_empty()
            && let Ok(written) = self.attempt(&mut state, batch, ids)?
        {
            self.shared.make_durable(state)?;
            return Ok(written);
        }
        let timeout = match &self.shared.options.when_full {
            QueueFullPolicy::Wait { timeout } | QueueFullPolicy::Spill { timeout, .. } => *timeout,
            QueueFullPolicy::Replace => Duration::ZERO,
        };
        let deadline = WaitDeadline::after(timeout);
        let ticket = state.waiting_writers.join(&self.wakeup);
        // A reader may wait for samples that need its acknowledgement first.
        state.waiting_readers.call();
        let mut limit = "earlier writers wait for room".to_owned();
        let outcome = loop {
            if state.closed {
                break Err(self.shared.closed());
            }
            if state.waiting_writers.is_first(ticket) {
                match self.attempt(&mut state, batch, ids) {
                    Ok(Ok(written)) => break Ok(written),
                    Ok(Err(reached)) => limit = reached,
                    Err(error) => break Err(error),
                }
            }
            if self.interrupted.load(Ordering::Relaxed) {
                break Err(self.shared.full(format!("{limit}, and the writer was stopped")));
            }
            if deadline.is_past() {
                break Err(self.shared.full(format!("{limit}, for longer than {timeout:?}")));
            }
            deadline.wait(&self.wakeup, &mut state, None);
        };
        state.waiting_writers.leave(ticket);
        let written = outcome?;
        self.shared.make_durable(state)?;
        Ok(written)
    }

    fn close(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.closed, true) {
            let mut state = self.shared.state.lock();
            state.writers.insert(self.name.clone(), false);
            state.writers_changed();
        }
        Ok(())
    }

    fn interrupt(&self) -> Option<WriteInterrupt> {
        let (shared, interrupted) = (Arc::clone(&self.shared), Arc::clone(&self.interrupted));
        Some(Arc::new(move || {
            let state = shared.state.lock();
            interrupted.store(true, Ordering::Relaxed);
            state.waiting_writers.call_all();
        }))
    }
}
