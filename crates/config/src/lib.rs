//! The configuration of a job: every key with its type and default, parsing with all errors
//! reported at once and with their source spans, the rules between keys, the secrets that keys
//! name, and the conversion to the core's configuration.
//!
//! Has no buffers, no gateway, no tasksets, no async. A conversion to the options of another crate
//! belongs to the user of both. The types are the only declaration of keys (`section.rs`); the
//! parser, the JSON Schema and the reference are derived from them.
//!
//! ```text
//! YAML ─► nodes with spans ──┐
//! dict ─► nodes ─────────────┼─► reader ─► Config ─► rules ─► ResolvedConfig ─► core
//! key=value ─► nodes ────────┘   (key_schema: keys, types, bounds; trinity: keys of Trinity-RFT)
//! ```

#[macro_use]
mod section;

mod alarms;
mod algorithm;
mod batch;
mod buffer;
mod built_in;
mod cluster;
mod core;
mod dashboard;
mod data_processor;
mod environment;
mod error;
mod explorer;
mod failures;
mod folders;
mod gateway;
mod history;
mod job_name;
mod key_schema;
mod ledger;
mod limits;
mod listeners;
mod load;
mod migrate;
mod model;
mod monitor;
mod node;
mod read;
mod reference;
mod rules;
mod run_budget;
mod sandbox;
mod seconds;
pub mod secrets;
mod server_restart;
mod simulation;
mod supervision;
mod synchronizer;
mod taskset;
mod tls;
mod trace;
mod trainer;
mod trinity;
mod yaml;

use std::path::Path;

use serde_json::Value;

pub use self::alarms::{AlarmsConfig, OnConsecutiveFailures};
pub use self::algorithm::AlgorithmConfig;
pub use self::batch::{BatchConfig, EvalBatch, TrainBatch, WhenShort};
pub use self::buffer::{
    BufferConfig, ExperienceBuffer, ExplorerInput, PriorityFn, ReplayBuffer, StorageType,
    TrainerInputConfig, WhenFull,
};
pub use self::built_in::{BUILT_IN_REWARDS, BUILT_IN_WORKFLOWS};
pub use self::cluster::{ClusterBackend, ClusterConfig, Placement};
pub use self::dashboard::DashboardConfig;
pub use self::data_processor::{DataProcessorConfig, ExperiencePipeline, OperatorConfig};
pub use self::error::{ConfigError, ConfigProblem, ConfigWarning, SourceSpan};
pub use self::explorer::{ConcurrentMode, DynamicTimeoutConfig, ExplorerConfig, OverRolloutConfig};
pub use self::failures::{FailureRuleConfig, FailuresConfig, Groups, Then};
pub use self::gateway::{ExperienceWeightsConfig, GatewayConfig};
pub use self::history::HistoryConfig;
pub use self::ledger::LedgerConfig;
pub use self::limits::LimitsConfig;
pub use self::listeners::{ConnectionLimitsConfig, ListenersConfig};
pub use self::migrate::{MigratedKey, MigratedName, MigrationOutcome, MigrationReport};
pub use self::model::{EngineType, ModelConfig};
pub use self::monitor::{Log, LogLevel, MonitorConfig, MonitorType};
pub use self::reference::{reference, schema};
pub use self::run_budget::RunBudgetConfig;
pub use self::sandbox::{AgentEnd, LocalSandboxConfig, SandboxConfig, StagesConfig};
pub use self::seconds::ConfigSeconds;
pub use self::server_restart::ServerRestartConfig;
pub use self::simulation::{SimulationConfig, SimulationFaults};
pub use self::supervision::SupervisionConfig;
pub use self::synchronizer::{InFlightCalls, SyncMethod, SyncStyle, SynchronizerConfig};
pub use self::taskset::{DataSelector, Format, SelectorType, Taskset, TasksetStorage};
pub use self::tls::{TlsConfig, TlsModeConfig};
pub use self::trace::TraceConfig;
pub use self::trainer::{TrainerConfig, TrainerType};

