//! Begin of a step: selects its tasks and submits them once.

use rollway_core::explore::PlanInput;
use rollway_core::{BatchId, BatchType};
use rollway_engine::Task;
use rollway_tasksets::{SelectedTask, TaskRef, TaskStream};

use super::resources::{ExplorerHandles, ExplorerResources};
use super::run_loop::ExplorerLoop;
use super::{ExplorerError, JobEvent, Result};

pub(super) fn batch(step: u64) -> BatchId {
    BatchId::Number(i64::try_from(step).unwrap_or(i64::MAX))
}

impl ExplorerLoop {
    /// Selects the tasks of a step and submits them, unless the ledger has them.
    pub(super) async fn begin(&mut self, resources: &ExplorerResources, step: u64) -> Result<()> {
        let size = resources.config.buffer.batch_size;
        let tasks = self.train()?;
        let draw = move |tasks: &mut TaskStream| (tasks.state(), tasks.next_batch(size));
        let (before, selected) = tasks.with(draw).await?;
        let Some(selected) = selected? else {
            self.plan.apply(PlanInput::Exhausted);
            return Ok(());
        };
        match resources.restored.tasks(&batch(step)) {
            Some(known) if known != selected.len() => {
                tasks.with(move |tasks| tasks.restore(&before)).await??;
                let message = format!(
                    "the ledger has {known} tasks of step {step}, but `buffer.batch_size` is \
                     {size}\nhint: set it to {known} until this step is finalized"
                );
                return Err(ExplorerError::NotNow(message));
            }
            Some(_) => {}
            None => {
                let min_tasks = resources.config.explorer.over_rollout.min_wait_num(size);
                let submitted =
                    resources.submit(batch(step), &selected, BatchType::Train, min_tasks).await;
                if let Err(error) = submitted {
                    // The selection is undone.
                    tasks.with(move |tasks| tasks.restore(&before)).await??;
                    return Err(error);
                }
            }
        }
        let task_refs: Vec<TaskRef> = selected.iter().map(SelectedTask::pick).collect();
        self.counts.tasks_submitted += task_refs.len() as u64;
        self.in_flight.insert(step, task_refs);
        self.begun_with.insert(step, self.version());
        self.plan.apply(PlanInput::Begun(step));
        self.report_submitted(resources).await;
        emit_begun(resources, step, &selected);
        Ok(())
    }

    /// Exchanges the numbers of submitted experiences with other explorers: the trainer trains on
    /// all of them, which increases the staleness of later batches.
    async fn report_submitted(&mut self, resources: &ExplorerResources) {
        let bounded = resources.config.synchronizer.max_staleness.is_some();
        if let Some(synchronizer) = resources.synchronizer.as_ref().filter(|_| bounded) {
            let own = &resources.config.explorer.name;
            let others = synchronizer.submitted(own, self.plan.submitted()).await;
            self.plan.apply(PlanInput::OthersSubmitted(others));
        }
    }

    /// Submits the batches in flight of an earlier process that the ledger does not have.
    pub(super) async fn resume_batches(&mut self, resources: &ExplorerResources) -> Result<()> {
        let size = resources.config.buffer.batch_size;
        let min_tasks = resources.config.explorer.over_rollout.min_wait_num(size);
        for (step, task_refs) in self.in_flight.clone() {
            let selected = self.train()?.with(move |tasks| tasks.draw_again(&task_refs)).await??;
            if resources.restored.tasks(&batch(step)).is_none()
                && resources.coordinator.batch_state(batch(step)).await?.is_none()
            {
                if resources.config.ledger.enable {
                    let note = format!(
                        "the ledger does not have the tasks of step {step}: they are run again"
                    );
                    resources.watchers.emit(&JobEvent::Info(note));
                }
                resources.submit(batch(step), &selected, BatchType::Train, min_tasks).await?;
            }
            emit_begun(resources, step, &selected);
        }
        for step in self.plan.progress().evals.clone() {
            self.submit_evals(resources, step).await?;
        }
        Ok(())
    }
}

fn emit_begun(resources: &ExplorerResources, step: u64, selected: &[SelectedTask]) {
    let runs = selected.iter().map(|selected| u64::from(selected.source.repeat_times)).sum();
    resources.watchers.emit(&JobEvent::StepBegun { step, tasks: selected.len() as u64, runs });
}

impl ExplorerHandles {
    /// Submits tasks as a batch.
    pub(super) async fn submit(
        &self,
        batch: BatchId,
        selected: &[SelectedTask],
        kind: BatchType,
        min_wait_num: Option<u32>,
    ) -> Result<()> {
        let tasks: std::result::Result<Vec<Task>, _> =
            selected.iter().map(|selected| self.runtime.encode_task(selected)).collect();
        self.coordinator.submit_batch(batch, tasks?, kind, min_wait_num).await?;
        Ok(())
    }
}
