//! What must survive the end of the process, and how a new core takes it up again.
//!
//! With [`CoreConfig::ledger`](crate::CoreConfig::ledger), whatever decides the future of a
//! submitted batch is ordered as an [`Action::AppendRecord`], before the actions that rely on it.
//! The caller appends records in order to a ledger that outlives it, and performs a
//! [`Deliver`](Action::Deliver) or an [`Respond`](Action::Respond) only when everything recorded
//! before it is safe; other actions need not wait. After a crash the records are told to a new core
//! in the same order, as [`Input::Restore`](crate::Input::Restore), before it is asked to
//! [`Start`](crate::Request::Start). Of a batch that has ended only the
//! [`Closed`](LedgerRecord::Closed) is told.
//!
//! A batch is cut, and everything in it has ended, before its results are handed to the sink: so
//! that whatever the moment of a crash, what is delivered again is what was delivered before.

use std::sync::Arc;

use crate::Core;
use crate::batch_id::BatchId;
use crate::failure::CancelReason;
use crate::ids::{BatchKey, RunId, TaskId};
use crate::run::{RunEnd, RunFailure, RunOutput};
use crate::scheduler::action::Action;
use crate::scheduler::batch::{AbortSpec, BatchOwner, CoreBatch};
use crate::scheduler::completion::PartialPolicy;
use crate::scheduler::counters::IgnoreReason;
use crate::scheduler::input::{TaskSpec, UnresponsivePolicy};
use crate::scheduler::lifecycle::CorePhase;
use crate::scheduler::status::{BatchResult, BatchState, BatchType, DropReason};
use crate::scheduler::task::{TaskPhase, TaskRuns};

/// One fact about a submitted batch that must survive.
#[derive(Clone, Debug, PartialEq)]
pub enum LedgerRecord {
    /// It was taken in.
    Submitted {
        /// Under which key, which it keeps.
        batch: BatchKey,
        /// The user's name of it.
        id: BatchId,
        kind: BatchType,
        /// How many tasks are enough; none: all.
        min_wait_num: Option<u32>,
        /// Its tasks, by id.
        tasks: Vec<TaskSpec>,
    },
    /// One of its runs ended. What was late, repeated or otherwise not believed is not recorded.
    RunEnded { batch: BatchKey, task: TaskId, run: RunId, ending: RunEnd<RunOutput> },
    /// Every run of it that had not ended was cancelled.
    Truncated {
        batch: BatchKey,
        reason: CancelReason,
        /// Whether unfinished tasks keep the good runs that they had.
        keep: bool,
    },
    /// It was given up; what is to be kept of it has not arrived yet.
    Aborting {
        batch: BatchKey,
        /// In the words of whoever gave it up.
        reason: Arc<str>,
    },
    /// Its results are about to be offered to the sink, which may take them unseen.
    DeliveryStarted { batch: BatchKey },
    /// It was finalized or aborted: nothing else about it is needed any more.
    Closed(Arc<BatchResult>),
}

impl LedgerRecord {
    /// Returns the batch that it is about.
    pub fn batch(&self) -> BatchKey {
        match self {
            Self::Submitted { batch, .. }
            | Self::RunEnded { batch, .. }
            | Self::Truncated { batch, .. }
            | Self::Aborting { batch, .. }
            | Self::DeliveryStarted { batch } => *batch,
            Self::Closed(result) => result.key,
        }
    }
}

impl Core {
    /// Tells whether what happens to a batch is recorded.
    pub(crate) fn recorded(&self, key: BatchKey) -> bool {
        self.config.ledger
            && self.batches.get(&key).is_some_and(|batch| batch.owner != BatchOwner::Scheduler)
    }

    /// Orders a record about a batch, if there are any about it.
    pub(crate) fn record(
        &self,
        key: BatchKey,
        actions: &mut Vec<Action>,
        record: impl FnOnce() -> LedgerRecord,
    ) {
        if self.recorded(key) {
            actions.push(Action::AppendRecord(record()));
        }
    }

    /// Takes up what was recorded before a crash. Consequences are drawn when all of it is known,
    /// with the first input that is something else.
    pub(crate) fn restore(&mut self, record: LedgerRecord, actions: &mut Vec<Action>) {
        if self.phase != CorePhase::New {
            return self.ignore_report(IgnoreReason::RecordAfterStart);
        }
        if self.apply_record(record, actions).is_none() {
            self.ignore_report(IgnoreReason::Contradiction);
        }
    }

