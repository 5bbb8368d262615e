//! Job events: steps, evaluations, weight syncs, training, alarms.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rollway_base::human;
use rollway_core::BatchState;

use super::record::JobNote;
use super::series::MetricCurves;
use crate::view::{
    AlarmRow, ConfigReport, EvalPoint, JobState, RewardPoint, StatsSample, TimelineLane,
    TimelineSpan,
};

/// Maximum number of spans of a lane and points of a curve.
const MAX_ENTRIES: usize = 5_000;

/// Maximum number of alarms.
const MAX_ALARMS: usize = 1_000;

/// Maximum number of samples. Above it every second one is removed.
const MAX_SAMPLES: usize = 600;

#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) name: String,
    pub(super) project: String,
    pub(super) mode: String,
    pub(super) job_dir: String,
    pub(super) started: Option<f64>,
    /// Orderly end of the last process.
    pub(super) closed: Option<f64>,
    pub(super) outcome: JobState,
    pub(super) error: Option<String>,
    pub(super) step: u64,
    pub(super) total_steps: Option<u64>,
    pub(super) version: u64,
    pub(super) runners: u32,
    pub(super) rewards: VecDeque<RewardPoint>,
    pub(super) evals: VecDeque<EvalPoint>,
    pub(super) alarms: VecDeque<AlarmRow>,
    /// Last `JobEvent::Info`.
    pub(super) info: Option<String>,
    pub(super) samples: Vec<StatsSample>,
    pub(super) curves: MetricCurves,
    pub(super) config: ConfigReport,
    /// Minimum distance of samples in seconds.
    interval: f64,
    steps: BTreeMap<u64, TimelineSpan>,
    /// Evaluations by batch number.
    sets: BTreeMap<u32, TimelineSpan>,
    syncs: VecDeque<TimelineSpan>,
    trained: VecDeque<TimelineSpan>,
    /// Number of dropped spans and points.
    pub(super) left_out: u64,
}

impl Notes {
    pub(super) fn apply(&mut self, at: f64, note: &JobNote) {
        match note {
            JobNote::Opened { name, project, mode, job_dir } => {
                self.started = self.started.or(Some(at));
                (self.closed, self.error) = (None, None);
                self.name.clone_from(name);
                self.project.clone_from(project);
                self.mode.clone_from(mode);
                self.job_dir.clone_from(job_dir);
                self.end_open(at);
            }
            JobNote::Began { done_steps, total_steps, runners } => {
                self.step = self.step.max(*done_steps);
                self.total_steps = *total_steps;
                self.runners = *runners;
            }
            JobNote::Batch { number, id, train: false, first: 0, .. } => {
                self.set_begun(at, *number, id)
            }
            JobNote::StepBegun { step, tasks, runs } => self.step_begun(at, *step, *tasks, *runs),
            JobNote::StepDone { step, mean, min, max, detail } => {
                self.step = self.step.max(*step);
                let (step, mean, min, max) = (*step, *mean, *min, *max);
                self.rewards.push_back(RewardPoint { step, at, mean, min, max });
                let span = self.steps.entry(step).or_insert_with(|| begun("step", step, at));
                end(span, at, "done", detail);
            }
            JobNote::Evaluated { step, set, score, .. } => self.evaluated(at, *step, set, *score),
            JobNote::Synced { step, version, waited, loading } => {
                self.version = *version;
                let mut span = begun("sync", *step, at - waited - loading);
                span.name = format!("v{version}");
                let [waited, loading] = [*waited, *loading].map(duration);
                let detail = format!("waited {waited}, loaded in {loading}");
                end(&mut span, at, "done", &detail);
                self.syncs.push_back(span);
            }
            JobNote::Trained { step, seconds, detail } => self.trained(at, *step, *seconds, detail),
            JobNote::Info { message } => self.info = Some(message.clone()),
            JobNote::Alarm { kind, message, raised } => {
                let (kind, message) = (kind.clone(), message.clone());
                self.alarms.push_front(AlarmRow { at, kind, message, raised: *raised });
                self.alarms.truncate(MAX_ALARMS);
            }
            JobNote::Beat { beat } => drop(self.add_sample(*beat)),
            JobNote::Closed { outcome, error } => {
                self.closed = Some(at);
                (self.outcome, self.error) = (*outcome, error.clone());
                self.end_open(at);
            }
            JobNote::Metrics { step, metrics } => self.curves.add(*step, metrics),
            JobNote::Config { report } => self.config = report.clone(),
            JobNote::Servers { .. }
            | JobNote::Batch { .. }
            | JobNote::Adopted { .. }
            | JobNote::State { .. }
            | JobNote::Totals { .. } => {}
        }
        self.trim();
    }

