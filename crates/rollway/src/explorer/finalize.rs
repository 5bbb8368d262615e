//! Finalizes steps: waits for the batch, has it delivered, and decides what becomes of one that
//! came up short.
//!
//! Everything here is reckoned from results that the ledger keeps, so that a process that dies in
//! the middle is followed by one that goes through the same numbers.

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
use super::{ExplorerError, Result};

/// How often a batch is waited for whose results are on their way to the buffer.
const DELIVERIES: u32 = 3;

/// A step that is finalized.
#[derive(Debug)]
pub(super) struct Finalized {
    pub(super) step: u64,
    /// How its tasks ended, those that were run again included.
    pub(super) result: Arc<BatchResult>,
    pub(super) waited: Duration,
    /// How often tasks were run again.
    pub(super) reruns: u32,
    /// Whether an earlier process had delivered all of it.
    pub(super) from_ledger: bool,
}

/// Waits for a step and has it delivered.
pub(super) async fn finalize(
    hands: ExplorerHandles,
    step: u64,
    picks: Vec<TaskRef>,
    tasks: SharedTasks,
) -> Result<Finalized> {
    let began = Instant::now();
    let policy = &hands.config.explorer.batch.train;
    let (result, mut from_ledger) = hands.close_batch(step, &batch(step)).await?;
    let mut whole = StepResult::new(result);
    let least = hands.config.explorer.over_rollout.min_wait_num(picks.len() as u32);
    let needed = least.map_or(picks.len() as u64, u64::from);
    let mut reruns = 0;
    while policy.on_missing_tasks == WhenShort::Rerun
        && whole.good() < needed
        && reruns < policy.max_reruns
    {
        reruns += 1;
        let missing = whole.missing(picks.len());
        let again = BatchId::from(format!("{step}/again_{reruns}").as_str());
        if hands.known.tasks(&again).is_none()
            && hands.coordinator.batch_state(again.clone()).await?.is_none()
        {
            let rows = missing.iter().filter_map(|id| picks.get(id.0 as usize).copied());
            let rows: Vec<TaskRef> = rows.collect();
            let drawn = tasks.with(move |tasks| tasks.draw_again(&rows)).await??;
            hands.submit(again.clone(), &drawn, BatchType::Train, None).await?;
        }
        let (result, known) = hands.close_batch(step, &again).await?;
        from_ledger &= known;
        whole.add(&missing, &result);
    }
    let good = whole.good();
    if policy.on_missing_tasks == WhenShort::Fail && good < needed {
        let what = format!("{good} of {} tasks have a good run, {needed} needed", picks.len());
        let hint = "`explorer.batch.train.on_missing_tasks: accept` goes on with what there is, \
                    `rerun` runs the missing tasks again; what was finished is kept";
        return Err(ExplorerError::Short { step, what, hint });
    }
    let (result, waited) = (Arc::new(whole.finish()), began.elapsed());
    Ok(Finalized { step, result, waited, reruns, from_ledger })
}

impl ExplorerHandles {
    /// Waits for a train batch and has it delivered, or what there is of it. Tells whether an
    /// earlier process had done so.
    async fn close_batch(&self, step: u64, id: &BatchId) -> Result<(Arc<BatchResult>, bool)> {
        if let Some(result) = self.known.result(id) {
            return Ok((Arc::clone(result), true));
        }
        let mut delivering = 0;
        let refusal = loop {
            match self.coordinator.finalize_train_batch(id.clone(), None).await {
                Ok(result) => return Ok((result, false)),
                // It has a deadline of its own, after which the batch waits again.
                Err(Error::Refused(Refusal::TimedOut {
                    state: BatchState::Finalizing, ..
                })) if delivering < DELIVERIES => delivering += 1,
                Err(Error::Refused(refusal)) if is_short(&refusal) => break refusal,
                Err(error) => return Err(error.into()),
            }
        };
        let what = Error::Refused(refusal).to_string();
        if self.config.explorer.batch.train.on_missing_tasks == WhenShort::Rerun {
            let aborted = self.coordinator.abort_batch(id.clone(), &what, true).await?;
            if let Some(result) = aborted {
                return Ok((result, false));
            }
        }
        let hint = "see why tasks take so long or fail; `explorer.batch.train.quorum_percent` says \
                    how many are enough, `on_missing_tasks: rerun` runs the missing ones again";
        Err(ExplorerError::Short { step, what, hint })
    }
}

/// Tells whether a batch was refused because tasks are missing.
const fn is_short(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::TimedOut { .. } | Refusal::TasksCancelled { .. } | Refusal::TooFewSucceeded { .. }
    )
}
