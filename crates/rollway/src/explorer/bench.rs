//! Evaluations outside of the loop: the current weights, and checkpoints in order.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rollway_config::Mode;
use rollway_core::BatchState;
use rollway_core::explore::PlanInput;
use rollway_core::metrics::Metrics;
use rollway_sync::{PublishedWeights, WeightLocation, weight_folder};
use tokio_util::sync::CancellationToken;

use super::evals::{Finished, batch};
use super::resources::ExplorerResources;
use super::run_loop::ExplorerLoop;
use super::weights::checkpoint;
use super::{ExplorerError, Result, WaitReason};

/// Result of the evaluation of one taskset.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchResult {
    /// Step; in mode `bench` that of the checkpoint, 0 for untrained weights.
    pub step: u64,
    pub set: Arc<str>,
    /// Mean reward. `None`: no run succeeded.
    pub score: Option<f64>,
    pub tasks: u64,
    /// Tasks without a successful run.
    pub failed: u64,
    /// Metrics under their logged names (`eval/…` or `bench/…`).
    pub metrics: Metrics,
}

impl ExplorerLoop {
    /// Evaluates the current weights.
    pub(super) async fn eval_now(
        &mut self,
        resources: &ExplorerResources,
    ) -> Result<Vec<BenchResult>> {
        let step = self.plan.progress().begun;
        self.evaluate_now(resources, step, "eval").await
    }

    async fn evaluate_now(
        &mut self,
        resources: &ExplorerResources,
        step: u64,
        prefix: &str,
    ) -> Result<Vec<BenchResult>> {
        if self.sets.evals.is_empty() {
            let message = "there are no eval tasks\nhint: list tasksets in \
                        `buffer.explorer_input.eval_tasksets`";
            return Err(ExplorerError::NotNow(message.to_owned()));
        }
        let since = Instant::now();
        for (set, tasks) in &self.sets.evals {
            let id = batch(step, set);
            let state = resources.coordinator.batch_state(id.clone()).await?;
            if matches!(state, Some(BatchState::Pending | BatchState::Running)) {
                continue;
            }
            resources.submit_eval(id, tasks).await?;
        }
        let mut sets = Vec::with_capacity(self.sets.evals.len());
        for (set, _) in &self.sets.evals {
            let id = batch(step, set);
            let _wait = resources.waits.begin(WaitReason::runs(&id), None);
            let result = resources.coordinator.finalize_eval_batch(id, None).await?;
            sets.push((Arc::clone(set), result));
        }
        let finished = Finished { step, sets, seconds: since.elapsed().as_secs_f64() };
        let rows = self.rows(resources, &finished, prefix);
        self.emit_evaluated(resources, &finished, &rows, None);
        Ok(rows)
    }

    /// Evaluates checkpoints, in order.
    pub(super) async fn benchmark(
        &mut self,
        resources: &ExplorerResources,
        stop: &CancellationToken,
    ) -> Result<Vec<BenchResult>> {
        let config = &resources.config;
        if config.mode != Mode::Bench {
            let message =
                format!("mode `{}` has no benchmark: set `mode` to `bench`", config.mode.name());
            return Err(ExplorerError::NotNow(message));
        }
        let job_dir = config.job_dir();
        let only_latest = config.explorer.bench_on_latest_checkpoint;
        let mut steps = if only_latest {
            let latest = weight_folder::latest(&job_dir)
                .map_err(|error| ExplorerError::Weights(error.to_string()))?;
            latest.into_iter().collect()
        } else {
            checkpoints_of(&job_dir)
        };
        let mut rows = Vec::new();
        let from_start = config.explorer.eval_on_startup && !only_latest;
        if steps.is_empty() && !from_start {
            let message = format!(
                "{}: there is no checkpoint\nhint: check the folder of the job \
                 (`checkpoint_root_dir`, `project`, `name`); `explorer.eval_on_startup: true` \
                 evaluates the initial model of the servers",
                job_dir.display()
            );
            return Err(ExplorerError::NotNow(message));
        }
        if from_start {
            steps.retain(|step| *step > 0);
        }
        let checkpoints = steps.len() + usize::from(from_start);
        resources.emit_began(0, checkpoints as u64, 0);
        if from_start {
            rows.extend(self.evaluate_now(resources, 0, "bench").await?);
        }
        for step in steps {
            if stop.is_cancelled() {
                break;
            }
            let Some(folder) = checkpoint(&job_dir, step) else { continue };
            let location = WeightLocation::Folder(folder);
            resources.load(&PublishedWeights { version: step, location }).await?;
            self.plan.apply(PlanInput::Loaded(step));
            rows.extend(self.evaluate_now(resources, step, "bench").await?);
        }
        Ok(rows)
    }
}

/// Returns the steps of all checkpoints of a job, ascending.
pub(crate) fn checkpoints_of(job_dir: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(job_dir).into_iter().flatten().flatten();
    let step = |name: OsString| weight_folder::version(name.to_str()?);
    let mut steps: Vec<u64> = entries.filter_map(|entry| step(entry.file_name())).collect();
    steps.sort_unstable();
    steps
}
