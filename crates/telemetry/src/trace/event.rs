//! What the thread that traces is told: as much of what was seen as spans are made of.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rollway_core::{
    AttemptId, BatchId, BatchKey, BatchKind, BatchState, Cancel, FailureKind, Life, Over, RunId,
    RunnerId, Runs, Status, TaskId,
};
use rollway_engine::RunEnd;
use rollway_engine::events::{Call, What};

use super::span::Nanos;

/// The key under which runs report their reward.
const REWARD: &str = "reward";

/// How much of a message is kept.
const WORDS: usize = 1024;

/// Something that happened.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) at: Nanos,
    pub(super) fact: Fact,
}

/// What happened.
#[derive(Clone, Debug)]
pub(super) enum Fact {
    BatchBegan { batch: BatchId, key: BatchKey, kind: BatchKind, tasks: Tasks },
    BatchIs { key: BatchKey, state: BatchState },
    Given(Given),
    Began { attempt: AttemptId },
    RunEnded { attempt: AttemptId, run: RunId, end: End },
    Cancelled { attempt: AttemptId, reason: Cancel },
    AttemptEnded { attempt: AttemptId, lost: Option<Arc<str>> },
    RunOver { key: BatchKey, task: TaskId, run: RunId, how: Over },
    TaskEnded { key: BatchKey, task: TaskId, status: Arc<Status> },
    Call(Call),
    StepBegun { step: u64, tasks: u64, runs: u64 },
    StepDone { step: u64, reward: Option<f64> },
    Evaluated { step: u64, version: Option<u64>, set: Arc<str>, score: Option<f64> },
    Synced { step: u64, version: Option<u64>, waited: Nanos, loading: Nanos },
    Trained { step: u64 },
    Noted(Arc<str>),
    Beat { pending: u64, running: u64, busy: u32 },
}

/// Tasks that came into a batch: workflow, runs.
#[derive(Clone, Debug)]
pub(super) struct Tasks {
    pub(super) first: TaskId,
    pub(super) tasks: Arc<[(Arc<str>, u32)]>,
}

/// Runs that were given to a runner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) attempt: AttemptId,
    pub(super) key: BatchKey,
    pub(super) task: TaskId,
    pub(super) runs: Runs,
    pub(super) runner: RunnerId,
    pub(super) life: Life,
}

/// How a run ended, without what it yielded: that must not wait in a queue.
#[derive(Clone, Debug)]
pub(super) enum End {
    Succeeded {
        reward: Option<f64>,
    },
    /// In what way, if that is known.
    Failed {
        kind: Option<FailureKind>,
        message: Arc<str>,
    },
}

impl Fact {
    /// Returns what is kept of something that was seen, if anything is.
    pub(super) fn of(what: &What) -> Option<Self> {
        Some(match what {
            What::BatchBegan { batch, key, kind, first, tasks } => {
                let tasks = Tasks { first: *first, tasks: Arc::clone(tasks) };
                Self::BatchBegan { batch: batch.clone(), key: *key, kind: *kind, tasks }
            }
            What::BatchIs { key, state } => Self::BatchIs { key: *key, state: *state },
            What::AttemptGiven { attempt, key, task, runs, runner, life, .. } => {
                Self::Given(Given {
                    attempt: *attempt,
                    key: *key,
                    task: *task,
                    runs: *runs,
                    runner: *runner,
                    life: *life,
                })
            }
            What::AttemptBegan { attempt } => Self::Began { attempt: *attempt },
            What::RunEnded { attempt, run, end } => {
                Self::RunEnded { attempt: *attempt, run: *run, end: End::of(end) }
            }
            What::AttemptCancelled { attempt, reason } => {
                Self::Cancelled { attempt: *attempt, reason: *reason }
            }
            What::AttemptEnded { attempt, lost } => {
                Self::AttemptEnded { attempt: *attempt, lost: lost.as_ref().map(cut) }
            }
            What::TaskEnded { key, task, status, .. } => {
                Self::TaskEnded { key: *key, task: *task, status: Arc::clone(status) }
            }
            What::RunOver { key, task, run, how } => {
                Self::RunOver { key: *key, task: *task, run: *run, how: how.clone() }
            }
            What::Call(call) => Self::Call(call.clone()),
            What::RunRetried { .. }
            | What::PayloadDropped { .. }
            | What::RunnerAt { .. }
            | What::RunnerBroken { .. }
            | What::RunnerReady { .. } => return None,
        })
    }
}

impl End {
    fn of(end: &RunEnd) -> Self {
        match end {
            RunEnd::Succeeded { metrics, .. } => Self::Succeeded { reward: metrics.get(REWARD) },
            RunEnd::Failed { kind, message } => {
                Self::Failed { kind: Some(*kind), message: cut(message) }
            }
        }
    }
}

/// Returns a message that is not too long.
fn cut(message: &Arc<str>) -> Arc<str> {
    match message.len() {
        0..=WORDS => Arc::clone(message),
        _ => format!("{}…", &message[..message.floor_char_boundary(WORDS)]).into(),
    }
}

/// Returns a moment in nanoseconds since 1970.
pub(super) fn nanos(at: SystemTime) -> Nanos {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
