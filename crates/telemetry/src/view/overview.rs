//! The numbers of a job.

use std::collections::BTreeMap;

use rollway_core::RunnerState;
use serde::{Deserialize, Serialize};

use super::UnixSeconds;

/// Counts by name.
type Counts = BTreeMap<String, u64>;

/// The numbers of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overview {
    /// When this was said.
    pub now: UnixSeconds,
    /// How it went, moment by moment; thinned out when it is long.
    pub beats: Vec<StatsSample>,
    /// Rewards of the steps.
    pub rewards: Vec<RewardPoint>,
    /// Scores of the evaluations.
    pub evals: Vec<EvalPoint>,
    pub runs: RunCounts,
    pub tasks: TaskCounts,
    /// What was done in vain.
    pub waste: WasteReport,
    pub runners: RunnerCounts,
    /// Alarms that are raised, the newest first.
    pub alarms: Vec<AlarmRow>,
    /// What there was no room to keep, by what it was.
    pub dropped: Counts,
}

/// The numbers of a moment. What is counted is counted since the job began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatsSample {
    pub at: UnixSeconds,
    /// Runs that ended well.
    pub done: u64,
    /// Runs that failed for good.
    pub failed: u64,
    /// Runs that were cancelled.
    pub cancelled: u64,
    /// Runs under way.
    pub running: u64,
    /// Runs that wait for a runner.
    pub pending: u64,
    /// Runners that execute something.
    pub busy: u64,
    /// Runners that are up.
    pub runners: u64,
    pub prompt_tokens: u64,
    pub answer_tokens: u64,
}

/// The rewards of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RewardPoint {
    pub step: u64,
    /// When it was done.
    pub at: UnixSeconds,
    pub mean: Option<f64>,
    /// The smallest.
    pub min: Option<f64>,
    /// The largest.
    pub max: Option<f64>,
}

/// The score of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvalPoint {
    /// The step that it belongs to.
    pub step: u64,
    /// When it was done.
    pub at: UnixSeconds,
    pub set: String,
    /// The mean reward; none if no run succeeded.
    pub score: Option<f64>,
}

/// Where runs are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunCounts {
    pub submitted: u64,
    /// Those that ended well.
    pub succeeded: u64,
    /// Those that failed for good, by kind.
    pub failed: Counts,
    /// Those that were cancelled, by reason.
    pub cancelled: Counts,
    /// Those that wait for a runner.
    pub pending: u64,
    /// Those under way.
    pub running: u64,
}

/// Where tasks are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskCounts {
    pub submitted: u64,
    /// Those with at least one good run.
    pub finished: u64,
    /// Those that ended without one.
    pub failed: u64,
}

/// What was done in vain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WasteReport {
    /// Runs that were tried again, by the kind of failure.
    pub retried: Counts,
    /// Seconds that runners spent on runs that ended well.
    pub seconds_useful: f64,
    /// Seconds that runners spent on anything else, by why it did not count.
    pub seconds_lost: BTreeMap<String, f64>,
    /// Experiences that were dropped, by reason.
    pub experiences_dropped: Counts,
}

/// Runners by what they are at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunnerCounts {
    /// They wait for work.
    pub idle: u64,
    /// They execute something.
    pub busy: u64,
    /// They are being started.
    pub starting: u64,
    /// They were told to give up what they execute.
    pub cancelling: u64,
    /// They failed to start again and again, and rest.
    pub broken: u64,
    /// They are not there.
    pub gone: u64,
}

impl RunnerCounts {
    /// Counts runners by state.
    pub(crate) fn of(states: impl Iterator<Item = RunnerState>) -> Self {
        let mut counts = Self::default();
        for state in states {
            let count = match state {
                RunnerState::Idle => &mut counts.idle,
                RunnerState::Busy(_) => &mut counts.busy,
                RunnerState::Starting => &mut counts.starting,
                RunnerState::Cancelling(_) => &mut counts.cancelling,
                RunnerState::Broken => &mut counts.broken,
                RunnerState::Stopped => &mut counts.gone,
            };
            *count += 1;
        }
        counts
    }
}

/// Something that a person should look at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AlarmRow {
    /// When it was raised, or was over.
    pub at: UnixSeconds,
    pub kind: String,
    /// What is the matter, in words.
    pub words: String,
    /// Whether it is raised; otherwise it is over.
    pub raised: bool,
}
