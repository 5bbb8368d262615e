//! Checkpoint of an explorer: `<job>/<explorer>_meta.json`.
//!
//! # Order of durable writes
//!
//! A process may die between any two writes. Every action writes this file last; if that write is
//! missing, the next process repeats the action. *Intent*: a write of this file before the action.
//!
//! | action | writes in order | found after a crash | next process |
//! |---|---|---|---|
//! | begin a step | intent, ledger: batch | batch | selects the same tasks, submits nothing |
//! | | | no batch | selects and submits |
//! | finalize a step | buffer, ledger: result | result | uses it, also as feedback of selectors |
//! | | | open delivery | delivers again; the buffer ignores the duplicate |
//! | rerun tasks | ledger: result, batch `n/again_1`, … | some batches | submits the missing ones |
//! | submit evaluations | intent, ledger: batch per taskset | some batches | submits the others |
//! | finish evaluations | ledger: result per taskset | some results | uses them, reports all |
//! | sync weights | servers, ledger: version | newer weights | loads the saved version, or adopts |
//!
//! Without a ledger the tasks of steps in flight are selected again by the rows in this file.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollway_base::atomic_file::write_atomic;
use rollway_base::resource_remedy;
use rollway_config::Config;
use rollway_core::explore::PlanProgress;
use rollway_tasksets::{TaskRef, TasksetState};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ExplorerError;

const FORMAT: &str = "rollway explorer";
const VERSION: u32 = 1;
/// Content of the file beside the first checkpoint.
const MARK: &str = "The job has begun; it cannot be resumed without the file …_meta.json.\n";
/// Remedy of an unusable file of a job that has begun.
const RESTORE: &str = "restore a backup, or begin a new job with `continue_from_checkpoint: false`";
/// Maximum size of the file: a taskset may have feedback on four billion rows.
const MAX_BYTES: u64 = 1 << 38;

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
    /// Total steps of the job when the checkpoint was written.
    pub(super) total_steps: u64,
    /// Tasks of the steps in flight: taskset, row, epoch.
    in_flight: BTreeMap<u64, Vec<(usize, u64, u64)>>,
    pub(super) tasks: TasksetState,
    pub(super) counts: JobCounts,
}

/// Counts of a job, over all its processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobCounts {
    pub tasks_submitted: u64,
    /// Tasks of finalized steps with a successful run.
    pub tasks_finished: u64,
    /// Tasks of finalized steps without a successful run.
    pub tasks_failed: u64,
    pub experiences_delivered: u64,
    pub first_eval: Option<EvalScores>,
    pub last_eval: Option<EvalScores>,
    /// Time of exploring.
    pub seconds: f64,
}

/// Mean rewards of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalScores {
    pub step: u64,
    /// By taskset. `None`: no run succeeded.
    pub by_set: BTreeMap<String, Option<f64>>,
}

