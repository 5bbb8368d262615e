//! Admission of batches of the scheduler and of the coordinator.

use super::{BatchOwner, CoreBatch, CorePhase, CoreTask, TaskPhase, slices};
use crate::{
    BatchId, BatchKey, BatchState, BatchType, Core, LedgerRecord, Refusal, RequestId, Response,
    TaskId, TaskSpec,
};

impl Core {
    pub(crate) fn schedule(
        &mut self,
        request: RequestId,
        id: BatchId,
        kind: BatchType,
        tasks: &[TaskSpec],
    ) {
        if tasks.is_empty() {
            let answer = Response::Scheduled { batch: None, first: TaskId(0) };
            self.answer(request, answer);
            return;
        }
        let active = match self.schedulable(&id, kind, tasks) {
            Ok(active) => active,
            Err(refusal) => return self.refuse(request, refusal),
        };
        let key = active.unwrap_or_else(|| self.open_batch(id, kind, BatchOwner::Scheduler));
        let first = TaskId(self.batches[&key].tasks.len() as u32);
        self.add_tasks(key, tasks);
        self.answer(request, Response::Scheduled { batch: Some(key), first });
    }

    /// Returns the active batch that tasks can be added to, if there is one.
    fn schedulable(
        &self,
        id: &BatchId,
        kind: BatchType,
        tasks: &[TaskSpec],
    ) -> Result<Option<BatchKey>, Refusal> {
        if matches!(self.phase, CorePhase::Stopping | CorePhase::Stopped) {
            return Err(Refusal::Stopped);
        }
        let active = self.active(id);
        if let Some(key) = active {
            let (batch, found) = (id.clone(), &self.batches[&key]);
            if found.owner != BatchOwner::Scheduler {
                return Err(Refusal::AlreadyActive { batch });
            }
            if found.kind != kind {
                return Err(Refusal::WrongBatchType { batch, kind: found.kind, expected: kind });
            }
            if let Some((kind, message)) = found.failed.clone() {
                return Err(Refusal::BatchFailed { batch, kind, message });
            }
        }
        self.admit(tasks, active)?;
        Ok(active)
    }

    pub(crate) fn submit(
        &mut self,
        request: RequestId,
        id: BatchId,
        kind: BatchType,
        tasks: &[TaskSpec],
        min_wait_num: Option<u32>,
    ) {
        let refusal = match self.phase {
            CorePhase::New => Some(Refusal::NotStarted),
            CorePhase::Stopping | CorePhase::Stopped => Some(Refusal::Stopped),
            CorePhase::Running if self.active(&id).is_some() => {
                Some(Refusal::AlreadyActive { batch: id.clone() })
            }
            CorePhase::Running => self.admit(tasks, None).err(),
        };
        if let Some(refusal) = refusal {
            self.refuse(request, refusal);
            return;
        }
        let state = if tasks.is_empty() { BatchState::Pending } else { BatchState::Running };
        let key = self.open_batch(id.clone(), kind, BatchOwner::Coordinator(state));
        self.record(key, || {
            let tasks = tasks.to_vec();
            LedgerRecord::Submitted { batch: key, id, kind, min_wait_num, tasks }
        });
        if let Some(batch) = self.batches.get_mut(&key) {
            batch.min_wait_num = min_wait_num;
        }
        self.add_tasks(key, tasks);
        self.answer(request, Response::Submitted { batch: key });
    }

    pub(crate) fn active(&self, id: &BatchId) -> Option<BatchKey> {
        let key = *self.ids.get(id)?;
        (!self.batches.get(&key)?.terminal()).then_some(key)
    }

    /// Checks the limits for new tasks, before any change.
    fn admit(&self, tasks: &[TaskSpec], batch: Option<BatchKey>) -> Result<(), Refusal> {
        let limits = &self.config.limits;
        let exceeded = |limit, value: u64, max: u64| {
            if value > max { Err(Refusal::Limit { limit, value, max }) } else { Ok(()) }
        };
        for (at, task) in tasks.iter().enumerate() {
            if task.repeat_times == 0 {
                return Err(Refusal::NoRuns { task: at as u32 });
            }
            exceeded("runs_per_task", task.repeat_times.into(), limits.runs_per_task.into())?;
        }
        exceeded("open_tasks", self.queues.open_tasks + tasks.len() as u64, limits.open_tasks)?;
        let before = batch.map_or(0, |key| self.batches[&key].tasks.len());
        // Task ids are 32 bits wide.
        exceeded("open_tasks", (before + tasks.len()) as u64, u32::MAX.into())?;
        if batch.is_none() {
            exceeded("batches", self.queues.order.len() as u64 + 1, limits.batches.into())?;
        }
        Ok(())
    }

    fn open_batch(&mut self, id: BatchId, kind: BatchType, owner: BatchOwner) -> BatchKey {
        let key = BatchKey(self.serials.batch);
        self.serials.batch += 1;
        // From now on the id refers to the new batch.
        self.ids.insert(id.clone(), key);
        let batch = CoreBatch::new(id, key, kind, owner);
        self.queues.order.insert(batch.rank());
        self.batches.push(batch);
        key
    }

    pub(crate) fn add_tasks(&mut self, key: BatchKey, tasks: &[TaskSpec]) {
        let most = self.max_runs_per_attempt();
        let Some(batch) = self.batches.get_mut(&key) else { return };
        batch.tasks.reserve(tasks.len());
        let (mut runs, mut fresh) = (0, 0);
        for task in tasks {
            runs += u64::from(task.repeat_times);
            fresh += slices(task.repeat_times, most);
            batch.tasks.push(CoreTask {
                total: task.repeat_times,
                workflow: task.workflow,
                body: TaskPhase::Fresh,
            });
        }
        batch.slices += fresh;
        self.queues.slices += fresh;
        batch.open += tasks.len() as u64;
        self.queues.open_tasks += tasks.len() as u64;
        let count = &mut self.counters.of_mut(batch.kind).tasks;
        count.submitted += tasks.len() as u64;
        count.open += tasks.len() as u64;
        for tally in self.counters.tallies(batch) {
            tally.submitted += runs;
            tally.pending += runs;
        }
        if batch.has_fresh() {
            self.queues.fresh.insert(batch.rank());
        }
        self.changed.insert(key);
    }
}
