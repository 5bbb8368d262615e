//! A runner, and what it does now.

use serde::{Deserialize, Serialize};

use super::UnixSeconds;

/// A runner, and what it does now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunnerRow {
    /// Its number.
    pub runner: u32,
    /// Its current or last life.
    pub life: u32,
    /// How it stands: `idle`, `busy`, `starting`, `cancelling`, `broken`, `gone`.
    pub state: String,
    pub node: Option<String>,
    /// What it is at, in words.
    pub stage: Option<String>,
    /// For how many seconds it has been at that.
    pub stage_for: Option<f64>,
    /// How many seconds attempts like its own have taken lately.
    pub usual: Option<f64>,
    /// Where in the user's code that is, if it has lasted a while: `file:line function`.
    pub place: Option<String>,
    /// For how many seconds it has been in its state.
    pub age: f64,
    /// The batch that it works for.
    pub batch: Option<String>,
    pub task: Option<u32>,
    /// The run; of several the first that has not ended.
    pub run: Option<u32>,
    /// The number of the attempt.
    pub attempt: Option<u64>,
    /// The model that it waits for.
    pub model: Option<String>,
    /// The server that it waits for.
    pub server: Option<String>,
    /// Model calls of its attempt, those under way included.
    pub calls: u64,
    /// When it was last heard.
    pub last_heartbeat: Option<UnixSeconds>,
    /// Why it was last lost or could not be started, or why it counts as stuck.
    pub message: Option<String>,
    /// Whether it has made no progress for longer than is usual.
    pub stuck: bool,
}
