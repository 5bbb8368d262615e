//! End of a step: waits for the batch, delivers it, and handles missing tasks.
//!
//! All decisions depend only on results in the ledger, so that a restarted process repeats them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rollway_config::WhenShort;
use rollway_core::{BatchId, BatchResult, BatchState, BatchType, Refusal};
use rollway_engine::Error;
use rollway_tasksets::TaskRef;

use super::resources::ExplorerHandles;
use super::run_loop::SharedTasks;
use super::step_metrics::StepResult;
use super::submit::batch;
use super::{ExplorerError, Result, WaitReason};

/// Maximum waits for a batch in delivery.
const MAX_DELIVERY_WAITS: u32 = 3;

/// First pause before a failed delivery is repeated; it doubles up to a limit.
const DELIVERY_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE_DOUBLINGS: u32 = 5;

#[derive(Debug)]
pub(super) struct Finalized {
    pub(super) step: u64,
    /// Result including reruns.
    pub(super) result: Arc<BatchResult>,
    pub(super) waited: Duration,
    pub(super) reruns: u32,
    /// All of it was delivered by an earlier process.
    pub(super) from_ledger: bool,
}

/// Waits for a step and delivers it.
pub(super) async fn finalize(
    handles: ExplorerHandles,
    step: u64,
    task_refs: Vec<TaskRef>,
    tasks: SharedTasks,
) -> Result<Finalized> {
    let began = Instant::now();
    let policy = &handles.config.explorer.batch.train;
    let (result, mut from_ledger) = handles.close_batch(step, &batch(step)).await?;
    let mut step_result = StepResult::new(result);
    let min_tasks = handles.config.explorer.over_rollout.min_wait_num(task_refs.len() as u32);
    let needed = min_tasks.map_or(task_refs.len() as u64, u64::from);
    let mut reruns = 0;
    while policy.on_missing_tasks == WhenShort::Rerun
        && step_result.good() < needed
        && reruns < policy.max_reruns
    {
        reruns += 1;
        let missing = step_result.missing(task_refs.len());
        let rerun = BatchId::from(format!("{step}/again_{reruns}").as_str());
        if handles.restored.tasks(&rerun).is_none()
            && handles.coordinator.batch_state(rerun.clone()).await?.is_none()
        {
            let rows = missing.iter().filter_map(|id| task_refs.get(id.0 as usize).copied());
            let rows: Vec<TaskRef> = rows.collect();
            let selected = tasks.with(move |tasks| tasks.draw_again(&rows)).await??;
            handles.submit(rerun.clone(), &selected, BatchType::Train, None).await?;
        }
        let (result, known) = handles.close_batch(step, &rerun).await?;
        from_ledger &= known;
        step_result.add(&missing, &result);
    }
    let good = step_result.good();
    if policy.on_missing_tasks == WhenShort::Fail && good < needed {
        let message =
            format!("{good} of {} tasks have a successful run, {needed} needed", task_refs.len());
        let hint = "`explorer.batch.train.on_missing_tasks: accept` continues without the missing \
                    tasks, `rerun` runs them again; finished runs are kept";
        return Err(ExplorerError::Short { step, message, hint });
    }
    let (result, waited) = (Arc::new(step_result.finish()), began.elapsed());
    Ok(Finalized { step, result, waited, reruns, from_ledger })
}

impl ExplorerHandles {
    /// Waits for a train batch and delivers it. The flag tells whether an earlier process had
    /// delivered it.
    async fn close_batch(&self, step: u64, id: &BatchId) -> Result<(Arc<BatchResult>, bool)> {
        if let Some(result) = self.restored.result(id) {
            return Ok((Arc::clone(result), true));
        }
        // The coordinator logs this wait.
        let _wait = self.waits.begin(WaitReason::runs(id), None);
        let (mut delivering, mut failed) = (0, 0);
        let refusal = loop {
            match self.coordinator.finalize_train_batch(id.clone(), None).await {
                Ok(result) => return Ok((result, false)),
                // A delivery has its own timeout, after which it is repeated.
                Err(Error::Refused(Refusal::TimedOut {
                    state: BatchState::Finalizing, ..
                })) if delivering < MAX_DELIVERY_WAITS => delivering += 1,
                // The sink puts a batch into the quarantine that keeps failing by its content.
                Err(Error::Refused(Refusal::SinkFailed { message, .. }))
                    if failed + 1 < self.config.explorer.delivery_attempts =>
                {
                    let pause = DELIVERY_PAUSE * 2u32.pow(failed.min(MAX_PAUSE_DOUBLINGS));
                    tracing::warn!(batch = %id, %message, ?pause, "delivery failed, retrying");
                    tokio::time::sleep(pause).await;
                    failed += 1;
                }
                Err(Error::Refused(refusal)) if is_short(&refusal) => break refusal,
                Err(error) => return Err(error.into()),
            }
        };
        let message = Error::Refused(refusal).to_string();
        if self.config.explorer.batch.train.on_missing_tasks == WhenShort::Rerun {
            let aborted = self.coordinator.abort_batch(id.clone(), &message, true).await?;
            if let Some(result) = aborted {
                return Ok((result, false));
            }
        }
        let hint = "check why tasks are slow or fail; `explorer.batch.train.quorum_percent` sets \
                    how many are enough, `on_missing_tasks: rerun` runs the missing ones again";
        Err(ExplorerError::Short { step, message, hint })
    }
}

/// Tells whether a batch was refused because tasks are missing.
const fn is_short(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::TimedOut { .. } | Refusal::TasksCancelled { .. } | Refusal::TooFewSucceeded { .. }
    )
}
