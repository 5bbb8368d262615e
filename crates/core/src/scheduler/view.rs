//! Looking at the core without changing it.

use std::sync::Arc;
use std::time::Duration;

use crate::Core;
use crate::batch_id::BatchId;
use crate::ids::{AttemptId, BatchKey, Incarnation, RequestId, RunId, RunnerId, TaskId};
use crate::scheduler::counters::{Counters, RunTally};
use crate::scheduler::runner_slot::{RunnerSlot, SlotAttempt};
use crate::scheduler::status::{BatchState, BatchType, TaskTally};
use crate::time::Time;

/// Where a runner stands. It is idle only when it said so itself.
///
/// ```text
///              ready            attempt            ended
/// Starting ──────────► Idle ──────────► Busy ──────────────► Idle
///    │ ▲                │                 │ cancel             ▲
///    │ └──── restart ───┤                 ▼    acknowledged    │
///    │                  │            Cancelling ───────────────┘
///    ▼                  ▼                 │ silence, grace over
///  Broken ◄── Gone ◄────┴─────────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunnerState {
    /// It was ordered to start and has not said that it is ready.
    Starting,
    /// It said that it is idle.
    Idle,
    /// It was given this attempt.
    Busy(AttemptId),
    /// It was told to give this attempt up.
    Cancelling(AttemptId),
    /// It failed to start again and again, and rests.
    Broken,
    /// It is not there: waiting to be started again, or not wanted any more.
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
            Self::Stopped => "gone",
        }
    }
}

/// A runner as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerView {
    pub runner: RunnerId,
    /// Its current or last life.
    pub life: Incarnation,
    /// Where it stands.
    pub state: RunnerState,
    /// Since when it has stood there.
    pub since: Time,
    /// When it was last heard.
    pub last_report: Time,
    /// What it works on, with the moment it said that it had begun.
    pub work: Option<(BatchKey, TaskId, Option<Time>)>,
    /// Those of the runs it was given that have not ended.
    pub runs: Vec<RunId>,
    /// How long its attempt may last.
    pub timeout: Option<Duration>,
    /// How long attempts like its own have taken lately; none: none has succeeded yet.
    pub typical_duration: Option<Duration>,
    /// Why it was last lost or could not be started.
    pub message: Option<Arc<str>>,
}

/// A batch as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchView {
    /// The user's name of it.
    pub batch: BatchId,
    /// Which life of that name.
    pub key: BatchKey,
    pub kind: BatchType,
    /// Where it stands; none: it belongs to the scheduler and has no life cycle.
    pub state: Option<BatchState>,
    pub runs: RunTally,
    /// How its ended tasks ended.
    pub tasks: TaskTally,
    /// Tasks that have not ended.
    pub open_tasks: u64,
    /// Results that can be taken now.
    pub results: u64,
    /// Bytes of payloads held for it.
    pub payload_bytes: u64,
    /// Requests that wait for it.
    pub waiters: u64,
}

/// The earliest instant at which time alone may change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    pub at: Time,
    pub why: DeadlineReason,
}

/// What happens at a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeadlineReason {
    /// A runner has taken too long: to start, to begin, to end, to acknowledge; or its pause is
    /// over.
    Runner(RunnerId),
    /// A runner may have fallen silent.
    HeartbeatTimeout(RunnerId),
    /// A request has waited long enough, or should be looked at again.
    Waiter(RequestId),
    /// A retry's pause is over.
    Retry(u64),
    /// A retry has waited long enough for another runner.
    AnyRunner,
    /// A sink has taken too long.
    Delivery(crate::ids::LeaseId),
    /// A stop has waited long enough.
    Stop,
    /// It is time to see whether there are too many runners.
    Scaling,
}

impl Core {
    /// Returns when and why [`TimePassed`](crate::Input::TimePassed) is due next. Timers that
    /// restart on progress are looked at when they were first due and set again.
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.timers.first().map(|(at, why)| Deadline { at, why })
    }

    /// Returns the conservation counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Tells whether a batch has tasks that are unfinished or results that were not taken.
    pub fn has_step(&self, batch: &BatchId) -> bool {
        self.ids
            .get(batch)
            .and_then(|key| self.batches.get(key))
            .is_some_and(|batch| batch.open > 0 || !batch.results.is_empty())
    }

    /// Returns a batch that is active or remembered.
    pub fn batch(&self, batch: &BatchId) -> Option<BatchView> {
        self.batch_by_key(*self.ids.get(batch)?)
    }

    /// Returns a batch that is active or remembered.
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

    /// Iterates over the batches that are active or remembered, oldest first.
    pub fn batches(&self) -> impl Iterator<Item = BatchView> + '_ {
        self.batches.iter().filter_map(|batch| self.batch_by_key(batch.key))
    }

    /// Returns where a runner stands.
    pub fn runner_state(&self, runner: RunnerId) -> Option<RunnerState> {
        self.pool.runners.get(runner.0 as usize).map(RunnerSlot::state)
    }

    /// Returns a runner.
    pub fn runner(&self, runner: RunnerId) -> Option<RunnerView> {
        let slot = self.pool.runners.get(runner.0 as usize)?;
        Some(RunnerView {
            runner,
            life: slot.life,
            state: slot.state(),
            since: slot.since,
            last_report: slot.last_heard,
            work: slot.attempt().map(|attempt| (attempt.batch, attempt.task, attempt.began)),
            runs: slot.attempt().map_or_else(Vec::new, |attempt| self.left_behind(attempt)),
            timeout: slot.attempt().map(|attempt| attempt.timeout),
            typical_duration: slot.attempt().and_then(|attempt| self.usual_of(attempt)),
            message: slot.message.clone(),
        })
    }

    fn usual_of(&self, attempt: &SlotAttempt) -> Option<Duration> {
        let task = self.batches.get(&attempt.batch)?.tasks.get(attempt.task.0 as usize)?;
        self.durations.lately(task.workflow, attempt.runs.count)
    }

    /// Iterates over all runners.
    pub fn runners(&self) -> impl Iterator<Item = RunnerView> + '_ {
        (0..self.pool.runners.len()).filter_map(|at| self.runner(RunnerId(at as u32)))
    }

    /// Returns how long a train attempt may last at the moment: the longest over all workflows,
    /// and never more than `timeout`, or `max_timeout` if none is given.
    pub fn dynamic_timeout(&self, timeout: Option<Duration>) -> Duration {
        let cap = timeout.unwrap_or(self.config.max_timeout);
        self.durations.longest(&self.config.dynamic_timeout, cap)
    }
}
