//! Wait for a batch: derives the reason from batch and runners, and logs it.

use std::future::Future;
use std::pin::pin;

use rollway_base::human;
use rollway_core::{BatchId, BatchState, RunnerState};

use crate::driver_handle::DriverHandle;
use crate::job_wait::{LogPace, WaitReason};
use crate::runner_status::RunnerStatus;

/// Reason of a wait for a batch.
pub(crate) struct BatchWait {
    pub(crate) reason: WaitReason,
    /// Runs that have not ended.
    open: u64,
    /// Runs that wait for a runner.
    pub(crate) pending: u64,
    /// The longest attempt lasts longer than is typical, or no typical duration is known.
    is_overdue: bool,
}

impl DriverHandle {
    /// Returns the reason of a wait for a batch. `None`: for the oldest open batch.
    pub(crate) async fn batch_wait(&self, batch: Option<BatchId>) -> Option<BatchWait> {
        let find = move |core: &rollway_core::Core| {
            let is_open = |it: &rollway_core::BatchView| {
                it.open_tasks > 0 || it.state == Some(BatchState::Finalizing)
            };
            match batch {
                Some(batch) => core.batch(&batch).filter(is_open),
                None => core.batches().find(is_open),
            }
        };
        let view = self.inspect(find).await.ok()??;
        let runners = self.runners().await.ok()?;
        let batch = view.batch;
        let (pending, running) = (view.runs.pending, view.runs.running);
        let open = pending + running;
        let own = |it: &&RunnerStatus| it.attempt.is_some() && it.batch.as_ref() == Some(&batch);
        let longest = runners.iter().find(own);
        let is_overdue = longest.is_none_or(|it| it.typical_duration.is_none_or(|t| it.age >= t));
        let is_ready = |it: &RunnerStatus| {
            matches!(
                it.state,
                RunnerState::Idle | RunnerState::Busy(_) | RunnerState::Cancelling(_)
            )
        };
        let reason = if view.state == Some(BatchState::Finalizing) && open == 0 {
            WaitReason::Reader { batch, unread: None }
        } else if pending > 0 && !runners.iter().any(is_ready) {
            let message = runners.iter().find_map(|it| it.message.as_deref());
            let message = message.and_then(|it| it.lines().next()).map(str::to_owned);
            WaitReason::Runner { batch, pending, message }
        } else {
            let (total, longest) = (view.runs.submitted, longest.map(describe));
            WaitReason::Runs { batch, open, total, longest }
        };
        Some(BatchWait { reason, open, pending, is_overdue })
    }

    /// Waits for a batch, or for all. Logs the reason while no run ends.
    pub(crate) async fn log_wait<T>(
        &self,
        batch: Option<BatchId>,
        work: impl Future<Output = T>,
    ) -> T {
        let (mut work, mut pace, mut last_open) = (pin!(work), LogPace::default(), None);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = pace.due() => {}
            }
            let wait = self.batch_wait(batch.clone()).await;
            let open = wait.as_ref().map(|wait| wait.open);
            let is_moving = last_open.replace(open).is_some_and(|last| last != open);
            let wait = wait.filter(|wait| !is_moving && wait.is_overdue);
            let message =
                |it: BatchWait| format!("{}\nhint: {}", it.reason.sentence(), it.reason.remedy());
            pace.log(wait.map(message).as_deref());
        }
    }
}

/// Describes the attempt of a runner.
fn describe(status: &RunnerStatus) -> String {
    let mut text = match (&status.batch, status.task) {
        (Some(batch), Some(task)) => format!("batch {batch} task {}", task.0),
        _ => format!("runner {}", status.runner.0),
    };
    if let Some(run) = status.run {
        text += &format!(" run {}", run.0);
    }
    if let Some(stage) = &status.stage {
        let lasts = human::duration(status.stage_for.unwrap_or(status.age));
        text += &format!(", in stage `{stage}` for {lasts}");
    }
    if status.calls > 0 && status.server.is_none() {
        text += ", no server has taken its model call";
    }
    if let Some(location) = &status.code_location {
        text += &format!(", at {location}");
    }
    text
}
