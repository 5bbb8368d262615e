//! What is held in memory of batches, tasks and runs: a run takes less than a hundred bytes, since
//! there may be a million of them.

use std::sync::Arc;

use bytes::Bytes;
use rollway_core::{
    BatchState, BatchType, ByCancelReason, ByFailureKind, DropReason, RunRange, TaskTally,
};

use super::record::{AttemptRecord, CallRecord, Outcome, StoredRunEnd};
use crate::view::{BatchRuns, RunState};

/// Says that a number is not known.
pub(super) const NONE: u32 = u32::MAX;

/// A run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) batch: u32,
    pub(super) task: u32,
    pub(super) run: u32,
    pub(super) state: RunState,
    /// Whether it was cancelled because the process ended: the next one may run it again.
    pub(super) is_stopped: bool,
    pub(super) attempts: u16,
    pub(super) runner: u32,
    pub(super) tokens: u32,
    pub(super) turns: u32,
    pub(super) version: u32,
    /// The number of its message.
    pub(super) message: u32,
    /// When it was first given to a runner; NaN: never.
    pub(super) begin: f64,
    /// When it was over, or when the attempt that is under way was given.
    pub(super) end: f64,
    pub(super) seconds: f64,
    pub(super) reward: f64,
    pub(super) place: RecordPosition,
}

/// Where a record is; segment 0: nowhere.
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
            place: RecordPosition { segment: 0, offset: 0 },
        }
    }

    pub(super) const fn is_over(&self) -> bool {
        !matches!(self.state, RunState::Pending | RunState::Running)
    }
}

/// Returns a number that may not be known.
pub(super) const fn known(number: u32) -> Option<u32> {
    if number == NONE { None } else { Some(number) }
}

/// Returns a number that may not be known.
pub(super) fn finite(number: f64) -> Option<f64> {
    (!number.is_nan()).then_some(number)
}

/// Keeps a number that may be too large.
pub(super) fn small(number: Option<u64>) -> u32 {
    number.map_or(NONE, |number| u32::try_from(number).unwrap_or(NONE - 1).min(NONE - 1))
}

/// A task: where its runs are.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskRow {
    pub(super) first: u64,
    pub(super) runs: u32,
    pub(super) workflow: u32,
    pub(super) is_over: bool,
    pub(super) dropped: Option<DropReason>,
}

/// A batch.
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
    /// Whether it is of this process, or was taken up by it.
    pub(super) is_ours: bool,
    /// Runs of it that are still in memory.
    pub(super) rows: u64,
    rewards: (f64, u64),
}

/// Where runs and tasks are.
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

    pub(super) fn over(&mut self, how: StoredRunEnd) {
        match how {
            StoredRunEnd::Succeeded => self.succeeded += 1,
            StoredRunEnd::Failed(kind) => self.failed[kind] += 1,
            StoredRunEnd::Cancelled(reason) => self.cancelled[reason] += 1,
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

    pub(super) fn rewarded(&mut self, reward: f64) {
        if !reward.is_nan() {
            self.rewards.0 += reward;
            self.rewards.1 += 1;
        }
    }

    pub(super) fn reward(&self) -> Option<f64> {
        (self.rewards.1 > 0).then(|| self.rewards.0 / self.rewards.1 as f64)
    }
}

/// A run that is not over: all that is known of it.
#[derive(Debug, Default)]
pub(super) struct LiveRun {
    pub(super) attempts: Vec<AttemptRecord>,
    pub(super) left_out: u64,
    pub(super) end: Option<End>,
}

/// How a run ended, before it is known what becomes of it.
#[derive(Debug)]
pub(super) struct End {
    pub(super) reward: Option<f64>,
    pub(super) seconds: Option<f64>,
    pub(super) payload: Option<Bytes>,
}

impl LiveRun {
    /// Returns the attempt of that number.
    pub(super) fn attempt(&mut self, attempt: u64) -> Option<&mut AttemptRecord> {
        self.attempts.iter_mut().rev().find(|one| one.attempt == attempt)
    }

    /// The last attempt is over, as far as this run is concerned. Returns its number.
    pub(super) fn settle(
        &mut self,
        at: f64,
        outcome: Outcome,
        message: Option<&Arc<str>>,
    ) -> Option<u64> {
        let last = self.attempts.last_mut()?;
        if last.ended.is_none() || last.outcome == Outcome::Running {
            last.ended = Some(last.ended.unwrap_or(at));
            last.outcome = outcome;
        }
        last.message = last.message.take().or_else(|| message.cloned());
        Some(last.attempt)
    }

    pub(super) fn last(&self) -> Option<&AttemptRecord> {
        self.attempts.last()
    }
}

/// An attempt under way.
#[derive(Debug)]
pub(super) struct LiveAttempt {
    pub(super) runs: RunRange,
    /// The row of its first run.
    pub(super) first: u64,
    pub(super) given: f64,
    pub(super) began: Option<f64>,
    /// When its last run ended.
    pub(super) mark: f64,
    pub(super) calls: u64,
    /// How many of its runs counted.
    pub(super) useful: u32,
    /// And how many did not, by why.
    pub(super) shares: Vec<(&'static str, u32)>,
}

impl LiveAttempt {
    pub(super) fn share(&mut self, why: Option<&'static str>) {
        let Some(why) = why else { return self.useful += 1 };
        match self.shares.iter_mut().find(|(known, _)| *known == why) {
            Some((_, count)) => *count += 1,
            None => self.shares.push((why, 1)),
        }
    }
}

/// Returns the answers of a run in numbers: tokens, turns, version.
pub(super) fn answers(calls: &[CallRecord]) -> (Option<u64>, Option<u64>, Option<u64>) {
    let good = || calls.iter().filter(|call| call.status == Some(200));
    let tokens = good().filter_map(|call| call.answer_tokens).reduce(|a, b| a + b);
    let turns = good().count() as u64;
    let version = good().filter_map(|call| call.version).max();
    (tokens, (turns > 0).then_some(turns), version)
}
