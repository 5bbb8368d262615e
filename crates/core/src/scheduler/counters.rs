//! Conservation counters of runs, tasks, payloads and requests.

use super::CoreBatch;
use crate::failure::names;
use crate::{BatchType, ByCancelReason, ByDropReason, ByFailureKind, TaskTally};

/// Runs by state. [`RunTally::balanced`] holds at any moment, for every task, batch and in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTally {
    pub submitted: u64,
    /// Runs that wait for a runner.
    pub pending: u64,
    /// Runs in an attempt.
    pub running: u64,
    pub succeeded: u64,
    pub failed: ByFailureKind,
    pub cancelled: ByCancelReason,
}

impl RunTally {
    /// Returns whether every run is in exactly one state.
    pub fn balanced(&self) -> bool {
        let ended = self.succeeded + self.failed.total() + self.cancelled.total();
        self.submitted == self.pending + self.running + ended
    }

    pub fn add(&mut self, other: &Self) {
        self.submitted += other.submitted;
        self.pending += other.pending;
        self.running += other.running;
        self.succeeded += other.succeeded;
        self.failed.add(&other.failed);
        self.cancelled.add(&other.cancelled);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCount {
    pub submitted: u64,
    pub open: u64,
    pub ended: TaskTally,
}

impl TaskCount {
    /// Returns whether every task is in exactly one state.
    pub const fn balanced(&self) -> bool {
        self.submitted == self.open + self.ended.total()
    }
}

/// Runs and tasks of one batch type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchTypeTally {
    pub runs: RunTally,
    pub tasks: TaskCount,
}

names!(
    /// Reason why a report was ignored.
    IgnoreReason, ByIgnoreReason {
        UnknownRunner = "unknown_runner",
        /// It is from an earlier incarnation of the runner.
        EarlierLife = "earlier_life",
        /// Its attempt is not the runner's current one.
        NotCurrent = "not_current",
        /// Its attempt is being cancelled.
        Cancelling = "cancelling",
        /// Its run is not part of the attempt, or was reported already.
        RunNotOpen = "not_outstanding",
        /// It repeats known information.
        Repeated = "repeated",
        /// Its delivery is over.
        UnknownLease = "unknown_lease",
        /// The id of a waiting request is used again.
        RepeatedRequest = "repeated_request",
        RecordAfterStart = "recorded_late",
        /// A ledger record contradicts the state: unknown batch or task, or a different repetition.
        Contradiction = "contradiction",
    }
);

/// Counts since the creation of the core; they only grow, except those of held payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// All runs of all batches, including removed ones.
    pub runs: RunTally,
    pub train: BatchTypeTally,
    pub eval: BatchTypeTally,
    pub inputs: u64,
    pub attempts_started: u64,
    pub attempts_ended: u64,
    pub retries: ByFailureKind,
    pub ignored_reports: ByIgnoreReason,
    pub batches_restored: u64,
    /// Runs of restored batches that had ended.
    pub runs_restored: u64,
    pub payloads_restored: u64,
    pub payloads_received: u64,
    pub payloads_delivered: u64,
    pub payloads_dropped: ByDropReason,
    pub payloads_held: u64,
    pub payload_bytes_held: u64,
    pub requests: u64,
    pub answers: u64,
    pub abandoned: u64,
    pub runners_started: u64,
    pub runners_stopped: u64,
    /// Runners that were lost or replaced unexpectedly.
    pub runners_lost: u64,
    pub messages_truncated: u64,
    /// Metrics beyond the limit per run.
    pub metrics_dropped: u64,
    /// Successful attempts not used by the dynamic timeout, which has too many workflows.
    pub durations_dropped: u64,
}

impl Counters {
    pub const fn of(&self, kind: BatchType) -> &BatchTypeTally {
        match kind {
            BatchType::Train => &self.train,
            BatchType::Eval => &self.eval,
        }
    }

    pub(crate) const fn of_mut(&mut self, kind: BatchType) -> &mut BatchTypeTally {
        match kind {
            BatchType::Train => &mut self.train,
            BatchType::Eval => &mut self.eval,
        }
    }

    /// Returns all tallies of a batch's runs: its own, the total and that of its type.
    pub(crate) const fn tallies<'a>(
        &'a mut self,
        batch: &'a mut CoreBatch,
    ) -> [&'a mut RunTally; 3] {
        let of_type = match batch.kind {
            BatchType::Train => &mut self.train,
            BatchType::Eval => &mut self.eval,
        };
        [&mut batch.runs, &mut self.runs, &mut of_type.runs]
    }

    /// Returns whether every run, payload and request is accounted for.
    pub fn balanced(&self) -> bool {
        let gone = self.payloads_delivered + self.payloads_dropped.total();
        let mut runs = self.train.runs;
        runs.add(&self.eval.runs);
        self.runs.balanced()
            && runs == self.runs
            && self.train.tasks.balanced()
            && self.eval.tasks.balanced()
            && self.payloads_received + self.payloads_restored == self.payloads_held + gone
            && self.answers + self.abandoned <= self.requests
            && self.attempts_ended <= self.attempts_started
    }
}
