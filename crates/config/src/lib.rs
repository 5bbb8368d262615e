//! The configuration of a job: every key with its type and default, parsing with all errors
//! reported at once and with their source spans, the rules between keys, the secrets that keys
//! name, and the conversion to the core's configuration.
//!
//! Must not know how a job runs: no buffers, no gateway, no tasksets, no async. A conversion to the
//! options of another crate belongs to the user of both. The types are the only declaration of
//! keys; the parser, the JSON Schema and the reference are derived from them.
//!
//! ```text
//! YAML ─► nodes with spans ──┐
//! dict ─► nodes ─────────────┼─► reader ─► Config ─► rules ─► ResolvedConfig ─► core
//! key=value ─► nodes ────────┘   (key_schema: keys, types, bounds; trinity: keys of Trinity-RFT)
//! ```

mod alarms;
mod algorithm;
mod batch;
mod buffer;
mod cluster;
mod core;
mod dashboard;
mod data_processor;
mod environment;
mod error;
mod explorer;
mod failures;
mod folders;
mod history;
mod job_name;
mod key_schema;
mod ledger;
mod limits;
mod load;
mod model;
mod monitor;
mod node;
mod read;
mod reference;
mod rules;
mod seconds;
pub mod secrets;
mod simulation;
mod supervision;
mod synchronizer;
mod taskset;
mod trace;
mod trainer;
mod trinity;
mod yaml;

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::alarms::{AlarmsConfig, OnConsecutiveFailures};
pub use self::algorithm::AlgorithmConfig;
pub use self::batch::{BatchConfig, EvalBatch, TrainBatch, WhenShort};
pub use self::buffer::{
    BufferConfig, ExperienceBuffer, ExplorerInput, PriorityFn, ReplayBuffer, StorageType,
    TrainerInputConfig, WhenFull,
};
pub use self::cluster::{ClusterBackend, ClusterConfig, Placement};
pub use self::dashboard::DashboardConfig;
pub use self::data_processor::{DataProcessorConfig, ExperiencePipeline, OperatorConfig};
pub use self::error::{ConfigError, ConfigProblem, ConfigWarning, SourceSpan};
pub use self::explorer::{ConcurrentMode, DynamicTimeoutConfig, ExplorerConfig, OverRolloutConfig};
pub use self::failures::{FailureRuleConfig, FailuresConfig, Groups, Then};
pub use self::history::HistoryConfig;
pub use self::ledger::LedgerConfig;
pub use self::limits::LimitsConfig;
pub use self::model::{EngineType, ModelConfig};
pub use self::monitor::{Log, LogLevel, MonitorConfig, MonitorType};
pub use self::reference::{reference, schema};
pub use self::seconds::ConfigSeconds;
pub use self::simulation::{SimulationConfig, SimulationFaults};
pub use self::supervision::SupervisionConfig;
pub use self::synchronizer::{SyncMethod, SyncStyle, SynchronizerConfig};
pub use self::taskset::{DataSelector, Format, SelectorType, Taskset, TasksetStorage};
pub use self::trace::TraceConfig;
pub use self::trainer::{TrainerConfig, TrainerType};

use self::load::Loaded;

/// Arguments that Rollway hands on without looking at them.
pub type Args = serde_json::Map<String, Value>;

/// The configuration of a job. Every key has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Rollway configuration")]
pub struct Config {
    /// What the job does.
    pub mode: Mode,
    /// Name of the project: the first folder below `checkpoint_root_dir`.
    pub project: String,
    /// Name of a group of jobs: a folder between project and job. Empty: none.
    pub group: String,
    /// Name of the job: the folder that holds everything it writes.
    pub name: String,
    /// Folder under which jobs have theirs. Empty: `checkpoints` where the job is started.
    pub checkpoint_root_dir: String,
    /// Whether a job whose folder exists goes on where it was. If not, the time is added to its
    /// name.
    pub continue_from_checkpoint: bool,
    /// When a person is told that something goes wrong.
    pub alarms: AlarmsConfig,
    /// What the trainer does with experiences, as far as rollouts depend on it.
    pub algorithm: AlgorithmConfig,
    /// How much is read and trained at a time, where tasks come from and where experiences go.
    pub buffer: BufferConfig,
    /// On which machines workers run. `cluster: ray` is short for `cluster: {backend: ray}`.
    pub cluster: ClusterConfig,
    /// The pages on which a job is looked at.
    pub dashboard: DashboardConfig,
    /// What happens to experiences between the workflow and the buffer.
    pub data_processor: DataProcessorConfig,
    /// Runners, attempts, evaluation and serving.
    pub explorer: ExplorerConfig,
    /// What survives the death of a job.
    pub ledger: LedgerConfig,
    /// Where the words about a job go.
    pub log: Log,
    /// Where the numbers about a job go.
    pub monitor: MonitorConfig,
    /// The made-up world of mode `simulate`.
    pub simulation: SimulationConfig,
    /// How new weights come from the trainer to the models.
    pub synchronizer: SynchronizerConfig,
    /// Where the spans of a job go: what was done when, and inside of what.
    pub trace: TraceConfig,
    /// Who learns from the experiences in modes `both` and `train`.
    pub trainer: TrainerConfig,
    #[serde(skip)]
    loaded: Loaded,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            project: "Rollway".to_owned(),
            group: String::new(),
            name: "rft".to_owned(),
            checkpoint_root_dir: String::new(),
            continue_from_checkpoint: true,
            alarms: AlarmsConfig::default(),
            algorithm: AlgorithmConfig::default(),
            buffer: BufferConfig::default(),
            cluster: ClusterConfig::default(),
            dashboard: DashboardConfig::default(),
            data_processor: DataProcessorConfig::default(),
            explorer: ExplorerConfig::default(),
            ledger: LedgerConfig::default(),
            log: Log::default(),
            monitor: MonitorConfig::default(),
            simulation: SimulationConfig::default(),
            synchronizer: SynchronizerConfig::default(),
            trace: TraceConfig::default(),
            trainer: TrainerConfig::default(),
            loaded: Loaded::default(),
        }
    }
}

impl Config {
    /// Returns what to know about how the configuration was read: keys that have no effect here.
    pub fn warnings(&self) -> &[ConfigWarning] {
        &self.loaded.warnings
    }

    /// Returns the folder of the file that the configuration was read from; empty if that is the
    /// working directory, none if there was no file.
    pub fn folder(&self) -> Option<&Path> {
        self.loaded.folder.as_deref()
    }

    /// Checks the rules between keys, and every value once more, because values may have been set
    /// since the configuration was read. The warnings include those of reading.
    pub fn check(&self) -> Result<Vec<ConfigWarning>, ConfigError> {
        Ok(self.resolve()?.warnings)
    }

    /// Checks the configuration and returns what is run: names given, sizes reckoned, and keys that
    /// do not go together changed, each with a warning.
    pub fn resolve(&self) -> Result<ResolvedConfig, ConfigError> {
        rules::resolve(self)
    }
}

/// A configuration that has been checked.
#[derive(Clone, Debug)]
pub struct ResolvedConfig {
    /// What is run.
    pub config: Config,
    /// What may surprise.
    pub warnings: Vec<ConfigWarning>,
}

/// What a job does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Explores and trains.
    #[default]
    Both,
    /// Explores; the trainer is another job.
    Explore,
    /// Trains with the embedded trainer.
    Train,
    /// Evaluates checkpoints.
    Bench,
    /// Serves models to agents elsewhere and records what they do.
    Serve,
    /// Runs the scheduler in a made-up world and in virtual time.
    Simulate,
}
