//! What there is to show: everything that was seen of a job, without a clock of its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rollway::explorer::{Beat, Event};
use rollway_core::metrics::Metrics;
use rollway_core::{BatchResult, RunTally};

use super::JobTitle;
use super::series::Series;
use super::summary::FinalSummary;

/// The mean reward of a step.
pub const REWARD: &str = "rollout/reward/mean";

/// The experiences of a step.
const EXPERIENCES: &str = "experience_pipeline/experience_count";

/// How far back the speed of now reaches.
const SPEED_WINDOW: Duration = Duration::from_secs(10);

/// Steps that the time left is estimated from.
const PACE_MARKS: usize = 64;

/// Everything that was seen of a job.
#[derive(Clone, Debug)]
pub struct ProgressModel {
    /// The job as a whole.
    pub title: JobTitle,
    /// Time since the view began.
    pub now: Duration,
    /// Whether everything is ready and the loop has begun.
    pub has_begun: bool,
    /// The last step that was finalized.
    pub done: u64,
    /// Steps of the whole job, if known.
    pub total: Option<u64>,
    /// Runners.
    pub runners: u64,
    /// Steps in flight, with their tasks and runs.
    pub flight: BTreeMap<u64, (u64, u64)>,
    /// Mean rewards of steps.
    pub rewards: Series,
    /// Scores on each set, in the order of their names.
    pub evals: BTreeMap<Arc<str>, Series>,
    /// The version of the weights in the servers.
    pub version: Option<u64>,
    /// The last exchange of weights: how long the trainer and the servers took.
    pub exchange: Option<(Duration, Duration)>,
    /// The last step of the trainer.
    pub trained: Option<u64>,
    /// Numbers of this moment, since the process was started.
    pub beat: Option<Beat>,
    /// Alarms that are raised now, in words.
    pub alarms: BTreeMap<&'static str, String>,
    /// What has been done since the view began.
    pub account: FinalSummary,
    /// Runs of what is not in flight any more.
    settled: RunTally,
    marks: VecDeque<(Duration, u64)>,
    tokens: VecDeque<(Duration, u64)>,
}

impl ProgressModel {
    /// Returns a screen that nothing was seen on.
    pub fn new(title: JobTitle) -> Self {
        Self {
            title,
            now: Duration::ZERO,
            has_begun: false,
            done: 0,
            total: None,
            runners: 0,
            flight: BTreeMap::new(),
            rewards: Series::default(),
            evals: BTreeMap::new(),
            version: None,
            exchange: None,
            trained: None,
            beat: None,
            alarms: BTreeMap::new(),
            settled: RunTally::default(),
            account: FinalSummary::default(),
            marks: VecDeque::new(),
            tokens: VecDeque::new(),
        }
    }

    /// Takes in what happened.
    pub fn see(&mut self, event: &Event, now: Duration) {
        self.pass(now);
        match event {
            Event::Began { done_steps, total_steps, runners, .. } => {
                self.has_begun = true;
                self.done = *done_steps;
                self.total = *total_steps;
                self.runners = u64::from(*runners);
            }
            Event::StepBegun { step, tasks, runs } => {
                // What was before the first step, such as a first evaluation, says nothing about
                // the pace of steps.
                if self.marks.is_empty() {
                    self.marks.push_back((now, self.done));
                }
                self.flight.insert(*step, (*tasks, *runs));
            }
            Event::StepDone { step, result, metrics, .. } => self.step_done(*step, result, metrics),
            Event::Evaluated { step, version, set, score, result, .. } => {
                self.version = Some(*version);
                self.account.evaluated(result);
                self.settled.add(&result.runs);
                if let Some(score) = score {
                    self.evals.entry(Arc::clone(set)).or_default().push(*step, *score);
                    self.account.scored(set, *step, *score);
                }
            }
            Event::Synced { version, waited, loading, .. } => {
                self.exchange = Some((*waited, *loading));
                self.version = Some(*version);
            }
            Event::Trained { step, .. } => {
                self.trained = Some(*step);
                self.account.trained += 1;
            }
            Event::Alarm(alarm) => {
                if alarm.raised {
                    self.alarms.insert(alarm.kind, alarm.words.clone());
                } else {
                    self.alarms.remove(alarm.kind);
                }
            }
            Event::Note(_) | Event::Pulse(_) => {}
        }
    }

