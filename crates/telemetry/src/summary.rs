//! `summary.json`: what a job did, over all its processes.
//!
//! It is written after every step and at the end, each time whole. Steps count once, whichever
//! process finalized them: a step that is told again after a crash is known by its number.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use parking_lot::{Mutex, MutexGuard};
use rollway_base::atomic_file::write_atomic;
use rollway_config::{Config, Mode};
use rollway_core::BatchResult;
use rollway_engine::job_event::{JobEvent, JobObserver};
use serde::{Deserialize, Serialize};

/// The file of a job.
const FILE: &str = "summary.json";

/// How many evaluations are kept; of more the first and the last ones are.
const EVALS: usize = 2000;

/// Under which metric a batch says how many experiences reached the buffer.
const EXPERIENCES: &str = "experience_pipeline/experience_count";

/// What a job did, over all its processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// What the job does.
    pub mode: Mode,
    /// The explorer or the trainer that this is about.
    pub name: String,
    /// How it stands.
    pub state: SummaryState,
    /// Why it failed.
    pub error: Option<String>,
    /// The last explore step that was finalized; in mode `train` the last train step.
    pub steps: u64,
    /// Explore steps of the whole job; none: unknown.
    pub total_steps: Option<u64>,
    /// The mean score of all sets at the first evaluation.
    pub first_eval: Option<f64>,
    /// The mean score of all sets at the last evaluation.
    pub last_eval: Option<f64>,
    /// Tasks to train on that were submitted. Those of finalized steps are
    /// `tasks_finished + tasks_failed + tasks_cancelled`.
    pub tasks_submitted: u64,
    /// Those with at least one good run.
    pub tasks_finished: u64,
    /// Those without one.
    pub tasks_failed: u64,
    /// Those that were cut.
    pub tasks_cancelled: u64,
    /// Their failed runs, by kind.
    pub failed_runs: BTreeMap<String, u64>,
    /// Experiences that reached the buffer.
    pub experiences_delivered: u64,
    /// How long the job has run.
    pub seconds: f64,
    /// How often it was started again.
    pub restarts: u64,
    /// The last train step.
    pub trained_steps: u64,
    /// The version of the weights that the models have.
    pub version: u64,
    /// How often weights were exchanged.
    pub syncs: u64,
    /// The mean reward of the last step.
    pub last_reward: Option<f64>,
    /// Every evaluation.
    pub evals: Vec<EvalSummary>,
    /// Evaluations in the middle that there was no room for.
    pub evals_left_out: u64,
    /// What the job was to do when it was last started.
    pub goal: JobGoal,
    /// The last step that was begun.
    pub begun_steps: u64,
    /// How often each alarm was raised.
    pub alarms: BTreeMap<String, u64>,
}

/// The summary of an earlier process cannot be read, or the file cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {hint}")]
pub struct SummaryError {
    /// Description of the failure, with the path.
    pub what: String,
    /// Remedy.
    pub hint: &'static str,
}

/// How a job stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SummaryState {
    /// It runs, or its process was killed.
    #[default]
    Running,
    /// It did what it should.
    Finished,
    /// Somebody ended it; the same command goes on.
    Stopped,
    /// It ended with an error.
    Failed,
}

/// The evaluation of one set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvalSummary {
    /// The step that it belongs to; in mode `bench` the checkpoint.
    pub step: u64,
    /// The version of the weights.
    pub version: u64,
    pub set: String,
    /// The mean reward; none if no run succeeded.
    pub score: Option<f64>,
    /// Tasks with at least one good run.
    pub finished: u64,
    /// Tasks without one.
    pub failed: u64,
}

