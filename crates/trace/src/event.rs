//! What the thread that traces is told: as much of what was seen as spans are made of.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rollway_core::{
    AttemptCancelReason, AttemptId, BatchId, BatchKey, BatchState, BatchType, FailureKind,
    Incarnation, RunEnd, RunFailure, RunId, RunOutput, RunRange, RunnerId, Status, TaskId,
};
use rollway_engine::RunOutcome;
use rollway_engine::events::{CallEvent, RunEventKind};

use super::span::Nanos;

/// The key under which runs report their reward.
const REWARD: &str = "reward";

/// How much of a message is kept.
const MAX_MESSAGE_CHARS: usize = 1024;

/// Something that happened.
#[derive(Clone, Debug)]
pub(super) struct TraceEvent {
    pub(super) at: Nanos,
    pub(super) fact: TraceEventKind,
}

/// What happened.
#[derive(Clone, Debug)]
pub(super) enum TraceEventKind {
    BatchBegan { batch: BatchId, key: BatchKey, kind: BatchType, tasks: Tasks },
    BatchIs { key: BatchKey, state: BatchState },
    Given(AttemptStart),
    Began { attempt: AttemptId },
    RunEnded { attempt: AttemptId, run: RunId, end: SpanEnd },
    Cancelled { attempt: AttemptId, reason: AttemptCancelReason },
    AttemptEnded { attempt: AttemptId, lost: Option<Arc<str>> },
    RunOver { key: BatchKey, task: TaskId, run: RunId, how: RunEnd },
    TaskEnded { key: BatchKey, task: TaskId, status: Arc<Status> },
    Call(CallEvent),
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
pub(super) struct AttemptStart {
    pub(super) attempt: AttemptId,
    pub(super) key: BatchKey,
    pub(super) task: TaskId,
    pub(super) runs: RunRange,
    pub(super) runner: RunnerId,
    pub(super) life: Incarnation,
}

/// How a run ended, without what it yielded: that must not wait in a queue.
#[derive(Clone, Debug)]
pub(super) enum SpanEnd {
    Succeeded {
        reward: Option<f64>,
    },
    /// In what way, if that is known.
    Failed {
        kind: Option<FailureKind>,
        message: Arc<str>,
    },
}

impl TraceEventKind {
    /// Returns what is kept of something that was seen, if anything is.
    pub(super) fn of(what: &RunEventKind) -> Option<Self> {
        Some(match what {
            RunEventKind::BatchBegan { batch, key, kind, first, tasks } => {
                let tasks = Tasks { first: *first, tasks: Arc::clone(tasks) };
                Self::BatchBegan { batch: batch.clone(), key: *key, kind: *kind, tasks }
            }
            RunEventKind::BatchStateChanged { key, state } => {
                Self::BatchIs { key: *key, state: *state }
            }
            RunEventKind::AttemptSent { attempt, key, task, runs, runner, life, .. } => {
                Self::Given(AttemptStart {
                    attempt: *attempt,
                    key: *key,
                    task: *task,
                    runs: *runs,
                    runner: *runner,
                    life: *life,
                })
            }
            RunEventKind::AttemptBegan { attempt } => Self::Began { attempt: *attempt },
            RunEventKind::RunReported { attempt, run, end } => {
                Self::RunEnded { attempt: *attempt, run: *run, end: SpanEnd::of(end) }
            }
            RunEventKind::AttemptCancelled { attempt, reason } => {
                Self::Cancelled { attempt: *attempt, reason: *reason }
            }
            RunEventKind::AttemptEnded { attempt, lost } => {
                Self::AttemptEnded { attempt: *attempt, lost: lost.as_ref().map(cut) }
            }
            RunEventKind::TaskEnded { key, task, status, .. } => {
                Self::TaskEnded { key: *key, task: *task, status: Arc::clone(status) }
            }
            RunEventKind::RunEnded { key, task, run, how } => {
                Self::RunOver { key: *key, task: *task, run: *run, how: how.clone() }
            }
            RunEventKind::Call(call) => Self::Call(call.clone()),
            RunEventKind::RunRetried { .. }
            | RunEventKind::PayloadDropped { .. }
            | RunEventKind::RunnerLocated { .. }
            | RunEventKind::RunnerBroken { .. }
            | RunEventKind::RunnerReady { .. } => return None,
        })
    }
}

impl SpanEnd {
    fn of(end: &RunOutcome) -> Self {
        match end {
            Ok(RunOutput { metrics, .. }) => Self::Succeeded { reward: metrics.get(REWARD) },
            Err(RunFailure { kind, message }) => {
                Self::Failed { kind: Some(*kind), message: cut(message) }
            }
        }
    }
}

/// Returns a message that is not too long.
fn cut(message: &Arc<str>) -> Arc<str> {
    match message.len() {
        0..=MAX_MESSAGE_CHARS => Arc::clone(message),
        _ => format!("{}…", &message[..message.floor_char_boundary(MAX_MESSAGE_CHARS)]).into(),
    }
}

/// Returns a moment in nanoseconds since 1970.
pub(super) fn nanos(at: SystemTime) -> Nanos {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
