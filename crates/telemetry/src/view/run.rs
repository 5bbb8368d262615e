//! Batches, runs, and one run in detail.

use rollway_core::RunState;
use serde::ser::{Error as _, SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{UnixSeconds, run_state};

/// A batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchRow {
    /// Its name.
    pub batch: String,
    /// `train` or `eval`.
    pub kind: String,
    /// How it stands: `pending`, `running`, `finalizing`, `finalized`, `aborted`; `ended` if it was
    /// collected or nobody wrote down how it ended.
    pub state: String,
    /// When it was taken in.
    pub began: UnixSeconds,
    /// When it was over.
    pub ended: Option<UnixSeconds>,
    pub tasks: u64,
    pub runs: BatchRuns,
    /// The mean reward of its good runs.
    pub reward: Option<f64>,
    /// What it waits for, in words.
    pub waiting_for: Option<String>,
}

/// Where the runs of a batch are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchRuns {
    /// Those that ended well.
    pub succeeded: u64,
    /// Those that failed for good.
    pub failed: u64,
    pub cancelled: u64,
    /// Those under way.
    pub running: u64,
    /// Those that wait for a runner.
    pub pending: u64,
}

/// Names a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunKey {
    /// The name of its batch.
    pub batch: String,
    pub task: u32,
    /// Its number among the runs of the task.
    pub run: u32,
}

/// Which runs are asked for. What is absent does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunQuery {
    pub batch: Option<String>,
    pub task: Option<u32>,
    #[serde(with = "run_state::option")]
    pub state: Option<RunState>,
    /// `train` or `eval`.
    pub kind: Option<String>,
    /// With these words in `batch/task/run`, the workflow or the message.
    pub text: Option<String>,
    pub sort: RunSort,
    /// Whether the largest comes first.
    pub desc: bool,
    /// How many to leave out before the first.
    pub offset: usize,
    /// How many at most; 0: as many as a page has.
    pub limit: usize,
}

/// By what runs are sorted. Equal ones, and those without a value, come in the order in which they
/// were taken in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunSort {
    /// When they were taken in.
    #[default]
    Order,
    /// When the first attempt was given to a runner.
    Begin,
    End,
    /// How long they took.
    Seconds,
    Reward,
    /// Tokens of their answers.
    Tokens,
    /// How often they were tried.
    Attempts,
    State,
}

/// One page of runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunPage {
    /// How many there are on all pages.
    pub total: u64,
    /// Those of this page.
    pub runs: Vec<RunRow>,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRow {
    /// The name of its batch.
    pub batch: String,
    pub task: u32,
    /// Its number among the runs of the task.
    pub run: u32,
    /// `train` or `eval`.
    pub kind: String,
    pub workflow: String,
    #[serde(with = "run_state")]
    pub state: RunState,
    /// How often it was given to a runner.
    pub attempts: u32,
    /// The last runner.
    pub runner: Option<u32>,
    /// When it was first given to a runner.
    pub begin: Option<UnixSeconds>,
    pub end: Option<UnixSeconds>,
    /// How long its last attempt took, or has taken.
    pub seconds: Option<f64>,
    pub reward: Option<f64>,
    /// Tokens of its answers.
    pub tokens: Option<u64>,
    /// Answers of the model.
    pub turns: Option<u64>,
    /// The version of the weights.
    pub version: Option<u64>,
    /// Why it failed or was cancelled, or what was last wrong with it.
    pub message: Option<String>,
}

/// One run in detail. In JSON the fields of the run stand beside the others, but for the number of
/// attempts, whose place the attempts themselves have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunDetail {
    pub run: RunRow,
    /// Every attempt, in order.
    pub attempts: Vec<AttemptDetail>,
    /// What it yielded, as far as it is kept.
    pub experiences: Vec<ExperienceDetail>,
    /// Why there are no experiences, if they are not kept.
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

/// One attempt of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AttemptDetail {
    /// Its number.
    pub attempt: u64,
    pub runner: u32,
    pub life: u32,
    /// Where that runner was.
    pub node: Option<String>,
    /// When it was given to the runner.
    pub given: UnixSeconds,
    /// When the runner said that it had begun.
    pub began: Option<UnixSeconds>,
    /// When it was over.
    pub ended: Option<UnixSeconds>,
    /// `running`, `succeeded`, `failed`, `cancelled`, `lost`.
    pub outcome: String,
    /// What went wrong, in words.
    pub message: Option<String>,
    /// Its model calls, in order.
    pub calls: Vec<CallDetail>,
}

/// A model call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallDetail {
    /// Its number.
    pub call: u64,
    pub model: String,
    /// The server that answered, or was last asked.
    pub server: Option<String>,
    /// When it came in.
    pub began: UnixSeconds,
    /// When it was first sent to a server.
    pub sent: Option<UnixSeconds>,
    pub ended: Option<UnixSeconds>,
    /// The HTTP status that the client saw.
    pub status: Option<u16>,
    pub prompt_tokens: Option<u64>,
    pub answer_tokens: Option<u64>,
    /// The version of the weights.
    pub version: Option<u64>,
}

/// One experience of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExperienceDetail {
    /// Its id.
    pub eid: Value,
    pub reward: Option<f64>,
    /// The messages, as the workflow kept them.
    pub messages: Value,
    pub prompt_text: Option<String>,
    /// The answer.
    pub response_text: Option<String>,
    /// All tokens: prompt, then answer.
    pub tokens: Vec<i64>,
    /// The text of each token, where it is known.
    pub texts: Option<Vec<String>>,
    /// The log-probability of each token of the answer.
    pub logprobs: Option<Vec<f64>>,
    /// Which tokens of the answer are trained on.
    pub mask: Vec<bool>,
    /// How many of the tokens are the prompt.
    pub prompt_length: u64,
    /// The version that made each token of the answer.
    pub versions: Option<Vec<Option<u64>>>,
    pub metrics: Value,
    /// Whatever else the workflow kept.
    pub info: Value,
    /// Whether something was cut because there was too much.
    pub truncated: bool,
}
