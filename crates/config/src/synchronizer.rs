//! `synchronizer`: how new weights come from the trainer to the models.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::seconds::ConfigSeconds;

/// How new weights come from the trainer to the models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SynchronizerConfig {
    /// The way that weights take.
    pub sync_method: SyncMethod,
    /// Who decides when weights are exchanged.
    pub sync_style: SyncStyle,
    /// Steps between two exchanges.
    #[schemars(range(min = 1))]
    pub sync_interval: u32,
    /// Steps that the explorer may be ahead at the start.
    pub sync_offset: u32,
    /// How many train steps old the weights may be by the time a batch is trained on; a batch that
    /// would be older is not begun until newer weights have come. Only with `fully_async`. Absent:
    /// `explorer.max_inflight_batches` is the only bound.
    pub max_staleness: Option<u32>,
    /// Where explorers and trainers of a job find each other: `host:port` to listen at, or the
    /// address of a synchronizer that runs already. Absent: the first of them listens at a free
    /// port of this machine, and the others find it through the job's folder.
    pub address: Option<String>,
    /// How long either side waits for the other.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub sync_timeout: ConfigSeconds,
}

impl Default for SynchronizerConfig {
    fn default() -> Self {
        Self {
            sync_method: SyncMethod::default(),
            sync_style: SyncStyle::default(),
            sync_interval: 1,
            sync_offset: 0,
            max_staleness: None,
            address: None,
            sync_timeout: ConfigSeconds::new(3600),
        }
    }
}

/// The way that weights take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SyncMethod {
    /// From GPU to GPU, through the servers' own endpoints. Only in mode `both`.
    #[default]
    Nccl,
    /// Through files in a folder that both sides see.
    Checkpoint,
    /// Through the engine's memory: the trainer pushes them.
    Memory,
}

/// Who decides when weights are exchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SyncStyle {
    /// Both sides stop every `sync_interval` steps.
    #[default]
    Fixed,
    /// The explorer asks, the trainer serves.
    ExplorerDriven,
    /// The trainer publishes, the explorer follows.
    TrainerDriven,
    /// Nobody stops: new weights are taken as they come, and `explorer.max_inflight_batches`
    /// bounds how far the explorer runs ahead.
    FullyAsync,
}
