//! What is known of a job: changed by what is seen, and by what is read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use rollway_core::{
    AttemptId, BatchId, BatchKey, BatchState, BatchType, DropReason, Incarnation, RunEnd,
    RunFailure, RunId, RunOutput, RunRange, RunnerId, Status, TaskId,
};
use rollway_engine::RunOutcome;
use rollway_engine::events::{CallEvent, RunEvent, RunEventKind};
use rustc_hash::FxHashMap;

use super::interner::Names;
use super::job_log::Notes;
use super::record::{JobNote, Totals};
use super::row::{Batch, Counts, LiveAttempt, LiveRun, Row, TaskRow};
use super::write_queue::WriteQueue;

/// What was seen, as far as it is needed later.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) at: f64,
    pub(super) what: Event,
}

/// What a [`RunEvent`] comes down to.
#[derive(Debug)]
pub(super) enum Event {
    Given {
        attempt: AttemptId,
        of: (BatchKey, TaskId, RunRange),
        to: (RunnerId, Incarnation),
    },
    Began {
        attempt: AttemptId,
    },
    /// A run of an attempt ended.
    Ended {
        attempt: AttemptId,
        run: u32,
        end: Ended,
    },
    /// A run ended for good.
    Over {
        of: (BatchKey, TaskId, RunId),
        how: RunEnd,
    },
    AttemptEnded {
        attempt: AttemptId,
        lost: Option<Arc<str>>,
    },
    TaskEnded {
        of: (BatchKey, TaskId),
        status: Arc<Status>,
        dropped: Option<DropReason>,
    },
    /// The experiences of a run were dropped.
    Dropped {
        reason: DropReason,
    },
    /// A call did something.
    Call(Box<CallEvent>),
    /// Anything else about runs.
    Seen(Box<RunEventKind>),
    /// Something about the job.
    Note(Box<JobNote>),
}

/// A million of them may wait: what is large and rare is elsewhere.
const _: () = assert!(size_of::<Item>() <= 56, "an item is small");

/// How a run of an attempt ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// NaN: not known.
    Well {
        reward: f64,
        seconds: f64,
        payload: Option<Box<Bytes>>,
    },
    Badly {
        message: Arc<str>,
    },
}

