//! What is under way, as far as it can be seen: batches, tasks and attempts with their times. Turns
//! the stream of single facts into durations, for whoever counts or judges them.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rollway_core::{
    AttemptId, BatchKey, BatchState, BatchType, FailureKind, RunEnd, RunFailure, Status, TaskId,
};
use rollway_engine::events::{RunEvent, RunEventKind};
use rustc_hash::FxHashMap;

/// How many batches are known at most. Those of a coordinator leave when they are closed; those of
/// a scheduler's user have no end, and the oldest go first.
const BATCHES: usize = 1024;

/// What is called a class where nobody knows the workflow.
const UNKNOWN: &str = "unknown";

/// Something that has lasted for a time that is known now.
#[derive(Debug)]
pub(crate) enum DurationEvent<'a> {
    /// A task was given to a runner for the first time.
    Given { class: &'a Arc<str>, kind: BatchType, waited: Duration },
    /// A run ended, for good or until it is tried again.
    Run { how: Ran<'a> },
    /// An attempt is over.
    Attempt { class: &'a Arc<str>, kind: BatchType, took: Duration },
    /// A task ended for good; one that was never given to a runner took no time.
    Task { class: &'a Arc<str>, kind: BatchType, took: Option<Duration>, status: &'a Status },
}

/// How a run ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ran<'a> {
    Well,
    Badly { kind: FailureKind, message: &'a Arc<str> },
    Cut,
}

/// An attempt under way.
#[derive(Clone, Debug)]
pub(crate) struct AttemptInFlight {
    pub(crate) given: SystemTime,
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

/// Tasks that were taken in together: workflow, runs.
type Tasks = Arc<[(Arc<str>, u32)]>;

/// Which workflows the tasks of a batch have, as they were told: nothing is copied.
#[derive(Debug, Default)]
pub struct TaskWorkflows(Vec<(TaskId, Tasks)>);

impl TaskWorkflows {
    /// Adds tasks behind the others.
    pub fn add(&mut self, first: TaskId, tasks: &Tasks) {
        self.0.push((first, Arc::clone(tasks)));
    }

    /// How many tasks there are.
    pub fn task_count(&self) -> u64 {
        self.0.iter().map(|(_, tasks)| tasks.len() as u64).sum()
    }

    pub fn of(&self, task: TaskId) -> Option<&Arc<str>> {
        let at = self.0.partition_point(|(first, _)| *first <= task).checked_sub(1)?;
        let (first, tasks) = self.0.get(at)?;
        tasks.get((task.0 - first.0) as usize).map(|(workflow, _)| workflow)
    }
}

/// What is under way.
#[derive(Debug)]
pub(crate) struct InFlight {
    batches: BTreeMap<BatchKey, BatchInFlight>,
    attempts: BTreeMap<AttemptId, AttemptInFlight>,
    /// When tasks were first given to a runner.
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
    /// Takes in what was seen, and tells what is known through it.
    pub(crate) fn see(&mut self, seen: &RunEvent, mut tell: impl FnMut(DurationEvent<'_>)) {
        let at = seen.at;
        match &seen.what {
            RunEventKind::BatchBegan { key, kind, first, tasks, .. } => {
                self.batch(*key, *kind, at, *first, tasks);
            }
            RunEventKind::BatchStateChanged {
                key,
                state: BatchState::Finalized | BatchState::Aborted,
            } => {
                self.forget(*key);
            }
            RunEventKind::AttemptSent { attempt, key, task, .. } => {
                let batch = self.batches.get(key);
                let (class, kind) = class(batch, *task, &self.unknown);
                let first = self.first.entry((*key, *task));
                if let (Entry::Vacant(first), Some(batch)) = (first, batch) {
                    first.insert(at);
                    tell(DurationEvent::Given { class, kind, waited: since(at, batch.at) });
                }
                let class = Arc::clone(class);
                let underway = AttemptInFlight { given: at, began: None, class, kind };
                self.attempts.insert(*attempt, underway);
            }
            RunEventKind::AttemptBegan { attempt } => {
                if let Some(underway) = self.attempts.get_mut(attempt) {
                    underway.began = Some(at);
                }
            }
            RunEventKind::RunRetried { kind, message, .. } => {
                tell(DurationEvent::Run { how: Ran::Badly { kind: *kind, message } });
            }
            RunEventKind::RunEnded { how, .. } => {
                let how = match how {
                    RunEnd::Succeeded(()) => Ran::Well,
                    RunEnd::Failed(RunFailure { kind, message }) => {
                        Ran::Badly { kind: *kind, message }
                    }
                    RunEnd::Cancelled(_) => Ran::Cut,
                };
                tell(DurationEvent::Run { how });
            }
            RunEventKind::AttemptEnded { attempt, .. } => {
                if let Some(AttemptInFlight { given, began, class, kind, .. }) =
                    self.attempts.remove(attempt)
                {
                    let took = since(at, began.unwrap_or(given));
                    tell(DurationEvent::Attempt { class: &class, kind, took });
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
                tell(DurationEvent::Task { class, kind, took, status });
            }
            _ => {}
        }
    }

    /// Tells how many tasks have not ended.
    pub(crate) const fn open_tasks(&self) -> u64 {
        self.open
    }

    /// Returns attempts under way, oldest first.
    pub(crate) fn oldest_attempts(&self) -> impl Iterator<Item = &AttemptInFlight> {
        self.attempts.values()
    }

    /// Returns when a batch began.
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
        if self.batches.len() > BATCHES
            && let Some(oldest) = self.batches.keys().next().copied()
        {
            self.forget(oldest);
        }
    }

    fn forget(&mut self, key: BatchKey) {
        let Some(batch) = self.batches.remove(&key) else { return };
        self.open -= batch.open;
        // Those that were given and have not ended.
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

/// Returns how long it is since then.
pub(crate) fn since(now: SystemTime, then: SystemTime) -> Duration {
    now.duration_since(then).unwrap_or_default()
}
