//! Read access to the core.

use std::sync::Arc;
use std::time::Duration;

use super::{PendingRetry, RunPhase, RunnerSlot, SlotAttempt};
use crate::{
    AttemptId, BatchId, BatchKey, BatchState, BatchType, Core, Counters, Incarnation, RequestId,
    RunFailure, RunId, RunTally, RunnerId, TaskId, TaskTally, Time,
};

/// State of a runner. It is idle only after its own report.
///
/// ```text
///              ready            attempt            ended
/// Starting ──────────► Idle ──────────► Busy ──────────────► Idle
///    │ ▲                │                 │ cancel             ▲
///    │ └──── restart ───┤                 ▼    acknowledged    │
///    │                  │            Cancelling ───────────────┘
///    ▼                  ▼                 │ silence, grace over
///  Broken ◄── Stopped ◄─┴─────────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunnerState {
    /// Started, and not ready yet.
    Starting,
    Idle,
    Busy(AttemptId),
    Cancelling(AttemptId),
    /// Repeated starts failed; waits for the next one.
    Broken,
    /// Waits for its restart, or is surplus.
    Stopped,
}

impl RunnerState {
    /// Returns the name used in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Idle => "idle",
            Self::Busy(_) => "busy",
            Self::Cancelling(_) => "cancelling",
            Self::Broken => "broken",
            Self::Stopped => "stopped",
        }
    }
}

/// Current state of a runner.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerView {
    pub runner: RunnerId,
    /// Current or last incarnation.
    pub incarnation: Incarnation,
    pub state: RunnerState,
    /// Time of the last change of `state`.
    pub since: Time,
    pub last_report: Time,
    /// Batch, task and beginning of its attempt.
    pub work: Option<(BatchKey, TaskId, Option<Time>)>,
    /// Open runs of its attempt.
    pub runs: Vec<RunId>,
    pub timeout: Option<Duration>,
    /// Typical duration of such attempts. `None`: none has succeeded yet.
    pub typical_duration: Option<Duration>,
    /// Reason of the last loss or failed start.
    pub message: Option<Arc<str>>,
}

/// Current state of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchView {
    pub batch: BatchId,
    pub key: BatchKey,
    pub kind: BatchType,
    /// `None`: scheduled, without a life cycle.
    pub state: Option<BatchState>,
    pub runs: RunTally,
    pub tasks: TaskTally,
    pub open_tasks: u64,
    pub results: u64,
    pub payload_bytes: u64,
    pub waiters: u64,
}

/// Cause for which no run of a batch is in an attempt, although runs are pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartDelay {
    /// All pending runs wait for the end of their retry backoff.
    Backoff {
        /// Earliest end of a backoff.
        until: Time,
        /// The last failure that is retried.
        failure: Option<RunFailure>,
    },
    /// The payload budget is exhausted.
    PayloadBudget {
        /// Bytes of the payloads held by all batches.
        held: u64,
    },
}

/// Earliest time at which the passing of time may change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    pub at: Time,
    pub reason: DeadlineReason,
}

/// Cause of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeadlineReason {
    /// Timeout of a runner's phase, or the end of its restart delay.
    Runner(RunnerId),
    HeartbeatTimeout(RunnerId),
    /// Timeout of a waiting request, or its next check.
    Waiter(RequestId),
    /// End of a retry's backoff.
    Retry(u64),
    /// End of a retry's wait for another runner.
    AnyRunner,
    /// Timeout of a delivery.
    Delivery(crate::ids::LeaseId),
    /// Timeout of a stop.
    Stop,
    /// Next check for surplus runners.
    Scaling,
}

impl Core {
    /// Returns the time and cause of the next [`TimePassed`](crate::Input::TimePassed). Timers that
    /// restart on progress are checked when they were first due and set again.
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.timers.first().map(|(at, reason)| Deadline { at, reason })
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns whether a batch has open tasks or available results.
    pub fn has_step(&self, batch: &BatchId) -> bool {
        self.ids
            .get(batch)
            .and_then(|key| self.batches.get(key))
            .is_some_and(|batch| batch.open > 0 || !batch.results.is_empty())
    }

