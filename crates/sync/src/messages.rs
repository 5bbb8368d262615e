//! What explorers, trainers and the synchronizer say to each other. The same types are the JSON of
//! the HTTP calls.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use rollway_core::sync::{self as board, TensorSpec, TransferGroup};
use serde::{Deserialize, Serialize};

/// Weights that were published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedWeights {
    /// Their version: the trainer's step.
    pub version: u64,
    pub location: WeightLocation,
}

/// Where published weights are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightLocation {
    /// In a folder with `model.safetensors` or the like, as servers see it.
    Folder(PathBuf),
    /// At the trainer, which sends them over a group that all servers are members of.
    Group(#[serde(with = "TransferGroupJson")] TransferGroup),
}

/// Weights that are to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewWeightsMessage {
    /// They are in a folder, complete.
    Folder(PathBuf),
    /// The content of a safetensors file, to be kept by the synchronizer.
    Bytes(Bytes),
    /// The trainer sends them over a group when servers are ready.
    Group(TransferGroup),
}

/// What an explorer waits for. It has delivered what it wants the trainer to have learned from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightRequest {
    /// Its name.
    pub explorer: String,
    /// The version that it has.
    pub have: u64,
    /// Versions before this one are not enough while the trainer can still get there.
    /// [`WeightRequest::LAST`]: only its last ones are, for which it must have ended.
    pub at_least: u64,
    /// Whether the trainer is asked to publish (style `explorer_driven`).
    pub demand: bool,
    /// How long it waits.
    pub timeout: Duration,
}

impl WeightRequest {
    /// Asks for the last weights of a trainer, whatever it is at meanwhile.
    pub const LAST: u64 = board::WeightWait::LAST;
}

/// What came of waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightWaitResult {
    /// Newer weights.
    New(PublishedWeights),
    /// The trainer has no newer ones and waits for experiences itself.
    NothingNew,
    /// The trainer is done. These were its last weights, if they are newer.
    TrainerDone(Option<PublishedWeights>),
    /// The trainer ended with an error, or stopped answering.
    TrainerFailed(String),
    /// Nothing happened in time; in words: who was there and what they did.
    TimedOut(String),
}

/// What a trainer is at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainerProgress {
    /// It makes a step.
    Training,
    /// It waits for experiences for its next step.
    Idle {
        /// [`WaitStatus::ask`] as it was before it looked for experiences, of which there were too
        /// few. That tells those who wait whether it knows of what they delivered.
        seen: u64,
    },
    Done,
    /// It ended with an error.
    Failed(String),
}

/// What a trainer should know of those who wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitStatus {
    /// The number of the last wait that began.
    pub ask: u64,
    /// How many waits are open.
    pub waiting: usize,
    /// The smallest version that would satisfy one who demands weights; none if nobody does.
    pub wanted: Option<u64>,
}

/// Everybody, and what they are at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncStatus {
    /// The newest weights; none if there are none.
    pub newest: Option<PublishedWeights>,
    /// Explorers that ever came.
    pub explorers: Vec<MemberStatus>,
    /// The trainer; none if none ever came.
    pub trainer: Option<MemberStatus>,
    pub asked: WaitStatus,
    /// Versions that explorers were told of and may be loading: they are not removed.
    pub loading: Vec<u64>,
}

/// Somebody who came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    pub name: String,
    /// `here`, `waiting`, `training`, `idle`, `done`, `failed` or `lost`.
    pub state: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl SyncStatus {
    pub(super) fn new(view: board::SyncView, newest: Option<PublishedWeights>) -> Self {
        let explorer = |it: board::ExplorerMember| match it.state {
            board::ExplorerPresence::Present if it.waiting > 0 => {
                MemberStatus::new(it.name, "waiting")
            }
            board::ExplorerPresence::Present => MemberStatus::new(it.name, "here"),
            board::ExplorerPresence::Done => MemberStatus::new(it.name, "done"),
            board::ExplorerPresence::Lost => MemberStatus::new(it.name, "lost"),
            board::ExplorerPresence::Failed(why) => MemberStatus::failed(it.name, why),
        };
        let trainer = |it: board::TrainerMember| match it.state {
            board::TrainerPresence::Here => MemberStatus::new(it.name, "here"),
            board::TrainerPresence::Training => MemberStatus::new(it.name, "training"),
            board::TrainerPresence::Idle { .. } => MemberStatus::new(it.name, "idle"),
            board::TrainerPresence::Done => MemberStatus::new(it.name, "done"),
            board::TrainerPresence::Lost => MemberStatus::new(it.name, "lost"),
            board::TrainerPresence::Failed(why) => MemberStatus::failed(it.name, why),
        };
        Self {
            newest,
            explorers: view.explorers.into_iter().map(explorer).collect(),
            trainer: view.trainer.map(trainer),
            asked: view.asked.into(),
            loading: Vec::new(),
        }
    }
}

impl MemberStatus {
    fn new(name: String, state: &str) -> Self {
        Self { name, state: state.to_owned(), error: None }
    }

    fn failed(name: String, why: String) -> Self {
        Self { name, state: "failed".to_owned(), error: Some(why) }
    }
}

impl From<board::WaitSummary> for WaitStatus {
    fn from(asked: board::WaitSummary) -> Self {
        Self { ask: asked.ask.0, waiting: asked.waiting, wanted: asked.wanted }
    }
}

/// How a group is written.
#[derive(Serialize, Deserialize)]
#[serde(remote = "TransferGroup")]
pub(super) struct TransferGroupJson {
    master_address: String,
    master_port: u16,
    world_size: u32,
    ranks_per_server: u32,
    name: String,
    backend: String,
    join: bool,
    #[serde(with = "tensors")]
    tensors: Vec<TensorSpec>,
}

/// How a tensor that is sent is written.
#[derive(Serialize, Deserialize)]
#[serde(remote = "TensorSpec")]
struct TensorText {
    name: String,
    dtype: String,
    shape: Vec<u64>,
}

mod tensors {
    use rollway_core::sync::TensorSpec;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::TensorText;

    #[derive(Serialize)]
    struct GrantedWait<'a>(#[serde(with = "TensorText")] &'a TensorSpec);

    #[derive(Deserialize)]
    struct TakenWeights(#[serde(with = "TensorText")] TensorSpec);

    pub(super) fn serialize<S: Serializer>(all: &[TensorSpec], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().map(GrantedWait))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<TensorSpec>, D::Error> {
        let taken = Vec::<TakenWeights>::deserialize(from)?;
        Ok(taken.into_iter().map(|it| it.0).collect())
    }
}
