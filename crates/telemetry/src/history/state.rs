//! State of a history: changed by events and by the records of earlier processes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use rollway_core::metrics::RUN_SECONDS;
use rollway_core::{
    AttemptId, BatchId, BatchKey, BatchState, BatchType, DropReason, Incarnation, RunEnd,
    RunFailure, RunId, RunOutput, RunRange, RunnerId, Status, TaskId,
};
use rollway_engine::events::{CallEvent, RunEvent, RunEventKind};
use rustc_hash::FxHashMap;

use super::failures::FailureGroups;
use super::interner::Names;
use super::job_log::Notes;
use super::record::{JobNote, Totals};
use super::row::{Batch, Counts, LiveAttempt, LiveRun, Row, TaskRow};
use super::servers::ServerStates;
use super::write_queue::WriteQueue;

/// A queued event.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) at: f64,
    pub(super) event: Event,
}

/// Reduced form of a [`RunEvent`].
#[derive(Debug)]
pub(super) enum Event {
    Sent {
        attempt: AttemptId,
        of: (BatchKey, TaskId, RunRange),
        to: (RunnerId, Incarnation),
    },
    Began {
        attempt: AttemptId,
    },
    /// Reward, seconds and payload of a run, or its error message.
    Reported {
        attempt: AttemptId,
        run: u32,
        outcome: Result<ReportedOutput, Arc<str>>,
    },
    RunEnded {
        of: (BatchKey, TaskId, RunId),
        end: RunEnd,
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
    PayloadDropped {
        reason: DropReason,
    },
    Call(Box<CallEvent>),
    /// Any other run event.
    Other(Box<RunEventKind>),
    Note(Box<JobNote>),
}

/// A million items may be queued: large and rare parts are boxed.
const _: () = assert!(size_of::<Item>() <= 56, "an item is small");

/// Output of a run as its runner reported it. NaN: unknown.
#[derive(Debug)]
pub(super) struct ReportedOutput {
    pub(super) reward: f64,
    pub(super) seconds: f64,
    pub(super) payload: Option<Box<Bytes>>,
}

/// Seconds since 1970.
pub(super) fn seconds(at: std::time::SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl Item {
    /// Returns the part of an event that the history needs.
    pub(super) fn of(event: &RunEvent) -> Option<Self> {
        let reduced = match &event.what {
            RunEventKind::AttemptSent { attempt, key, task, runs, runner, incarnation, .. } => {
                Event::Sent {
                    attempt: *attempt,
                    of: (*key, *task, *runs),
                    to: (*runner, *incarnation),
                }
            }
            RunEventKind::AttemptBegan { attempt } => Event::Began { attempt: *attempt },
            RunEventKind::RunReported { attempt, run, end } => {
                let outcome = match end {
                    Ok(RunOutput { payload, metrics }) => Ok(ReportedOutput {
                        reward: metrics.get("reward").unwrap_or(f64::NAN),
                        seconds: metrics.get(RUN_SECONDS).unwrap_or(f64::NAN),
                        payload: payload.clone().map(Box::new),
                    }),
                    Err(RunFailure { message, .. }) => Err(Arc::clone(message)),
                };
                Event::Reported { attempt: *attempt, run: run.0, outcome }
            }
            RunEventKind::RunEnded { key, task, run, how } => {
                Event::RunEnded { of: (*key, *task, *run), end: how.clone() }
            }
            RunEventKind::AttemptEnded { attempt, lost } => {
                Event::AttemptEnded { attempt: *attempt, lost: lost.clone() }
            }
            RunEventKind::TaskEnded { key, task, status, dropped } => {
                let (of, status) = ((*key, *task), Arc::clone(status));
                Event::TaskEnded { of, status, dropped: *dropped }
            }
            RunEventKind::PayloadDropped { reason, .. } => {
                Event::PayloadDropped { reason: *reason }
            }
            RunEventKind::Call(call) => Event::Call(Box::new(call.clone())),
            other @ (RunEventKind::BatchBegan { .. }
            | RunEventKind::BatchStateChanged { .. }
            | RunEventKind::RunRetried { .. }
            | RunEventKind::RunnerLocated { .. }) => Event::Other(Box::new(other.clone())),
            // The ends of runs and attempts follow; runner states are queried.
            RunEventKind::AttemptCancelled { .. }
            | RunEventKind::RunnerBroken { .. }
            | RunEventKind::RunnerReady { .. } => return None,
        };
        Some(Self { at: seconds(event.at), event: reduced })
    }

    pub(super) fn payload_bytes(&self) -> u64 {
        match &self.event {
            Event::Reported { outcome: Ok(output), .. } => {
                output.payload.as_ref().map_or(0, |payload| payload.len() as u64)
            }
            _ => 0,
        }
    }

    pub(super) fn drop_payload(&mut self) {
        if let Event::Reported { outcome: Ok(output), .. } = &mut self.event {
            output.payload = None;
        }
    }
}

#[derive(Debug)]
pub(super) struct State {
    /// Runs in the order of their submission.
    pub(super) rows: VecDeque<Row>,
    /// Number of dropped rows before the first.
    pub(super) base: u64,
    pub(super) max_runs: u64,
    pub(super) batches: BTreeMap<u32, Batch>,
    next_batch: u32,
    /// Batches of this process by key.
    pub(super) keys: FxHashMap<BatchKey, u32>,
    pub(super) attempts: FxHashMap<AttemptId, LiveAttempt>,
    pub(super) live: FxHashMap<u64, LiveRun>,
    /// Incarnation and location of runners.
    pub(super) locations: FxHashMap<RunnerId, (Incarnation, Arc<str>)>,
    pub(super) messages: Names,
    pub(super) workflows: Names,
    pub(super) notes: Notes,
    pub(super) servers: ServerStates,
    pub(super) failures: FailureGroups,
    pub(super) totals: Totals,
    /// Counts of dropped batches.
    pub(super) removed_counts: Counts,
    pub(super) out: WriteQueue,
    /// Payloads that may still be decoded (token bucket).
    pub(super) decodes: f64,
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
            locations: FxHashMap::default(),
            messages: Names::new(),
            workflows: Names::new(),
            notes: Notes::default(),
            servers: ServerStates::default(),
            failures: FailureGroups::default(),
            totals: Totals::default(),
            removed_counts: Counts::default(),
            out: WriteQueue::default(),
            decodes: 0.0,
        }
    }

