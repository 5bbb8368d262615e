//! Statistics of a job.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use rollway_core::RunnerState;
use rollway_engine::job_wait::JobWait;
use serde::{Deserialize, Serialize};

use super::{FailureRow, ServerSummary, UnixSeconds};

type Counts = BTreeMap<String, u64>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overview {
    /// Time of this response.
    pub now: UnixSeconds,
    /// Samples; thinned out when there are many.
    pub samples: Vec<StatsSample>,
    pub rewards: Vec<RewardPoint>,
    pub evals: Vec<EvalPoint>,
    pub runs: RunCounts,
    pub tasks: TaskCounts,
    pub waste: WasteReport,
    pub runners: RunnerCounts,
    /// Current wait. `None`: the job makes progress, or has ended.
    pub wait: Option<WaitRow>,
    pub servers: ServerSummary,
    /// The most frequent failures by message.
    pub failures: Vec<FailureRow>,
    /// Raised alarms, newest first.
    pub alarms: Vec<AlarmRow>,
    /// Dropped items of the history by kind.
    pub dropped: Counts,
}

/// Sample of live statistics; counts are since the start of the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatsSample {
    pub at: UnixSeconds,
    /// Succeeded runs.
    pub done: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub running: u64,
    pub pending: u64,
    pub busy: u64,
    pub runners: u64,
    pub prompt_tokens: u64,
    pub answer_tokens: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RewardPoint {
    pub step: u64,
    pub at: UnixSeconds,
    pub mean: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvalPoint {
    pub step: u64,
    pub at: UnixSeconds,
    pub set: String,
    /// Mean reward. `None`: no run succeeded.
    pub score: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunCounts {
    pub submitted: u64,
    pub succeeded: u64,
    /// By failure kind.
    pub failed: Counts,
    /// By cancel reason.
    pub cancelled: Counts,
    pub pending: u64,
    pub running: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskCounts {
    pub submitted: u64,
    /// Tasks with at least one succeeded run.
    pub finished: u64,
    /// Tasks without one.
    pub failed: u64,
}

/// Wasted work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WasteReport {
    /// Retried runs by failure kind.
    pub retried: Counts,
    /// Runner seconds of succeeded runs.
    pub seconds_useful: f64,
    /// Other runner seconds by reason.
    pub seconds_lost: BTreeMap<String, f64>,
    /// By drop reason.
    pub experiences_dropped: Counts,
}

/// Runners by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunnerCounts {
    pub idle: u64,
    pub busy: u64,
    pub starting: u64,
    pub cancelling: u64,
    pub broken: u64,
    pub stopped: u64,
}

impl RunnerCounts {
    pub(crate) fn of(states: impl Iterator<Item = RunnerState>) -> Self {
        let mut counts = Self::default();
        for state in states {
            let count = match state {
                RunnerState::Idle => &mut counts.idle,
                RunnerState::Busy(_) => &mut counts.busy,
                RunnerState::Starting => &mut counts.starting,
                RunnerState::Cancelling(_) => &mut counts.cancelling,
                RunnerState::Broken => &mut counts.broken,
                RunnerState::Stopped => &mut counts.stopped,
            };
            *count += 1;
        }
        counts
    }
}

/// Current wait of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitRow {
    pub reason: String,
    /// Waiting component and what it waits for.
    pub message: String,
    pub remedy: String,
    pub since: UnixSeconds,
    /// End of the wait at the latest. `None`: unbounded.
    pub until: Option<UnixSeconds>,
    /// Configuration key of the timeout.
    pub key: Option<String>,
}

fn seconds(at: SystemTime) -> UnixSeconds {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl From<&JobWait> for WaitRow {
    fn from(wait: &JobWait) -> Self {
        let limit = wait.limit.as_ref();
        Self {
            reason: wait.reason.name().to_owned(),
            message: wait.reason.message(),
            remedy: wait.reason.remedy().to_owned(),
            since: seconds(wait.since),
            until: limit.map(|limit| seconds(wait.since + limit.timeout)),
            key: limit.map(|limit| limit.key.to_owned()),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AlarmRow {
    pub at: UnixSeconds,
    pub kind: String,
    /// Human-readable message.
    pub message: String,
    /// `false`: cleared.
    pub raised: bool,
}
