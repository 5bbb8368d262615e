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
//! dict ─► nodes ─────────────┼─► reader ─► Config ─► rules ─► Resolved ─► core
//! key=value ─► nodes ────────┘   (shape: keys, types, bounds; foreign: keys of Trinity-RFT)
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
mod foreign;
mod fresh;
mod history;
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
mod shape;
mod simulation;
mod supervision;
mod synchronizer;
mod taskset;
mod trace;
mod trainer;
mod yaml;

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::alarms::{Alarms, OnFailures};
pub use self::algorithm::Algorithm;
pub use self::batch::{Batch, EvalBatch, TrainBatch, WhenShort};
pub use self::buffer::{
    Buffer, ExperienceBuffer, ExplorerInput, PriorityFn, ReplayBuffer, StorageType, TrainerInput,
    WhenFull,
};
pub use self::cluster::{Backend, Cluster, Placement};
pub use self::dashboard::Dashboard;
pub use self::data_processor::{DataProcessor, ExperiencePipeline, Operator};
pub use self::error::{ConfigError, Place, Problem, Warning};
pub use self::explorer::{ConcurrentMode, DynamicTimeout, Explorer, OverRollout};
pub use self::failures::{Failures, Groups, Rule, Then};
pub use self::history::History;
pub use self::ledger::Ledger;
pub use self::limits::Limits;
pub use self::model::{EngineType, Model};
pub use self::monitor::{Log, LogLevel, Monitor, MonitorType};
pub use self::reference::{reference, schema};
pub use self::seconds::Seconds;
pub use self::simulation::{Faults, Simulation};
pub use self::supervision::Supervision;
pub use self::synchronizer::{SyncMethod, SyncStyle, Synchronizer};
pub use self::taskset::{DataSelector, Format, SelectorType, Taskset, TasksetStorage};
pub use self::trace::Trace;
pub use self::trainer::{Trainer, TrainerType};

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
    pub alarms: Alarms,
    /// What the trainer does with experiences, as far as rollouts depend on it.
    pub algorithm: Algorithm,
    /// How much is read and trained at a time, where tasks come from and where experiences go.
    pub buffer: Buffer,
    /// On which machines workers run. `cluster: ray` is short for `cluster: {backend: ray}`.
    pub cluster: Cluster,
    /// The pages on which a job is looked at.
    pub dashboard: Dashboard,
    /// What happens to experiences between the workflow and the buffer.
    pub data_processor: DataProcessor,
    /// Runners, attempts, evaluation and serving.
    pub explorer: Explorer,
    /// What survives the death of a job.
    pub ledger: Ledger,
    /// Where the words about a job go.
    pub log: Log,
    /// Where the numbers about a job go.
    pub monitor: Monitor,
    /// The made-up world of mode `simulate`.
    pub simulation: Simulation,
    /// How new weights come from the trainer to the models.
    pub synchronizer: Synchronizer,
    /// Where the spans of a job go: what was done when, and inside of what.
    pub trace: Trace,
    /// Who learns from the experiences in modes `both` and `train`.
    pub trainer: Trainer,
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
            alarms: Alarms::default(),
            algorithm: Algorithm::default(),
            buffer: Buffer::default(),
            cluster: Cluster::default(),
            dashboard: Dashboard::default(),
            data_processor: DataProcessor::default(),
            explorer: Explorer::default(),
            ledger: Ledger::default(),
            log: Log::default(),
            monitor: Monitor::default(),
            simulation: Simulation::default(),
            synchronizer: Synchronizer::default(),
            trace: Trace::default(),
            trainer: Trainer::default(),
            loaded: Loaded::default(),
        }
    }
}

impl Config {
    /// Returns what to know about how the configuration was read: keys that have no effect here.
    pub fn warnings(&self) -> &[Warning] {
        &self.loaded.warnings
    }

    /// Returns the folder of the file that the configuration was read from; empty if that is the
    /// working directory, none if there was no file.
    pub fn folder(&self) -> Option<&Path> {
        self.loaded.folder.as_deref()
    }

    /// Checks the rules between keys, and every value once more, because values may have been set
    /// since the configuration was read. The warnings include those of reading.
    pub fn check(&self) -> Result<Vec<Warning>, ConfigError> {
        Ok(self.resolve()?.warnings)
    }

    /// Checks the configuration and returns what is run: names given, sizes reckoned, and keys that
    /// do not go together changed, each with a warning.
    pub fn resolve(&self) -> Result<Resolved, ConfigError> {
        rules::resolve(self)
    }
}

/// A configuration that has been checked.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// What is run.
    pub config: Config,
    /// What may surprise.
    pub warnings: Vec<Warning>,
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