/// What a job was to do.
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
        // A process that was killed right after it had begun the step could not count it.
        self.step_begun(step, result.tasks.total());
        self.tasks_finished += result.tasks.ok + result.tasks.partial;
        self.tasks_failed += result.tasks.failed;
        self.tasks_cancelled += result.tasks.cancelled;
        for (kind, count) in result.runs.failed.nonzero() {
            *self.failed_runs.entry(kind.to_string()).or_default() += count;
        }
        let stored = result.sink_metrics.get(EXPERIENCES);
        self.experiences_delivered += stored.map_or(result.delivered, |stored| stored as u64);
    }

    fn evaluated(&mut self, eval: EvalSummary) {
        let same = |known: &&mut EvalSummary| (known.step, &known.set) == (eval.step, &eval.set);
        match self.evals.iter_mut().find(same) {
            Some(known) => *known = eval,
            None => self.evals.push(eval),
        }
        if self.evals.len() > EVALS {
            self.evals.remove(EVALS / 2);
            self.evals_left_out += 1;
        }
        self.first_eval = self.mean(self.evals.first().map(|eval| eval.step));
        self.last_eval = self.mean(self.evals.last().map(|eval| eval.step));
    }

    /// The mean score of all sets at a step.
    fn mean(&self, step: Option<u64>) -> Option<f64> {
        let evals = self.evals.iter().filter(|eval| Some(eval.step) == step);
        let scores: Vec<f64> = evals.filter_map(|eval| eval.score).collect();
        (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
    }

    /// Takes note of an event; tells whether it is worth writing down at once.
    fn saw(&mut self, event: &JobEvent) -> bool {
        match event {
            JobEvent::Began { total_steps, .. } => self.total_steps = *total_steps,
            JobEvent::StepBegun { step, tasks, .. } => self.step_begun(*step, *tasks),
            JobEvent::StepDone { step, result, metrics, .. } => {
                self.step_done(*step, result);
                self.last_reward = metrics.get("rollout/reward/mean").or(self.last_reward);
            }
            JobEvent::Evaluated { step, version, set, score, result, .. } => {
                self.evaluated(EvalSummary {
                    step: *step,
                    version: *version,
                    set: set.to_string(),
                    score: *score,
                    finished: result.tasks.ok + result.tasks.partial,
                    failed: result.tasks.failed,
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
            JobEvent::Info(_) | JobEvent::Ready(_) => {}
        }
        match event {
            JobEvent::StepDone { .. } | JobEvent::Evaluated { .. } => true,
            JobEvent::Trained { .. } => self.mode == Mode::Train,
            _ => false,
        }
    }
}

/// Keeps the summary of a job up to date.
#[derive(Debug)]
pub struct SummaryWriter {
    path: PathBuf,
    begin: Instant,
    /// Seconds of earlier processes.
    earlier: f64,
    summary: Mutex<Summary>,
}

impl SummaryWriter {
    /// Takes the summary up where an earlier process left it, and writes that it runs.
    pub fn open(config: &Config) -> Result<Arc<Self>, SummaryError> {
        let job = config.job_dir();
        let name = role(config);
        let (path, known) = find(&job, config.mode, &name)?;
        // Every run of a benchmark is a new one.
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
        let summary = Mutex::new(summary);
        let recorder = Self { path, begin: Instant::now(), earlier, summary };
        recorder.keep(&mut recorder.lock()).map_err(|error| {
            let what = format!("{} cannot be written: {error}", recorder.path.display());
            SummaryError { what, hint: "see that the folder can be written to" }
        })?;
        Ok(Arc::new(recorder))
    }

    /// Writes the end of the job.
    pub fn close(&self, state: SummaryState, error: Option<String>) -> io::Result<Summary> {
        let mut summary = self.lock();
        summary.state = state;
        summary.error = error;
        self.keep(&mut summary)?;
        Ok(summary.clone())
    }

    /// Changes the summary; it is written with the next event, or when it is closed.
    pub fn update(&self, change: impl FnOnce(&mut Summary)) {
        change(&mut self.lock());
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes it. Whoever reads it sees what was there, or all of what is now.
    fn write(&self, summary: &mut Summary) -> io::Result<()> {
        let text = self.text(summary)?;
        let new = self.path.with_extension("json.new");
        fs::write(&new, text)?;
        fs::rename(&new, &self.path)
    }

    /// Writes it so that it survives even the machine.
    fn keep(&self, summary: &mut Summary) -> io::Result<()> {
        write_atomic(&self.path, self.text(summary)?.as_bytes(), 0o644)
    }

    fn text(&self, summary: &mut Summary) -> io::Result<String> {
        let seconds = self.earlier + self.begin.elapsed().as_secs_f64();
        summary.seconds = Duration::from_secs_f64(seconds).as_millis() as f64 / 1000.0;
        let mut text = serde_json::to_string_pretty(summary)?;
        text.push('\n');
        Ok(text)
    }

    fn lock(&self) -> MutexGuard<'_, Summary> {
        self.summary.lock()
    }
}

impl JobObserver for SummaryWriter {
    fn on_event(&self, event: &JobEvent) {
        let mut summary = self.lock();
        if summary.saw(event)
            && let Err(error) = self.write(&mut summary)
        {
            tracing::warn!(path = %self.path.display(), %error, "the summary cannot be written");
        }
    }
}

/// Returns what an earlier process wrote; none if this is the first one.
pub fn earlier(config: &Config) -> Result<Option<Summary>, SummaryError> {
    Ok(find(&config.job_dir(), config.mode, &role(config))?.1)
}

/// Whose summary it is.
fn role(config: &Config) -> String {
    match config.mode {
        Mode::Train => config.trainer.name.clone(),
        Mode::Bench => "bench".to_owned(),
        _ => config.explorer.name.clone(),
    }
}

/// Finds the file, and what is in it. The first who comes has `summary.json`; others that share the
/// folder, such as a second explorer, have one under their names.
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
    let wrong = |what: String| {
        let hint = "it only tells what was: move it away to go on without it";
        SummaryError { what: format!("{}: {what}", path.display()), hint }
    };
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| wrong(format!("this is no summary of a job: {error}"))),
        // Whether a folder can be made is for the preflight to say.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        Err(error) => Err(wrong(format!("cannot be read: {error}"))),
    }
}
