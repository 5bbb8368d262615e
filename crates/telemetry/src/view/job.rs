//! The job as a whole.

use serde::{Deserialize, Serialize};

use super::UnixSeconds;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobInfo {
    pub name: String,
    pub project: String,
    /// `both`, `explore`, `train`, `bench`, `serve`.
    pub mode: String,
    pub job_dir: String,
    pub state: JobState,
    /// The view is of a running job.
    pub live: bool,
    /// Start of the first process.
    pub started: Option<UnixSeconds>,
    pub ended: Option<UnixSeconds>,
    /// Time of this response.
    pub now: UnixSeconds,
    /// Last finalized step.
    pub step: u64,
    /// `None`: unknown.
    pub total_steps: Option<u64>,
    /// Model version of the servers.
    pub version: u64,
    pub runners_wanted: u64,
    /// Error, or the last information.
    pub message: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Running,
    Finished,
    Failed,
    /// Interrupted; the same command resumes it.
    Stopped,
    /// The end was not recorded.
    #[default]
    Unknown,
}
