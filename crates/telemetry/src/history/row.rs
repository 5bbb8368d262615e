//! Batches, tasks and runs in memory. A run takes less than a hundred bytes, since there may be a
//! million.

use std::sync::Arc;

use rollway_core::{
    BatchState, BatchType, ByCancelReason, ByFailureKind, DropReason, RunEnd, RunRange, TaskTally,
};

use super::record::{AttemptRecord, CallRecord};
use super::state::ReportedOutput;
use crate::view::{BatchRuns, RunState};

/// An unknown number.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) batch: u32,
    pub(super) task: u32,
    pub(super) run: u32,
    pub(super) state: RunState,
    /// Cancelled because the process stopped; the next one may continue it.
    pub(super) is_stopped: bool,
    pub(super) attempts: u16,
    pub(super) runner: u32,
    pub(super) tokens: u32,
    pub(super) turns: u32,
    pub(super) version: u32,
    /// Number of its message in the interner.
    pub(super) message: u32,
    /// Start of the first attempt; NaN: none.
    pub(super) begin: f64,
    /// NaN: not ended.
    pub(super) end: f64,
    pub(super) seconds: f64,
    pub(super) reward: f64,
    pub(super) position: RecordPosition,
}

/// Position of a record. Segment 0: not written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordPosition {
    pub(super) segment: u32,
    pub(super) offset: u32,
}

impl Row {
    pub(super) const fn new(batch: u32, task: u32, run: u32) -> Self {
        Self {
            batch,
            task,
            run,
            state: RunState::Pending,
            is_stopped: false,
            attempts: 0,
            runner: NONE,
            tokens: NONE,
            turns: NONE,
            version: NONE,
            message: 0,
            begin: f64::NAN,
            end: f64::NAN,
            seconds: f64::NAN,
            reward: f64::NAN,
            position: RecordPosition { segment: 0, offset: 0 },
        }
    }

    pub(super) const fn is_over(&self) -> bool {
        !matches!(self.state, RunState::Pending | RunState::Running)
    }
}

pub(super) const fn nonzero(number: u32) -> Option<u32> {
    if number == NONE { None } else { Some(number) }
}

pub(super) fn finite(number: f64) -> Option<f64> {
    (!number.is_nan()).then_some(number)
}

/// Stores a number, limited to 32 bits.
pub(super) fn small(number: Option<u64>) -> u32 {
    number.map_or(NONE, |number| u32::try_from(number).unwrap_or(NONE - 1).min(NONE - 1))
}

/// A task with the rows of its runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskRow {
    pub(super) first: u64,
    pub(super) runs: u32,
    pub(super) workflow: u32,
    pub(super) is_over: bool,
    pub(super) dropped: Option<DropReason>,
}

#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) id: Arc<str>,
    pub(super) key: u64,
    pub(super) kind: BatchType,
    pub(super) state: BatchState,
    pub(super) began: f64,
    pub(super) ended: Option<f64>,
    pub(super) tasks: Vec<TaskRow>,
    pub(super) counts: Counts,
    /// Begun or continued by this process.
    pub(super) is_ours: bool,
    /// Number of its runs in memory.
    pub(super) rows: u64,
    rewards: (f64, u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) submitted: u64,
    pub(super) succeeded: u64,
    pub(super) failed: ByFailureKind,
    pub(super) cancelled: ByCancelReason,
    pub(super) running: u64,
    pub(super) tasks: u64,
    pub(super) ended: TaskTally,
}

impl Counts {
    pub(super) fn pending(&self) -> u64 {
        let ended = self.succeeded + self.failed.total() + self.cancelled.total();
        self.submitted.saturating_sub(ended + self.running)
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.submitted += other.submitted;
        self.succeeded += other.succeeded;
        self.failed.add(&other.failed);
        self.cancelled.add(&other.cancelled);
        self.running += other.running;
        self.tasks += other.tasks;
        self.ended.ok += other.ended.ok;
        self.ended.partial += other.ended.partial;
        self.ended.failed += other.ended.failed;
        self.ended.cancelled += other.ended.cancelled;
    }