    fn step_done(&mut self, step: u64, result: &BatchResult, metrics: &Metrics) {
        self.done = self.done.max(step);
        self.flight.retain(|flying, _| *flying > step);
        if let Some(reward) = metrics.get(REWARD) {
            self.rewards.push(step, reward);
        }
        let experiences = metrics.get(EXPERIENCES).map_or(result.delivered, |count| count as u64);
        self.account.explored(result, experiences);
        self.settled.add(&result.runs);
        // Steps that are finalized together are one mark: what lies between them is no pace.
        match self.marks.back_mut() {
            Some(last) if self.now.saturating_sub(last.0) < Duration::from_millis(50) => {
                last.1 = self.done;
            }
            _ => self.marks.push_back((self.now, self.done)),
        }
        if self.marks.len() > PACE_MARKS {
            self.marks.pop_front();
        }
    }

    /// Takes in the numbers of this moment.
    pub fn beat(&mut self, beat: Beat, now: Duration) {
        self.pass(now);
        self.beat = Some(beat);
        self.account.tokens = beat.answer_tokens;
        let is_due = |last: &(Duration, u64)| now >= last.0 + SPEED_WINDOW / 20;
        if self.tokens.back().is_none_or(is_due) {
            self.tokens.push_back((now, beat.answer_tokens));
        }
        while self.tokens.front().is_some_and(|first| first.0 + SPEED_WINDOW < now) {
            self.tokens.pop_front();
        }
    }

    /// Lets time pass.
    pub fn pass(&mut self, now: Duration) {
        self.now = now;
        self.account.seconds = now.as_secs_f64();
    }

    /// Returns how many runs of what is in flight ended well, and how many failed.
    pub fn ended(&self) -> (u64, u64) {
        let beat = self.beat.unwrap_or_default();
        let done = beat.done.saturating_sub(self.settled.succeeded);
        (done, beat.failed.saturating_sub(self.settled.failed.total()))
    }

    /// Returns how many tokens a second there were lately.
    pub fn speed(&self) -> Option<f64> {
        let ((from, few), (to, many)) = (self.tokens.front()?, self.tokens.back()?);
        let seconds = to.saturating_sub(*from).as_secs_f64();
        (seconds >= 0.5).then(|| many.saturating_sub(*few) as f64 / seconds)
    }

    /// Returns how long the steps that are left will take, if the pace of the last ones holds.
    pub fn left(&self) -> Option<Duration> {
        let total = self.total?;
        let last = self.marks.back()?;
        // The later half: what is slower or faster than at first counts soon, what is slower or
        // faster once does not count much.
        let from = self.marks.get((self.marks.len() - 1) / 2)?;
        let steps = last.1.checked_sub(from.1).filter(|steps| *steps > 0)?;
        let seconds = last.0.saturating_sub(from.0).as_secs_f64() / steps as f64;
        let left = total.saturating_sub(self.done);
        // Time passes also between steps; but what is in flight and does not end makes nothing
        // else faster.
        let least = left.saturating_sub((self.flight.len() as u64).max(1)) as f64 * seconds;
        let since = self.now.saturating_sub(last.0).as_secs_f64();
        Duration::try_from_secs_f64((left as f64 * seconds - since).max(least)).ok()
    }

    /// Returns the steps that curves go from and to.
    pub fn span(&self) -> (u64, u64) {
        let curves = || self.evals.values().chain([&self.rewards]);
        let first = curves().filter_map(|curve| Some(curve.first()?.0)).min();
        let last = curves().filter_map(|curve| Some(curve.last()?.0)).max();
        (first.unwrap_or(0), last.unwrap_or(0).max(first.unwrap_or(0)))
    }
}
