//! Runners.

use serde::{Deserialize, Serialize};

use super::UnixSeconds;

/// A runner and its current work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunnerRow {
    pub runner: u32,
    pub incarnation: u32,
    /// `idle`, `busy`, `starting`, `cancelling`, `broken`, `stopped`.
    pub state: String,
    /// Host and pid of the worker.
    pub location: Option<String>,
    pub stage: Option<String>,
    /// Seconds in the current stage.
    pub stage_for: Option<f64>,
    /// Typical duration of such attempts in seconds.
    pub typical_duration: Option<f64>,
    /// Code location, if the stage has lasted a while: `file:line function`.
    pub code_location: Option<String>,
    /// Seconds in the current state.
    pub age: f64,
    pub batch: Option<String>,
    pub task: Option<u32>,
    /// First run of the attempt that has not ended.
    pub run: Option<u32>,
    /// Number of the attempt of its run: 1, 2, 3, ….
    pub attempt: Option<u64>,
    /// Model of the call in flight.
    pub model: Option<String>,
    /// Server of the call in flight.
    pub server: Option<String>,
    /// Model calls of the attempt.
    pub calls: u64,
    pub last_heartbeat: Option<UnixSeconds>,
    /// Reason of its last loss or failed start, or why it is stuck.
    pub message: Option<String>,
    pub stuck: bool,
}
