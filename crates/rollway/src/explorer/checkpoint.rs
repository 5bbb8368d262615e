//! Where an explorer is, in a file that survives it: `<job>/<explorer>_meta.json`.
//!
//! # What becomes durable in which order
//!
//! `L` is the ledger, `B` the buffer, `S` this file. A process may die between any two of them.
//! Every line ends with `S`; if it was not written, the next process finds and does:
//!
//! - begin a step: `S` intent, draw, `L` batch. *A batch that was about to be begun*: draws, since
//!   the state before gives the same tasks, and submits nothing. *None*: draws and submits.
//! - finalize a step: `B`, `L` result. *The result*: takes it, and reckons from it what selectors
//!   learn. *The batch, offered*: delivers it again, and `B` knows the lot.
//! - run tasks again: `L` result, `L` batch `n/again_1`, `L` its result, and so on. *Some of them*:
//!   goes through the same numbers, and submits what is missing.
//! - submit evaluations: `S` intent, `L` a batch for each set. *Some*: submits the others.
//! - finish evaluations: `L` a result for each set. *Some*: takes those, and tells all of them.
//! - exchange weights: servers, `L` version. *Servers that are ahead*: gives them back what `S`
//!   says, or goes on with what they have.
//!
//! Without a ledger, or where it is gone, the tasks of steps in flight are drawn again by the rows
//! in `S`, and run from the beginning.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollway_base::atomic_file::write_atomic;
use rollway_config::Config;
use rollway_core::explore::PlanProgress;
use rollway_tasksets::{TaskRef, TasksetState};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ExplorerError;

/// What the file says that it is.
const FORMAT: &str = "rollway explorer";
/// The version that is written and read.
const VERSION: u32 = 1;
/// The longest file that is read: a taskset may have learned something about four billion rows.
const MAX_BYTES: u64 = 1 << 38;

/// Where an explorer is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplorerCheckpoint {
    format: String,
    version: u32,
    job: String,
    explorer: String,
    begun: u64,
    beginning: Option<u64>,
    finalized: u64,
    evaluating: Option<u64>,
    evals: Vec<u64>,
    evaluated: Option<u64>,
    evaluated_version: u64,
    synced: u64,
    delivered: u64,
    ahead: Vec<u64>,
    elsewhere: u64,
    model_version: u64,
    last: Option<u64>,
    closed: Option<u64>,
    /// The steps that the job was to have.
    pub(super) total_steps: u64,
    /// The tasks of steps in flight: taskset, row, epoch.
    in_flight: BTreeMap<u64, Vec<(usize, u64, u64)>>,
    pub(super) tasks: TasksetState,
    pub(super) counts: JobCounts,
}

/// What a job did, by all its processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobCounts {
    /// Tasks to train on that were submitted.
    pub tasks_submitted: u64,
    /// Tasks of finalized steps that have a good run.
    pub tasks_finished: u64,
    /// Tasks of finalized steps that have none.
    pub tasks_failed: u64,
    /// Experiences that are in the buffer.
    pub experiences_delivered: u64,
    /// The mean rewards of the first evaluation, by set.
    pub first_eval: Option<EvalScores>,
    /// The mean rewards of the last one.
    pub last_eval: Option<EvalScores>,
    /// How long the job has been at it.
    pub seconds: f64,
}

/// The mean rewards of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalScores {
    /// The step that it belongs to.
    pub step: u64,
    /// By set; none if no run succeeded.
    pub by_set: BTreeMap<String, Option<f64>>,
}

impl EvalScores {
    /// Returns the mean over all sets that have one.
    pub fn mean(&self) -> Option<f64> {
        let known: Vec<f64> = self.by_set.values().filter_map(|score| *score).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    }
}

/// The file of an explorer.
#[derive(Clone, Debug)]
pub(super) struct CheckpointFile {
    path: PathBuf,
    job: String,
    explorer: String,
}

impl CheckpointFile {
    pub(super) fn of(config: &Config) -> Self {
        let explorer = config.explorer.name.clone();
        let path = config.job_dir().join(format!("{explorer}_meta.json"));
        Self { path, job: config.job(), explorer }
    }

