//! Start, supervision and shutdown of explorer and trainer.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rollway_config::{Config, Mode};
use rollway_data::pipeline::OperatorRegistry;
use rollway_engine::events::RunObservers;
use rollway_engine::job_event::{JobEvent, JobObservers};
use rollway_engine::job_wait::{JobWaits, WaitLimit, WaitReason};
use rollway_sync::Synchronizer;
use rollway_telemetry::summary::{Summary, SummaryState};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::JobError;
use super::preflight_error::PreflightError;
use crate::explorer::{EvalScores, ExploreSummary, Explorer, ExplorerError, ExplorerOptions};
use crate::trainer::{Trainer, TrainerError, TrainerInput, TrainerSummary};

/// Maximum time for an explorer to close after a stop or its last step.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum wait for the error of the component that caused another one to fail.
const ROOT_CAUSE_TIMEOUT: Duration = Duration::from_secs(5);

/// End of a job, or of the work on which it depends, that did not fail.
#[derive(Debug, Default)]
pub struct JobOutcome {
    explored: Option<ExploreSummary>,
    trained: Option<TrainerSummary>,
    /// Ended before its goal, by request.
    pub stopped: bool,
}

impl JobOutcome {
    /// Returns the outcome of a benchmark.
    pub fn benchmark(stopped: bool) -> Self {
        Self { stopped, ..Self::default() }
    }

    /// Returns the state and the error that are recorded for the end of a job.
    pub fn state<E: Display>(ended: &Result<Self, E>) -> (SummaryState, Option<String>) {
        match ended {
            Ok(ended) if ended.stopped => (SummaryState::Stopped, None),
            Ok(_) => (SummaryState::Finished, None),
            Err(error) => (SummaryState::Failed, Some(error.to_string())),
        }
    }

    /// Returns the reason why a job that ran to its end has no result. `None`: it has one.
    pub(super) fn missing_result(&self, summary: &Summary) -> Option<String> {
        let trained = self.trained.and_then(|trained| trained.steps);
        summary.missing_result(trained).filter(|_| !self.stopped)
    }

    /// Copies the counts of explorer and trainer into the summary.
    pub(super) fn update(&self, summary: &mut Summary) {
        if let Some(steps) = self.trained.and_then(|trained| trained.steps) {
            summary.trained_steps = steps;
            if summary.mode == Mode::Train {
                summary.steps = steps;
            }
        }
        if let Some(explored) = &self.explored {
            let counts = &explored.counts;
            summary.steps = explored.steps;
            summary.version = explored.version;
            summary.tasks_submitted = counts.tasks_submitted;
            summary.tasks_finished = counts.tasks_finished;
            summary.tasks_failed = counts.tasks_failed;
            summary.experiences_delivered = counts.experiences_delivered;
            let mean = |scores: &Option<EvalScores>| scores.as_ref().and_then(EvalScores::mean);
            summary.first_eval = mean(&counts.first_eval).or(summary.first_eval);
            summary.last_eval = mean(&counts.last_eval).or(summary.last_eval);
        }
    }

    /// Returns a warning about a trainer that consumed fewer experiences than were delivered.
    /// `None`: it consumed all, or the number is unknown.
    pub(super) fn untrained(&self) -> Option<String> {
        let explored = self.explored.as_ref().filter(|_| !self.stopped)?;
        let delivered = explored.counts.experiences_delivered;
        let trained = self.trained?.experiences.filter(|trained| *trained < delivered)?;
        let missing = delivered - trained;
        Some(format!(
            "{missing} of {delivered} delivered experiences were not trained on; either \
             `trainer.total_steps` ended the training before them, or the buffer has lost them: \
             see its messages in the log"
        ))
    }
}

#[derive(Clone, Debug)]
pub(super) struct ObserverSet {
    pub(super) watchers: JobObservers,
    pub(super) observers: RunObservers,
}

/// Runs a job to its end.
pub(super) async fn run(
    config: &Config,
    observers: ObserverSet,
    operators: Arc<OperatorRegistry>,
    stop: &CancellationToken,
) -> Result<JobOutcome, JobError> {
    match config.mode {
        Mode::Train => train(config, observers.watchers, stop).await,
        Mode::Bench => Box::pin(bench(config, observers, stop)).await,
        _ => Box::pin(explore(config, observers, operators, stop)).await,
    }
}

/// Modes `explore` and `both`.
async fn explore(
    config: &Config,
    ObserverSet { watchers, observers }: ObserverSet,
    operators: Arc<OperatorRegistry>,
    stop: &CancellationToken,
) -> Result<JobOutcome, JobError> {
    let synchronizer = open(config).await?;
    let options = ExplorerOptions {
        watchers,
        observers,
        synchronizer: Some(synchronizer),
        operators: Some(operators),
        ..ExplorerOptions::default()
    };
    let prepare = Box::pin(Explorer::prepare(config, options));
    let Some(explorer) = unless(stop, prepare).await else { return Ok(stopped()) };
    let mut explorer = explorer?;
    let ended = explore_and_train(&mut explorer, stop).await;
    close(&mut explorer, ended).await
}

