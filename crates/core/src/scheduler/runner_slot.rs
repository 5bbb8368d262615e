//! One slot of the pool: its incarnation and its attempt.

use std::sync::Arc;
use std::time::Duration;

use crate::{
    AttemptCancelReason, AttemptId, BatchKey, Incarnation, RunRange, RunnerState, Supervision,
    TaskId, Time,
};

/// A slot. Its transitions are in `pool.rs` and `attempt.rs`.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunnerSlot {
    pub(crate) incarnation: Incarnation,
    pub(crate) phase: RunnerPhase,
    pub(crate) since: Time,
    pub(crate) last_report: Time,
    /// Retires when its attempt ends.
    pub(crate) retiring: bool,
    /// True if it has been ready, or has failed to be, since the last start of the pool.
    pub(crate) settled: bool,
    /// True if its start waits for an external condition.
    pub(crate) waits: bool,
    pub(crate) start_failures: u32,
    /// Consecutive incarnations without a finished attempt.
    pub(crate) failed_incarnations: u32,
    /// True if this incarnation has finished an attempt.
    pub(crate) has_finished: bool,
    pub(crate) message: Option<Arc<str>>,
    /// Position in the idle set.
    pub(crate) idle_since: u64,
    pub(crate) timer: Option<Time>,
    pub(crate) heartbeat_deadline: Option<Time>,
}

#[derive(Clone, Debug, Default)]
pub(crate) enum RunnerPhase {
    Starting,
    Idle,
    Busy(SlotAttempt),
    Cancelling(SlotAttempt, AttemptCancelReason),
    Broken,
    /// Waits for its restart.
    AwaitingRestart,
    /// Surplus; the slot may be used for another runner.
    #[default]
    Retired,
}

#[derive(Clone, Debug)]
pub(crate) struct SlotAttempt {
    pub(crate) id: AttemptId,
    pub(crate) batch: BatchKey,
    pub(crate) task: TaskId,
    pub(crate) runs: RunRange,
    pub(crate) left: u32,
    pub(crate) succeeded: u32,
    pub(crate) sent: Time,
    pub(crate) began: Option<Time>,
    pub(crate) timeout: Duration,
}

impl RunnerSlot {
    pub(crate) fn new(epoch: u16) -> Self {
        // The upper half is the epoch.
        Self { incarnation: Incarnation(u32::from(epoch) << 16), ..Self::default() }
    }

    pub(crate) const fn state(&self) -> RunnerState {
        match &self.phase {
            RunnerPhase::Starting => RunnerState::Starting,
            RunnerPhase::Idle => RunnerState::Idle,
            RunnerPhase::Busy(attempt) => RunnerState::Busy(attempt.id),
            RunnerPhase::Cancelling(attempt, _) => RunnerState::Cancelling(attempt.id),
            RunnerPhase::Broken => RunnerState::Broken,
            RunnerPhase::AwaitingRestart | RunnerPhase::Retired => RunnerState::Stopped,
        }
    }

    pub(crate) const fn attempt(&self) -> Option<&SlotAttempt> {
        if let RunnerPhase::Busy(attempt) | RunnerPhase::Cancelling(attempt, _) = &self.phase {
            Some(attempt)
        } else {
            None
        }
    }

    /// Returns the attempt, and the reason if it is being cancelled.
    pub(crate) fn work(&self) -> Option<(SlotAttempt, Option<AttemptCancelReason>)> {
        let cancel =
            if let RunnerPhase::Cancelling(_, cancel) = &self.phase { Some(*cancel) } else { None };
        self.attempt().map(|attempt| (attempt.clone(), cancel))
    }

    /// Returns whether the slot has, or should have, a live runner.
    pub(crate) const fn is_alive(&self) -> bool {
        matches!(
            self.phase,
            RunnerPhase::Starting
                | RunnerPhase::Idle
                | RunnerPhase::Busy(_)
                | RunnerPhase::Cancelling(..)
        )
    }

    /// Returns whether the slot counts towards the target.
    pub(crate) const fn counted(&self) -> bool {
        !self.retiring && !matches!(self.phase, RunnerPhase::Retired)
    }

    /// Returns the delay before the next incarnation.
    pub(crate) fn restart_delay(&self, supervision: &Supervision) -> Duration {
        if self.failed_incarnations == 0 {
            return Duration::ZERO;
        }
        let doublings = (self.failed_incarnations - 1).min(16);
        let restart_delay = supervision.restart_backoff.saturating_mul(1 << doublings);
        restart_delay.min(supervision.max_restart_backoff)
    }
}
