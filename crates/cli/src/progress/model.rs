//! State of the progress view: accumulates events and samples. Has no clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rollway::config::Mode;
use rollway::explorer::{JobEvent, JobWait, StatsSample};
use rollway_core::metrics::Metrics;
use rollway_core::{BatchResult, RunTally};

use super::JobTitle;
use super::series::Series;
use super::summary::FinalSummary;

/// Metric with the mean reward of a step.
pub const REWARD_METRIC: &str = "rollout/reward/mean";

/// Metric with the number of experiences of a step.
const EXPERIENCES_METRIC: &str = "experience_pipeline/experience_count";

/// Time that the token rate is averaged over.
const TOKEN_RATE_WINDOW: Duration = Duration::from_secs(10);

/// Maximum number of finished steps that the remaining time is estimated from.
const MAX_PACE_MARKS: usize = 64;

/// Accumulated state of a job.
#[derive(Clone, Debug, Default)]
pub struct ProgressModel {
    pub title: JobTitle,
    /// Time since the view started.
    pub now: Duration,
    pub has_started: bool,
    /// Last finalized step; in mode `train` the last train step.
    pub done_steps: u64,
    /// Steps of the whole job, if known.
    pub total_steps: Option<u64>,
    pub runners: u64,
    /// Tasks and runs of each step in flight.
    pub in_flight: BTreeMap<u64, (u64, u64)>,
    pub rewards: Series,
    /// Scores by evaluation set.
    pub evals: BTreeMap<Arc<str>, Series>,
    pub version: Option<u64>,
    /// Last weight sync: time waiting for the trainer, time loading.
    pub last_sync: Option<(Duration, Duration)>,
    pub train_step: Option<u64>,
    pub sample: Option<StatsSample>,
    /// Current wait and its start. `None`: the job makes progress.
    pub wait: Option<(JobWait, Duration)>,
    /// Messages of raised alarms, by kind.
    pub alarms: BTreeMap<&'static str, String>,
    /// Totals since the view started.
    pub summary: FinalSummary,
    /// Runs of finalized steps and evaluations.
    settled: RunTally,
    /// Times at which steps were finalized.
    pace_marks: VecDeque<(Duration, u64)>,
    tokens: VecDeque<(Duration, u64)>,
}

impl ProgressModel {
    pub fn new(title: JobTitle) -> Self {
        Self { title, ..Self::default() }
    }

    pub fn on_event(&mut self, event: &JobEvent, now: Duration) {
        self.advance_clock(now);
        match event {
            JobEvent::Began { done_steps, total_steps, runners, .. } => {
                self.has_started = true;
                self.done_steps = *done_steps;
                self.total_steps = *total_steps;
                self.runners = u64::from(*runners);
            }
            JobEvent::StepBegun { step, tasks, runs } => {
                // Time before the first step, such as an evaluation, does not count as pace.
                if self.pace_marks.is_empty() {
                    self.pace_marks.push_back((now, self.done_steps));
                }
                self.in_flight.insert(*step, (*tasks, *runs));
            }
            JobEvent::StepDone { step, result, metrics, .. } => {
                self.step_done(*step, result, metrics)
            }
            JobEvent::Evaluated { step, version, set, score, result, .. } => {
                self.version = Some(*version);
                self.summary.add_batch(result);
                self.settled.add(&result.runs);
                if let Some(score) = score {
                    self.evals.entry(Arc::clone(set)).or_default().push(*step, *score);
                    self.summary.add_score(set, *step, *score);
                }
            }
            JobEvent::Synced { version, waited, loading, .. } => {
                self.last_sync = Some((*waited, *loading));
                self.version = Some(*version);
            }
            JobEvent::Trained { step, .. } => {
                self.train_step = Some(*step);
                self.summary.trained += 1;
                // Other modes count explored steps.
                if self.title.mode == Mode::Train {
                    self.done_steps = self.done_steps.max(*step);
                    self.mark_pace();
                }
            }
            JobEvent::Alarm(alarm) => {
                if alarm.raised {
                    self.alarms.insert(alarm.kind, alarm.message.clone());
                } else {
                    self.alarms.remove(alarm.kind);
                }
            }
            JobEvent::WaitBegun(wait) => {
                if !wait.reason.is_work() {
                    self.wait = Some((wait.clone(), now));
                }
            }
            JobEvent::WaitEnded(wait) => {
                self.wait.take_if(|(current, _)| current.id == wait.id);
            }
            JobEvent::Info(_) | JobEvent::Ready(_) => {}
        }
    }

