//! The loop: performs the actions of the plan, applies their results as inputs, and saves the
//! checkpoint after each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollway_config::{AlgorithmConfig, Config, SyncStyle};
use rollway_core::BatchResult;
use rollway_core::explore::{
    Plan, PlanAction, PlanConfig, PlanInput, PlanProgress, PlanStyle, SyncResult,
};
use rollway_tasksets::{TaskRef, TaskStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::checkpoint::{CheckpointFile, ExplorerCheckpoint, JobCounts};
use super::evals::Finished;
use super::finalize::{self, Finalized};
use super::resources::ExplorerResources;
use super::trainer_watch::{TrainerEvent, TrainerWatch};
use super::{
    ExploreSummary, ExplorerError, JobEvent, Result, WaitReason, evals, step_metrics, weights,
};

/// Checks that a step with successful runs delivered experiences from which an algorithm learns.
///
/// # Errors
/// If no experience has a reward: no step would train anything.
fn check_delivered(
    step: u64,
    result: &BatchResult,
    delivered: u64,
    algorithm: &AlgorithmConfig,
) -> Result<()> {
    if delivered > 0 {
        let is_unrewarded = step_metrics::unrewarded(result) >= delivered;
        return match is_unrewarded && algorithm.needs_rewards() {
            true => Err(ExplorerError::NoReward { step, experiences: delivered }),
            false => Ok(()),
        };
    }
    let tasks = result.tasks.ok + result.tasks.partial;
    if tasks == 0 {
        return Ok(());
    }
    let dropped = step_metrics::dropped(result);
    if step_metrics::is_without_reward(&dropped) {
        return Err(ExplorerError::NoReward { step, experiences: dropped.values().sum() });
    }
    let reasons = dropped.iter().map(|(reason, count)| format!("{count} {reason}"));
    let reasons = reasons.collect::<Vec<_>>().join(", ");
    tracing::warn!(
        step,
        tasks,
        reasons,
        "no experience of this step was delivered to the trainer; the pipeline dropped all"
    );
    Ok(())
}

/// Tasks shared by several actions. Reading blocks, so it runs on threads for blocking calls.
#[derive(Clone, Debug)]
pub(super) struct SharedTasks(Arc<Mutex<TaskStream>>);

impl SharedTasks {
    fn new(tasks: TaskStream) -> Self {
        Self(Arc::new(Mutex::new(tasks)))
    }

    /// Calls a function with the tasks.
    pub(super) async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut TaskStream) -> T + Send + 'static,
    ) -> Result<T> {
        let tasks = Arc::clone(&self.0);
        let act = move || act(&mut tasks.lock());
        let done = tokio::task::spawn_blocking(act).await;
        done.map_err(|error| ExplorerError::NotNow(format!("reading tasks failed: {error}")))
    }
}

#[derive(Debug)]
pub(super) struct JobTasksets {
    /// Train tasks and their number of steps. `None`: mode `bench`.
    train: Option<(SharedTasks, u64)>,
    /// Eval tasks by name of the taskset.
    pub(super) evals: Vec<(Arc<str>, SharedTasks)>,
}

impl JobTasksets {
    pub(super) fn new(train: Option<TaskStream>, evals: Vec<TaskStream>, batch_size: u32) -> Self {
        let named = |tasks: TaskStream| {
            let name = tasks.sources().next().map_or_else(|| "".into(), |it| Arc::clone(&it.name));
            (name, SharedTasks::new(tasks))
        };
        let train = train.map(|tasks| {
            let steps = tasks.total_batches(batch_size);
            (SharedTasks::new(tasks), steps)
        });
        Self { train, evals: evals.into_iter().map(named).collect() }
    }
}

/// State of an explorer.
#[derive(Debug)]
pub(super) struct ExplorerLoop {
    pub(super) plan: Plan,
    plan_config: PlanConfig,
    file: Option<CheckpointFile>,
    pub(super) sets: JobTasksets,
    /// Tasks of the steps that are begun and not finalized.
    pub(super) in_flight: BTreeMap<u64, Vec<TaskRef>>,
    /// Progress in the last saved checkpoint.
    saved: Option<PlanProgress>,
    pub(super) counts: JobCounts,
    /// Version in the servers at the start of each step of this process.
    pub(super) begun_with: BTreeMap<u64, u64>,
    /// Start of the evaluations of each step of this process.
    pub(super) evals_since: BTreeMap<u64, Instant>,
    /// Version in the servers at the start of the evaluations of each step of this process.
    pub(super) evals_begun_with: BTreeMap<u64, u64>,
    /// Start of exploring in this process.
    since: Option<Instant>,
    /// Time of the last weight sync.
    period_since: Instant,
}

