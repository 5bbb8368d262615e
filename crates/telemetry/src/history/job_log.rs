//! Steps, evaluations, exchanges of weights, training, alarms: what happened to the job as a whole.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rollway_base::human;
use rollway_core::BatchState;

use super::record::JobNote;
use crate::view::{
    AlarmRow, EvalPoint, JobState, RewardPoint, StatsSample, TimelineLane, TimelineSpan,
};

/// How many spans a lane has, and points a curve.
const MAX_ENTRIES: usize = 5_000;

/// How many alarms and words are kept.
const ALARMS: usize = 1_000;

/// How many beats are kept. When there are more, every second one goes.
const BEATS: usize = 600;

/// What happened to the job as a whole.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) name: String,
    pub(super) project: String,
    pub(super) mode: String,
    pub(super) job_dir: String,
    pub(super) started: Option<f64>,
    /// When the last process ended in an orderly way.
    pub(super) closed: Option<f64>,
    /// How it ended.
    pub(super) outcome: JobState,
    /// Why it failed.
    pub(super) error: Option<String>,
    pub(super) step: u64,
    pub(super) total_steps: Option<u64>,
    pub(super) version: u64,
    pub(super) runners: u32,
    pub(super) rewards: VecDeque<RewardPoint>,
    pub(super) evals: VecDeque<EvalPoint>,
    pub(super) alarms: VecDeque<AlarmRow>,
    /// The last words that a person should know.
    pub(super) said: Option<String>,
    pub(super) beats: Vec<StatsSample>,
    every: f64,
    steps: BTreeMap<u64, TimelineSpan>,
    /// Evaluations by the number of their batch.
    sets: BTreeMap<u32, TimelineSpan>,
    syncs: VecDeque<TimelineSpan>,
    trained: VecDeque<TimelineSpan>,
    /// Spans and points that there was no room for.
    pub(super) left_out: u64,
}

impl Notes {
    /// Takes something in that happened.
    pub(super) fn apply(&mut self, at: f64, note: &JobNote) {
        match note {
            JobNote::Opened { name, project, mode, job_dir } => {
                self.started = self.started.or(Some(at));
                (self.closed, self.error) = (None, None);
                self.name.clone_from(name);
                self.project.clone_from(project);
                self.mode.clone_from(mode);
                self.job_dir.clone_from(job_dir);
                self.cut(at);
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
                let [waited, loading] = [*waited, *loading].map(said_time);
                let detail = format!("waited {waited}, loaded in {loading}");
                end(&mut span, at, "done", &detail);
                self.syncs.push_back(span);
            }
            JobNote::Trained { step, seconds, detail } => self.trained(at, *step, *seconds, detail),
            JobNote::Said { words } => self.said = Some(words.clone()),
            JobNote::Alarm { kind, words, raised } => {
                let (kind, words) = (kind.clone(), words.clone());
                self.alarms.push_front(AlarmRow { at, kind, words, raised: *raised });
                self.alarms.truncate(ALARMS);
            }
            JobNote::Beat { beat } => drop(self.beat(*beat)),
            JobNote::Closed { outcome, error } => {
                self.closed = Some(at);
                (self.outcome, self.error) = (*outcome, error.clone());
                self.cut(at);
            }
            JobNote::Batch { .. }
            | JobNote::Adopted { .. }
            | JobNote::State { .. }
            | JobNote::Totals { .. } => {}
        }
        self.trim();
    }

    /// What an earlier process was at has ended with it.
    fn cut(&mut self, at: f64) {
        for span in self.steps.values_mut().chain(self.sets.values_mut()) {
            if span.end.is_none() {
                end(span, at, "cut", "");
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
            let detail = score.map_or_else(|| "no run succeeded".to_owned(), |it| it.to_string());
            end(span, at, "done", &detail);
        }
    }

    fn trained(&mut self, at: f64, step: u64, seconds: Option<f64>, detail: &str) {
        let last = self.trained.back().and_then(|span| span.end);
        let begin = seconds.map(|seconds| at - seconds).or(last).unwrap_or(at);
        let mut span = begun("train", step, begin.min(at));
        end(&mut span, at, "done", detail);
        self.trained.push_back(span);
    }

    /// A batch is over.
    pub(super) fn batch_ended(&mut self, number: u32, at: f64, state: BatchState) {
        if let Some(span) = self.sets.get_mut(&number).filter(|span| span.end.is_none()) {
            let is_good = state == BatchState::Finalized;
            end(span, at, if is_good { "done" } else { "cut" }, "");
        }
    }

    /// Takes the numbers of a moment in; tells whether they are kept.
    pub(super) fn beat(&mut self, beat: StatsSample) -> bool {
        let every = self.every.max(1.0);
        if self.beats.last().is_some_and(|last| beat.at < last.at + every * 0.95) {
            return false;
        }
        self.beats.push(beat);
        if self.beats.len() > BEATS {
            let mut count = 0;
            self.beats.retain(|_| {
                count += 1;
                count % 2 == 1
            });
            self.every = every * 2.0;
        }
        true
    }

    fn trim(&mut self) {
        let lost = cut_front(&mut self.rewards)
            + cut_front(&mut self.evals)
            + cut_front(&mut self.syncs)
            + cut_front(&mut self.trained);
        self.left_out += lost;
        while self.steps.len() > MAX_ENTRIES {
            self.steps.pop_first();
            self.left_out += 1;
        }
        while self.sets.len() > MAX_ENTRIES {
            self.sets.pop_first();
            self.left_out += 1;
        }
    }

    /// Returns everything in time.
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

fn cut_front<T>(list: &mut VecDeque<T>) -> u64 {
    let lost = list.len().saturating_sub(MAX_ENTRIES);
    list.drain(..lost);
    lost as u64
}

fn begun(sort: &str, step: u64, at: f64) -> TimelineSpan {
    TimelineSpan {
        id: format!("{sort}-{step}"),
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

/// Returns seconds as people say them; what was read from a file may be anything.
fn said_time(seconds: f64) -> String {
    human::duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