impl EvalScores {
    /// Returns the mean over all tasksets with a score.
    pub fn mean(&self) -> Option<f64> {
        let known: Vec<f64> = self.by_set.values().filter_map(|score| *score).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    }
}

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

    /// Reads the checkpoint. `None`: there is none. Blocks.
    pub(super) fn load(&self) -> Result<Option<ExplorerCheckpoint>, ExplorerError> {
        let bytes = match read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return if self.mark().exists() { Err(self.missing()) } else { Ok(None) };
            }
            Err(error) => {
                return Err(self.wrong(error.to_string(), "make it readable for this process"));
            }
        };
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|error| self.wrong(format!("the file is damaged: {error}"), RESTORE))?;
        self.check_owner(&value)?;
        let saved: ExplorerCheckpoint = serde_json::from_value(value)
            .map_err(|error| self.wrong(format!("the file is damaged: {error}"), RESTORE))?;
        if let Some(message) = saved.contradiction() {
            return Err(self.wrong(format!("the file is damaged: {message}"), RESTORE));
        }
        Ok(Some(saved))
    }

    /// Refuses files of other programs, versions, jobs and explorers.
    fn check_owner(&self, value: &Value) -> Result<(), ExplorerError> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        if text("format") != FORMAT {
            let message = if value.get("latest_iteration").is_some() {
                "the file was written by Trinity-RFT, whose task positions cannot be used"
            } else {
                "the file is not the checkpoint of an explorer"
            };
            let hint = if self.mark().exists() {
                RESTORE
            } else {
                "move it away, or begin a new job with `continue_from_checkpoint: false`"
            };
            return Err(self.wrong(message.to_owned(), hint));
        }
        let version = value.get("version").and_then(Value::as_u64);
        if version != Some(VERSION.into()) {
            let version = version.map_or_else(|| "no".to_owned(), |version| version.to_string());
            let message =
                format!("the file has version {version}, but this release reads version {VERSION}");
            return Err(self.wrong(message, "use the release of Rollway that wrote it"));
        }
        for (key, expected) in [("job", &self.job), ("explorer", &self.explorer)] {
            if text(key) != expected {
                let message =
                    format!("the file belongs to the {key} {:?}, not to {expected:?}", text(key));
                let hint = match key {
                    "job" => {
                        "set `project`, `group` and `name` back to those of that job, or give \
                         this job another `name`"
                    }
                    _ => "set `explorer.name` back, or give this job another `name`",
                };
                return Err(self.wrong(message, hint));
            }
        }
        Ok(())
    }

    /// Returns the path of a file that exists once a checkpoint was written. Without the checkpoint
    /// the job would begin again in the same buffer.
    fn mark(&self) -> PathBuf {
        self.path.with_file_name(format!("{}_begun.txt", self.explorer))
    }

    /// Error: an earlier process has begun the job, and its checkpoint is gone.
    pub(super) fn missing(&self) -> ExplorerError {
        let message = "the file is missing, but the job has begun: its steps would be explored \
                       and delivered a second time";
        let hint = "restore the file from a backup, or begin a new job with \
                    `continue_from_checkpoint: false`";
        self.wrong(message.to_owned(), hint)
    }

    fn wrong(&self, message: String, hint: &str) -> ExplorerError {
        ExplorerError::State { path: self.path.clone(), message, hint: hint.to_owned() }
    }

    /// Replaces the checkpoint durably.
    pub(super) async fn save(&self, saved: ExplorerCheckpoint) -> Result<(), ExplorerError> {
        let (path, mark) = (self.path.clone(), self.mark());
        let put = move || {
            let mut bytes = serde_json::to_vec(&saved).map_err(io::Error::other)?;
            bytes.push(b'\n');
            write_atomic(&path, &bytes, 0o644)?;
            if mark.exists() { Ok(()) } else { write_atomic(&mark, MARK.as_bytes(), 0o644) }
        };
        let put = tokio::task::spawn_blocking(put).await;
        put.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| {
            let message = error.to_string();
            let hint = resource_remedy(&message).unwrap_or("make the folder writable");
            self.wrong(message, hint)
        })
    }

    pub(super) fn saved(
        &self,
        progress: &PlanProgress,
        in_flight: &BTreeMap<u64, Vec<TaskRef>>,
        tasks: TasksetState,
        counts: JobCounts,
        total_steps: u64,
    ) -> ExplorerCheckpoint {
        let row = |pick: &TaskRef| (pick.taskset_id, pick.index, pick.epoch);
        let rows =
            |(step, task_refs): (&u64, &Vec<TaskRef>)| (*step, task_refs.iter().map(row).collect());
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
            elsewhere: progress.submitted_by_others,
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
            submitted_by_others: self.elsewhere,
            version: self.model_version,
            last: self.last,
            closed: self.closed,
        }
    }

    pub(super) fn in_flight(&self) -> BTreeMap<u64, Vec<TaskRef>> {
        let pick = |&(taskset_id, index, epoch): &_| TaskRef { taskset_id, index, epoch };
        let task_refs = |(step, rows): (&u64, &Vec<_>)| (*step, rows.iter().map(pick).collect());
        self.in_flight.iter().map(task_refs).collect()
    }

    /// Describes the first contradiction between the fields.
    fn contradiction(&self) -> Option<&'static str> {
        let seconds = Duration::try_from_secs_f64(self.counts.seconds);
        let known = self.counts.tasks_finished.saturating_add(self.counts.tasks_failed);
        match () {
            () if self.finalized > self.begun => Some("more steps are finalized than begun"),
            () if self.synced > self.finalized => {
                Some("a weight sync is recorded after a step in flight")
            }
            () if !self.in_flight.keys().copied().eq((self.finalized..=self.begun).skip(1)) => {
                Some("the steps in flight do not match the begun and finalized steps")
            }
            () if self.tasks.steps != self.begun => {
                Some("the taskset state does not match the begun steps")
            }
            () if !self.evals.is_sorted() || self.evals.last() > self.evaluated.as_ref() => {
                Some("the evaluations are out of order")
            }
            () if known > self.counts.tasks_submitted || seconds.is_err() => {
                Some("the counts do not add up")
            }
            () => None,
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let length = std::fs::metadata(path)?.len();
    if length > MAX_BYTES {
        return Err(io::Error::other(format!(
            "{length} bytes, more than the limit of {MAX_BYTES} bytes"
        )));
    }
    std::fs::read(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of a checkpoint with two steps in flight.
    fn written(file: &CheckpointFile) -> Vec<u8> {
        let progress =
            PlanProgress { begun: 5, finalized: 3, synced: 3, ..PlanProgress::default() };
        let task = TaskRef { taskset_id: 0, index: 7, epoch: 0 };
        let in_flight = BTreeMap::from([(4, vec![task]), (5, vec![task])]);
        let tasks = TasksetState { version: 2, steps: 5, taken: 9, sets: Vec::new() };
        let counts = JobCounts { tasks_submitted: 9, tasks_finished: 8, ..JobCounts::default() };
        serde_json::to_vec(&file.saved(&progress, &in_flight, tasks, counts, 10)).unwrap()
    }

    #[test]
    fn no_damage_is_more_than_an_error_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let root = format!("checkpoint_root_dir: {}", folder.path().display());
        let config = Config::from_yaml(&root, "job.yaml").unwrap();
        let file = CheckpointFile::of(&config);
        std::fs::create_dir_all(config.job_dir()).unwrap();
        let whole = written(&file);
        let cut = (0..whole.len()).map(|end| whole[..end].to_vec());
        let flipped = (0..8 * whole.len()).map(|bit| {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        });
        // Every number becomes the largest one.
        let text = String::from_utf8(whole.clone()).unwrap();
        let digits = text.match_indices(|c: char| c.is_ascii_digit());
        let largest = digits.map(|(at, digit)| {
            let rest = &text[at + digit.len()..];
            format!("{}18446744073709551615{rest}", &text[..at]).into_bytes()
        });
        for bytes in cut.chain(flipped).chain(largest) {
            std::fs::write(&file.path, &bytes).unwrap();
            if let Err(error) = file.load() {
                assert!(error.to_string().contains("\nhint: "), "{error}");
            }
        }
        std::fs::write(&file.path, &whole).unwrap();
        assert_eq!(file.load().unwrap().map(|saved| saved.begun), Some(5));
    }
}
