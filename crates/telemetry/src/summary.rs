//! `summary.json`: results of a job over all its processes.
//!
//! Rewritten after every step and at the end. A step that is repeated after a crash counts once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use parking_lot::Mutex;
use rollway_base::atomic_file::write_atomic;
use rollway_config::{Config, Mode};
use rollway_core::BatchResult;
use rollway_engine::job_event::{JobEvent, JobObserver};
use serde::{Deserialize, Serialize};

use crate::failures::{FailureGroup, FailureTally};

#[cfg(test)]
mod tests;

pub(crate) const FILE: &str = "summary.json";

/// Maximum number of evaluations; the middle ones are dropped.
const MAX_EVALS: usize = 2000;

/// Metric with the number of experiences that a batch stored.
const EXPERIENCES: &str = "experience_pipeline/experience_count";

/// Metric with the number of experiences that operators dropped.
const FILTERED: &str = "experience_pipeline/filtered_count";

/// Results of a job over all its processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    pub mode: Mode,
    /// Explorer or trainer.
    pub name: String,
    pub state: SummaryState,
    pub error: Option<String>,
    /// Last finalized explore step; in mode `train` the last train step.
    pub steps: u64,
    /// Explore steps of the whole job. `None`: unknown.
    pub total_steps: Option<u64>,
    /// Mean score of all sets at the first evaluation.
    pub first_eval: Option<f64>,
    pub last_eval: Option<f64>,
    /// Submitted train tasks. Those of finalized steps are
    /// `tasks_finished + tasks_failed + tasks_cancelled`.
    pub tasks_submitted: u64,
    /// Tasks with at least one succeeded run.
    pub tasks_finished: u64,
    pub tasks_failed: u64,
    pub tasks_cancelled: u64,
    /// Failed train runs by failure kind.
    pub failed_runs: BTreeMap<String, u64>,
    /// Failures of train and eval runs by message, the most frequent first. A run that is repeated
    /// after a crash is counted again.
    pub failures: Vec<FailureGroup>,
    /// Experiences stored in the buffer.
    pub experiences_delivered: u64,
    pub seconds: f64,
    pub restarts: u64,
    pub trained_steps: u64,
    /// Model version of the servers.
    pub version: u64,
    /// Number of weight syncs.
    pub syncs: u64,
    /// Mean reward of the first step that has one.
    pub first_reward: Option<f64>,
    /// Mean reward of the last step.
    pub last_reward: Option<f64>,
    pub evals: Vec<EvalSummary>,
    /// Number of dropped evaluations.
    pub evals_left_out: u64,
    pub goal: JobGoal,
    /// Last begun step.
    pub begun_steps: u64,
    /// Number of raises by kind.
    pub alarms: BTreeMap<String, u64>,
    /// Counts of the last process that finalized a step.
    pub last_process: ProcessCounts,
    /// This process has finalized a step.
    #[serde(skip)]
    has_finalized: bool,
}

/// Counts of the steps that one process finalized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessCounts {
    pub tasks_finished: u64,
    pub tasks_failed: u64,
    pub experiences_delivered: u64,
    /// Experiences that operators dropped.
    pub experiences_filtered: u64,
}

impl ProcessCounts {
    /// Returns the reason why the steps of a process have no result. `None`: they have one.
    fn missing_result(&self) -> Option<String> {
        let (finished, failed) = (self.tasks_finished, self.tasks_failed);
        if failed > 0 && finished == 0 {
            return Some(format!("none of {failed} tasks succeeded"));
        }
        // Operators may drop all experiences of the last steps on purpose.
        let produced = self.experiences_delivered + self.experiences_filtered;
        (finished > 0 && produced == 0)
            .then(|| format!("{finished} tasks succeeded, but no experience was delivered"))
    }
}