/// Explores with a prepared explorer, beside the trainer of mode `both`.
pub(super) async fn explore_and_train(
    explorer: &mut Explorer,
    stop: &CancellationToken,
) -> Result<JobOutcome, JobError> {
    let trainer = trainer(explorer).await?;
    run_both(explorer, trainer, stop).await
}

/// Hosts or joins the synchronizer.
async fn open(config: &Config) -> Result<Synchronizer, JobError> {
    let opened = Synchronizer::open(config).await;
    opened.map_err(|error| JobError::NotStarted(vec![PreflightError::new(error.to_string(), "")]))
}

/// Starts the trainer of mode `both`. `None`: it is started from outside.
async fn trainer(explorer: &Explorer) -> Result<Option<Trainer>, TrainerError> {
    let config = explorer.config();
    let synchronizer = explorer.synchronizer().filter(|_| config.mode == Mode::Both);
    let Some(synchronizer) = synchronizer else { return Ok(None) };
    let input = TrainerInput::of(explorer)?;
    let trainer = Trainer::start(config, input, synchronizer, explorer.watchers()).await?;
    Ok(Some(trainer).filter(|trainer| !trainer.is_elsewhere()))
}

/// Runs explorer and trainer until both have ended; a failure of one ends the other.
async fn run_both(
    explorer: &mut Explorer,
    mut trainer: Option<Trainer>,
    stop: &CancellationToken,
) -> Result<JobOutcome, JobError> {
    let stopper = explorer.stopper();
    let sync_timeout: Duration = explorer.config().synchronizer.sync_timeout.into();
    let mut progress = JobProgress { is_alone: trainer.is_none(), ..JobProgress::default() };
    let waits = explorer.waits();
    let exploring = explorer.explore();
    tokio::pin!(exploring);
    let grace = trainer.as_ref().map_or(Duration::ZERO, Trainer::grace);
    while !progress.are_over() {
        tokio::select! {
            explored = &mut exploring, if progress.explored.is_none() => {
                let explored = progress.explored.insert(explored);
                let wait_timeout = match explored {
                    Ok(explored) if !explored.stopped => sync_timeout,
                    Err(ExplorerError::TrainerFailed(_)) => ROOT_CAUSE_TIMEOUT,
                    _ => {
                        trainer.iter().for_each(Trainer::stop);
                        grace + ROOT_CAUSE_TIMEOUT
                    }
                };
                progress.wait("the trainer", wait_timeout);
            }
            trained = progress.trainer_end(&mut trainer, &waits), if progress.trained.is_none() => {
                if trained.is_err() {
                    stopper.stop();
                    progress.wait("the explorer", SHUTDOWN_TIMEOUT);
                }
                progress.trained = Some(trained);
            }
            () = stop.cancelled(), if !progress.is_stopped => {
                progress.is_stopped = true;
                stopper.stop();
                trainer.iter().for_each(Trainer::stop);
                progress.wait("the job", SHUTDOWN_TIMEOUT.max(grace + ROOT_CAUSE_TIMEOUT));
            }
            () = sleep_until(progress.deadline()), if progress.waits_for.is_some() => break,
        }
    }
    progress.ended()
}

/// State of explorer and trainer.
#[derive(Default)]
struct JobProgress {
    explored: Option<Result<ExploreSummary, ExplorerError>>,
    trained: Option<Result<TrainerSummary, TrainerError>>,
    is_alone: bool,
    is_stopped: bool,
    /// Component that the job waits for, the timeout and the deadline.
    waits_for: Option<(&'static str, Duration, Instant)>,
}

impl JobProgress {
    /// Limits the wait; an earlier deadline remains.
    fn wait(&mut self, component: &'static str, wait_timeout: Duration) {
        let deadline = Instant::now() + wait_timeout;
        if self.waits_for.is_none_or(|(.., earlier)| deadline < earlier) {
            self.waits_for = Some((component, wait_timeout, deadline));
        }
    }

    /// Waits for the end of the trainer; after the last step that is a wait of the job.
    async fn trainer_end(
        &self,
        trainer: &mut Option<Trainer>,
        waits: &JobWaits,
    ) -> Result<TrainerSummary, TrainerError> {
        let Some(trainer) = trainer else { return std::future::pending().await };
        let timeout = self.waits_for.map(|(_, timeout, _)| timeout);
        let is_explored = matches!(&self.explored, Some(Ok(it)) if !it.stopped);
        match timeout.filter(|_| is_explored && !self.is_stopped) {
            Some(timeout) => {
                let limit = WaitLimit { key: "synchronizer.sync_timeout", timeout };
                waits.log_during(WaitReason::TrainerEnd, Some(limit), trainer.ended()).await
            }
            None => trainer.ended().await,
        }
    }

    fn deadline(&self) -> Instant {
        self.waits_for.map_or_else(Instant::now, |(.., deadline)| deadline)
    }

    const fn are_over(&self) -> bool {
        self.explored.is_some() && (self.trained.is_some() || self.is_alone)
    }