/// Result of an action.
enum StepDone {
    Finalized(Finalized),
    EvalFinished(Finished),
    Synced { step: u64, outcome: SyncResult, waited: Duration, loading: Duration },
    Loaded { version: u64, loading: Duration },
}

impl ExplorerLoop {
    pub(super) fn new(
        config: &Config,
        file: Option<CheckpointFile>,
        sets: JobTasksets,
        saved: Option<ExplorerCheckpoint>,
    ) -> Self {
        let total_steps = sets.train.as_ref().map_or(0, |(_, steps)| *steps);
        let plan_config = plan_config(config, !sets.evals.is_empty(), total_steps);
        let mut progress = saved.as_ref().map(ExplorerCheckpoint::progress).unwrap_or_default();
        if saved.as_ref().is_some_and(|saved| saved.total_steps < total_steps) {
            // The job has been extended.
            (progress.last, progress.closed) = (None, None);
        }
        let in_flight = saved.as_ref().map(ExplorerCheckpoint::in_flight).unwrap_or_default();
        Self {
            plan: Plan::new(plan_config.clone(), progress),
            plan_config,
            file,
            sets,
            in_flight,
            saved: None,
            counts: saved.map(|saved| saved.counts).unwrap_or_default(),
            begun_with: BTreeMap::new(),
            evals_since: BTreeMap::new(),
            evals_begun_with: BTreeMap::new(),
            since: None,
            period_since: Instant::now(),
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.plan.progress().version
    }

    pub(super) fn train(&self) -> Result<SharedTasks> {
        let none = || ExplorerError::NotNow("mode `bench` has no train tasks".to_owned());
        self.sets.train.as_ref().map(|(tasks, _)| tasks.clone()).ok_or_else(none)
    }

    /// Explores until all steps are done or the explorer is stopped.
    pub(super) async fn explore(
        &mut self,
        resources: &ExplorerResources,
        stop: &CancellationToken,
    ) -> Result<ExploreSummary> {
        self.since.get_or_insert_with(Instant::now);
        self.period_since = Instant::now();
        let (done, total) = (self.plan.progress().finalized, self.plan.last_step());
        resources.emit_began(done, total, resources.config.buffer.batch_size);
        // A finished job needs no weights.
        if self.plan.clone().actions() != [PlanAction::End] {
            tokio::select! {
                recovered = self.recover_weights(resources) => recovered?,
                () = stop.cancelled() => {}
            }
        }
        self.resume_batches(resources).await?;
        resources.report_fleet(None).await;
        // Opening the buffer has opened its writer again, and the trainer waits for its end.
        if self.plan.is_closed()
            && let Some(sink) = &resources.sink
        {
            sink.close().await.map_err(ExplorerError::Pipeline)?;
        }
        let mut actions = JoinSet::new();
        let mut watch = TrainerWatch::new(resources, &self.plan_config, self.version());
        while !self.plan.is_over() {
            if stop.is_cancelled() {
                self.plan.apply(PlanInput::Stopped);
                continue;
            }
            let next = self.plan.actions();
            // After a crash the plan repeats actions that were not completed.
            self.save_if_changed().await?;
            for action in &next {
                self.perform(resources, *action, &mut actions).await?;
            }
            if !next.is_empty() {
                continue;
            }
            let idle = actions.is_empty().then(|| self.plan.progress().begun + 1);
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                Some(done) = actions.join_next() => {
                    let broken = |error| format!("an action of the explorer panicked: {error}");
                    let done = done.map_err(|error| ExplorerError::NotNow(broken(error)))??;
                    self.done(resources, done).await?;
                    watch.wake(self.version());
                }
                Some(event) = next_trainer_event(resources, &mut watch, idle) => {
                    self.trainer_event(event)?;
                }
                else => {
                    let message = "the explorer has no action left, but its plan is not \
                     finished".to_owned();
                    return Err(ExplorerError::NotNow(message));
                }
            }
        }
        self.save().await?;
        Ok(self.explored(stop.is_cancelled()))
    }

