//! What is under way, as far as it can be seen: batches, tasks and attempts with their times. Turns
//! the stream of single facts into durations, for whoever counts or judges them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rollway_core::{AttemptId, BatchKey, BatchKind, BatchState, FailureKind, Over, Status, TaskId};

use crate::observe::{Seen, What};

/// How many batches are known at most. Those of a coordinator leave when they are closed; those of
/// a scheduler's user have no end, and the oldest go first.
const BATCHES: usize = 1024;

/// What is called a class where nobody knows the workflow.
const UNKNOWN: &str = "unknown";

/// Something that has lasted for a time that is known now.
#[derive(Debug)]
pub(crate) enum Passed<'a> {
    /// A task was given to a runner for the first time.
    Given { class: &'a Arc<str>, kind: BatchKind, waited: Duration },
    /// A run ended, for good or until it is tried again.
    Run { how: Ran<'a> },
    /// An attempt is over.
    Attempt { class: &'a Arc<str>, kind: BatchKind, took: Duration },
    /// A task ended for good; one that was never given to a runner took no time.
    Task { class: &'a Arc<str>, kind: BatchKind, took: Option<Duration>, status: &'a Status },
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
pub(crate) struct Underway {
    pub(crate) given: SystemTime,
    pub(crate) began: Option<SystemTime>,
    class: Arc<str>,
    kind: BatchKind,
}

#[derive(Debug)]
struct Batch {
    at: SystemTime,
    kind: BatchKind,
    tasks: Vec<Arc<str>>,
    open: u64,
}

/// What is under way.
#[derive(Debug)]
pub(crate) struct Track {
    batches: BTreeMap<BatchKey, Batch>,
    attempts: BTreeMap<AttemptId, Underway>,
    /// When tasks were first given to a runner.
    first: HashMap<(BatchKey, TaskId), SystemTime>,
    open: u64,
    unknown: Arc<str>,
}

impl Default for Track {
    fn default() -> Self {
        Self {
            batches: BTreeMap::new(),
            attempts: BTreeMap::new(),
            first: HashMap::new(),
            open: 0,
            unknown: UNKNOWN.into(),
        }
    }
}

impl Track {
    /// Takes in what was seen, and tells what is known through it.
    pub(crate) fn see(&mut self, seen: &Seen, mut tell: impl FnMut(Passed<'_>)) {
        let at = seen.at;
        match &seen.what {
            What::BatchBegan { key, kind, first, tasks, .. } => {
                self.batch(*key, *kind, at, *first, tasks);
            }
            What::BatchIs { key, state: BatchState::Finalized | BatchState::Aborted } => {
                self.forget(*key);
            }
            What::AttemptGiven { attempt, key, task, .. } => {
                let (class, kind) = self.class(*key, *task);
                let began = self.batches.get(key).map(|batch| batch.at);
                let first = self.first.entry((*key, *task));
                if let (std::collections::hash_map::Entry::Vacant(first), Some(began)) =
                    (first, began)
                {
                    first.insert(at);
                    tell(Passed::Given { class: &class, kind, waited: since(at, began) });
                }
                let underway = Underway { given: at, began: None, class, kind };
                self.attempts.insert(*attempt, underway);
            }
            What::AttemptBegan { attempt } => {
                if let Some(underway) = self.attempts.get_mut(attempt) {
                    underway.began = Some(at);
                }
            }
            What::RunRetried { kind, message, .. } => {
                tell(Passed::Run { how: Ran::Badly { kind: *kind, message } });
            }
            What::RunOver { how, .. } => {
                let how = match how {
                    Over::Succeeded => Ran::Well,
                    Over::Failed { kind, message } => Ran::Badly { kind: *kind, message },
                    Over::Cancelled { .. } => Ran::Cut,
                };
                tell(Passed::Run { how });
            }
            What::AttemptEnded { attempt, .. } => {
                if let Some(Underway { given, began, class, kind, .. }) =
                    self.attempts.remove(attempt)
                {
                    let took = since(at, began.unwrap_or(given));
                    tell(Passed::Attempt { class: &class, kind, took });
                }
            }
            What::TaskEnded { key, task, status, .. } => {
                let (class, kind) = self.class(*key, *task);
                let first = self.first.remove(&(*key, *task));
                if let Some(batch) = self.batches.get_mut(key)
                    && let Some(left) = batch.open.checked_sub(1)
                {
                    batch.open = left;
                    self.open -= 1;
                }
                let took = first.map(|first| since(at, first));
                tell(Passed::Task { class: &class, kind, took, status });
            }
            _ => {}
        }
    }

    /// Tells how many tasks have not ended.
    pub(crate) const fn open_tasks(&self) -> u64 {
        self.open
    }

    /// Returns attempts under way, oldest first.
    pub(crate) fn oldest_attempts(&self) -> impl Iterator<Item = &Underway> {
        self.attempts.values()
    }

    /// Returns when a batch began.
    pub(crate) fn began(&self, key: BatchKey) -> Option<SystemTime> {
        self.batches.get(&key).map(|batch| batch.at)
    }

    fn batch(
        &mut self,
        key: BatchKey,
        kind: BatchKind,
        at: SystemTime,
        first: TaskId,
        tasks: &[(Arc<str>, u32)],
    ) {
        let batch = self.batches.entry(key);
        let batch = batch.or_insert_with(|| Batch { at, kind, tasks: Vec::new(), open: 0 });
        batch.tasks.resize(first.0 as usize, Arc::clone(&self.unknown));
        batch.tasks.extend(tasks.iter().map(|(workflow, _)| Arc::clone(workflow)));
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

    fn class(&self, key: BatchKey, task: TaskId) -> (Arc<str>, BatchKind) {
        let Some(batch) = self.batches.get(&key) else {
            return (Arc::clone(&self.unknown), BatchKind::Train);
        };
        let class = batch.tasks.get(task.0 as usize).unwrap_or(&self.unknown);
        (Arc::clone(class), batch.kind)
    }
}

/// Returns how long it is since then.
pub(crate) fn since(now: SystemTime, then: SystemTime) -> Duration {
    now.duration_since(then).unwrap_or_default()
}
