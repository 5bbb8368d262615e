//! Which tasks are traced: those that the sample draws, and no more at once than tracing may cost.
//! A task is traced whole or not at all.
//!
//! This is asked by whoever saw something, and must be quick: what belongs to a task that is not
//! traced is gone after a look into a table.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rollway_core::{AttemptId, BatchId, BatchKey, BatchState, RunId, TaskId};
use rollway_engine::events::{CallEventKind, RunEvent, RunEventKind};
use rustc_hash::{FxHashMap, FxHashSet};

use super::event::{TraceEvent, TraceEventKind, nanos};
use super::ids::{SpanId, SpanNamer, TraceId};
use super::span::Nanos;

/// How many tasks a second are traced in the long run. Rollouts take seconds: only work that does
/// nothing comes faster than this, and then looking must not cost more than the work.
const TASKS_PER_SECOND: u64 = 1_000;

/// How many tasks may come at once beyond that.
const BURST: u64 = 500;

/// How many batches are remembered.
const BATCHES: usize = 10_000;

/// What was decided about a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    #[default]
    Undecided,
    Traced,
    Ignored,
}

#[derive(Debug)]
struct BatchSampling {
    name: BatchId,
    seed: u64,
    fates: Vec<Fate>,
}

/// Decides which tasks are traced.
#[derive(Debug)]
pub(super) struct TraceSampler {
    names: SpanNamer,
    sample: f64,
    is_bounded: bool,
    batches: BTreeMap<BatchKey, BatchSampling>,
    /// The attempts of traced tasks that are under way.
    attempts: FxHashMap<AttemptId, (BatchKey, TaskId)>,
    /// Their calls that are under way. A call may outlive its attempt by a little.
    calls: FxHashSet<u64>,
    /// Tasks that may be taken now, in millionths.
    purse: u64,
    filled: Nanos,
    /// Tasks that were ignored because there were too many.
    pub(super) ignored: u64,
}

impl TraceSampler {
    pub(super) fn new(names: SpanNamer, sample: f64) -> Self {
        Self {
            names,
            sample,
            is_bounded: true,
            batches: BTreeMap::new(),
            attempts: FxHashMap::default(),
            calls: FxHashSet::default(),
            purse: BURST * 1_000_000,
            filled: 0,
            ignored: 0,
        }
    }

    /// Returns one that traces every task: time is no matter.
    #[cfg(test)]
    pub(super) fn unbounded(names: SpanNamer) -> Self {
        Self { is_bounded: false, ..Self::new(names, 1.0) }
    }

    /// Puts aside what belongs to traced tasks. `has_room`: whether more of them can be taken.
    pub(super) fn keep(&mut self, seen: &[RunEvent], has_room: bool, kept: &mut Vec<TraceEvent>) {
        for RunEvent { at, what } in seen {
            if self.wants(*at, what, has_room) {
                let at = nanos(*at);
                kept.extend(TraceEventKind::of(what).map(|fact| TraceEvent { at, fact }));
            }
        }
    }

    /// Returns the trace and the span of a call of a traced task.
    pub(super) fn call(
        &self,
        attempt: AttemptId,
        run: RunId,
        call: u64,
    ) -> Option<(TraceId, SpanId)> {
        let (key, task) = self.attempts.get(&attempt)?;
        let batch = self.batches.get(key)?;
        let trace = self.names.task_trace(&batch.name, *task);
        Some((trace, self.names.call(attempt, run, call)))
    }

    fn wants(&mut self, at: std::time::SystemTime, what: &RunEventKind, has_room: bool) -> bool {
        match what {
            RunEventKind::BatchBegan { batch, key, first, tasks, .. } => {
                if self.batches.len() >= BATCHES {
                    self.batches.pop_first();
                }
                let seed = self.names.seed(batch);
                let entry = self.batches.entry(*key);
                let fresh = || BatchSampling { name: batch.clone(), seed, fates: Vec::new() };
                let fates = &mut entry.or_insert_with(fresh).fates;
                let tasks = first.0 as usize + tasks.len();
                fates.resize(tasks.max(fates.len()), Fate::Undecided);
                true
            }
            RunEventKind::BatchStateChanged { key, state } => {
                if matches!(state, BatchState::Finalized | BatchState::Aborted) {
                    self.batches.remove(key);
                }
                true
            }
            RunEventKind::AttemptSent { attempt, key, task, .. } => {
                let is_traced = self.is_traced(*key, *task, || nanos(at), has_room);
                if is_traced {
                    self.attempts.insert(*attempt, (*key, *task));
                }
                is_traced
            }
            RunEventKind::AttemptBegan { attempt }
            | RunEventKind::RunReported { attempt, .. }
            | RunEventKind::AttemptCancelled { attempt, .. } => self.attempts.contains_key(attempt),
            RunEventKind::AttemptEnded { attempt, .. } => self.attempts.remove(attempt).is_some(),
            RunEventKind::RunEnded { key, task, .. }
            | RunEventKind::TaskEnded { key, task, .. } => {
                let batch = self.batches.get(key);
                let fate = batch.and_then(|batch| batch.fates.get(task.0 as usize));
                fate == Some(&Fate::Traced)
            }
            RunEventKind::RunRetried { .. }
            | RunEventKind::PayloadDropped { .. }
            | RunEventKind::RunnerLocated { .. }
            | RunEventKind::RunnerBroken { .. }
            | RunEventKind::RunnerReady { .. } => false,
            RunEventKind::Call(call) => match call.moment {
                CallEventKind::Began { .. } => {
                    self.attempts.contains_key(&call.attempt) && self.calls.insert(call.call)
                }
                CallEventKind::Sent { .. } => self.calls.contains(&call.call),
                CallEventKind::Ended { .. } => self.calls.remove(&call.call),
            },
        }
    }

    fn is_traced(
        &mut self,
        key: BatchKey,
        task: TaskId,
        at: impl FnOnce() -> Nanos,
        has_room: bool,
    ) -> bool {
        let Some(batch) = self.batches.get_mut(&key) else { return false };
        let place = task.0 as usize;
        if place >= batch.fates.len() {
            batch.fates.resize(place + 1, Fate::Undecided);
        }
        if batch.fates[place] == Fate::Undecided {
            let is_drawn = self.sample >= 1.0 || {
                let mut rng = ChaCha8Rng::seed_from_u64(batch.seed);
                rng.set_stream(task.0.into());
                rng.random::<f64>() < self.sample
            };
            let is_taken = is_drawn && has_room && (!self.is_bounded || self.pay(at()));
            self.ignored += u64::from(is_drawn && !is_taken);
            let fate = if is_taken { Fate::Traced } else { Fate::Ignored };
            if let Some(batch) = self.batches.get_mut(&key) {
                batch.fates[place] = fate;
            }
            return is_taken;
        }
        batch.fates[place] == Fate::Traced
    }

    /// Takes one task's worth out of the purse, if there is as much in it.
    fn pay(&mut self, now: Nanos) -> bool {
        const TASK: u64 = 1_000_000;
        let micros = now.saturating_sub(self.filled) / 1_000;
        // What is in it never grows beyond a burst, so that a long pause adds no more than that.
        let gain = micros.min(BURST * 1_000_000).saturating_mul(TASKS_PER_SECOND);
        if gain > 0 {
            self.filled = now;
            self.purse = self.purse.saturating_add(gain).min(BURST * TASK);
        }
        let is_enough = self.purse >= TASK;
        if is_enough {
            self.purse -= TASK;
        }
        is_enough
    }
}