    pub(super) fn apply(&mut self, item: Item) {
        let at = item.at;
        match item.event {
            Event::Sent { attempt, of, to } => self.attempt_sent(at, attempt, of, to),
            Event::Began { attempt } => self.attempt_began(at, attempt),
            Event::Reported { attempt, run, outcome } => self.reported(at, attempt, run, outcome),
            Event::RunEnded { of, end } => self.run_ended(at, of, end),
            Event::AttemptEnded { attempt, lost } => self.attempt_ended(at, attempt, lost.as_ref()),
            Event::TaskEnded { of: (key, task), status, dropped } => {
                self.task_ended(at, key, task, &status, dropped);
            }
            Event::PayloadDropped { reason } => {
                add(&mut self.totals.experiences_dropped, reason.name(), 1);
            }
            Event::Call(call) => self.call(at, *call),
            Event::Note(note) => {
                self.notes.apply(at, &note);
                self.out.note(at, *note);
            }
            Event::Other(event) => self.other(at, *event),
        }
    }

    fn other(&mut self, at: f64, event: RunEventKind) {
        match event {
            RunEventKind::BatchBegan { batch, key, kind, first, tasks } => {
                self.batch_began(at, &batch, key, kind, first, &tasks);
            }
            RunEventKind::BatchStateChanged { key, state } => self.batch_changed(at, key, state),
            RunEventKind::RunRetried { key, task, run, kind, message } => {
                self.retried(at, (key, task, run), kind, &message);
            }
            RunEventKind::RunnerLocated { runner, incarnation, location } => {
                self.locations.insert(runner, (incarnation, location));
            }
            // `Item::of` reduces or omits these.
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
        let mut groups: Vec<(String, u32, u32)> = Vec::new();
        for (workflow, runs) in tasks {
            match groups.last_mut() {
                Some((known, of, count)) if **known == **workflow && of == runs => *count += 1,
                _ => groups.push((workflow.to_string(), *runs, 1)),
            }
        }
        let note = JobNote::Batch {
            number,
            key: key.0,
            id: id.to_string(),
            train: kind == BatchType::Train,
            first: first.0,
            tasks: groups,
        };
        self.add_batch(at, &note, true);
        self.keys.insert(key, number);
        self.notes.apply(at, &note);
        self.out.note(at, note);
    }

    /// Continues a batch that an earlier process had begun; returns whether there was one.
    fn adopt(&mut self, at: f64, id: &Arc<str>, key: BatchKey, tasks: usize) -> bool {
        let mut earlier = self.batches.iter_mut().rev();
        let is_same = |batch: &Batch| {
            (&batch.id, batch.key) == (id, key.0)
                // A process that stops aborts in memory what the next one continues.
                && batch.state != BatchState::Finalized
                && !batch.is_ours
                && batch.tasks.len() == tasks
        };
        let Some((number, batch)) = earlier.find(|(_, batch)| is_same(batch)) else { return false };
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

    /// Continues a batch of an earlier process.
    pub(super) fn reopen(&mut self, number: u32) {
        if let Some(batch) = self.batches.get_mut(&number) {
            (batch.state, batch.ended) = (BatchState::Running, None);
        }
    }

    /// Counts the ended tasks of a batch.
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

    /// Adds the tasks and runs of a batch.
    pub(super) fn add_batch(&mut self, at: f64, note: &JobNote, is_ours: bool) {
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
        self.drop_oldest();
    }

    /// Drops the oldest runs above the limit.
    fn drop_oldest(&mut self) {
        while self.rows.len() as u64 > self.max_runs {
            let Some(row) = self.rows.pop_front() else { return };
            self.live.remove(&self.base);
            self.base += 1;
            self.out.remove_run(row.position.segment);
            self.count_dropped("runs", 1);
            let Some(batch) = self.batches.get_mut(&row.batch) else { continue };
            batch.rows -= 1;
            if batch.rows == 0
                && let Some(batch) = self.batches.remove(&row.batch)
            {
                if batch.is_ours {
                    self.keys.remove(&BatchKey(batch.key));
                }
                self.removed_counts.add(&batch.counts);
            }
        }
    }

    pub(super) fn count_dropped(&mut self, kind: &str, count: u64) {
        if count > 0 {
            add(&mut self.totals.dropped, kind, count);
        }
    }

    fn batch_changed(&mut self, at: f64, key: BatchKey, state: BatchState) {
        let Some(number) = self.keys.get(&key).copied() else { return };
        if self.set_state(at, number, state) {
            self.out.note(at, JobNote::State { number, state: state.to_string() });
        }
    }

    /// Returns whether the state changed.
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

    /// Returns the row number of a run.
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

    /// Sums up all batches; of those of earlier processes only ended runs.
    pub(super) fn counts(&self, is_live: bool) -> Counts {
        let mut all = self.removed_counts;
        for batch in self.batches.values() {
            all.add(&batch.counts);
            if is_live && !batch.is_ours {
                all.submitted -= batch.counts.pending();
            }
        }
        all
    }
}

/// Adds to a counter.
pub(super) fn add(counts: &mut BTreeMap<String, u64>, name: &str, count: u64) {
    match counts.get_mut(name) {
        Some(known) => *known += count,
        None => drop(counts.insert(name.to_owned(), count)),
    }
}