/// Seconds since 1970.
pub(super) fn seconds(at: std::time::SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl Item {
    /// Puts aside what is needed, if anything is.
    pub(super) fn of(seen: &RunEvent) -> Option<Self> {
        let what = match &seen.what {
            RunEventKind::AttemptSent { attempt, key, task, runs, runner, life, .. } => {
                Event::Given { attempt: *attempt, of: (*key, *task, *runs), to: (*runner, *life) }
            }
            RunEventKind::AttemptBegan { attempt } => Event::Began { attempt: *attempt },
            RunEventKind::RunReported { attempt, run, end } => {
                Event::Ended { attempt: *attempt, run: run.0, end: Ended::of(end) }
            }
            RunEventKind::RunEnded { key, task, run, how } => {
                Event::Over { of: (*key, *task, *run), how: how.clone() }
            }
            RunEventKind::AttemptEnded { attempt, lost } => {
                Event::AttemptEnded { attempt: *attempt, lost: lost.clone() }
            }
            RunEventKind::TaskEnded { key, task, status, dropped } => {
                let (of, status) = ((*key, *task), Arc::clone(status));
                Event::TaskEnded { of, status, dropped: *dropped }
            }
            RunEventKind::PayloadDropped { reason, .. } => Event::Dropped { reason: *reason },
            RunEventKind::Call(call) => Event::Call(Box::new(call.clone())),
            what @ (RunEventKind::BatchBegan { .. }
            | RunEventKind::BatchStateChanged { .. }
            | RunEventKind::RunRetried { .. }
            | RunEventKind::RunnerLocated { .. }) => Event::Seen(Box::new(what.clone())),
            // What follows tells more: which runs were cancelled, and when the runner was done.
            RunEventKind::AttemptCancelled { .. } => return None,
            // The runners themselves are asked what they do.
            RunEventKind::RunnerBroken { .. } | RunEventKind::RunnerReady { .. } => return None,
        };
        Some(Self { at: seconds(seen.at), what })
    }

    /// Bytes of experiences that it holds.
    pub(super) fn payload_bytes(&self) -> u64 {
        match &self.what {
            Event::Ended { end: Ended::Well { payload: Some(payload), .. }, .. } => {
                payload.len() as u64
            }
            _ => 0,
        }
    }

    pub(super) fn drop_payload(&mut self) {
        if let Event::Ended { end: Ended::Well { payload, .. }, .. } = &mut self.what {
            *payload = None;
        }
    }
}

impl Ended {
    fn of(end: &RunOutcome) -> Self {
        match end {
            Ok(RunOutput { payload, metrics }) => Self::Well {
                reward: metrics.get("reward").unwrap_or(f64::NAN),
                seconds: metrics.get(rollway_core::metrics::RUN_SECONDS).unwrap_or(f64::NAN),
                payload: payload.clone().map(Box::new),
            },
            Err(RunFailure { message, .. }) => Self::Badly { message: Arc::clone(message) },
        }
    }
}

/// What is known of a job.
#[derive(Debug)]
pub(super) struct State {
    /// Runs, in the order in which they were taken in.
    pub(super) rows: VecDeque<Row>,
    /// How many rows were dropped before the first.
    pub(super) base: u64,
    pub(super) max_runs: u64,
    pub(super) batches: BTreeMap<u32, Batch>,
    next_batch: u32,
    /// Batches of this process by key.
    pub(super) keys: FxHashMap<BatchKey, u32>,
    pub(super) attempts: FxHashMap<AttemptId, LiveAttempt>,
    pub(super) live: FxHashMap<u64, LiveRun>,
    /// Where runners are, in which life of theirs.
    pub(super) places: FxHashMap<RunnerId, (Incarnation, Arc<str>)>,
    pub(super) messages: Names,
    pub(super) workflows: Names,
    pub(super) notes: Notes,
    pub(super) totals: Totals,
    /// Of batches that are dropped.
    pub(super) gone: Counts,
    /// What is to be written.
    pub(super) out: WriteQueue,
    /// How many payloads may still be looked into.
    pub(super) looks: f64,
}

impl State {
    pub(super) fn new(max_runs: u64) -> Self {
        Self {
            rows: VecDeque::new(),
            base: 0,
            max_runs: max_runs.max(1),
            batches: BTreeMap::new(),
            next_batch: 0,
            keys: FxHashMap::default(),
            attempts: FxHashMap::default(),
            live: FxHashMap::default(),
            places: FxHashMap::default(),
            messages: Names::new(),
            workflows: Names::new(),
            notes: Notes::default(),
            totals: Totals::default(),
            gone: Counts::default(),
            out: WriteQueue::default(),
            looks: 0.0,
        }
    }

    /// Takes in what was seen.
    pub(super) fn apply(&mut self, item: Item) {
        let at = item.at;
        match item.what {
            Event::Given { attempt, of, to } => self.given(at, attempt, of, to),
            Event::Began { attempt } => self.began(at, attempt),
            Event::Ended { attempt, run, end } => self.run_ended(at, attempt, run, end),
            Event::Over { of, how } => self.over(at, of, &how),
            Event::AttemptEnded { attempt, lost } => self.attempt_ended(at, attempt, lost.as_ref()),
            Event::TaskEnded { of: (key, task), status, dropped } => {
                self.task_ended(at, key, task, &status, dropped);
            }
            Event::Dropped { reason } => {
                let dropped = &mut self.totals.experiences_dropped;
                match dropped.get_mut(reason.name()) {
                    Some(count) => *count += 1,
                    None => drop(dropped.insert(reason.name().to_owned(), 1)),
                }
            }
            Event::Call(call) => self.call(at, *call),
            Event::Note(note) => {
                self.notes.apply(at, &note);
                self.out.note(at, *note);
            }
            Event::Seen(what) => self.seen(at, *what),
        }
    }

    fn seen(&mut self, at: f64, what: RunEventKind) {
        match what {
            RunEventKind::BatchBegan { batch, key, kind, first, tasks } => {
                self.batch_began(at, &batch, key, kind, first, &tasks);
            }
            RunEventKind::BatchStateChanged { key, state } => self.batch_is(at, key, state),
            RunEventKind::RunRetried { key, task, run, kind, message } => {
                self.retried(at, (key, task, run), kind, &message);
            }
            RunEventKind::RunnerLocated { runner, life, place } => {
                self.places.insert(runner, (life, place));
            }
            // These come as events of their own, or not at all.
            _ => {}
        }
    }

    fn batch_began(
        &mut self,
        at: f64,
        batch: &BatchId,
        key: BatchKey,
        kind: BatchType,
        first: TaskId,
        tasks: &[(Arc<str>, u32)],
    ) {
        let id: Arc<str> = batch.to_string().into();
        if first.0 == 0 && self.adopt(at, &id, key, tasks.len()) {
            return;
        }
        let number = self.keys.get(&key).copied().unwrap_or(self.next_batch);
        let mut alike: Vec<(String, u32, u32)> = Vec::new();
        for (workflow, runs) in tasks {
            match alike.last_mut() {
                Some((known, of, count)) if **known == **workflow && of == runs => *count += 1,
                _ => alike.push((workflow.to_string(), *runs, 1)),
            }
        }
        let note = JobNote::Batch {
            number,
            key: key.0,
            id: id.to_string(),
            train: kind == BatchType::Train,
            first: first.0,
            tasks: alike,
        };
        self.take_batch(at, &note, true);
        self.keys.insert(key, number);
        self.notes.apply(at, &note);
        self.out.note(at, note);
    }

    /// Takes up a batch that an earlier process of the job had begun; tells whether there was one.
    fn adopt(&mut self, at: f64, id: &Arc<str>, key: BatchKey, tasks: usize) -> bool {
        let mut earlier = self.batches.iter_mut().rev();
        let is_it = |batch: &Batch| {
            (&batch.id, batch.key) == (id, key.0)
                // A process that ends gives up in memory what the next one goes on with.
                && batch.state != BatchState::Finalized
                && !batch.is_ours
                && batch.tasks.len() == tasks
        };
        let Some((number, batch)) = earlier.find(|(_, batch)| is_it(batch)) else { return false };
        batch.is_ours = true;
        let number = *number;
        self.keys.insert(key, number);
        self.reopen(number);
        for task in 0..tasks as u32 {
            let rows = self.rows_of(number, task);
            for row in rows.into_iter().flatten() {
                self.reopen_run(row);
            }
        }
        self.recount(number);
        self.out.note(at, JobNote::Adopted { number });
        true
    }

    /// A batch that an earlier process had begun goes on.
    pub(super) fn reopen(&mut self, number: u32) {
        if let Some(batch) = self.batches.get_mut(&number) {
            (batch.state, batch.ended) = (BatchState::Running, None);
        }
    }

    /// Counts the tasks of a batch that are over.
    pub(super) fn recount(&mut self, number: u32) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        batch.counts.ended = rollway_core::TaskTally::default();
        let tasks = batch.tasks.len() as u32;
        batch.tasks.iter_mut().for_each(|task| task.is_over = false);
        for task in 0..tasks {
            let Some(mut rows) = self.rows_of(number, task) else { continue };
            if rows.all(|row| self.row(row).is_none_or(Row::is_over)) {
                self.close_task(number, task, None);
            } else if let Some(batch) = self.batches.get_mut(&number) {
                batch.tasks[task as usize].dropped = None;
            }
        }
    }

    /// Makes room for the runs of a batch.
    pub(super) fn take_batch(&mut self, at: f64, note: &JobNote, is_ours: bool) {
        let JobNote::Batch { number, key, id, train, first, tasks } = note else { return };
        let kind = if *train { BatchType::Train } else { BatchType::Eval };
        let fresh = || Batch::new(id.as_str().into(), *key, kind, at);
        let batch = self.batches.entry(*number).or_insert_with(fresh);
        batch.is_ours = is_ours;
        self.next_batch = self.next_batch.max(number + 1);
        let mut task = *first;
        for (workflow, runs, count) in tasks {
            let workflow = self.workflows.number(workflow);
            for _ in 0..*count {
                let first = self.base + self.rows.len() as u64;
                let (is_over, dropped) = (false, None);
                batch.tasks.push(TaskRow { first, runs: *runs, workflow, is_over, dropped });
                self.rows.extend((0..*runs).map(|run| Row::new(*number, task, run)));
                task += 1;
            }
            let more = u64::from(*runs) * u64::from(*count);
            batch.rows += more;
            batch.counts.submitted += more;
            batch.counts.tasks += u64::from(*count);
        }
        self.forget();
    }

    /// Drops the oldest runs while there are too many.
    fn forget(&mut self) {
        while self.rows.len() as u64 > self.max_runs {
            let Some(row) = self.rows.pop_front() else { return };
            self.live.remove(&self.base);
            self.base += 1;
            self.out.forgot(row.place.segment);
            self.dropped("runs", 1);
            let Some(batch) = self.batches.get_mut(&row.batch) else { continue };
            batch.rows -= 1;
            if batch.rows == 0
                && let Some(batch) = self.batches.remove(&row.batch)
            {
                if batch.is_ours {
                    self.keys.remove(&BatchKey(batch.key));
                }
                self.gone.add(&batch.counts);
            }
        }
    }

    pub(super) fn dropped(&mut self, what: &str, count: u64) {
        if count > 0 {
            *self.totals.dropped.entry(what.to_owned()).or_default() += count;
        }
    }

    fn batch_is(&mut self, at: f64, key: BatchKey, state: BatchState) {
        let Some(number) = self.keys.get(&key).copied() else { return };
        if self.set_state(at, number, state) {
            self.out.note(at, JobNote::State { number, state: state.to_string() });
        }
    }

    /// Tells whether it was in another state.
    pub(super) fn set_state(&mut self, at: f64, number: u32, state: BatchState) -> bool {
        let Some(batch) = self.batches.get_mut(&number) else { return false };
        let is_new = batch.state != state;
        batch.state = state;
        if batch.is_over() {
            batch.ended = batch.ended.or(Some(at));
            self.notes.batch_ended(number, at, state);
        }
        is_new
    }

    /// Returns the number of a run's row.
    pub(super) fn row_of(&self, batch: u32, task: u32, run: u32) -> Option<u64> {
        let task = self.batches.get(&batch)?.tasks.get(task as usize)?;
        (run < task.runs).then(|| task.first + u64::from(run))
    }

    pub(super) fn row(&self, number: u64) -> Option<&Row> {
        self.rows.get(usize::try_from(number.checked_sub(self.base)?).ok()?)
    }

    pub(super) fn row_mut(&mut self, number: u64) -> Option<&mut Row> {
        self.rows.get_mut(usize::try_from(number.checked_sub(self.base)?).ok()?)
    }

    /// Where all runs and tasks are; of batches that nobody works on any more, only what ended.
    pub(super) fn counts(&self, is_live: bool) -> Counts {
        let mut all = self.gone;
        for batch in self.batches.values() {
            all.add(&batch.counts);
            if is_live && !batch.is_ours {
                all.submitted -= batch.counts.pending();
            }
        }
        all
    }
}
