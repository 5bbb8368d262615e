//! Begins steps: draws their tasks and submits them, each once.

use rollway_core::explore::PlanInput;
use rollway_core::{BatchId, BatchType};
use rollway_engine::Task;
use rollway_tasksets::{SelectedTask, TaskRef, TaskStream};

use super::resources::{ExplorerHandles, ExplorerResources};
use super::run_loop::ExplorerLoop;
use super::{ExplorerError, JobEvent, Result};

/// Returns the name of the batch of a step.
pub(super) fn batch(step: u64) -> BatchId {
    BatchId::Number(i64::try_from(step).unwrap_or(i64::MAX))
}

impl ExplorerLoop {
    /// Draws the tasks of a step and submits them, unless the ledger has them.
    pub(super) async fn begin(&mut self, world: &ExplorerResources, step: u64) -> Result<()> {
        let size = world.config.buffer.batch_size;
        let tasks = self.train()?;
        let draw = move |tasks: &mut TaskStream| (tasks.state(), tasks.next_batch(size));
        let (before, drawn) = tasks.with(draw).await?;
        let Some(drawn) = drawn? else {
            self.plan.apply(PlanInput::Exhausted);
            return Ok(());
        };
        match world.known.tasks(&batch(step)) {
            Some(known) if known != drawn.len() => {
                tasks.with(move |tasks| tasks.restore(&before)).await??;
                let what = format!(
                    "the ledger has {known} tasks of step {step}, but `buffer.batch_size` is \
                     {size}\nhint: put it back to {known} until the job has gone on"
                );
                return Err(ExplorerError::NotNow(what));
            }
            Some(_) => {}
            None => {
                let least = world.config.explorer.over_rollout.min_wait_num(size);
                let submitted = world.submit(batch(step), &drawn, BatchType::Train, least).await;
                if let Err(error) = submitted {
                    // Nothing was drawn, as far as anybody can tell.
                    tasks.with(move |tasks| tasks.restore(&before)).await??;
                    return Err(error);
                }
            }
        }
        let picks: Vec<TaskRef> = drawn.iter().map(SelectedTask::pick).collect();
        self.counts.tasks_submitted += picks.len() as u64;
        self.in_flight.insert(step, picks);
        self.begun_with.insert(step, self.version());
        self.plan.apply(PlanInput::Begun(step));
        self.compare(world).await;
        tell(world, step, &drawn);
        Ok(())
    }

    /// Tells other explorers what this one has submitted, and hears what they have: the trainer
    /// trains on all of it, which makes what comes next older by then.
    async fn compare(&mut self, world: &ExplorerResources) {
        let bounded = world.config.synchronizer.max_staleness.is_some();
        if let Some(synchronizer) = world.synchronizer.as_ref().filter(|_| bounded) {
            let own = &world.config.explorer.name;
            let elsewhere = synchronizer.submitted(own, self.plan.submitted()).await;
            self.plan.apply(PlanInput::OthersSubmitted(elsewhere));
        }
    }

    /// Submits what an earlier process had in flight and no ledger knows.
    pub(super) async fn resume_batches(&mut self, world: &ExplorerResources) -> Result<()> {
        let size = world.config.buffer.batch_size;
        let least = world.config.explorer.over_rollout.min_wait_num(size);
        for (step, picks) in self.in_flight.clone() {
            let drawn = self.train()?.with(move |tasks| tasks.draw_again(&picks)).await??;
            if world.known.tasks(&batch(step)).is_none()
                && world.coordinator.batch_state(batch(step)).await?.is_none()
            {
                if world.config.ledger.enable {
                    let note = format!(
                        "the ledger does not have the tasks of step {step}: they are run anew"
                    );
                    world.watchers.emit(&JobEvent::Info(note));
                }
                world.submit(batch(step), &drawn, BatchType::Train, least).await?;
            }
            tell(world, step, &drawn);
        }
        for step in self.plan.progress().evals.clone() {
            self.submit_evals(world, step).await?;
        }
        Ok(())
    }
}

fn tell(world: &ExplorerResources, step: u64, drawn: &[SelectedTask]) {
    let runs = drawn.iter().map(|drawn| u64::from(drawn.source.repeat_times)).sum();
    world.watchers.emit(&JobEvent::StepBegun { step, tasks: drawn.len() as u64, runs });
}

impl ExplorerHandles {
    /// Submits tasks as a batch.
    pub(super) async fn submit(
        &self,
        batch: BatchId,
        drawn: &[SelectedTask],
        kind: BatchType,
        min_wait_num: Option<u32>,
    ) -> Result<()> {
        let tasks: std::result::Result<Vec<Task>, _> =
            drawn.iter().map(|drawn| self.fleet.encode_task(drawn)).collect();
        self.coordinator.submit_batch(batch, tasks?, kind, min_wait_num).await?;
        Ok(())
    }
}
