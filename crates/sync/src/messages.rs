//! Messages between explorers, trainers and the synchronizer; most are the JSON of the HTTP API.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use rollway_core::sync::{
    self as core_sync, ExplorerPresence, TensorSpec, TrainerPresence, TransferGroup,
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedWeights {
    /// Train step.
    pub version: u64,
    pub location: WeightLocation,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightLocation {
    /// Folder with safetensors, as servers see it.
    Folder(PathBuf),
    /// At the trainer, which sends them over a group of all servers.
    Group(#[serde(with = "TransferGroupJson")] TransferGroup),
}

impl WeightLocation {
    /// Returns the location as another process sees it, which may have another working directory.
    pub(super) fn absolute(self) -> Self {
        match self {
            Self::Folder(path) => Self::Folder(std::path::absolute(&path).unwrap_or(path)),
            Self::Group(_) => self,
        }
    }

    /// Returns whether the weights are not there any more.
    pub fn is_removed(&self) -> bool {
        matches!(self, Self::Folder(folder) if !folder.exists())
    }

    /// Returns whether the trainer sends the weights only once, and publishes them elsewhere if
    /// that fails.
    pub const fn is_sent_once(&self) -> bool {
        matches!(self, Self::Group(_))
    }
}

impl fmt::Display for WeightLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Group(group) => write!(f, "{}:{}", group.master_address, group.master_port),
        }
    }
}

/// Weights to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewWeightsMessage {
    /// Content of a safetensors file, stored by the synchronizer.
    Bytes(Bytes),
    /// Stored or sent by the trainer.
    At(WeightLocation),
}

impl From<WeightLocation> for NewWeightsMessage {
    fn from(location: WeightLocation) -> Self {
        Self::At(location)
    }
}

impl NewWeightsMessage {
    /// Parses the JSON of a group.
    pub fn group(json: &str) -> serde_json::Result<Self> {
        let mut from = serde_json::Deserializer::from_str(json);
        TransferGroupJson::deserialize(&mut from).map(|group| WeightLocation::Group(group).into())
    }
}

/// Wait of an explorer that has delivered its experiences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightRequest {
    pub explorer: String,
    /// Current version of the explorer.
    pub current: u64,
    /// Minimum version while the trainer can still reach it. [`WeightRequest::LAST`]: the trainer's
    /// last weights.
    pub at_least: u64,
    /// Request the trainer to publish (style `explorer_driven`).
    #[serde(default)]
    pub publish_now: bool,
    /// Seconds in JSON.
    #[serde(with = "seconds_json")]
    pub timeout: Duration,
}

impl WeightRequest {
    /// Requests the last weights of a trainer.
    pub const LAST: u64 = core_sync::WeightWait::LAST;
}

/// Outcome of a wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightWaitResult {
    New(PublishedWeights),
    /// The trainer has no newer weights and waits for experiences.
    NothingNew,
    /// The trainer is done; its last weights, if newer.
    TrainerDone(Option<PublishedWeights>),
    /// The trainer failed or its heartbeats stopped.
    TrainerFailed(String),
    /// Timeout, with a description of the members.
    TimedOut(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainerProgress {
    Training,
    /// The trainer waits for experiences.
    Idle {
        /// [`WaitStatus::wait`] before it looked for experiences: waits up to this id end.
        seen: u64,
    },
    Done,
    Failed(String),
}

/// Metrics of a train step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainMetrics {
    pub step: u64,
    /// Finite values by name.
    pub metrics: BTreeMap<String, f64>,
}

/// Reports of the trainer after an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainMetricsPage {
    /// Number of all reports of this host.
    pub total: u64,
    /// Oldest first; the host keeps the last ones.
    pub reports: Vec<TrainMetrics>,
}

/// Open waits, for the trainer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitStatus {
    /// Id of the last wait.
    pub wait: u64,
    /// Number of open waits.
    pub waiting: usize,
    /// Smallest version that satisfies a demand. `None`: no demand.
    pub demanded: Option<u64>,
}

/// Members and newest weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncStatus {
    pub newest: Option<PublishedWeights>,
    /// All explorers that have ever joined.
    pub explorers: Vec<MemberStatus>,
    /// `None`: no trainer has joined.
    pub trainer: Option<MemberStatus>,
    pub waits: WaitStatus,
    /// Versions that explorers may be loading; they are kept.
    pub loading: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    pub name: String,
    /// `present`, `waiting`, `training`, `idle`, `done`, `failed` or `lost`.
    pub state: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Of an explorer: the servers that a trainer can send weights to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<ServerFleet>,
}

/// Servers of an explorer, for trainers that send weights to them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFleet {
    /// Kind of all servers.
    pub engine: String,
    /// Number of usable servers.
    pub servers: u32,
    /// Number of members of a transfer group at each server.
    pub ranks_per_server: u32,
    /// Version that all of them have read back.
    pub version: Option<u64>,
    /// Last version that could not be loaded.
    pub failed: Option<FailedLoad>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedLoad {
    pub version: u64,
    pub reason: String,
}

impl SyncStatus {
    pub(super) fn new(view: core_sync::SyncView, newest: Option<PublishedWeights>) -> Self {
        let status = |name, (state, error): (&str, Option<String>)| MemberStatus {
            name,
            state: state.to_owned(),
            error,
            servers: None,
        };
        let explorer = |it: core_sync::ExplorerMember| {
            let state = match it.state {
                ExplorerPresence::Present if it.waiting > 0 => ("waiting", None),
                ExplorerPresence::Present => ("present", None),
                ExplorerPresence::Done => ("done", None),
                ExplorerPresence::Lost => ("lost", None),
                ExplorerPresence::Failed(error) => ("failed", Some(error)),
            };
            status(it.name, state)
        };
        let trainer = |it: core_sync::TrainerMember| {
            let state = match it.state {
                TrainerPresence::Present => ("present", None),
                TrainerPresence::Training => ("training", None),
                TrainerPresence::Idle { .. } => ("idle", None),
                TrainerPresence::Done => ("done", None),
                TrainerPresence::Lost => ("lost", None),
                TrainerPresence::Failed(error) => ("failed", Some(error)),
            };
            status(it.name, state)
        };
        Self {
            newest,
            explorers: view.explorers.into_iter().map(explorer).collect(),
            trainer: view.trainer.map(trainer),
            waits: view.waits.into(),
            loading: Vec::new(),
        }
    }
}

impl From<core_sync::WaitSummary> for WaitStatus {
    fn from(waits: core_sync::WaitSummary) -> Self {
        Self { wait: waits.wait.0, waiting: waits.waiting, demanded: waits.demanded }
    }
}

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
    struct TensorRef<'a>(#[serde(with = "TensorText")] &'a TensorSpec);

    #[derive(Deserialize)]
    struct TensorOwned(#[serde(with = "TensorText")] TensorSpec);

    pub(super) fn serialize<S: Serializer>(all: &[TensorSpec], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().map(TensorRef))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<TensorSpec>, D::Error> {
        let tensors = Vec::<TensorOwned>::deserialize(from)?;
        Ok(tensors.into_iter().map(|it| it.0).collect())
    }
}

/// Converts seconds of a request; out-of-range values are clamped.
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

mod seconds_json {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        f64::deserialize(from).map(super::seconds)
    }
}