    fn explored(&self, stopped: bool) -> ExploreSummary {
        let progress = self.plan.progress();
        let (steps, version) = (progress.finalized, progress.version);
        ExploreSummary { steps, version, stopped, counts: self.counts_now() }
    }

    async fn perform(
        &mut self,
        resources: &ExplorerResources,
        action: PlanAction,
        actions: &mut JoinSet<Result<StepDone>>,
    ) -> Result<()> {
        let (handles, have) = (resources.handles(), self.version());
        match action {
            PlanAction::BeginStep(step) => self.begin(resources, step).await?,
            PlanAction::Evaluate(step) => self.evaluate(resources, step).await?,
            PlanAction::FinalizeStep(step) => {
                let (tasks, task_refs) = (self.train()?, self.in_flight.get(&step).cloned());
                let task_refs = task_refs.unwrap_or_default();
                actions.spawn(async move {
                    finalize::finalize(handles, step, task_refs, tasks)
                        .await
                        .map(StepDone::Finalized)
                });
            }
            PlanAction::FinishEval(step) => {
                let sets = self.sets.evals.iter().map(|(name, _)| Arc::clone(name)).collect();
                let since = self.evals_since.remove(&step).unwrap_or_else(Instant::now);
                actions.spawn(async move {
                    evals::finish(handles, step, sets, since).await.map(StepDone::EvalFinished)
                });
            }
            PlanAction::Sync { step, at_least } => {
                let demand = matches!(
                    self.plan_config.style,
                    PlanStyle::ExplorerDriven | PlanStyle::FullyAsync
                );
                actions.spawn(async move {
                    let request =
                        weights::SyncRequest { step, have, at_least, demand, is_last: false };
                    synced(step, weights::sync(&handles, &request).await)
                });
            }
            PlanAction::FinishTraining => {
                let step = self.plan.progress().finalized;
                actions
                    .spawn(async move { synced(step, weights::close(&handles, step, have).await) });
            }
            PlanAction::Load => {
                actions.spawn(async move {
                    let (version, loading) = weights::load_newest(&handles, have).await?;
                    Ok(StepDone::Loaded { version, loading })
                });
            }
            PlanAction::End => {}
        }
        Ok(())
    }

    async fn done(&mut self, resources: &ExplorerResources, done: StepDone) -> Result<()> {
        match done {
            StepDone::Finalized(finalized) => self.finalized(resources, finalized).await?,
            StepDone::EvalFinished(finished) => self.eval_finished(resources, finished).await?,
            StepDone::Synced { step, outcome, waited, loading } => {
                self.plan.apply(PlanInput::Synced(outcome));
                self.period_since = Instant::now();
                let version = self.version();
                self.save_if_changed().await?;
                resources.watchers.emit(&JobEvent::Synced { step, version, waited, loading });
            }
            StepDone::Loaded { version, loading } => {
                self.plan.apply(PlanInput::Loaded(version));
                self.save_if_changed().await?;
                let (step, waited) = (self.plan.progress().finalized, Duration::ZERO);
                let version = self.version();
                resources.watchers.emit(&JobEvent::Synced { step, version, waited, loading });
            }
        }
        Ok(())
    }

    fn trainer_event(&mut self, event: TrainerEvent) -> Result<()> {
        match event {
            TrainerEvent::Published(version) => self.plan.apply(PlanInput::Published(version)),
            TrainerEvent::TrainerDone => self.plan.apply(PlanInput::TrainerDone),
            TrainerEvent::TrainerFailed(reason) => {
                return Err(ExplorerError::TrainerFailed(reason));
            }
        }
        Ok(())
    }

    async fn finalized(
        &mut self,
        resources: &ExplorerResources,
        finalized: Finalized,
    ) -> Result<()> {
        let Finalized { step, result, waited, reruns, from_ledger } = finalized;
        let task_refs = self.in_flight.remove(&step).unwrap_or_default();
        self.feed_back(resources, &result, &task_refs, from_ledger).await?;
        let delivered = step_metrics::experiences(&result);
        let good = result.tasks.ok + result.tasks.partial;
        self.counts.tasks_finished += good;
        self.counts.tasks_failed += result.tasks.total() - good;
        self.counts.experiences_delivered += delivered;
        let ends_period = self.plan_config.has_periods()
            && step == self.plan_config.sync_after(self.plan.progress().synced);
        self.plan.apply(PlanInput::Finalized { step, delivered });
        self.save_if_changed().await?;
        let mut metrics =
            step_metrics::step(&result, &resources.config, self.begun_with.remove(&step));
        metrics.set("explorer/time/wait_explore_step", waited.as_secs_f64());
        if ends_period {
            let period = self.period_since.elapsed().as_secs_f64();
            metrics.set("explorer/time/sync_interval", period);
        }
        if reruns > 0 {
            metrics.set("rollout/rerun_count", f64::from(reruns));
        }
        let algorithm = &resources.config.algorithm;
        let checked = check_delivered(step, &result, delivered, algorithm);
        resources.watchers.emit(&JobEvent::StepDone { step, result, metrics, waited });
        checked
    }

