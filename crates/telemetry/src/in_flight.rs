//! Open batches, tasks and attempts. Turns run events into durations for metrics and alarms.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rollway_core::{
    AttemptId, BatchKey, BatchState, BatchType, RunEnd, RunFailure, Status, TaskId,
};
use rollway_engine::events::{RunEvent, RunEventKind};
use rustc_hash::FxHashMap;

/// Maximum number of batches. Those of a scheduler have no end event; the oldest are dropped.
const MAX_BATCHES: usize = 1024;

/// Class of tasks whose workflow is unknown.
const UNKNOWN: &str = "unknown";

/// End of a wait or an execution.
#[derive(Debug)]
pub(crate) enum DurationEvent<'a> {
    /// First attempt of a task.
    Started {
        class: &'a Arc<str>,
        kind: BatchType,
        waited: Duration,
    },
    /// End of a run, or a failure that is retried.
    Run(&'a RunEnd),
    Attempt {
        class: &'a Arc<str>,
        kind: BatchType,
        took: Duration,
    },
    /// `took` is `None` for a task without an attempt.
    Task {
        class: &'a Arc<str>,
        kind: BatchType,
        took: Option<Duration>,
        status: &'a Status,
    },
}

/// An open attempt.
#[derive(Clone, Debug)]
pub(crate) struct AttemptInFlight {
    pub(crate) sent_at: SystemTime,
    pub(crate) began: Option<SystemTime>,
    class: Arc<str>,
    kind: BatchType,
}

#[derive(Debug)]
struct BatchInFlight {
    at: SystemTime,
    kind: BatchType,
    workflows: TaskWorkflows,
    open: u64,
}

/// Tasks of one submission: workflow, runs.
type Tasks = Arc<[(Arc<str>, u32)]>;

/// Workflows of the tasks of a batch, shared with the events.
#[derive(Debug, Default)]
pub struct TaskWorkflows(Vec<(TaskId, Tasks)>);

impl TaskWorkflows {
    /// Appends tasks.
    pub fn add(&mut self, first: TaskId, tasks: &Tasks) {
        self.0.push((first, Arc::clone(tasks)));
    }

    pub fn task_count(&self) -> u64 {
        self.0.iter().map(|(_, tasks)| tasks.len() as u64).sum()
    }

    pub fn of(&self, task: TaskId) -> Option<&Arc<str>> {
        let at = self.0.partition_point(|(first, _)| *first <= task).checked_sub(1)?;
        let (first, tasks) = self.0.get(at)?;
        tasks.get((task.0 - first.0) as usize).map(|(workflow, _)| workflow)
    }
}

#[derive(Debug)]
pub(crate) struct InFlight {
    batches: BTreeMap<BatchKey, BatchInFlight>,
    attempts: BTreeMap<AttemptId, AttemptInFlight>,
    /// Start of the first attempt of open tasks.
    first: FxHashMap<(BatchKey, TaskId), SystemTime>,
    open: u64,
    unknown: Arc<str>,
}

impl Default for InFlight {
    fn default() -> Self {
        Self {
            batches: BTreeMap::new(),
            attempts: BTreeMap::new(),
            first: FxHashMap::default(),
            open: 0,
            unknown: UNKNOWN.into(),
        }
    }
}

impl InFlight {
    /// Applies an event and emits the durations that it completes.
    pub(crate) fn apply(&mut self, event: &RunEvent, mut emit: impl FnMut(DurationEvent<'_>)) {
        let at = event.at;
        match &event.what {
            RunEventKind::BatchBegan { key, kind, first, tasks, .. } => {
                self.batch(*key, *kind, at, *first, tasks);
            }
            RunEventKind::BatchStateChanged {
                key,
                state: BatchState::Finalized | BatchState::Aborted,
            } => {
                self.remove_batch(*key);
            }
            RunEventKind::AttemptSent { attempt, key, task, .. } => {
                let batch = self.batches.get(key);
                let (class, kind) = class(batch, *task, &self.unknown);
                let first = self.first.entry((*key, *task));
                if let (Entry::Vacant(first), Some(batch)) = (first, batch) {
                    first.insert(at);
                    emit(DurationEvent::Started { class, kind, waited: since(at, batch.at) });
                }
                let class = Arc::clone(class);
                let open = AttemptInFlight { sent_at: at, began: None, class, kind };
                self.attempts.insert(*attempt, open);
            }
            RunEventKind::AttemptBegan { attempt } => {
                if let Some(attempt) = self.attempts.get_mut(attempt) {
                    attempt.began = Some(at);
                }
            }
            RunEventKind::RunRetried { kind, message, .. } => {
                let failure = RunFailure { kind: *kind, message: Arc::clone(message) };
                emit(DurationEvent::Run(&RunEnd::Failed(failure)));
            }
            RunEventKind::RunEnded { how, .. } => emit(DurationEvent::Run(how)),
            RunEventKind::AttemptEnded { attempt, .. } => {
                if let Some(AttemptInFlight { sent_at, began, class, kind, .. }) =
                    self.attempts.remove(attempt)
                {
                    let took = since(at, began.unwrap_or(sent_at));
                    emit(DurationEvent::Attempt { class: &class, kind, took });
                }
            }
            RunEventKind::TaskEnded { key, task, status, .. } => {
                let first = self.first.remove(&(*key, *task));
                let took = first.map(|first| since(at, first));
                let mut batch = self.batches.get_mut(key);
                if let Some(batch) = &mut batch
                    && let Some(left) = batch.open.checked_sub(1)
                {
                    batch.open = left;
                    self.open -= 1;
                }
                let (class, kind) = class(batch.as_deref(), *task, &self.unknown);
                emit(DurationEvent::Task { class, kind, took, status });
            }
            _ => {}
        }
    }

    pub(crate) const fn open_tasks(&self) -> u64 {
        self.open
    }

    /// Returns open attempts, oldest first.
    pub(crate) fn oldest_attempts(&self) -> impl Iterator<Item = &AttemptInFlight> {
        self.attempts.values()
    }

    pub(crate) fn began(&self, key: BatchKey) -> Option<SystemTime> {
        self.batches.get(&key).map(|batch| batch.at)
    }

    fn batch(
        &mut self,
        key: BatchKey,
        kind: BatchType,
        at: SystemTime,
        first: TaskId,
        tasks: &Tasks,
    ) {
        let fresh = || BatchInFlight { at, kind, workflows: TaskWorkflows::default(), open: 0 };
        let batch = self.batches.entry(key).or_insert_with(fresh);
        batch.workflows.add(first, tasks);
        batch.open += tasks.len() as u64;
        self.open += tasks.len() as u64;
        if self.batches.len() > MAX_BATCHES
            && let Some(oldest) = self.batches.keys().next().copied()
        {
            self.remove_batch(oldest);
        }
    }

    fn remove_batch(&mut self, key: BatchKey) {
        let Some(batch) = self.batches.remove(&key) else { return };
        self.open -= batch.open;
        // Started tasks that have not ended.
        if batch.open > 0 {
            self.first.retain(|(of, _), _| *of != key);
        }
    }
}

fn class<'a>(
    batch: Option<&'a BatchInFlight>,
    task: TaskId,
    unknown: &'a Arc<str>,
) -> (&'a Arc<str>, BatchType) {
    let Some(batch) = batch else { return (unknown, BatchType::Train) };
    (batch.workflows.of(task).unwrap_or(unknown), batch.kind)
}

pub(crate) fn since(now: SystemTime, then: SystemTime) -> Duration {
    now.duration_since(then).unwrap_or_default()
}
