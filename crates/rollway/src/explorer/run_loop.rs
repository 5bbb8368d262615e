//! The loop: takes orders from the plan, has them carried out, tells it what happened, and keeps
//! where it is after everything that did.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rollway_config::{Config, SyncStyle};
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
use super::{ExploreSummary, ExplorerError, JobEvent, Result, evals, step_metrics, weights};

/// Tasks that more than one order may need. Reading blocks, so a thread of its own is given to it.
#[derive(Clone, Debug)]
pub(super) struct SharedTasks(Arc<Mutex<TaskStream>>);

impl SharedTasks {
    fn new(tasks: TaskStream) -> Self {
        Self(Arc::new(Mutex::new(tasks)))
    }

    /// Does something with the tasks.
    pub(super) async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut TaskStream) -> T + Send + 'static,
    ) -> Result<T> {
        let tasks = Arc::clone(&self.0);
        let act = move || act(&mut tasks.lock().unwrap_or_else(PoisonError::into_inner));
        let done = tokio::task::spawn_blocking(act).await;
        done.map_err(|error| ExplorerError::NotNow(format!("the tasks cannot be read: {error}")))
    }
}

/// The tasks of a job.
#[derive(Debug)]
pub(super) struct JobTasksets {
    /// To train on, and how many steps they make; none in mode `bench`.
    train: Option<(SharedTasks, u64)>,
    /// To evaluate on, by name.
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

/// Where an explorer is.
#[derive(Debug)]
pub(super) struct ExplorerLoop {
    pub(super) plan: Plan,
    pace: PlanConfig,
    place: Option<CheckpointFile>,
    pub(super) sets: JobTasksets,
    /// The tasks of steps that are begun and not finalized.
    pub(super) in_flight: BTreeMap<u64, Vec<TaskRef>>,
    /// What was kept last.
    kept: Option<PlanProgress>,
    pub(super) counts: JobCounts,
    /// The version that the servers had when a step was begun in this process.
    pub(super) begun_with: BTreeMap<u64, u64>,
    /// Since when the evaluations of a step are under way in this process.
    pub(super) evals_since: BTreeMap<u64, Instant>,
    /// Since when this process explores.
    since: Option<Instant>,
    /// Since when there have been no other weights.
    period_since: Instant,
}

/// An order that is carried out.
enum StepDone {
    Finalized(Finalized),
    EvalFinished(Finished),
    Synced { step: u64, exchange: SyncResult, waited: Duration, loading: Duration },
    Loaded { version: u64, loading: Duration },
}

impl ExplorerLoop {
    pub(super) fn new(
        config: &Config,
        place: Option<CheckpointFile>,
        sets: JobTasksets,
        saved: Option<ExplorerCheckpoint>,
    ) -> Self {
        let total_steps = sets.train.as_ref().map_or(0, |(_, steps)| *steps);
        let pace = pace(config, !sets.evals.is_empty(), total_steps);
        let mut progress = saved.as_ref().map(ExplorerCheckpoint::progress).unwrap_or_default();
        if saved.as_ref().is_some_and(|saved| saved.total_steps < total_steps) {
            // Somebody has made the job longer.
            (progress.last, progress.closed) = (None, None);
        }
        let in_flight = saved.as_ref().map(ExplorerCheckpoint::in_flight).unwrap_or_default();
        Self {
            plan: Plan::new(pace.clone(), progress),
            pace,
            place,
            sets,
            in_flight,
            kept: None,
            counts: saved.map(|saved| saved.counts).unwrap_or_default(),
            begun_with: BTreeMap::new(),
            evals_since: BTreeMap::new(),
            since: None,
            period_since: Instant::now(),
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.plan.progress().version
    }

    /// Returns the tasks to train on.
    pub(super) fn train(&self) -> Result<SharedTasks> {
        let none = || ExplorerError::NotNow("mode `bench` has no tasks to train on".to_owned());
        self.sets.train.as_ref().map(|(tasks, _)| tasks.clone()).ok_or_else(none)
    }

    /// Explores until everything is done or somebody stops it.
    pub(super) async fn explore(
        &mut self,
        world: &ExplorerResources,
        stop: &CancellationToken,
    ) -> Result<ExploreSummary> {
        self.since.get_or_insert_with(Instant::now);
        self.period_since = Instant::now();
        self.tell_began(world);
        // A job that is done needs no weights.
        if self.plan.clone().orders() != [PlanAction::End] {
            tokio::select! {
                recovered = self.recover_weights(world) => recovered?,
                () = stop.cancelled() => {}
            }
        }
        self.resume_batches(world).await?;
        // Opening the buffer has opened its writer again, and the trainer waits for its end.
        if self.plan.is_closed()
            && let Some(sink) = &world.sink
        {
            sink.close().await.map_err(ExplorerError::Pipeline)?;
        }
        let mut under_way = JoinSet::new();
        let mut watch = TrainerWatch::new(world, &self.pace, self.version());
        while !self.plan.is_over() {
            if stop.is_cancelled() {
                self.plan.apply(PlanInput::Stopped);
                continue;
            }
            let orders = self.plan.orders();
            // What is about to be submitted is ordered again after a crash.
            self.keep().await?;
            for order in &orders {
                self.carry_out(world, *order, &mut under_way).await?;
            }
            if !orders.is_empty() {
                continue;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                Some(done) = under_way.join_next() => {
                    let broken = |error| format!("an order broke off: {error}");
                    let done = done.map_err(|error| ExplorerError::NotNow(broken(error)))??;
                    self.done(world, done).await?;
                    watch.poke(self.version());
                }
                Some(seen) = watch.next() => self.seen(seen)?,
                else => {
                    let what = "the explorer has nothing to do and is not done".to_owned();
                    return Err(ExplorerError::NotNow(what));
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

    fn tell_began(&self, world: &ExplorerResources) {
        let total = self.plan.last_step();
        world.watchers.emit(&JobEvent::Began {
            mode: world.config.mode,
            job_dir: world.config.job_dir(),
            done_steps: self.plan.progress().finalized,
            total_steps: Some(total),
            tasks_per_step: world.config.buffer.batch_size.into(),
            runners: world.runners,
        });
    }

    async fn carry_out(
        &mut self,
        world: &ExplorerResources,
        order: PlanAction,
        under_way: &mut JoinSet<Result<StepDone>>,
    ) -> Result<()> {
        let (hands, have) = (world.hands(), self.version());
        match order {
            PlanAction::BeginStep(step) => self.begin(world, step).await?,
            PlanAction::Evaluate(step) => self.evaluate(world, step).await?,
            PlanAction::FinalizeStep(step) => {
                let (tasks, picks) = (self.train()?, self.in_flight.get(&step).cloned());
                let picks = picks.unwrap_or_default();
                under_way.spawn(async move {
                    finalize::finalize(hands, step, picks, tasks).await.map(StepDone::Finalized)
                });
            }
            PlanAction::FinishEval(step) => {
                let sets = self.sets.evals.iter().map(|(name, _)| Arc::clone(name)).collect();
                let since = self.evals_since.remove(&step).unwrap_or_else(Instant::now);
                under_way.spawn(async move {
                    evals::finish(hands, step, sets, since).await.map(StepDone::EvalFinished)
                });
            }
            PlanAction::Sync { step, at_least } => {
                let demand =
                    matches!(self.pace.style, PlanStyle::ExplorerDriven | PlanStyle::FullyAsync);
                under_way.spawn(async move {
                    let asked = weights::SyncRequest { step, have, at_least, demand };
                    synced(step, weights::sync(&hands, &asked).await)
                });
            }
            PlanAction::FinishTraining => {
                let step = self.plan.progress().finalized;
                under_way
                    .spawn(async move { synced(step, weights::close(&hands, step, have).await) });
            }
            PlanAction::Load => {
                under_way.spawn(async move {
                    let (version, loading) = weights::load_newest(&hands, have).await?;
                    Ok(StepDone::Loaded { version, loading })
                });
            }
            PlanAction::End => {}
        }
        Ok(())
    }

    async fn done(&mut self, world: &ExplorerResources, done: StepDone) -> Result<()> {
        match done {
            StepDone::Finalized(finalized) => self.finalized(world, finalized).await?,
            StepDone::EvalFinished(finished) => self.eval_finished(world, finished).await?,
            StepDone::Synced { step, exchange, waited, loading } => {
                self.plan.apply(PlanInput::Synced(exchange));
                self.period_since = Instant::now();
                let version = self.version();
                self.keep().await?;
                world.watchers.emit(&JobEvent::Synced { step, version, waited, loading });
            }
            StepDone::Loaded { version, loading } => {
                self.plan.apply(PlanInput::Loaded(version));
                self.keep().await?;
                let (step, waited) = (self.plan.progress().finalized, Duration::ZERO);
                let version = self.version();
                world.watchers.emit(&JobEvent::Synced { step, version, waited, loading });
            }
        }
        Ok(())
    }

    /// What the trainer did without being asked.
    fn seen(&mut self, seen: TrainerEvent) -> Result<()> {
        match seen {
            TrainerEvent::Published(version) => self.plan.apply(PlanInput::Published(version)),
            TrainerEvent::TrainerDone => self.plan.apply(PlanInput::TrainerDone),
            TrainerEvent::TrainerFailed(why) => return Err(ExplorerError::TrainerFailed(why)),
        }
        Ok(())
    }

    async fn finalized(&mut self, world: &ExplorerResources, finalized: Finalized) -> Result<()> {
        let Finalized { step, result, waited, reruns, from_ledger } = finalized;
        let picks = self.in_flight.remove(&step).unwrap_or_default();
        self.learn(world, &result, &picks, from_ledger).await?;
        let delivered = step_metrics::experiences(&result);
        let good = result.tasks.ok + result.tasks.partial;
        self.counts.tasks_finished += good;
        self.counts.tasks_failed += result.tasks.total() - good;
        self.counts.experiences_delivered += delivered;
        let ends_period =
            self.pace.has_periods() && step == self.pace.sync_after(self.plan.progress().synced);
        self.plan.apply(PlanInput::Finalized { step, delivered });
        self.keep().await?;
        let mut metrics = step_metrics::step(&result, &world.config, self.begun_with.remove(&step));
        metrics.set("explorer/time/wait_explore_step", waited.as_secs_f64());
        if ends_period {
            let period = self.period_since.elapsed().as_secs_f64();
            metrics.set("explorer/time/sync_interval", period);
        }
        if reruns > 0 {
            metrics.set("rollout/rerun_count", f64::from(reruns));
        }
        world.watchers.emit(&JobEvent::StepDone { step, result, metrics, waited });
        Ok(())
    }

    /// Tells the selectors how tasks went.
    async fn learn(
        &mut self,
        world: &ExplorerResources,
        result: &BatchResult,
        picks: &[TaskRef],
        from_ledger: bool,
    ) -> Result<()> {
        let mut rates = world.sink.as_ref().map(|sink| sink.take_feedback()).unwrap_or_default();
        if from_ledger && rates.is_empty() && step_metrics::has_pass_rates(&world.config) {
            // The process that delivered them took it along.
            rates.push(step_metrics::pass_rates(result, picks));
        }
        if rates.is_empty() {
            return Ok(());
        }
        let learn = move |tasks: &mut TaskStream| {
            for rates in &rates {
                tasks.feedback(rates);
            }
        };
        self.train()?.with(learn).await
    }

    fn counts_now(&self) -> JobCounts {
        let mut counts = self.counts.clone();
        counts.seconds += self.since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        counts
    }

    /// Keeps where the explorer is, if that is elsewhere than when it was kept last.
    pub(super) async fn keep(&mut self) -> Result<()> {
        if self.kept.as_ref() == Some(self.plan.progress()) {
            return Ok(());
        }
        self.save().await?;
        self.kept = Some(self.plan.progress().clone());
        Ok(())
    }

    /// Keeps where the explorer is.
    pub(super) async fn save(&self) -> Result<()> {
        let (Some(place), Some((tasks, _))) = (&self.place, &self.sets.train) else {
            return Ok(());
        };
        let tasks = tasks.with(|tasks| tasks.state()).await?;
        let progress = self.plan.progress();
        let total = self.pace.total_steps;
        place.save(place.saved(progress, &self.in_flight, tasks, self.counts_now(), total)).await
    }
}

/// Returns how an explorer proceeds.
fn pace(config: &Config, evaluates: bool, total_steps: u64) -> PlanConfig {
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
        total_steps,
    }
}

fn synced(step: u64, done: Result<(SyncResult, Duration, Duration)>) -> Result<StepDone> {
    done.map(|(exchange, waited, loading)| StepDone::Synced { step, exchange, waited, loading })
}