use self::load::Loaded;

/// Arguments that Rollway passes on unchecked.
pub type Args = serde_json::Map<String, Value>;

section! {
    /// The configuration of a job. Every key has a default.
    #[schemars(title = "Rollway configuration")]
    pub struct Config {
        pub mode: Mode,
        /// Name of the project: the first folder below `checkpoint_root_dir`.
        pub project: String = "Rollway".to_owned(),
        /// Name of a group of jobs: a folder between project and job. Empty: none.
        pub group: String,
        /// Name of the job: the folder of all its files. Absent: the name of the configuration file
        /// without its extension; in Python without a file, that of the script with the time of its
        /// start, so that no script reads the experiences of another, and after a finished job a
        /// new one. Set it to resume a job.
        pub name: String = "rft".to_owned(),
        /// Folder of all projects. Empty: `checkpoints` in the current folder.
        pub checkpoint_root_dir: String,
        /// Users that can access the folder of the job.
        pub permissions: JobPermissions,
        /// Resumes a job whose folder exists. Off: the time is added to the name of such a job.
        pub continue_from_checkpoint: bool = true,
        pub alarms: AlarmsConfig,
        pub algorithm: AlgorithmConfig,
        pub buffer: BufferConfig,
        pub cluster: ClusterConfig,
        pub dashboard: DashboardConfig,
        pub data_processor: DataProcessorConfig,
        pub explorer: ExplorerConfig,
        pub ledger: LedgerConfig,
        pub listeners: ListenersConfig,
        pub log: Log,
        pub monitor: MonitorConfig,
        pub simulation: SimulationConfig,
        pub synchronizer: SynchronizerConfig,
        pub tls: TlsConfig,
        pub trace: TraceConfig,
        pub trainer: TrainerConfig,
        #[serde(skip)]
        loaded: Loaded,
    }
}

impl Config {
    /// Returns the warnings of reading, such as keys without an effect.
    pub fn warnings(&self) -> &[ConfigWarning] {
        &self.loaded.warnings
    }

    /// Returns the folder of the file that the configuration was read from; empty for the working
    /// directory. `None`: it was not read from a file.
    pub fn folder(&self) -> Option<&Path> {
        self.loaded.folder.as_deref()
    }

    /// Checks the rules between keys, and every value again, because values may have been set since
    /// the configuration was read. Returns all warnings, including those of reading.
    pub fn check(&self) -> Result<Vec<ConfigWarning>, ConfigError> {
        Ok(self.resolve()?.warnings)
    }

    /// Checks the configuration and completes it: default names, computed sizes, and contradicting
    /// keys corrected, each with a warning.
    pub fn resolve(&self) -> Result<ResolvedConfig, ConfigError> {
        rules::resolve(self)
    }
}

/// A checked and completed configuration.
#[derive(Clone, Debug)]
pub struct ResolvedConfig {
    pub config: Config,
    pub warnings: Vec<ConfigWarning>,
}

choices! {
    /// Users that can access the folder of a job, when it is created. A folder that belongs to
    /// another user, or that all users can change, is refused.
    pub enum JobPermissions {
        /// The user of the job.
        #[default]
        Private,
        /// The user of the job, and the group of the folder for reading.
        Group,
        /// Those of the umask. Nothing is checked, for file systems that show one owner or one
        /// mode for all files.
        Unchecked,
    }

    /// Mode of operation.
    pub enum Mode {
        /// Explores and trains.
        #[default]
        Both,
        /// Explores; the trainer is another job.
        Explore,
        /// Trains.
        Train,
        /// Evaluates checkpoints.
        Bench,
        /// Serves models to external agents and records their calls.
        Serve,
        /// Runs the scheduler in virtual time with simulated work and faults.
        Simulate,
    }
}

/// Returns the name of a choice in a configuration.
fn choice_name(choice: impl serde::Serialize) -> String {
    let name = serde_json::to_value(choice).unwrap_or_default();
    name.as_str().unwrap_or_default().to_owned()
}
