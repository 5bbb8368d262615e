//! View and progress of the simulated job.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rollway_telemetry::view::{
    ActionResult, AlarmRow, BatchRow, BiasReport, ConfigReport, FailureRow, JobInfo, JobState,
    JobView, MetricRow, MetricSeries, Overview, RunDetail, RunKey, RunPage, RunQuery, RunRow,
    RunSort, RunState, RunnerRow, ServerReport, TaskDetail, TaskPage, TaskQuery, Timeline,
    UnixSeconds, ViewFuture,
};

use crate::runs::{DemoBatch, PACE, batches, describe, plan};
use crate::{Args, detail, groups, numbers, reports};

/// Runners of the job; the last three hang.
pub(crate) const RUNNERS: usize = 64;

/// Fixed time of `--still`.
const STILL: f64 = 1_794_823_200.0;

#[derive(Debug)]
pub(crate) struct Demo {
    pub(crate) state: String,
    still: bool,
    world: Mutex<World>,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) start: f64,
    pub(crate) batches: Vec<DemoBatch>,
    pub(crate) states: Vec<RunState>,
    pub(crate) began: Vec<f64>,
    pub(crate) running: Vec<usize>,
    /// First pending run.
    pub(crate) next: usize,
    pub(crate) events: u64,
    /// Last query of runs, with the number of events and its result.
    cached: Option<(RunQuery, u64, Vec<usize>)>,
}

impl Demo {
    pub(crate) fn new(args: &Args) -> Self {
        let tasks = if args.state == "empty" { 0 } else { args.tasks };
        let share = match (args.rate, args.state.as_str()) {
            (0, "finished" | "failed") => 1.0,
            (0, _) => 0.985,
            _ => 0.5,
        };
        let now = if args.still { STILL } else { clock() };
        let mut batches = batches(tasks, 0.0);
        let runs: usize = batches.iter().map(DemoBatch::len).sum();
        let current = ((batches.len() as f64 * share) as usize).min(batches.len());
        let passed =
            batches.get(current).or_else(|| batches.last()).map_or(0.0, |batch| batch.began);
        let start = now - passed - 0.6 * PACE;
        batches.iter_mut().for_each(|batch| batch.began += start);
        let mut world = World {
            start,
            batches,
            states: vec![RunState::Pending; runs],
            began: vec![0.0; runs],
            running: Vec::new(),
            next: 0,
            events: 0,
            cached: None,
        };
        let done: usize = world.batches[..current].iter().map(DemoBatch::len).sum();
        let rest = world.batches.get(current).map_or(0, |lot| lot.len() / 3);
        while world.next < (done + rest).min(runs) {
            world.begin(None);
            world.end_at(0);
        }
        if matches!(args.state.as_str(), "running" | "waiting") {
            (0..RUNNERS).for_each(|runner| {
                world.begin((runner >= RUNNERS - 3).then_some(now - 1311.0 - runner as f64));
            });
            // The stuck runs are the oldest.
            world.running.sort_by(|a, b| world.began[*a].total_cmp(&world.began[*b]));
        }
        Self { state: args.state.clone(), still: args.still, world: Mutex::new(world) }
    }

    /// Simulates events at a rate per second.
    pub(crate) fn keep_going(&self, rate: u32) {
        let pause = Duration::from_millis(20);
        loop {
            std::thread::sleep(pause);
            let mut world = self.world();
            for _ in 0..(f64::from(rate) * pause.as_secs_f64() / 2.0).ceil() as u32 {
                if world.next < world.states.len() {
                    // The first three runs are stuck.
                    let at = 3.min(world.running.len().saturating_sub(1));
                    world.end_at(at);
                    let now = clock();
                    world.begin(Some(now));
                }
            }
        }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state.as_str(), "running" | "waiting")
    }

    pub(crate) fn now(&self) -> UnixSeconds {
        if self.still { STILL } else { clock() }
    }
}