impl Summary {
    /// Returns the reason why a job that ran to its end has no result. `None`: it has one.
    /// `trained`: last train step of its trainer, if known.
    pub fn missing_result(&self, trained: Option<u64>) -> Option<String> {
        if self.mode == Mode::Train && trained == Some(0) {
            let reason = "the trainer made no train step: the buffer has no batch of \
                          `buffer.train_batch_size` experiences";
            return Some(reason.to_owned());
        }
        let runs = self.failure_text();
        if self.tasks_failed > 0 && self.tasks_finished == 0 {
            return Some(format!("none of {} tasks succeeded{runs}", self.tasks_failed));
        }
        if self.tasks_finished > 0 && self.experiences_delivered == 0 {
            let tasks = self.tasks_finished;
            return Some(format!("{tasks} tasks succeeded, but no experience was delivered{runs}"));
        }
        // The totals include those of earlier processes.
        if let Some(reason) = self.last_process.missing_result() {
            return Some(format!("since the job was resumed, {reason}{runs}"));
        }
        let all_failed = |eval: &EvalSummary| eval.failed > 0 && eval.finished == 0;
        if !self.evals.is_empty() && self.evals.iter().all(all_failed) {
            return Some(format!("no task of any evaluation succeeded{runs}"));
        }
        let is_scored = |eval: &EvalSummary| eval.score.is_some() || eval.has_metrics;
        if !self.evals.is_empty() && !self.evals.iter().any(is_scored) {
            return Some("no run of any evaluation returned a reward or a metric".to_owned());
        }
        None
    }

    /// Returns the counts of failed runs and the most frequent message, to be appended.
    fn failure_text(&self) -> String {
        let Some(first) = self.failures.iter().find(|group| group.failed > 0) else {
            return String::new();
        };
        let mut kinds = BTreeMap::<&str, u64>::new();
        for group in &self.failures {
            *kinds.entry(&group.kind).or_default() += group.failed;
        }
        let kinds = kinds.into_iter().filter(|(_, count)| *count > 0);
        let kinds: Vec<String> = kinds.map(|(kind, count)| format!("{count} as {kind}")).collect();
        format!("; failed runs: {}, most often: {}", kinds.join(", "), first.message)
    }
}

/// The summary of an earlier process cannot be read, or the file cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {hint}")]
pub struct SummaryError {
    pub what: String,
    pub hint: &'static str,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SummaryState {
    /// Running, or its process was killed.
    #[default]
    Running,
    Finished,
    /// Interrupted; the same command resumes it.
    Stopped,
    Failed,
}

/// The evaluation of one set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvalSummary {
    /// In mode `bench` the checkpoint.
    pub step: u64,
    /// Model version.
    pub version: u64,
    pub set: String,
    /// Mean reward. `None`: no run succeeded.
    pub score: Option<f64>,
    /// Tasks with at least one succeeded run.
    pub finished: u64,
    pub failed: u64,
    /// A run reported a metric of its workflow.
    pub has_metrics: bool,
}

/// Configured length of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobGoal {
    total_steps: Option<u32>,
    total_epochs: u32,
    train_steps: Option<u32>,
}

impl JobGoal {
    pub fn of(config: &Config) -> Self {
        Self {
            total_steps: config.buffer.total_steps,
            total_epochs: config.buffer.total_epochs,
            train_steps: config.trainer.total_steps,
        }
    }
}

impl Summary {
    fn step_begun(&mut self, step: u64, tasks: u64) {
        if step > self.begun_steps {
            self.begun_steps = step;
            self.tasks_submitted += tasks;
        }
    }

    fn step_done(&mut self, step: u64, result: &BatchResult) {
        if step <= self.steps {
            return;
        }
        self.steps = step;
        // A killed process may not have counted the start of the step.
        self.step_begun(step, result.tasks.total());
        if !self.has_finalized {
            self.has_finalized = true;
            self.last_process = ProcessCounts::default();
        }
        let finished = result.tasks.ok + result.tasks.partial;
        self.tasks_finished += finished;
        self.tasks_failed += result.tasks.failed;
        self.tasks_cancelled += result.tasks.cancelled;
        for (kind, count) in result.runs.failed.nonzero() {
            *self.failed_runs.entry(kind.to_string()).or_default() += count;
        }
        let stored = result.sink_metrics.get(EXPERIENCES);
        let delivered = stored.map_or(result.delivered, |stored| stored as u64);
        self.experiences_delivered += delivered;
        let process = &mut self.last_process;
        process.tasks_finished += finished;
        process.tasks_failed += result.tasks.failed;
        process.experiences_delivered += delivered;
        process.experiences_filtered += result.sink_metrics.get(FILTERED).unwrap_or(0.0) as u64;
    }