    /// Returns an active or closed batch.
    pub fn batch(&self, batch: &BatchId) -> Option<BatchView> {
        self.batch_by_key(*self.ids.get(batch)?)
    }

    /// Returns an active or closed batch.
    pub fn batch_by_key(&self, key: BatchKey) -> Option<BatchView> {
        let batch = self.batches.get(&key)?;
        Some(BatchView {
            batch: batch.id.clone(),
            key,
            kind: batch.kind,
            state: batch.state(),
            runs: batch.runs,
            tasks: batch.ended,
            open_tasks: batch.open,
            results: batch.results.len() as u64,
            payload_bytes: batch.held_bytes,
            waiters: batch.waiters.len() as u64,
        })
    }

    /// Returns the cause for which no run of an active batch is in an attempt. `None`: an attempt
    /// is in flight, no run is pending, or runs are pending that could be dispatched to a ready
    /// runner.
    pub fn start_delay(&self, batch: &BatchId) -> Option<StartDelay> {
        let key = *self.ids.get(batch)?;
        let batch = self.batches.get(&key)?;
        if batch.terminal() || batch.attempts > 0 || batch.runs.pending == 0 {
            return None;
        }
        if !self.has_payload_budget(key) {
            return Some(StartDelay::PayloadBudget { held: self.counters.payload_bytes_held });
        }
        let is_pending = |retry: &PendingRetry| {
            let work = batch.work(retry.task);
            work.is_some_and(|work| work.runs[retry.run.0 as usize].state == RunPhase::Pending)
        };
        let paused = self.queues.paused.values().filter(|(of, _)| *of == key);
        let paused: Vec<_> =
            paused.map(|(_, retry)| retry).filter(|retry| is_pending(retry)).collect();
        if paused.len() as u64 != batch.runs.pending {
            return None;
        }
        let until = paused.iter().map(|retry| retry.due).min()?;
        Some(StartDelay::Backoff { until, failure: batch.last_retried.clone() })
    }

    /// Iterates over the active and closed batches, oldest first.
    pub fn batches(&self) -> impl Iterator<Item = BatchView> + '_ {
        self.batches.iter().filter_map(|batch| self.batch_by_key(batch.key))
    }

    pub fn runner_state(&self, runner: RunnerId) -> Option<RunnerState> {
        self.pool.runners.get(runner.0 as usize).map(RunnerSlot::state)
    }

    pub fn runner(&self, runner: RunnerId) -> Option<RunnerView> {
        let slot = self.pool.runners.get(runner.0 as usize)?;
        Some(RunnerView {
            runner,
            incarnation: slot.incarnation,
            state: slot.state(),
            since: slot.since,
            last_report: slot.last_report,
            work: slot.attempt().map(|attempt| (attempt.batch, attempt.task, attempt.began)),
            runs: slot.attempt().map_or_else(Vec::new, |attempt| self.open_runs(attempt)),
            timeout: slot.attempt().map(|attempt| attempt.timeout),
            typical_duration: slot.attempt().and_then(|attempt| self.typical_duration(attempt)),
            message: slot.message.clone(),
        })
    }

    fn typical_duration(&self, attempt: &SlotAttempt) -> Option<Duration> {
        let task = self.batches.get(&attempt.batch)?.tasks.get(attempt.task.0 as usize)?;
        self.durations.recent_mean(task.workflow, attempt.runs.count)
    }

    pub fn runners(&self) -> impl Iterator<Item = RunnerView> + '_ {
        (0..self.pool.runners.len()).filter_map(|at| self.runner(RunnerId(at as u32)))
    }

    /// Returns the current timeout of train attempts: the longest over all workflows, and at most
    /// `timeout`. `None`: at most `max_timeout`.
    pub fn dynamic_timeout(&self, timeout: Option<Duration>) -> Duration {
        let cap = timeout.unwrap_or(self.config.max_timeout);
        self.durations.longest(&self.config.dynamic_timeout, cap)
    }
}