    fn step_done(&mut self, step: u64, result: &BatchResult, metrics: &Metrics) {
        self.done_steps = self.done_steps.max(step);
        self.in_flight.retain(|started, _| *started > step);
        if let Some(reward) = metrics.get(REWARD_METRIC) {
            self.rewards.push(step, reward);
        }
        let experiences =
            metrics.get(EXPERIENCES_METRIC).map_or(result.delivered, |count| count as u64);
        self.summary.add_step(result, experiences);
        self.settled.add(&result.runs);
        self.mark_pace();
    }

    /// Records the time of the last done step.
    fn mark_pace(&mut self) {
        // Steps that are finalized together are one mark.
        match self.pace_marks.back_mut() {
            Some(last) if self.now.saturating_sub(last.0) < Duration::from_millis(50) => {
                last.1 = self.done_steps;
            }
            _ => self.pace_marks.push_back((self.now, self.done_steps)),
        }
        if self.pace_marks.len() > MAX_PACE_MARKS {
            self.pace_marks.pop_front();
        }
    }

    pub fn on_sample(&mut self, sample: StatsSample, now: Duration) {
        self.advance_clock(now);
        self.sample = Some(sample);
        self.summary.tokens = sample.answer_tokens;
        let is_due = |last: &(Duration, u64)| now >= last.0 + TOKEN_RATE_WINDOW / 20;
        if self.tokens.back().is_none_or(is_due) {
            self.tokens.push_back((now, sample.answer_tokens));
        }
        while self.tokens.front().is_some_and(|first| first.0 + TOKEN_RATE_WINDOW < now) {
            self.tokens.pop_front();
        }
    }

    pub fn advance_clock(&mut self, now: Duration) {
        self.now = now;
        self.summary.seconds = now.as_secs_f64();
    }

    /// Returns the succeeded and failed runs of the steps in flight.
    pub fn ended_runs(&self) -> (u64, u64) {
        let sample = self.sample.unwrap_or_default();
        let done = sample.done.saturating_sub(self.settled.succeeded);
        (done, sample.failed.saturating_sub(self.settled.failed.total()))
    }

    /// Returns the current tokens per second.
    pub fn token_rate(&self) -> Option<f64> {
        let ((from, few), (to, many)) = (self.tokens.front()?, self.tokens.back()?);
        let seconds = to.saturating_sub(*from).as_secs_f64();
        (seconds >= 0.5).then(|| many.saturating_sub(*few) as f64 / seconds)
    }

    /// Returns the estimated remaining time at the pace of the last steps.
    pub fn time_left(&self) -> Option<Duration> {
        let total = self.total_steps?;
        let last = self.pace_marks.back()?;
        // The later half: follows a change of pace and smooths single outliers.
        let from = self.pace_marks.get((self.pace_marks.len() - 1) / 2)?;
        let steps = last.1.checked_sub(from.1).filter(|steps| *steps > 0)?;
        let seconds = last.0.saturating_sub(from.0).as_secs_f64() / steps as f64;
        let left = total.saturating_sub(self.done_steps);
        // Time since the last step counts, but a step that hangs does not speed up the others.
        let min_left = left.saturating_sub((self.in_flight.len() as u64).max(1)) as f64 * seconds;
        let since = self.now.saturating_sub(last.0).as_secs_f64();
        Duration::try_from_secs_f64((left as f64 * seconds - since).max(min_left)).ok()
    }

    /// Returns the first and last step of all curves.
    pub fn step_range(&self) -> (u64, u64) {
        let curves = || self.evals.values().chain([&self.rewards]);
        let first = curves().filter_map(|curve| Some(curve.first()?.0)).min();
        let last = curves().filter_map(|curve| Some(curve.last()?.0)).max();
        (first.unwrap_or(0), last.unwrap_or(0).max(first.unwrap_or(0)))
    }
}