    /// Ends the open spans of an earlier process.
    fn end_open(&mut self, at: f64) {
        for span in self.steps.values_mut().chain(self.sets.values_mut()) {
            if span.end.is_none() {
                end(span, at, "interrupted", "");
            }
        }
    }

    fn step_begun(&mut self, at: f64, step: u64, tasks: u64, runs: u64) {
        let span = self.steps.entry(step).or_insert_with(|| begun("step", step, at));
        span.end = None;
        "running".clone_into(&mut span.state);
        span.detail = format!("{tasks} tasks, {runs} runs");
    }

    fn set_begun(&mut self, at: f64, number: u32, id: &str) {
        let (step, name) = id.split_once('/').unwrap_or(("", id));
        let mut span = begun("eval", step.parse().unwrap_or(0), at);
        span.id = format!("eval-{number}");
        name.clone_into(&mut span.name);
        self.sets.insert(number, span);
    }

    fn evaluated(&mut self, at: f64, step: u64, set: &str, score: Option<f64>) {
        self.evals.push_back(EvalPoint { step, at, set: set.to_owned(), score });
        let is_it = |span: &&mut TimelineSpan| span.name == set && span.step == step;
        if let Some(span) = self.sets.values_mut().rev().find(is_it) {
            let (state, detail) = match score {
                Some(score) => ("done", format!("score {score:.3}")),
                None => ("failed", "no run succeeded".to_owned()),
            };
            end(span, at, state, &detail);
        }
    }

    fn trained(&mut self, at: f64, step: u64, seconds: Option<f64>, detail: &str) {
        let last = self.trained.back().and_then(|span| span.end);
        let begin = seconds.map(|seconds| at - seconds).or(last).unwrap_or(at);
        let mut span = begun("train", step, begin.min(at));
        end(&mut span, at, "done", detail);
        self.trained.push_back(span);
    }

    pub(super) fn batch_ended(&mut self, number: u32, at: f64, state: BatchState) {
        if let Some(span) = self.sets.get_mut(&number).filter(|span| span.end.is_none()) {
            let is_good = state == BatchState::Finalized;
            end(span, at, if is_good { "done" } else { "interrupted" }, "");
        }
    }

    /// Adds a sample; returns whether it is kept.
    pub(super) fn add_sample(&mut self, sample: StatsSample) -> bool {
        let interval = self.interval.max(1.0);
        if self.samples.last().is_some_and(|last| sample.at < last.at + interval * 0.95) {
            return false;
        }
        self.samples.push(sample);
        if self.samples.len() > MAX_SAMPLES {
            let mut count = 0;
            self.samples.retain(|_| {
                count += 1;
                count % 2 == 1
            });
            self.interval = interval * 2.0;
        }
        true
    }

    fn trim(&mut self) {
        self.left_out += trim_list(&mut self.rewards)
            + trim_list(&mut self.evals)
            + trim_list(&mut self.syncs)
            + trim_list(&mut self.trained)
            + trim_map(&mut self.steps)
            + trim_map(&mut self.sets);
    }

    pub(super) fn lanes(&self) -> Vec<TimelineLane> {
        let lane =
            |name: &str, spans: Vec<TimelineSpan>| TimelineLane { name: name.to_owned(), spans };
        vec![
            lane("steps", self.steps.values().cloned().collect()),
            lane("evals", self.sets.values().cloned().collect()),
            lane("syncs", self.syncs.iter().cloned().collect()),
            lane("training", self.trained.iter().cloned().collect()),
        ]
    }
}

fn trim_list<T>(list: &mut VecDeque<T>) -> u64 {
    let excess = list.len().saturating_sub(MAX_ENTRIES);
    list.drain(..excess);
    excess as u64
}

fn trim_map<K: Ord, T>(map: &mut BTreeMap<K, T>) -> u64 {
    let excess = map.len().saturating_sub(MAX_ENTRIES);
    (0..excess).for_each(|_| drop(map.pop_first()));
    excess as u64
}

fn begun(kind: &str, step: u64, at: f64) -> TimelineSpan {
    TimelineSpan {
        id: format!("{kind}-{step}"),
        name: step.to_string(),
        step,
        begin: at,
        end: None,
        state: "running".to_owned(),
        detail: String::new(),
    }
}

fn end(span: &mut TimelineSpan, at: f64, state: &str, detail: &str) {
    span.end = Some(at);
    state.clone_into(&mut span.state);
    if !detail.is_empty() {
        detail.clone_into(&mut span.detail);
    }
}

/// Formats seconds; a value from a file may be invalid.
fn duration(seconds: f64) -> String {
    human::duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