fn clock() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl World {
    /// Returns the index of a run's batch.
    pub(crate) fn batch_of(&self, index: usize) -> usize {
        self.batches.partition_point(|batch| batch.first <= index) - 1
    }

    fn begin(&mut self, at: Option<f64>) {
        let (index, batch) = (self.next, self.batch_of(self.next));
        let plan = plan(index, self.batches[batch].step);
        self.next += 1;
        self.events += 1;
        self.began[index] = at.unwrap_or(self.batches[batch].began + plan.after);
        self.states[index] = RunState::Running;
        self.running.push(index);
        let runs = &mut self.batches[batch].runs;
        runs.pending -= 1;
        runs.running += 1;
    }

    fn end_at(&mut self, at: usize) {
        if at >= self.running.len() {
            return;
        }
        let index = self.running.remove(at);
        let step = self.batches[self.batch_of(index)].step;
        self.end(index, plan(index, step).state);
    }

    fn end(&mut self, index: usize, state: RunState) {
        let batch = self.batch_of(index);
        let batch = &mut self.batches[batch];
        let from = self.states[index];
        let count = |runs: &mut rollway_telemetry::view::BatchRuns, state, by: i64| {
            let field = match state {
                RunState::Pending => &mut runs.pending,
                RunState::Running => &mut runs.running,
                RunState::Succeeded => &mut runs.succeeded,
                RunState::Failed => &mut runs.failed,
                RunState::Cancelled => &mut runs.cancelled,
            };
            *field = field.saturating_add_signed(by);
        };
        count(&mut batch.runs, from, -1);
        count(&mut batch.runs, state, 1);
        if state == RunState::Succeeded {
            batch.rewards += plan(index, batch.step).reward;
        }
        self.states[index] = state;
        self.events += 1;
    }

    /// Cancels a run; returns whether it was open.
    fn cancel(&mut self, index: usize) -> bool {
        if !matches!(self.states[index], RunState::Pending | RunState::Running) {
            return false;
        }
        self.running.retain(|running| *running != index);
        self.end(index, RunState::Cancelled);
        true
    }

    pub(crate) fn find(&self, key: &RunKey) -> Option<usize> {
        let batch = self.batches.iter().find(|batch| batch.name == key.batch)?;
        let exists = key.task < batch.tasks && key.run < batch.repeat;
        exists.then(|| batch.first + (key.task * batch.repeat + key.run) as usize)
    }

    pub(crate) fn describe(&self, index: usize, now: f64) -> RunRow {
        let batch = &self.batches[self.batch_of(index)];
        describe(batch, index, self.states[index], self.began[index], now)
    }

    fn matches(&self, index: usize, query: &RunQuery, now: f64) -> bool {
        if query.state.is_some_and(|state| state != self.states[index]) {
            return false;
        }
        let RunQuery { batch, task, kind, text, min_reward, max_reward, .. } = query;
        let is_bounded = min_reward.is_some() || max_reward.is_some();
        if batch.is_none() && task.is_none() && kind.is_none() && text.is_none() && !is_bounded {
            return true;
        }
        let run = self.describe(index, now);
        let has = |text: &String| {
            let message = run.message.as_deref().unwrap_or_default();
            let name = format!("{}/{}/{}", run.batch, run.task, run.run);
            [&*name, &*run.workflow, message].iter().any(|field| field.contains(text.as_str()))
        };
        let reward = run.reward.unwrap_or(f64::NAN);
        min_reward.is_none_or(|least| reward >= least)
            && max_reward.is_none_or(|most| reward <= most)
            && batch.as_ref().is_none_or(|batch| *batch == run.batch)
            && task.is_none_or(|task| task == run.task)
            && kind.as_ref().is_none_or(|kind| *kind == run.kind)
            && text.as_ref().is_none_or(has)
    }

    fn select(&self, query: &RunQuery, now: f64) -> Vec<usize> {
        let mut all: Vec<usize> =
            (0..self.states.len()).filter(|index| self.matches(*index, query, now)).collect();
        let value = |index: &usize| {
            let run = self.describe(*index, now);
            let value = match query.sort {
                RunSort::Order => Some(*index as f64),
                RunSort::Begin => run.begin,
                RunSort::End => run.end,
                RunSort::Seconds => run.seconds,
                RunSort::Reward => run.reward,
                RunSort::Tokens => run.tokens.map(|tokens| tokens as f64),
                RunSort::Attempts => Some(f64::from(run.attempts)),
                RunSort::State => Some(f64::from(run.state as u8)),
            };
            value.unwrap_or(f64::NEG_INFINITY)
        };
        if query.sort == RunSort::Order {
            if query.desc {
                all.reverse();
            }
            return all;
        }
        all.sort_by_cached_key(|index| {
            let bits = value(index).to_bits() as i64;
            let key = if bits < 0 { !bits ^ i64::MIN } else { bits };
            if query.desc { -(key as i128) } else { key as i128 }
        });
        all
    }
}