    /// Returns the outcome, or the first failure.
    fn ended(self) -> Result<JobOutcome, JobError> {
        let is_over = self.are_over();
        // The error of the trainer is the cause of the explorer's.
        if let Some(Err(error)) = self.trained {
            return Err(error.into());
        }
        let explored = self.explored.transpose()?;
        if let (false, Some((component, wait_timeout, _))) = (is_over, self.waits_for) {
            return Err(JobError::StopTimedOut { component, seconds: wait_timeout.as_secs_f64() });
        }
        let stopped = self.is_stopped || explored.as_ref().is_some_and(|it| it.stopped);
        let trained = self.trained.and_then(Result::ok);
        Ok(JobOutcome { explored, trained, stopped })
    }
}

/// Mode `bench`.
async fn bench(
    config: &Config,
    ObserverSet { watchers, observers }: ObserverSet,
    stop: &CancellationToken,
) -> Result<JobOutcome, JobError> {
    let options = ExplorerOptions { watchers, observers, ..ExplorerOptions::default() };
    let prepare = Box::pin(Explorer::prepare(config, options));
    let Some(explorer) = unless(stop, prepare).await else { return Ok(stopped()) };
    let mut explorer = explorer?;
    let stopper = explorer.stopper();
    let ended = {
        let benchmark = explorer.benchmark();
        tokio::pin!(benchmark);
        let benched = tokio::select! {
            benched = &mut benchmark => Some(benched),
            () = stop.cancelled() => {
                stopper.stop();
                timeout(SHUTDOWN_TIMEOUT, &mut benchmark).await.ok()
            }
        };
        match benched {
            Some(benched) => benched.map_err(JobError::from),
            None => Err(stop_timed_out("the benchmark")),
        }
    };
    let ended = ended.map(|_| JobOutcome::benchmark(stop.is_cancelled()));
    close(&mut explorer, ended).await
}

/// Mode `train`.
async fn train(
    config: &Config,
    watchers: JobObservers,
    stop: &CancellationToken,
) -> Result<JobOutcome, JobError> {
    let synchronizer = open(config).await?;
    watchers.emit(&JobEvent::Began {
        mode: Mode::Train,
        job_dir: config.job_dir(),
        done_steps: 0,
        total_steps: config.trainer.total_steps.map(u64::from),
        tasks_per_step: 0,
        runners: 0,
    });
    let input = TrainerInput::alone(config)?;
    let mut trainer = Trainer::start(config, input, &synchronizer, watchers).await?;
    let trained = tokio::select! {
        trained = trainer.ended() => trained?,
        () = stop.cancelled() => {
            trainer.stop();
            let wait_timeout = trainer.grace() + ROOT_CAUSE_TIMEOUT;
            match timeout(wait_timeout, trainer.ended()).await {
                Ok(trained) => trained?,
                Err(_) => return Err(stop_timed_out("the trainer")),
            }
        }
    };
    let stopped = stop.is_cancelled();
    if !stopped {
        // Explorers may still have to fetch the last weights from this synchronizer.
        let wait_timeout = config.trainer.grace.into();
        let _ = unless(stop, synchronizer.explorers_left(wait_timeout)).await;
    }
    Ok(JobOutcome { trained: Some(trained), stopped, explored: None })
}

/// Closes an explorer after any outcome. Returns the first error.
async fn close(
    explorer: &mut Explorer,
    ended: Result<JobOutcome, JobError>,
) -> Result<JobOutcome, JobError> {
    let closed = match timeout(SHUTDOWN_TIMEOUT, explorer.shutdown()).await {
        Ok(closed) => closed.map_err(JobError::from),
        Err(_) => Err(stop_timed_out("the explorer")),
    };
    match (ended, closed) {
        (Ok(ended), Ok(())) => Ok(ended),
        (Err(first), Err(second)) => {
            tracing::warn!(error = %second, "explorer shutdown failed");
            Err(first)
        }
        (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
    }
}

/// Waits for a future. `None`: the job was stopped.
async fn unless<T>(stop: &CancellationToken, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        done = future => Some(done),
    }
}

fn stopped() -> JobOutcome {
    JobOutcome { stopped: true, ..JobOutcome::default() }
}

fn stop_timed_out(component: &'static str) -> JobError {
    JobError::StopTimedOut { component, seconds: SHUTDOWN_TIMEOUT.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explorer::JobCounts;

    #[test]
    fn experiences_that_were_not_trained_on_are_reported() {
        let outcome = |delivered, experiences, stopped| {
            let counts = JobCounts { experiences_delivered: delivered, ..Default::default() };
            let explored = Some(ExploreSummary { counts, ..ExploreSummary::default() });
            let trained = Some(TrainerSummary { steps: Some(3), experiences });
            JobOutcome { explored, trained, stopped }
        };
        let warning = outcome(512, Some(480), false).untrained().unwrap();
        assert!(warning.starts_with("32 of 512 delivered experiences"), "{warning}");
        assert_eq!(outcome(512, Some(512), false).untrained(), None);
        // Experiences of replayed buffers are consumed several times.
        assert_eq!(outcome(512, Some(1024), false).untrained(), None);
        assert_eq!(outcome(512, None, false).untrained(), None);
        assert_eq!(outcome(512, Some(480), true).untrained(), None, "the next start continues");
    }
}
