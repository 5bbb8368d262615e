//! Wait for a batch: derives the reason from batch and runners, and logs it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use rollway_base::human;
use rollway_core::{BatchId, BatchState, RunnerState, StartDelay, Time};

use crate::driver_handle::DriverHandle;
use crate::job_wait::{LogPace, WaitReason};
use crate::runner_status::RunnerStatus;
use crate::sink::Sink;

/// Multiple of the typical duration of a workflow from which on its attempts are waited for.
const OVERDUE_FACTOR: u32 = 2;

/// Reason of a wait for a batch.
#[derive(Clone)]
pub(crate) struct BatchWait {
    pub(crate) reason: WaitReason,
    /// Runs that have not ended.
    open: u64,
    /// Runs that wait for a runner.
    pub(crate) pending: u64,
    /// Ended runs of all batches.
    ended: u64,
    /// The longest attempt lasts [much longer](OVERDUE_FACTOR) than is typical, or no typical
    /// duration is known.
    pub(crate) is_overdue: bool,
}

impl BatchWait {
    /// Tells whether runs of the batch have ended since, or runs of others that it waits for to get
    /// a runner.
    const fn is_after(&self, last: &Self) -> bool {
        self.open != last.open || (self.pending > 0 && self.ended != last.ended)
    }
}

impl DriverHandle {
    /// Returns the reason of a wait for a batch. `None`: for the oldest open batch. The sink takes
    /// its delivery.
    pub(crate) async fn batch_wait(
        &self,
        batch: Option<BatchId>,
        sink: Option<&Arc<dyn Sink>>,
    ) -> Option<BatchWait> {
        let origin = self.origin;
        let find = move |core: &rollway_core::Core| {
            let runs = &core.counters().runs;
            let ended = runs.succeeded + runs.failed.total() + runs.cancelled.total();
            let is_open = |it: &rollway_core::BatchView| {
                it.open_tasks > 0 || it.state == Some(BatchState::Finalizing)
            };
            let view = match batch {
                Some(batch) => core.batch(&batch).filter(is_open),
                None => core.batches().find(is_open),
            };
            let view = view?;
            let delay = core.start_delay(&view.batch);
            Some((view, ended, delay, Time::ZERO.after(origin.elapsed())))
        };
        let (view, ended, delay, now) = self.inspect(find).await.ok()??;
        let runners = self.runners().await.ok()?;
        let batch = view.batch;
        let (pending, running) = (view.runs.pending, view.runs.running);
        let open = pending + running;
        let own = |it: &&RunnerStatus| it.attempt.is_some() && it.batch.as_ref() == Some(&batch);
        let longest = runners.iter().find(own);
        let servers = self.states.server_wait().filter(|_| open > 0);
        let is_overdue = servers.is_some()
            || longest
                .is_none_or(|it| it.typical_duration.is_none_or(|t| it.age >= t * OVERDUE_FACTOR));
        let is_ready = |it: &RunnerStatus| {
            matches!(
                it.state,
                RunnerState::Idle | RunnerState::Busy(_) | RunnerState::Cancelling(_)
            )
        };
        let reason = if open == 0 {
            // Otherwise its last runs have just ended, and so does the wait.
            view.state.filter(|state| *state == BatchState::Finalizing)?;
            match sink.and_then(|sink| sink.full_buffer()) {
                Some(unread) => WaitReason::Reader { batch, unread },
                None => WaitReason::Delivery { batch },
            }
        } else if let Some(servers) = servers {
            servers
        } else if pending > 0 && !runners.iter().any(is_ready) {
            WaitReason::Runner { batch, pending, message: first_message(&runners) }
        } else if let Some(delay) = delay {
            delayed(batch, pending, delay, now)
        } else {
            let (total, longest) = (view.runs.submitted, longest.map(describe));
            WaitReason::Runs { batch, open, total, longest }
        };
        Some(BatchWait { reason, open, pending, ended, is_overdue })
    }

    /// Waits for the first runners. Logs the reason.
    pub(crate) async fn log_start<T>(&self, work: impl Future<Output = T>) -> T {
        let (mut work, mut pace) = (pin!(work), LogPace::default());
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = pace.due() => {}
            }
            let message = self.runners().await.ok().and_then(|runners| first_message(&runners));
            let reason = WaitReason::Start { message };
            pace.log(Some(&format!("{}\nhint: {}", reason.message(), reason.remedy())));
        }
    }

    /// Waits for a batch, or for all. Logs the reason while no run ends.
    pub(crate) async fn log_wait<T>(
        &self,
        batch: Option<BatchId>,
        sink: Option<&Arc<dyn Sink>>,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        // The first line is preceded by a look, which shows whether runs end.
        let (mut pace, look_after) = LogPace::after_look();
        let look = async {
            tokio::time::sleep(look_after).await;
            self.batch_wait(batch.clone(), sink).await
        };
        let mut last = tokio::select! {
            biased;
            done = &mut work => return done,
            wait = look => wait,
        };
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = pace.due() => {}
            }
            let wait = self.batch_wait(batch.clone(), sink).await;
            let is_moving = match (&last, &wait) {
                (Some(last), Some(wait)) => wait.is_after(last),
                _ => false,
            };
            last.clone_from(&wait);
            let wait = wait.filter(|wait| !is_moving && wait.is_overdue);
            let message =
                |it: BatchWait| format!("{}\nhint: {}", it.reason.message(), it.reason.remedy());
            pace.log(wait.map(message).as_deref());
        }
    }
}

/// Returns the wait of pending runs that are not dispatched to ready runners.
fn delayed(batch: BatchId, pending: u64, delay: StartDelay, now: Time) -> WaitReason {
    match delay {
        StartDelay::Backoff { until, failure } => {
            WaitReason::Retry { batch, runs: pending, next: until.since(now), failure }
        }
        StartDelay::PayloadBudget { held } => WaitReason::PayloadBudget { batch, pending, held },
    }
}

/// Returns the first line of the first message of a runner that is not ready.
fn first_message(runners: &[RunnerStatus]) -> Option<String> {
    let message = runners.iter().find_map(|it| it.message.as_deref())?;
    message.lines().next().map(str::to_owned)
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