    /// Passes the pass rates of tasks to the selectors.
    async fn feed_back(
        &mut self,
        resources: &ExplorerResources,
        result: &BatchResult,
        task_refs: &[TaskRef],
        from_ledger: bool,
    ) -> Result<()> {
        let mut rates =
            resources.sink.as_ref().map(|sink| sink.take_feedback()).unwrap_or_default();
        if from_ledger && rates.is_empty() && step_metrics::has_pass_rates(&resources.config) {
            // The earlier process that delivered them had the feedback.
            rates.push(step_metrics::pass_rates(result, task_refs));
        }
        if rates.is_empty() {
            return Ok(());
        }
        let feed_back = move |tasks: &mut TaskStream| {
            for rates in &rates {
                tasks.feedback(rates);
            }
        };
        self.train()?.with(feed_back).await
    }

    fn counts_now(&self) -> JobCounts {
        let mut counts = self.counts.clone();
        counts.seconds += self.since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        counts
    }

    /// Saves the checkpoint if the plan has progressed.
    pub(super) async fn save_if_changed(&mut self) -> Result<()> {
        if self.saved.as_ref() == Some(self.plan.progress()) {
            return Ok(());
        }
        self.save().await?;
        self.saved = Some(self.plan.progress().clone());
        Ok(())
    }

    /// Saves the checkpoint.
    pub(super) async fn save(&self) -> Result<()> {
        let (Some(file), Some((tasks, _))) = (&self.file, &self.sets.train) else {
            return Ok(());
        };
        let tasks = tasks.with(|tasks| tasks.state()).await?;
        let progress = self.plan.progress();
        let total = self.plan_config.total_steps;
        file.save(file.saved(progress, &self.in_flight, tasks, self.counts_now(), total)).await
    }
}

/// Returns the next event of the trainer. `idle`: the next step, if it waits for that event.
async fn next_trainer_event(
    resources: &ExplorerResources,
    watch: &mut TrainerWatch,
    idle: Option<u64>,
) -> Option<TrainerEvent> {
    match idle {
        Some(step) => {
            let reason = WaitReason::Staleness { step };
            resources.waits.log_during(reason, None, watch.next()).await
        }
        None => watch.next().await,
    }
}

fn plan_config(config: &Config, evaluates: bool, total_steps: u64) -> PlanConfig {
    let (explorer, sync) = (&config.explorer, &config.synchronizer);
    let runs = u64::from(config.algorithm.repeat_times);
    PlanConfig {
        style: match sync.sync_style {
            SyncStyle::Fixed => PlanStyle::Fixed,
            SyncStyle::ExplorerDriven => PlanStyle::ExplorerDriven,
            SyncStyle::TrainerDriven => PlanStyle::TrainerDriven,
            SyncStyle::FullyAsync => PlanStyle::FullyAsync,
        },
        sync_interval: sync.sync_interval.into(),
        sync_offset: sync.sync_offset.into(),
        max_inflight: explorer.max_inflight_batches.into(),
        max_staleness: sync.max_staleness.map(u64::from),
        step_experiences: u64::from(config.buffer.batch_size) * runs,
        train_batch_size: config.buffer.train_batch_size.into(),
        eval_interval: evaluates.then_some(explorer.eval_interval.into()),
        eval_on_startup: explorer.eval_on_startup,
        eval_at_end: explorer.eval_at_end,
        eval_single_version: explorer.eval_single_version,
        total_steps,
    }
}

fn synced(step: u64, done: Result<(SyncResult, Duration, Duration)>) -> Result<StepDone> {
    done.map(|(outcome, waited, loading)| StepDone::Synced { step, outcome, waited, loading })
}
