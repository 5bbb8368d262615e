//! Batches, runs and one run in detail.

use rollway_core::RunState;
use serde::ser::{Error as _, SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{UnixSeconds, run_state};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchRow {
    pub batch: String,
    /// `train` or `eval`.
    pub kind: String,
    /// `pending`, `running`, `finalizing`, `finalized`, `aborted`; `ended` if it was collected or
    /// its end is unknown.
    pub state: String,
    pub began: UnixSeconds,
    pub ended: Option<UnixSeconds>,
    pub tasks: u64,
    pub runs: BatchRuns,
    /// Mean of its succeeded runs.
    pub reward: Option<f64>,
    pub waiting_for: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchRuns {
    pub succeeded: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub running: u64,
    pub pending: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunKey {
    pub batch: String,
    pub task: u32,
    /// Index within the task.
    pub run: u32,
}

/// Filter, order and page of runs. `None`: any.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunQuery {
    pub batch: Option<String>,
    pub task: Option<u32>,
    #[serde(with = "run_state::option")]
    pub state: Option<RunState>,
    /// `train` or `eval`.
    pub kind: Option<String>,
    /// Part of `batch/task/run`, the workflow, the message, or the messages to and from the model.
    /// Runs without recorded messages are found by the prompt of their task.
    pub text: Option<String>,
    /// Smallest reward. Runs without a reward do not match.
    pub min_reward: Option<f64>,
    /// Largest reward. Runs without a reward do not match.
    pub max_reward: Option<f64>,
    pub sort: RunSort,
    pub desc: bool,
    pub offset: usize,
    /// 0: default length of a page.
    pub limit: usize,
}

impl RunQuery {
    /// Returns the text to search for.
    pub fn searched(&self) -> Option<&str> {
        self.text.as_deref().map(str::trim).filter(|text| !text.is_empty())
    }
}

/// Order of runs; ties and unknown values in the order of submission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunSort {
    /// Order of submission.
    #[default]
    Order,
    Begin,
    End,
    Seconds,
    Reward,
    /// Generated tokens.
    Tokens,
    Attempts,
    State,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunPage {
    /// Number of runs on all pages.
    pub total: u64,
    pub runs: Vec<RunRow>,
    /// Not all messages were searched yet; the same query continues.
    pub searching: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRow {
    pub batch: String,
    pub task: u32,
    pub run: u32,
    /// `train` or `eval`.
    pub kind: String,
    pub workflow: String,
    #[serde(with = "run_state")]
    pub state: RunState,
    pub attempts: u32,
    /// Runner of the last attempt.
    pub runner: Option<u32>,
    /// Start of the first attempt.
    pub begin: Option<UnixSeconds>,
    pub end: Option<UnixSeconds>,
    /// Duration of the last attempt until its end or now.
    pub seconds: Option<f64>,
    pub reward: Option<f64>,
    /// Generated tokens.
    pub tokens: Option<u64>,
    /// Completions of the model.
    pub turns: Option<u64>,
    /// Model version.
    pub version: Option<u64>,
    /// Reason of the end, or the last failure.
    pub message: Option<String>,
}

/// One run in detail. In JSON the fields of the run are flattened; `attempts` is the list, not the
/// number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunDetail {
    pub run: RunRow,
    pub attempts: Vec<AttemptDetail>,
    pub experiences: Vec<ExperienceDetail>,
    /// Reason for missing experiences.
    pub experiences_message: Option<String>,
}

impl Serialize for RunDetail {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let run = serde_json::to_value(&self.run).map_err(S::Error::custom)?;
        let fields = run.as_object().into_iter().flatten();
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in fields.filter(|(name, _)| *name != "attempts") {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry("attempts", &self.attempts)?;
        map.serialize_entry("experiences", &self.experiences)?;
        map.serialize_entry("experiences_message", &self.experiences_message)?;
        map.end()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AttemptDetail {
    pub attempt: u64,
    pub runner: u32,
    pub incarnation: u32,
    /// Location of the runner.
    pub location: Option<String>,
    /// Time of its start by the engine.
    pub sent_at: UnixSeconds,
    /// Time of the runner's confirmation.
    pub began: Option<UnixSeconds>,
    pub ended: Option<UnixSeconds>,
    /// `running`, `succeeded`, `failed`, `cancelled`, `lost`.
    pub outcome: String,
    pub message: Option<String>,
    pub calls: Vec<CallDetail>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallDetail {
    pub call: u64,
    pub model: String,
    /// Server of the last upstream request.
    pub server: Option<String>,
    pub began: UnixSeconds,
    /// Time of the first upstream request.
    pub sent: Option<UnixSeconds>,
    pub ended: Option<UnixSeconds>,
    /// HTTP status for the client.
    pub status: Option<u16>,
    pub prompt_tokens: Option<u64>,
    pub answer_tokens: Option<u64>,
    /// Model version.
    pub version: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExperienceDetail {
    pub eid: Value,
    pub reward: Option<f64>,
    pub messages: Value,
    pub prompt_text: Option<String>,
    pub response_text: Option<String>,
    /// Prompt, then completion.
    pub tokens: Vec<i64>,
    /// Text of each token.
    pub texts: Option<Vec<String>>,
    /// Of each completion token.
    pub logprobs: Option<Vec<f64>>,
    /// Completion tokens that are trained on.
    pub mask: Vec<bool>,
    /// Number of prompt tokens.
    pub prompt_length: u64,
    /// Model version of each completion token.
    pub versions: Option<Vec<Option<u64>>>,
    pub metrics: Value,
    pub info: Value,
    /// Parts were omitted.
    pub truncated: bool,
}