    fn evaluated(&mut self, eval: EvalSummary) {
        let same = |known: &&mut EvalSummary| (known.step, &known.set) == (eval.step, &eval.set);
        match self.evals.iter_mut().find(same) {
            Some(known) => *known = eval,
            None => self.evals.push(eval),
        }
        if self.evals.len() > MAX_EVALS {
            self.evals.remove(MAX_EVALS / 2);
            self.evals_left_out += 1;
        }
        self.first_eval = self.mean(self.evals.first().map(|eval| eval.step));
        self.last_eval = self.mean(self.evals.last().map(|eval| eval.step));
    }

    /// Returns the mean score of all sets at a step.
    fn mean(&self, step: Option<u64>) -> Option<f64> {
        let evals = self.evals.iter().filter(|eval| Some(eval.step) == step);
        let scores: Vec<f64> = evals.filter_map(|eval| eval.score).collect();
        (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
    }

    /// Applies an event; returns whether the summary is written now.
    fn apply(&mut self, event: &JobEvent) -> bool {
        match event {
            JobEvent::Began { total_steps, .. } => self.total_steps = *total_steps,
            JobEvent::StepBegun { step, tasks, .. } => self.step_begun(*step, *tasks),
            JobEvent::StepDone { step, result, metrics, .. } => {
                self.step_done(*step, result);
                let reward = metrics.get("rollout/reward/mean");
                self.first_reward = self.first_reward.or(reward);
                self.last_reward = reward.or(self.last_reward);
            }
            JobEvent::Evaluated { step, version, set, score, result, .. } => {
                self.evaluated(EvalSummary {
                    step: *step,
                    version: *version,
                    set: set.to_string(),
                    score: *score,
                    finished: result.tasks.ok + result.tasks.partial,
                    failed: result.tasks.failed,
                    has_metrics: has_metrics(result),
                })
            }
            JobEvent::Synced { version, .. } => {
                self.syncs += u64::from(*version > self.version);
                self.version = *version;
            }
            JobEvent::Trained { step, .. } => {
                self.trained_steps = self.trained_steps.max(*step);
                if self.mode == Mode::Train {
                    self.steps = self.trained_steps;
                }
            }
            JobEvent::Alarm(alarm) => {
                if alarm.raised {
                    *self.alarms.entry(alarm.kind.to_owned()).or_default() += 1;
                }
            }
            JobEvent::Info(_)
            | JobEvent::Ready(_)
            | JobEvent::WaitBegun(_)
            | JobEvent::WaitEnded(_) => {}
        }
        match event {
            JobEvent::StepDone { .. } | JobEvent::Evaluated { .. } => true,
            JobEvent::Trained { .. } => self.mode == Mode::Train,
            _ => false,
        }
    }
}

/// Tells whether a run has a metric that its workflow reported, besides durations.
fn has_metrics(result: &BatchResult) -> bool {
    let mut runs = result.statuses.iter().flat_map(|(_, status)| &status.run_metrics);
    runs.any(|run| run.iter().any(|(name, _)| !name.starts_with("time/")))
}

/// Updates the summary of a job.
#[derive(Debug)]
pub struct SummaryWriter {
    path: PathBuf,
    begin: Instant,
    /// Seconds of earlier processes.
    earlier: f64,
    failures: Arc<FailureTally>,
    summary: Mutex<Summary>,
}

impl SummaryWriter {
    /// Continues the summary of an earlier process and writes the state `running`.
    pub fn open(config: &Config) -> Result<Arc<Self>, SummaryError> {
        let job = config.job_dir();
        let name = role(config);
        let (path, known) = find(&job, config.mode, &name)?;
        // Benchmarks start anew.
        let known = known.filter(|_| config.mode != Mode::Bench);
        let restarts = known.as_ref().map_or(0, |known| known.restarts + 1);
        let earlier = known.as_ref().map_or(0.0, |known| known.seconds);
        let summary = Summary {
            mode: config.mode,
            name,
            state: SummaryState::Running,
            error: None,
            restarts,
            goal: JobGoal::of(config),
            ..known.unwrap_or_default()
        };
        let failures = FailureTally::new(config.log.failure_groups, summary.failures.clone());
        let (failures, summary) = (Arc::new(failures), Mutex::new(summary));
        let writer = Self { path, begin: Instant::now(), earlier, failures, summary };
        writer.write_durably(&mut writer.summary.lock()).map_err(|error| {
            let what = format!("cannot write {}: {error}", writer.path.display());
            SummaryError { what, hint: "make the folder writable" }
        })?;
        Ok(Arc::new(writer))
    }