    /// Does again what a record says. None: it contradicts what is known, and changes nothing.
    fn apply_record(&mut self, record: LedgerRecord, actions: &mut Vec<Action>) -> Option<()> {
        match record {
            LedgerRecord::Submitted { batch, id, kind, min_wait_num, tasks } => {
                self.submit_again(batch, id, kind, min_wait_num, &tasks)
            }
            LedgerRecord::RunEnded { batch, task, run, ending } => {
                self.end_again(batch, task, run, ending, actions)
            }
            LedgerRecord::Truncated { batch, reason, keep } => {
                self.survivor(batch).filter(|batch| batch.open > 0)?;
                let partial = if keep { PartialPolicy::Keep } else { PartialPolicy::Drop };
                self.cut_tasks(batch, reason, partial, actions);
                Some(())
            }
            LedgerRecord::Aborting { batch, reason } => {
                let reason = self.clip(reason);
                let batch = self.survivor(batch).filter(|batch| batch.open == 0)?;
                batch.abort = Some(AbortSpec {
                    reason,
                    keep: false,
                    unresponsive: UnresponsivePolicy::Replace,
                });
                batch.owner = BatchOwner::Coordinator(BatchState::Aborted);
                Some(())
            }
            LedgerRecord::DeliveryStarted { batch } => {
                self.survivor(batch).filter(|batch| batch.open == 0)?.offered = true;
                Some(())
            }
            LedgerRecord::Closed(result) => self.remember(result),
        }
    }

    /// Returns a submitted batch that has not ended.
    fn survivor(&mut self, key: BatchKey) -> Option<&mut CoreBatch> {
        let batch = self.batches.get_mut(&key)?;
        (batch.owner != BatchOwner::Scheduler && !batch.terminal()).then_some(batch)
    }

    fn submit_again(
        &mut self,
        key: BatchKey,
        id: BatchId,
        kind: BatchType,
        min_wait_num: Option<u32>,
        tasks: &[TaskSpec],
    ) -> Option<()> {
        let no_runs = tasks.iter().any(|task| task.repeat_times == 0);
        let later = self.ids.get(&id).is_some_and(|latest| *latest > key);
        if no_runs || later || tasks.len() > u32::MAX as usize || self.active(&id).is_some() {
            return None;
        }
        let state = if tasks.is_empty() { BatchState::Pending } else { BatchState::Running };
        let mut batch = CoreBatch::new(id, key, kind, BatchOwner::Coordinator(state));
        batch.min_wait_num = min_wait_num;
        let rank = batch.rank();
        self.put_back(batch)?;
        self.queues.order.insert(rank);
        self.add_tasks(key, tasks);
        self.counters.batches_restored += 1;
        Some(())
    }

    /// Puts a batch where it was. None: there is one already, or its place is out of reach.
    fn put_back(&mut self, batch: CoreBatch) -> Option<()> {
        let (id, key) = (batch.id.clone(), batch.key);
        let next = key.0.checked_add(1)?;
        let next = self.serials.batch.max(next);
        if !self.batches.insert(batch, next) {
            return None;
        }
        self.serials.batch = next;
        // The name means the latest life that it was given to.
        let latest = self.ids.entry(id).or_insert(key);
        *latest = key.max(*latest);
        Some(())
    }

    fn end_again(
        &mut self,
        key: BatchKey,
        id: TaskId,
        run: RunId,
        mut ending: RunEnd<RunOutput>,
        actions: &mut Vec<Action>,
    ) -> Option<()> {
        let (most, kind) = (self.config.limits.metrics_per_run as usize, self.survivor(key)?.kind);
        let task = self.survivor(key)?.tasks.get_mut(id.0 as usize)?;
        if run.0 >= task.total {
            return None;
        }
        match &task.body {
            TaskPhase::Fresh => task.body = TaskPhase::Working(Box::new(TaskRuns::new(task.total))),
            TaskPhase::Working(work) if work.runs[run.0 as usize].state.open() => {}
            TaskPhase::Working(_) | TaskPhase::Ended(_) | TaskPhase::Gone => return None,
        }
        match &mut ending {
            RunEnd::Succeeded(RunOutput { payload, metrics }) => {
                self.counters.payloads_restored += u64::from(payload.is_some());
                self.counters.metrics_dropped += metrics.truncate(most) as u64;
                if kind == BatchType::Eval {
                    self.drop_unheld_payload(Some(key), payload.take(), DropReason::Eval, actions);
                }
            }
            RunEnd::Failed(RunFailure { message, .. }) => *message = self.clip(Arc::clone(message)),
            RunEnd::Cancelled(_) => {}
        }
        self.counters.runs_restored += 1;
        self.close_run(key, id, run, ending);
        self.end_task_if_done(key, id, actions);
        Some(())
    }

    /// Remembers a batch that had ended, so that whoever asks again hears the same.
    fn remember(&mut self, result: Arc<BatchResult>) -> Option<()> {
        let over = matches!(result.state, BatchState::Finalized | BatchState::Aborted);
        let left = result.runs.pending + result.runs.running;
        let earlier = self.active(&result.batch).is_some_and(|active| active < result.key);
        if !over || left > 0 || earlier || !result.runs.balanced() {
            return None;
        }
        let owner = BatchOwner::Coordinator(result.state);
        let mut batch = CoreBatch::new(result.batch.clone(), result.key, result.kind, owner);
        batch.runs = result.runs;
        batch.ended = result.tasks;
        batch.abort = (result.state == BatchState::Aborted).then(|| AbortSpec {
            reason: result.reason.clone().unwrap_or_default(),
            keep: false,
            unresponsive: UnresponsivePolicy::Replace,
        });
        let key = result.key;
        batch.result = Some(result);
        self.put_back(batch)?;
        self.terminal.push_back(key);
        self.forget_oldest();
        Some(())
    }
}
