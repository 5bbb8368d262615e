//! Evaluations: every taskset is one batch `<step>/<taskset>` with all its tasks.

use std::sync::Arc;
use std::time::Instant;

use rollway_core::explore::PlanInput;
use rollway_core::{BatchId, BatchResult, BatchType};

use super::bench::BenchResult;
use super::checkpoint::EvalScores;
use super::resources::{ExplorerHandles, ExplorerResources};
use super::run_loop::{ExplorerLoop, SharedTasks};
use super::{JobEvent, Result, WaitReason, step_metrics};

/// Finished evaluations of a step.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) step: u64,
    pub(super) sets: Vec<(Arc<str>, Arc<BatchResult>)>,
    pub(super) seconds: f64,
}

pub(super) fn batch(step: u64, set: &str) -> BatchId {
    format!("{step}/{set}").as_str().into()
}

/// Waits for the evaluations of a step.
pub(super) async fn finish(
    handles: ExplorerHandles,
    step: u64,
    sets: Vec<Arc<str>>,
    since: Instant,
) -> Result<Finished> {
    let mut finished = Vec::with_capacity(sets.len());
    for set in sets {
        let id = batch(step, &set);
        let result = match handles.restored.result(&id) {
            Some(result) => Arc::clone(result),
            None => {
                let _wait = handles.waits.begin(WaitReason::runs(&id), None);
                handles.coordinator.finalize_eval_batch(id, None).await?
            }
        };
        finished.push((set, result));
    }
    Ok(Finished { step, sets: finished, seconds: since.elapsed().as_secs_f64() })
}

impl ExplorerHandles {
    /// Submits all tasks of a taskset as an eval batch.
    pub(super) async fn submit_eval(&self, id: BatchId, tasks: &SharedTasks) -> Result<()> {
        let all = tasks.with(|tasks| tasks.all().collect::<std::result::Result<Vec<_>, _>>());
        self.submit(id, &all.await??, BatchType::Eval, None).await
    }
}

impl ExplorerLoop {
    /// Submits the evaluations of a step.
    pub(super) async fn evaluate(
        &mut self,
        resources: &ExplorerResources,
        step: u64,
    ) -> Result<()> {
        self.submit_evals(resources, step).await?;
        self.evals_since.insert(step, Instant::now());
        self.evals_begun_with.insert(step, self.version());
        self.plan.apply(PlanInput::EvalBegun(step));
        Ok(())
    }

    /// Submits the evaluations that are not in flight.
    pub(super) async fn submit_evals(
        &self,
        resources: &ExplorerResources,
        step: u64,
    ) -> Result<()> {
        for (set, tasks) in &self.sets.evals {
            let id = batch(step, set);
            if resources.restored.tasks(&id).is_some()
                || resources.coordinator.batch_state(id.clone()).await?.is_some()
            {
                continue;
            }
            resources.submit_eval(id, tasks).await?;
        }
        Ok(())
    }

    pub(super) async fn eval_finished(
        &mut self,
        resources: &ExplorerResources,
        finished: Finished,
    ) -> Result<()> {
        let mut rows = self.rows(resources, &finished, "eval");
        // Unknown after a restart.
        let begun_with = self.evals_begun_with.remove(&finished.step);
        for row in &mut rows {
            if let Some(version) = begun_with {
                row.metrics.set("eval/model_version/begin", version as f64);
            }
            row.metrics.set("eval/model_version/end", self.version() as f64);
        }
        let by_set = rows.iter().map(|row| (row.set.to_string(), row.score)).collect();
        let scores = EvalScores { step: finished.step, by_set };
        self.counts.first_eval.get_or_insert_with(|| scores.clone());
        self.counts.last_eval = Some(scores);
        self.plan.apply(PlanInput::EvalFinished(finished.step));
        self.save_if_changed().await?;
        self.emit_evaluated(resources, &finished, &rows, begun_with);
        Ok(())
    }

    /// Returns the results by taskset.
    pub(super) fn rows(
        &self,
        resources: &ExplorerResources,
        finished: &Finished,
        prefix: &str,
    ) -> Vec<BenchResult> {
        let row = |(set, result): &(Arc<str>, Arc<BatchResult>)| {
            let mut metrics = step_metrics::eval(result, &resources.config, prefix);
            metrics.set(format!("time/{prefix}"), finished.seconds);
            let tasks = result.tasks.total();
            BenchResult {
                step: finished.step,
                set: Arc::clone(set),
                score: step_metrics::score(result),
                tasks,
                failed: tasks - result.tasks.ok - result.tasks.partial,
                metrics,
            }
        };
        finished.sets.iter().map(row).collect()
    }

    /// Reports evaluations; `version`: that of the servers at their start, if known.
    pub(super) fn emit_evaluated(
        &self,
        resources: &ExplorerResources,
        finished: &Finished,
        rows: &[BenchResult],
        version: Option<u64>,
    ) {
        for (row, (_, result)) in rows.iter().zip(&finished.sets) {
            resources.watchers.emit(&JobEvent::Evaluated {
                step: row.step,
                version: version.unwrap_or_else(|| self.version()),
                set: Arc::clone(&row.set),
                score: row.score,
                result: Arc::clone(result),
                metrics: row.metrics.clone(),
            });
        }
    }
}
