//! Records that survive the end of the process, and their restoration into a new core.
//!
//! With [`CoreConfig::ledger`](crate::CoreConfig::ledger), every decision about a submitted batch
//! is emitted as an [`Action::AppendRecord`], before the actions that rely on it. The caller
//! appends records in order, and performs a [`Deliver`](Action::Deliver) or a
//! [`Respond`](Action::Respond) only when all earlier records are durable. After a crash the
//! records are applied to a new core in the same order, as
//! [`Input::Restore`](crate::Input::Restore), before a [`Start`](crate::Request::Start). Of a
//! closed batch only [`Closed`](LedgerRecord::Closed) is applied.
//!
//! A batch is truncated, and all its runs have ended, before its delivery: after a crash the same
//! results are delivered again.

use std::sync::Arc;

use super::{AbortSpec, BatchOwner, CoreBatch, CorePhase, TaskPhase, TaskRuns};
use crate::{
    Action, BatchId, BatchKey, BatchResult, BatchState, BatchType, CancelReason, Core, DropReason,
    IgnoreReason, RunEnd, RunFailure, RunId, RunOutput, TaskId, TaskSpec, UnresponsivePolicy,
};

/// One record about a submitted batch.
#[derive(Clone, Debug, PartialEq)]
pub enum LedgerRecord {
    Submitted {
        /// The same key after a restoration.
        batch: BatchKey,
        id: BatchId,
        kind: BatchType,
        /// Minimum number of tasks. `None`: all.
        min_wait_num: Option<u32>,
        /// Tasks by id.
        tasks: Vec<TaskSpec>,
    },
    /// A run ended. Ignored reports are not recorded.
    RunEnded { batch: BatchKey, task: TaskId, run: RunId, ending: RunEnd<RunOutput> },
    /// All open runs were cancelled. `keep`: truncated tasks keep their successful runs.
    Truncated { batch: BatchKey, reason: CancelReason, keep: bool },
    /// The batch is being aborted; kept results are not delivered yet.
    Aborting { batch: BatchKey, reason: Arc<str> },
    /// The results are about to be delivered to the sink.
    DeliveryStarted { batch: BatchKey },
    /// The batch was finalized or aborted; replaces all other records about it.
    Closed(Arc<BatchResult>),
}

impl LedgerRecord {
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
    /// Returns whether records are kept about a batch.
    pub(crate) fn recorded(&self, key: BatchKey) -> bool {
        self.config.ledger
            && self.batches.get(&key).is_some_and(|batch| batch.owner != BatchOwner::Scheduler)
    }

    /// Emits a record about a batch, if records are kept about it.
    pub(crate) fn record(&mut self, key: BatchKey, record: impl FnOnce() -> LedgerRecord) {
        if self.recorded(key) {
            self.actions.push(Action::AppendRecord(record()));
        }
    }

    /// Applies a record from before a crash. Consequences follow with the first other input.
    pub(crate) fn restore(&mut self, record: LedgerRecord) {
        if self.phase != CorePhase::New {
            return self.ignore_report(IgnoreReason::RecordAfterStart);
        }
        if self.apply_record(record).is_none() {
            self.ignore_report(IgnoreReason::Contradiction);
        }
    }

    /// Applies a record. `None`: it contradicts the state, which is unchanged.
    fn apply_record(&mut self, record: LedgerRecord) -> Option<()> {
        match record {
            LedgerRecord::Submitted { batch, id, kind, min_wait_num, tasks } => {
                self.restore_submitted(batch, id, kind, min_wait_num, &tasks)
            }
            LedgerRecord::RunEnded { batch, task, run, ending } => {
                self.restore_run_end(batch, task, run, ending)
            }
            LedgerRecord::Truncated { batch, reason, keep } => {
                self.unclosed_batch(batch).filter(|batch| batch.open > 0)?;
                self.truncate_tasks(batch, reason, keep);
                Some(())
            }
            LedgerRecord::Aborting { batch, reason } => {
                let reason = self.clip(reason);
                let batch = self.unclosed_batch(batch).filter(|batch| batch.open == 0)?;
                batch.abort = Some(AbortSpec {
                    reason,
                    keep: false,
                    unresponsive: UnresponsivePolicy::Replace,
                });
                batch.owner = BatchOwner::Coordinator(BatchState::Aborted);
                Some(())
            }
            LedgerRecord::DeliveryStarted { batch } => {
                self.unclosed_batch(batch).filter(|batch| batch.open == 0)?.offered = true;
                Some(())
            }
            LedgerRecord::Closed(result) => self.restore_result(result),
        }
    }

    /// Returns a submitted batch that is not closed.
    fn unclosed_batch(&mut self, key: BatchKey) -> Option<&mut CoreBatch> {
        let batch = self.batches.get_mut(&key)?;
        (batch.owner != BatchOwner::Scheduler && !batch.terminal()).then_some(batch)
    }

    fn restore_submitted(
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
        self.restore_batch(batch)?;
        self.queues.order.insert(rank);
        self.add_tasks(key, tasks);
        self.counters.batches_restored += 1;
        Some(())
    }

    /// Restores a batch. `None`: its key exists or is out of range.
    fn restore_batch(&mut self, batch: CoreBatch) -> Option<()> {
        let (id, key) = (batch.id.clone(), batch.key);
        let next = key.0.checked_add(1)?;
        let next = self.serials.batch.max(next);
        if !self.batches.insert(batch, next) {
            return None;
        }
        self.serials.batch = next;
        // The id refers to its latest use.
        let latest = self.ids.entry(id).or_insert(key);
        *latest = key.max(*latest);
        Some(())
    }

    fn restore_run_end(
        &mut self,
        key: BatchKey,
        id: TaskId,
        run: RunId,
        mut ending: RunEnd<RunOutput>,
    ) -> Option<()> {
        let (most, kind) =
            (self.config.limits.metrics_per_run as usize, self.unclosed_batch(key)?.kind);
        let task = self.unclosed_batch(key)?.tasks.get_mut(id.0 as usize)?;
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
                    self.drop_unheld_payload(Some(key), payload.take(), DropReason::Eval);
                }
            }
            RunEnd::Failed(RunFailure { message, .. }) => *message = self.clip(Arc::clone(message)),
            RunEnd::Cancelled(_) => {}
        }
        self.counters.runs_restored += 1;
        self.close_run(key, id, run, ending);
        self.end_task_if_done(key, id);
        Some(())
    }

    /// Restores the result of a closed batch.
    fn restore_result(&mut self, result: Arc<BatchResult>) -> Option<()> {
        let is_closed = matches!(result.state, BatchState::Finalized | BatchState::Aborted);
        let left = result.runs.pending + result.runs.running;
        let earlier = self.active(&result.batch).is_some_and(|active| active < result.key);
        if !is_closed || left > 0 || earlier || !result.runs.balanced() {
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
        self.restore_batch(batch)?;
        self.terminal.push_back(key);
        self.forget_oldest();
        Some(())
    }
}