    /// Returns where the explorer was; none if it never was. Blocks.
    pub(super) fn load(&self) -> Result<Option<ExplorerCheckpoint>, ExplorerError> {
        let bytes = match read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(self.wrong(error.to_string(), "make it readable for this process"));
            }
        };
        let anew = "put a whole copy back, or begin a new job with \
                    `continue_from_checkpoint: false`";
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|error| self.wrong(format!("it is damaged: {error}"), anew))?;
        self.is_ours(&value)?;
        let saved: ExplorerCheckpoint = serde_json::from_value(value)
            .map_err(|error| self.wrong(format!("it is damaged: {error}"), anew))?;
        if let Some(what) = saved.contradiction() {
            return Err(self.wrong(format!("it is damaged: {what}"), anew));
        }
        Ok(Some(saved))
    }

    /// Refuses files of others and of other versions.
    fn is_ours(&self, value: &Value) -> Result<(), ExplorerError> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        if text("format") != FORMAT {
            let what = if value.get("latest_iteration").is_some() {
                "it was written by Trinity-RFT, whose position among the tasks means nothing here"
            } else {
                "it is not the state of an explorer"
            };
            let hint = "move it away, or begin a new job with `continue_from_checkpoint: false`";
            return Err(self.wrong(what.to_owned(), hint));
        }
        let version = value.get("version").and_then(Value::as_u64);
        if version != Some(VERSION.into()) {
            let version = version.map_or_else(|| "no".to_owned(), |version| version.to_string());
            let what = format!("it has version {version}, but {VERSION} is read");
            return Err(self.wrong(what, "use the release of Rollway that wrote it"));
        }
        for (key, ours) in [("job", &self.job), ("explorer", &self.explorer)] {
            if text(key) != ours {
                let what = format!("it belongs to the {key} {:?}, not to {ours:?}", text(key));
                let hint = "move it away, or give this job another `name`";
                return Err(self.wrong(what, hint));
            }
        }
        Ok(())
    }

    fn wrong(&self, what: String, hint: &str) -> ExplorerError {
        ExplorerError::State { path: self.path.clone(), what, hint: hint.to_owned() }
    }

    /// Replaces what was saved before. When this returns, it survives anything.
    pub(super) async fn save(&self, saved: ExplorerCheckpoint) -> Result<(), ExplorerError> {
        let path = self.path.clone();
        let put = move || {
            let mut bytes = serde_json::to_vec(&saved).map_err(io::Error::other)?;
            bytes.push(b'\n');
            write_atomic(&path, &bytes, 0o644)
        };
        let put = tokio::task::spawn_blocking(put).await;
        put.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| {
            self.wrong(error.to_string(), "make room, or make the folder writable")
        })
    }

    /// Returns what is to be saved.
    pub(super) fn saved(
        &self,
        progress: &PlanProgress,
        in_flight: &BTreeMap<u64, Vec<TaskRef>>,
        tasks: TasksetState,
        counts: JobCounts,
        total_steps: u64,
    ) -> ExplorerCheckpoint {
        let row = |pick: &TaskRef| (pick.taskset_id, pick.index, pick.epoch);
        let rows = |(step, picks): (&u64, &Vec<TaskRef>)| (*step, picks.iter().map(row).collect());
        ExplorerCheckpoint {
            format: FORMAT.to_owned(),
            version: VERSION,
            job: self.job.clone(),
            explorer: self.explorer.clone(),
            begun: progress.begun,
            beginning: progress.beginning,
            finalized: progress.finalized,
            evaluating: progress.evaluating,
            evals: progress.evals.clone(),
            evaluated: progress.evaluated,
            evaluated_version: progress.evaluated_version,
            synced: progress.synced,
            delivered: progress.delivered,
            ahead: progress.ahead.clone(),
            elsewhere: progress.elsewhere,
            model_version: progress.version,
            last: progress.last,
            closed: progress.closed,
            total_steps,
            in_flight: in_flight.iter().map(rows).collect(),
            tasks,
            counts,
        }
    }
}

impl ExplorerCheckpoint {
    pub(super) fn progress(&self) -> PlanProgress {
        PlanProgress {
            begun: self.begun,
            beginning: self.beginning,
            finalized: self.finalized,
            evaluating: self.evaluating,
            evals: self.evals.clone(),
            evaluated: self.evaluated,
            evaluated_version: self.evaluated_version,
            synced: self.synced,
            delivered: self.delivered,
            ahead: self.ahead.clone(),
            elsewhere: self.elsewhere,
            version: self.model_version,
            last: self.last,
            closed: self.closed,
        }
    }

    /// Returns the tasks of steps in flight.
    pub(super) fn in_flight(&self) -> BTreeMap<u64, Vec<TaskRef>> {
        let pick = |&(taskset_id, index, epoch): &_| TaskRef { taskset_id, index, epoch };
        let picks = |(step, rows): (&u64, &Vec<_>)| (*step, rows.iter().map(pick).collect());
        self.in_flight.iter().map(picks).collect()
    }

    /// Says what cannot be, if anything.
    fn contradiction(&self) -> Option<&'static str> {
        let seconds = Duration::try_from_secs_f64(self.counts.seconds);
        let known = self.counts.tasks_finished + self.counts.tasks_failed;
        match () {
            () if self.finalized > self.begun => Some("more steps are finalized than begun"),
            () if self.synced > self.finalized => Some("weights came after a step in flight"),
            () if !self.in_flight.keys().copied().eq(self.finalized + 1..=self.begun) => {
                Some("the steps in flight are not those that were begun and not finalized")
            }
            () if self.tasks.steps != self.begun => Some("its tasks are not those of its steps"),
            () if !self.evals.is_sorted() || self.evals.last() > self.evaluated.as_ref() => {
                Some("its evaluations are out of order")
            }
            () if known > self.counts.tasks_submitted || seconds.is_err() => {
                Some("its counts do not add up")
            }
            () => None,
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let length = std::fs::metadata(path)?.len();
    if length > MAX_BYTES {
        return Err(io::Error::other(format!("{length} bytes are too many for a state")));
    }
    std::fs::read(path)
}
