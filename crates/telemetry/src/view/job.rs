//! A job as a whole.

use serde::{Deserialize, Serialize};

use super::UnixSeconds;

/// A job as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobInfo {
    pub name: String,
    /// The project that it belongs to.
    pub project: String,
    /// What it does: `both`, `explore`, `train`, `bench`, `serve`.
    pub mode: String,
    /// Its folder.
    pub job_dir: String,
    /// How it stands.
    pub state: JobState,
    /// Whether it is looked at while it runs.
    pub live: bool,
    /// When it was first started.
    pub started: Option<UnixSeconds>,
    pub ended: Option<UnixSeconds>,
    /// When this was said.
    pub now: UnixSeconds,
    /// The last step that is done.
    pub step: u64,
    /// Steps of the whole job.
    pub total_steps: Option<u64>,
    /// The version of the weights that the servers have.
    pub version: u64,
    /// How many runners there should be.
    pub runners_wanted: u64,
    /// Why it failed, or what it waits for.
    pub message: Option<String>,
}

/// How a job stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It runs.
    Running,
    /// It did what it should.
    Finished,
    /// It ended with an error.
    Failed,
    /// Somebody ended it; the same command goes on.
    Stopped,
    /// Nobody wrote down how it ended.
    #[default]
    Unknown,
}