impl JobView for Demo {
    fn job(&self) -> JobInfo {
        let world = self.world();
        let now = self.now();
        let live = self.is_running() || self.state == "empty";
        let step =
            world.batches.iter().filter(|batch| batch.kind == "train" && batch.is_over()).count();
        JobInfo {
            name: "arithmetic-grpo".to_owned(),
            project: "examples".to_owned(),
            mode: "both".to_owned(),
            job_dir: "checkpoints/examples/arithmetic-grpo".to_owned(),
            state: match self.state.as_str() {
                "finished" => JobState::Finished,
                "failed" => JobState::Failed,
                _ => JobState::Running,
            },
            live,
            started: Some(world.start),
            ended: (!live).then_some(now),
            now,
            step: step as u64,
            total_steps: Some(240),
            version: step.saturating_sub(1) as u64,
            runners_wanted: RUNNERS as u64,
            message: (self.state == "failed")
                .then(|| "the trainer did not answer for 600 s".to_owned()),
        }
    }

    fn overview(&self) -> Overview {
        numbers::overview(self, &self.world())
    }

    fn timeline(&self) -> Timeline {
        numbers::timeline(self, &self.world())
    }

    fn batches(&self) -> Vec<BatchRow> {
        numbers::batches(self, &self.world())
    }

    fn runners(&self) -> ViewFuture<'_, Vec<RunnerRow>> {
        let runners = numbers::runners(self, &self.world());
        Box::pin(async move { runners })
    }

    fn runs(&self, query: &RunQuery) -> RunPage {
        let mut world = self.world();
        let now = self.now();
        let filter = RunQuery { offset: 0, limit: 0, ..query.clone() };
        // A result is valid for some events, for scrolling.
        let events = world.events;
        world.cached.take_if(|(known, at, _)| *known != filter || *at + 2000 <= events);
        if world.cached.is_none() {
            let all = world.select(&filter, now);
            let searching = filter.text.is_some();
            world.cached = Some((filter, events, all));
            if searching {
                // Found by the next query, as in a large history.
                return RunPage { searching, ..RunPage::default() };
            }
        }
        let all = world.cached.as_ref().map_or(&[][..], |(_, _, all)| all);
        let limit = if query.limit == 0 { 100 } else { query.limit };
        let page = all.iter().skip(query.offset).take(limit);
        let runs = page.map(|index| world.describe(*index, now)).collect();
        RunPage { total: all.len() as u64, runs, searching: false }
    }

    fn run(&self, key: &RunKey) -> Option<RunDetail> {
        let world = self.world();
        let index = world.find(key)?;
        Some(detail::of(&world, index, self.now()))
    }

    fn bias(&self) -> BiasReport {
        numbers::bias(&self.world())
    }

    fn alarms(&self) -> Vec<AlarmRow> {
        numbers::alarms(self)
    }

    fn servers(&self) -> ServerReport {
        reports::servers(self, &self.world())
    }

    fn failures(&self) -> Vec<FailureRow> {
        reports::failures(&self.world())
    }

    fn metrics(&self) -> Vec<MetricRow> {
        reports::metrics(&self.world())
    }

    fn series(&self, names: &[String]) -> Vec<MetricSeries> {
        reports::series(&self.world(), names)
    }

    fn config(&self) -> ConfigReport {
        reports::config()
    }

    fn tasks(&self, query: &TaskQuery) -> Option<TaskPage> {
        groups::tasks(&self.world(), query, self.now())
    }

    fn task(&self, batch: &str, task: u32) -> Option<TaskDetail> {
        groups::task(&self.world(), batch, task, self.now())
    }

    fn cancel_run<'a>(&'a self, key: &'a RunKey) -> ViewFuture<'a, ActionResult> {
        let mut world = self.world();
        let done = world.find(key).is_some_and(|index| world.cancel(index));
        world.cached = None;
        let name = format!("{}/{}/{}", key.batch, key.task, key.run);
        let message =
            if done { format!("Run {name} is cancelled.") } else { format!("{name} has ended") };
        Box::pin(async move { ActionResult { done, message } })
    }

    fn abort_batch<'a>(&'a self, batch: &'a str, _: bool) -> ViewFuture<'a, ActionResult> {
        let mut world = self.world();
        let found = world.batches.iter().position(|one| one.name == batch && !one.is_over());
        if let Some(at) = found {
            let (first, many) = (world.batches[at].first, world.batches[at].len());
            (first..first + many).for_each(|index| {
                world.cancel(index);
            });
            world.next = world.next.max(first + many);
            world.batches[at].aborted = true;
            world.cached = None;
        }
        let done = found.is_some();
        let message = if done { "aborted" } else { "it is over, or there is no such batch" };
        Box::pin(async move { ActionResult { done, message: message.to_owned() } })
    }
}