    /// Writes the end of the job.
    pub fn close(&self, state: SummaryState, error: Option<String>) -> io::Result<Summary> {
        let mut summary = self.summary.lock();
        summary.state = state;
        summary.error = error;
        self.write_durably(&mut summary)?;
        Ok(summary.clone())
    }

    /// Changes and returns the summary; it is written with the next event or at the end.
    pub fn update(&self, change: impl FnOnce(&mut Summary)) -> Summary {
        let mut summary = self.summary.lock();
        summary.failures = self.failures.groups();
        change(&mut summary);
        summary.clone()
    }

    /// Returns the counts of failures, which have to observe the runs of the job.
    pub fn failures(&self) -> Arc<FailureTally> {
        Arc::clone(&self.failures)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file atomically.
    fn write(&self, summary: &mut Summary) -> io::Result<()> {
        let text = self.text(summary)?;
        let new = self.path.with_extension("json.new");
        fs::write(&new, text)?;
        fs::rename(&new, &self.path)
    }

    /// Replaces the file and syncs it to the disk.
    fn write_durably(&self, summary: &mut Summary) -> io::Result<()> {
        write_atomic(&self.path, self.text(summary)?.as_bytes(), 0o644)
    }

    fn text(&self, summary: &mut Summary) -> io::Result<String> {
        let seconds = self.earlier + self.begin.elapsed().as_secs_f64();
        summary.seconds = Duration::from_secs_f64(seconds).as_millis() as f64 / 1000.0;
        summary.failures = self.failures.groups();
        let mut text = serde_json::to_string_pretty(summary)?;
        text.push('\n');
        Ok(text)
    }
}

impl JobObserver for SummaryWriter {
    fn on_event(&self, event: &JobEvent) {
        let mut summary = self.summary.lock();
        if summary.apply(event)
            && let Err(error) = self.write(&mut summary)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot write the summary");
        }
    }
}

/// Returns the summary of an earlier process. `None`: this is the first.
pub fn earlier(config: &Config) -> Result<Option<Summary>, SummaryError> {
    Ok(find(&config.job_dir(), config.mode, &role(config))?.1)
}

/// Returns the name of the explorer or trainer.
fn role(config: &Config) -> String {
    match config.mode {
        Mode::Train => config.trainer.name.clone(),
        Mode::Bench => "bench".to_owned(),
        _ => config.explorer.name.clone(),
    }
}

/// Finds and reads the file. The first process of a folder has `summary.json`, others, such as a
/// second explorer, have one with their name.
fn find(job: &Path, mode: Mode, name: &str) -> Result<(PathBuf, Option<Summary>), SummaryError> {
    let first = job.join(FILE);
    match read(&first)? {
        None if mode != Mode::Bench => return Ok((first, None)),
        Some(known) if known.mode == mode && known.name == name => return Ok((first, Some(known))),
        _ => {}
    }
    let own = job.join(format!("{name}_{FILE}"));
    let known = read(&own)?;
    Ok((own, known))
}

fn read(path: &Path) -> Result<Option<Summary>, SummaryError> {
    let invalid = |message: String| {
        let hint = "move it away to continue without it";
        SummaryError { what: format!("{}: {message}", path.display()), hint }
    };
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| invalid(format!("not a summary of a job: {error}"))),
        // The preflight checks the folder.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        Err(error) => Err(invalid(format!("cannot be read: {error}"))),
    }
}
