//! Conservation counters: what came in, where it is, and what became of it.

use crate::failure::{ByCancelReason, ByFailureKind, names};
use crate::scheduler::status::{BatchType, ByDropReason, TaskTally};

/// Where runs are. [`RunTally::balanced`] holds at any moment, for every task, batch and in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTally {
    /// Runs that were accepted.
    pub submitted: u64,
    /// Runs that wait for a runner.
    pub pending: u64,
    /// Runs that are part of an attempt.
    pub running: u64,
    /// Runs that ended well.
    pub succeeded: u64,
    /// Runs that failed, by kind.
    pub failed: ByFailureKind,
    /// Runs that were cancelled, by reason.
    pub cancelled: ByCancelReason,
}

impl RunTally {
    /// Tells whether every run is in exactly one place.
    pub fn balanced(&self) -> bool {
        let ended = self.succeeded + self.failed.total() + self.cancelled.total();
        self.submitted == self.pending + self.running + ended
    }

    /// Adds the numbers of another tally.
    pub fn add(&mut self, other: &Self) {
        self.submitted += other.submitted;
        self.pending += other.pending;
        self.running += other.running;
        self.succeeded += other.succeeded;
        self.failed.add(&other.failed);
        self.cancelled.add(&other.cancelled);
    }
}

/// Where tasks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCount {
    /// Tasks that were accepted.
    pub submitted: u64,
    /// Tasks that have not ended.
    pub open: u64,
    /// How the others ended.
    pub ended: TaskTally,
}

impl TaskCount {
    /// Tells whether every task is in exactly one place.
    pub const fn balanced(&self) -> bool {
        self.submitted == self.open + self.ended.total()
    }
}

/// Where the runs and tasks of one kind of batch are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchTypeTally {
    pub runs: RunTally,
    pub tasks: TaskCount,
}

names!(
    /// Why something that was reported was not believed.
    IgnoreReason, ByIgnoreReason {
        /// There is no such runner.
        UnknownRunner = "unknown_runner",
        /// It comes from an earlier life of the runner.
        EarlierLife = "earlier_life",
        /// It is about an attempt that is no longer, or not yet, the runner's current one.
        NotCurrent = "not_current",
        /// The attempt is being cancelled.
        Cancelling = "cancelling",
        /// It is about a run that is not part of the attempt, or was reported already.
        RunNotOpen = "not_outstanding",
        /// It says again what is known.
        Repeated = "repeated",
        /// It names a delivery that is over.
        UnknownLease = "unknown_lease",
        /// It uses a request's number again.
        RepeatedRequest = "repeated_request",
        /// It was recorded before a crash, and is told when the core has been asked to start.
        RecordAfterStart = "recorded_late",
        /// It was recorded before a crash, and contradicts what is known: of no batch or task, or
        /// said before in another way.
        Contradiction = "contradiction",
    }
);

/// What the core has done since it was made, as plain numbers that only grow (but for those that
/// say what is held now).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// All runs of all batches, also of those that are forgotten.
    pub runs: RunTally,
    /// What of it belongs to train batches.
    pub train: BatchTypeTally,
    /// What of it belongs to eval batches.
    pub eval: BatchTypeTally,
    /// Inputs applied.
    pub inputs: u64,
    /// Attempts sent to runners.
    pub attempts_started: u64,
    /// Attempts that ended in any way.
    pub attempts_ended: u64,
    /// Runs that were sent again, by the kind of failure.
    pub retries: ByFailureKind,
    pub ignored_reports: ByIgnoreReason,
    /// Batches that were taken up again after a crash.
    pub batches_restored: u64,
    /// Runs of them that had ended before.
    pub runs_restored: u64,
    /// Payloads of those runs.
    pub payloads_restored: u64,
    /// Payloads that came in.
    pub payloads_received: u64,
    /// Payloads whose delivery was acknowledged.
    pub payloads_delivered: u64,
    pub payloads_dropped: ByDropReason,
    /// Payloads held now.
    pub payloads_held: u64,
    /// Bytes of payloads held now.
    pub payload_bytes_held: u64,
    /// Requests that were taken in.
    pub requests: u64,
    /// Requests that were answered.
    pub answers: u64,
    /// Requests whose asker went away.
    pub abandoned: u64,
    /// Runners ordered to start.
    pub runners_started: u64,
    /// Runners ordered to stop.
    pub runners_stopped: u64,
    /// Runners that were lost or replaced while they should have been alive.
    pub runners_lost: u64,
    /// Error messages that were cut to their limit.
    pub messages_truncated: u64,
    /// Metrics that were dropped because a run had too many.
    pub metrics_dropped: u64,
    /// Successful attempts from which the dynamic timeout did not learn because it knows too many
    /// workflows.
    pub durations_dropped: u64,
}

impl Counters {
    /// Returns what belongs to one kind of batch.
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

    /// Returns the books that a run of a kind of batch stands in.
    pub(crate) const fn books(&mut self, kind: BatchType) -> [&mut RunTally; 2] {
        let of_kind = match kind {
            BatchType::Train => &mut self.train,
            BatchType::Eval => &mut self.eval,
        };
        [&mut self.runs, &mut of_kind.runs]
    }

    /// Tells whether every run, payload and request is accounted for.
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