    pub(super) fn count(&mut self, end: &RunEnd) {
        match end {
            RunEnd::Succeeded(()) => self.succeeded += 1,
            RunEnd::Failed(failure) => self.failed[failure.kind] += 1,
            RunEnd::Cancelled(reason) => self.cancelled[*reason] += 1,
        }
    }

    pub(super) fn runs(&self) -> BatchRuns {
        BatchRuns {
            succeeded: self.succeeded,
            failed: self.failed.total(),
            cancelled: self.cancelled.total(),
            running: self.running,
            pending: self.pending(),
        }
    }
}

impl Batch {
    pub(super) fn new(id: Arc<str>, key: u64, kind: BatchType, began: f64) -> Self {
        Self {
            id,
            key,
            kind,
            state: BatchState::Running,
            began,
            ended: None,
            tasks: Vec::new(),
            counts: Counts::default(),
            is_ours: false,
            rows: 0,
            rewards: (0.0, 0),
        }
    }

    pub(super) const fn is_over(&self) -> bool {
        matches!(self.state, BatchState::Finalized | BatchState::Aborted)
    }

    pub(super) fn add_reward(&mut self, reward: f64) {
        if !reward.is_nan() {
            self.rewards.0 += reward;
            self.rewards.1 += 1;
        }
    }

    pub(super) fn reward(&self) -> Option<f64> {
        (self.rewards.1 > 0).then(|| self.rewards.0 / self.rewards.1 as f64)
    }
}

/// Details of a run that has not ended.
#[derive(Debug, Default)]
pub(super) struct LiveRun {
    pub(super) attempts: Vec<AttemptRecord>,
    pub(super) left_out: u64,
    /// Last report, until the core decides about the run.
    pub(super) output: Option<ReportedOutput>,
}

impl LiveRun {
    pub(super) fn attempt(&mut self, attempt: u64) -> Option<&mut AttemptRecord> {
        self.attempts.iter_mut().rev().find(|one| one.attempt == attempt)
    }

    /// Ends the last attempt of this run. Returns its number.
    pub(super) fn end_attempt(
        &mut self,
        at: f64,
        state: RunState,
        is_lost: bool,
        message: Option<&Arc<str>>,
    ) -> Option<u64> {
        let last = self.attempts.last_mut()?;
        if last.ended.is_none() || last.state == RunState::Running {
            last.ended = Some(last.ended.unwrap_or(at));
            (last.state, last.is_lost) = (state, is_lost);
        }
        last.message = last.message.take().or_else(|| message.cloned());
        Some(last.attempt)
    }
}

/// An attempt that has not ended.
#[derive(Debug)]
pub(super) struct LiveAttempt {
    pub(super) runs: RunRange,
    /// Row of its first run.
    pub(super) first: u64,
    pub(super) sent_at: f64,
    pub(super) began: Option<f64>,
    /// End of its last run.
    pub(super) mark: f64,
    pub(super) calls: u64,
    /// Number of its runs that succeeded.
    pub(super) useful: u32,
    /// Numbers of the others by reason.
    pub(super) wasted: Vec<(&'static str, u32)>,
}

impl LiveAttempt {
    /// Counts an ended run. `None`: it succeeded.
    pub(super) fn count(&mut self, reason: Option<&'static str>) {
        let Some(reason) = reason else { return self.useful += 1 };
        match self.wasted.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => self.wasted.push((reason, 1)),
        }
    }
}

/// Returns tokens, turns and newest version of the completions of a run.
pub(super) fn completions(calls: &[CallRecord]) -> (Option<u64>, Option<u64>, Option<u64>) {
    let good = || calls.iter().filter(|call| call.status == Some(200));
    let tokens = good().filter_map(|call| call.answer_tokens).reduce(|a, b| a + b);
    let turns = good().count() as u64;
    let version = good().filter_map(|call| call.version).max();
    (tokens, (turns > 0).then_some(turns), version)
}
