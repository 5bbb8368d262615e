//! Evaluates outside of the loop: weights as they are, and checkpoints one after the other.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rollway_config::Mode;
use rollway_core::explore::PlanInput;
use rollway_core::metrics::Metrics;
use rollway_core::{BatchState, BatchType};
use rollway_sync::{PublishedWeights, WeightLocation, weight_folder};
use tokio_util::sync::CancellationToken;

use super::evals::{Finished, batch};
use super::resources::ExplorerResources;
use super::run_loop::ExplorerLoop;
use super::weights::checkpoint;
use super::{ExplorerError, JobEvent, Result};

/// What an evaluation of one set came to: a row of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchResult {
    /// The step: of mode `bench` the checkpoint, 0 for the weights before any training.
    pub step: u64,
    pub set: Arc<str>,
    /// The mean reward; none if no run succeeded.
    pub score: Option<f64>,
    pub tasks: u64,
    /// Those without a good run.
    pub failed: u64,
    /// Everything there is to log, under its final names (`eval/…` or `bench/…`).
    pub metrics: Metrics,
}

impl ExplorerLoop {
    /// Evaluates the weights that the servers have.
    pub(super) async fn eval_now(&mut self, world: &ExplorerResources) -> Result<Vec<BenchResult>> {
        let step = self.plan.progress().begun;
        self.evaluate_now(world, step, "eval").await
    }

    async fn evaluate_now(
        &mut self,
        world: &ExplorerResources,
        step: u64,
        word: &str,
    ) -> Result<Vec<BenchResult>> {
        if self.sets.evals.is_empty() {
            let what = "there is nothing to evaluate on\nhint: name a set with \
                        `buffer.explorer_input.eval_tasksets`";
            return Err(ExplorerError::NotNow(what.to_owned()));
        }
        let since = Instant::now();
        for (set, tasks) in &self.sets.evals {
            let id = batch(step, set);
            let state = world.coordinator.batch_state(id.clone()).await?;
            if matches!(state, Some(BatchState::Pending | BatchState::Running)) {
                // It is under way already.
                continue;
            }
            let all = tasks.with(|tasks| tasks.all().collect::<std::result::Result<Vec<_>, _>>());
            world.submit(id, &all.await??, BatchType::Eval, None).await?;
        }
        let mut sets = Vec::with_capacity(self.sets.evals.len());
        for (set, _) in &self.sets.evals {
            let result = world.coordinator.finalize_eval_batch(batch(step, set), None).await?;
            sets.push((Arc::clone(set), result));
        }
        let finished = Finished { step, sets, seconds: since.elapsed().as_secs_f64() };
        let rows = self.rows(world, &finished, word);
        self.tell(world, &finished, &rows);
        Ok(rows)
    }

    /// Evaluates checkpoints, in order.
    pub(super) async fn benchmark(
        &mut self,
        world: &ExplorerResources,
        stop: &CancellationToken,
    ) -> Result<Vec<BenchResult>> {
        let config = &world.config;
        if config.mode != Mode::Bench {
            let what = format!("mode {:?} has no benchmark: use `bench`", config.mode);
            return Err(ExplorerError::NotNow(what));
        }
        let job_dir = config.job_dir();
        let only_latest = config.explorer.bench_on_latest_checkpoint;
        let mut steps = checkpoints(&job_dir, only_latest)?;
        let mut rows = Vec::new();
        let from_start = config.explorer.eval_on_startup && !only_latest;
        if steps.is_empty() && !from_start {
            let what = format!(
                "{}: there is no checkpoint\nhint: is it the folder of the job \
                 (`checkpoint_root_dir`, `project`, `name`)? `explorer.eval_on_startup: true` \
                 evaluates the model that the servers start with",
                job_dir.display()
            );
            return Err(ExplorerError::NotNow(what));
        }
        if from_start {
            steps.retain(|step| *step > 0);
        }
        self.tell_bench(world, steps.len() + usize::from(from_start));
        if from_start {
            rows.extend(self.evaluate_now(world, 0, "bench").await?);
        }
        for step in steps {
            if stop.is_cancelled() {
                break;
            }
            let Some(folder) = checkpoint(&job_dir, step) else { continue };
            let location = WeightLocation::Folder(folder);
            world.load(&PublishedWeights { version: step, location }).await?;
            self.plan.apply(PlanInput::Loaded(step));
            rows.extend(self.evaluate_now(world, step, "bench").await?);
        }
        Ok(rows)
    }

    fn tell_bench(&self, world: &ExplorerResources, checkpoints: usize) {
        world.watchers.emit(&JobEvent::Began {
            mode: world.config.mode,
            job_dir: world.config.job_dir(),
            done_steps: 0,
            total_steps: Some(checkpoints as u64),
            tasks_per_step: 0,
            runners: world.runners,
        });
    }
}

/// Returns the steps of all checkpoints of a job, ascending; or of the latest alone.
fn checkpoints(job_dir: &Path, only_latest: bool) -> Result<Vec<u64>> {
    if only_latest {
        let latest = weight_folder::latest(job_dir)
            .map_err(|error| ExplorerError::Weights(error.to_string()))?;
        return Ok(latest.into_iter().collect());
    }
    let mut steps: Vec<u64> = std::fs::read_dir(job_dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let name = entry.ok()?.file_name();
            weight_folder::version(name.to_str()?)
        })
        .collect();
    steps.sort_unstable();
    Ok(steps)
}
