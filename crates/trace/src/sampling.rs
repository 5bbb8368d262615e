//! Sampling: chooses the tasks that are traced, by `trace.sample` and a rate limit. All spans of a
//! task are traced, or none.
//!
//! Runs in the observer's thread: an event of an untraced task costs one table lookup.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rollway_core::{AttemptId, BatchId, BatchKey, BatchState, RunId, TaskId};
use rollway_engine::events::{CallEventKind, RunEvent, RunEventKind};
use rustc_hash::{FxHashMap, FxHashSet};

use super::event::{TraceEvent, TraceEventKind, nanos};
use super::ids::{SpanId, SpanNamer, TraceId};
use super::span::Nanos;

/// Tasks a second that are traced in the long run. Rollouts take seconds; for faster tasks tracing
/// would cost more than the work.
const TASKS_PER_SECOND: u64 = 1_000;

/// Capacity of the token bucket in tasks.
const BURST: u64 = 500;

/// One task in the token bucket.
const TOKEN: u64 = 1_000_000;

/// Maximum number of open batches.
const MAX_BATCHES: usize = 10_000;

/// Decision about a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Decision {
    #[default]
    Undecided,
    Traced,
    Ignored,
}

#[derive(Debug)]
struct BatchSampling {
    name: BatchId,
    seed: u64,
    tasks: Vec<Decision>,
}

#[derive(Debug)]
pub(super) struct TraceSampler {
    names: SpanNamer,
    sample: f64,
    is_bounded: bool,
    batches: BTreeMap<BatchKey, BatchSampling>,
    /// Open attempts of traced tasks.
    attempts: FxHashMap<AttemptId, (BatchKey, TaskId)>,
    /// Open calls of traced tasks. A call may end after its attempt.
    calls: FxHashSet<u64>,
    /// Token bucket, in millionths of a task.
    tokens: u64,
    refilled: Nanos,
    /// Tasks above the rate limit since the last look.
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
            tokens: BURST * TOKEN,
            refilled: 0,
            ignored: 0,
        }
    }

    /// Returns a sampler without rate limit.
    #[cfg(test)]
    pub(super) fn unbounded(names: SpanNamer) -> Self {
        Self { is_bounded: false, ..Self::new(names, 1.0) }
    }

    /// Copies the events of traced tasks. `has_room`: whether further tasks can be traced.
    pub(super) fn sample(
        &mut self,
        events: &[RunEvent],
        has_room: bool,
        sampled: &mut Vec<TraceEvent>,
    ) {
        for RunEvent { at, what } in events {
            if self.traces(*at, what, has_room) {
                sampled.push(TraceEvent { at: nanos(*at), kind: TraceEventKind::of_run(what) });
            }
        }
    }

    /// Returns the ids of a call. `None`: its task is not traced.
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

    fn traces(&mut self, at: std::time::SystemTime, event: &RunEventKind, has_room: bool) -> bool {
        match event {
            RunEventKind::BatchBegan { batch, key, first, tasks, .. } => {
                if self.batches.len() >= MAX_BATCHES {
                    self.batches.pop_first();
                }
                let seed = self.names.seed(batch);
                let entry = self.batches.entry(*key);
                let fresh = || BatchSampling { name: batch.clone(), seed, tasks: Vec::new() };
                let decisions = &mut entry.or_insert_with(fresh).tasks;
                let count = (first.0 as usize + tasks.len()).max(decisions.len());
                decisions.resize(count, Decision::Undecided);
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
                let decision = batch.and_then(|batch| batch.tasks.get(task.0 as usize));
                decision == Some(&Decision::Traced)
            }
            RunEventKind::RunRetried { .. }
            | RunEventKind::PayloadDropped { .. }
            | RunEventKind::RunnerLocated { .. }
            | RunEventKind::RunnerBroken { .. }
            | RunEventKind::RunnerReady { .. } => false,
            RunEventKind::Call(call) => match call.kind {
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
        let index = task.0 as usize;
        if index >= batch.tasks.len() {
            batch.tasks.resize(index + 1, Decision::Undecided);
        }
        if batch.tasks[index] != Decision::Undecided {
            return batch.tasks[index] == Decision::Traced;
        }
        let is_drawn = self.sample >= 1.0 || {
            let mut rng = ChaCha8Rng::seed_from_u64(batch.seed);
            rng.set_stream(task.0.into());
            rng.random::<f64>() < self.sample
        };
        let is_traced = is_drawn && has_room && (!self.is_bounded || self.take_token(at()));
        self.ignored += u64::from(is_drawn && !is_traced);
        if let Some(batch) = self.batches.get_mut(&key) {
            batch.tasks[index] = if is_traced { Decision::Traced } else { Decision::Ignored };
        }
        is_traced
    }

    /// Token bucket: takes one token if available.
    fn take_token(&mut self, now: Nanos) -> bool {
        let micros = now.saturating_sub(self.refilled) / 1_000;
        let gain = micros.min(BURST * TOKEN).saturating_mul(TASKS_PER_SECOND);
        if gain > 0 {
            self.refilled = now;
            self.tokens = self.tokens.saturating_add(gain).min(BURST * TOKEN);
        }
        let is_available = self.tokens >= TOKEN;
        if is_available {
            self.tokens -= TOKEN;
        }
        is_available
    }
}
