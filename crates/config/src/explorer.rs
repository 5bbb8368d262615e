//! `explorer`: runners, attempts, evaluation and serving.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::batch::BatchConfig;
use super::failures::FailuresConfig;
use super::history::HistoryConfig;
use super::limits::LimitsConfig;
use super::model::ModelConfig;
use super::seconds::ConfigSeconds;
use super::supervision::SupervisionConfig;

/// Runners, attempts, evaluation and serving.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExplorerConfig {
    /// Name of this explorer in logs, metrics and file names.
    pub name: String,
    /// Runners for each model of `rollout_model`.
    #[schemars(range(min = 1))]
    pub runner_per_model: u32,
    /// Runners that share a worker process. Async workflows of one process take turns in one event
    /// loop; 1 gives every runner a process of its own, for workflows that keep a processor busy.
    #[schemars(range(min = 1))]
    pub runner_per_worker: u32,
    /// How long one attempt may last, from the moment the runner says it has begun.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub max_timeout: ConfigSeconds,
    /// How often a run that raised, took too long or returned rubbish is tried again.
    /// `explorer.failures` can say otherwise for each kind of failure.
    pub max_retry_times: u32,
    /// The Python with the package `rollway`, for workflows in Python. Absent: the one that started
    /// the job, or `python3`.
    pub python: Option<String>,
    /// Environment variables of worker processes.
    pub env_vars: BTreeMap<String, String>,
    /// How a runner goes about the runs of one task.
    pub concurrent_mode: ConcurrentMode,
    /// The most runs of one task that one runner gets at once. Absent: all of them.
    #[schemars(range(min = 1))]
    pub max_repeat_times_per_runner: Option<u32>,
    /// The models that are trained. Rollway talks to servers that run already.
    pub rollout_model: ModelConfig,
    /// Further models for workflows and operators, such as a judge. They are not trained.
    pub auxiliary_models: Vec<ModelConfig>,
    /// Steps between two evaluations, rounded down to a multiple of
    /// `synchronizer.sync_interval`.
    #[schemars(range(min = 1))]
    pub eval_interval: u32,
    /// Whether the untrained model is evaluated too.
    pub eval_on_startup: bool,
    /// Whether the model is evaluated once more at the end, with the last weights.
    pub eval_at_end: bool,
    /// Whether mode `bench` evaluates the latest checkpoint only, and not each of them.
    pub bench_on_latest_checkpoint: bool,
    /// When a batch is good enough although tasks are missing.
    pub over_rollout: OverRolloutConfig,
    /// Shorter attempt timeouts, learned from what attempts usually take.
    pub dynamic_timeout: DynamicTimeoutConfig,
    /// What follows when runs fail.
    pub failures: FailuresConfig,
    /// What becomes of a batch that is short when time is up.
    pub batch: BatchConfig,
    /// How runners are looked after.
    pub supervision: SupervisionConfig,
    /// The bounds of everything that is kept.
    pub limits: LimitsConfig,
    /// How long the pipeline and the buffer may take to acknowledge a batch before the delivery
    /// counts as failed. The results stay and are delivered again.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub delivery_timeout: ConfigSeconds,
    /// How often the state of every runner is written to the log. 0: never.
    pub runner_state_report_interval: ConfigSeconds,
    /// Train batches in flight with `sync_style: fully_async`.
    #[schemars(range(min = 1))]
    pub max_inflight_batches: u32,
    /// Port of mode `serve`. 0: any free one.
    pub proxy_port: u16,
    /// Address that mode `serve` listens on. The default is reachable from this machine only.
    pub listen_address: String,
    /// Whether clients of mode `serve` must present the job's key.
    pub authentication: bool,
    /// Environment variable that holds the key for clients of mode `serve`. Absent: a key that
    /// nobody can guess is made, and kept in a file in the job's folder.
    pub proxy_key_env: Option<String>,
    /// How often mode `serve` looks for new weights.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub service_status_check_interval: ConfigSeconds,
    /// Models that keep serving while others load new weights.
    pub min_running_model_num: u32,
    /// Address of the SQLite database in which mode `serve` records: `sqlite:///PATH`, or a path.
    /// Absent: `proxy_history.db` in `buffer.cache_dir`.
    pub db_url: Option<String>,
    /// How much of what it records mode `serve` keeps.
    pub serve_retention: HistoryConfig,
}

impl Default for ExplorerConfig {
    fn default() -> Self {
        Self {
            name: "explorer".to_owned(),
            runner_per_model: 8,
            runner_per_worker: 4,
            max_timeout: ConfigSeconds::new(1800),
            max_retry_times: 2,
            python: None,
            env_vars: BTreeMap::new(),
            concurrent_mode: ConcurrentMode::default(),
            max_repeat_times_per_runner: None,
            rollout_model: ModelConfig::default(),
            auxiliary_models: Vec::new(),
            eval_interval: 100,
            eval_on_startup: true,
            eval_at_end: true,
            bench_on_latest_checkpoint: false,
            over_rollout: OverRolloutConfig::default(),
            dynamic_timeout: DynamicTimeoutConfig::default(),
            failures: FailuresConfig::default(),
            batch: BatchConfig::default(),
            supervision: SupervisionConfig::default(),
            limits: LimitsConfig::default(),
            delivery_timeout: ConfigSeconds::new(600),
            runner_state_report_interval: ConfigSeconds::new(0),
            max_inflight_batches: 2,
            proxy_port: 8010,
            listen_address: "127.0.0.1".to_owned(),
            authentication: true,
            proxy_key_env: None,
            service_status_check_interval: ConfigSeconds::new(60),
            min_running_model_num: 1,
            db_url: None,
            serve_retention: HistoryConfig::default(),
        }
    }
}

/// How a runner goes about the runs of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ConcurrentMode {
    /// One after the other.
    #[default]
    Sequential,
    /// All at once in one event loop; the workflow is async.
    Asynchronous,
    /// All at once, each in a thread.
    MultiThreading,
}

/// When a batch is good enough although tasks are missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OverRolloutConfig {
    /// Share of a train batch that may be missing. 0: none. Needs a `sync_style` other than
    /// `fixed`.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1))]
    pub ratio: f64,
    /// How long stragglers get once enough tasks have finished.
    pub wait_after_min: ConfigSeconds,
    /// Whether the finished runs of a task that is cut are kept. Needs a `sync_style` other than
    /// `fixed`.
    pub return_partial_tasks: bool,
}

impl OverRolloutConfig {
    /// Returns how many tasks of a batch of this size are enough; none: all of them, always.
    pub fn min_wait_num(&self, batch_size: u32) -> Option<u32> {
        let least = (f64::from(batch_size) * (1.0 - self.ratio)).ceil() as u32;
        (self.ratio > 0.0).then_some(least)
    }
}

impl Default for OverRolloutConfig {
    fn default() -> Self {
        Self { ratio: 0.0, wait_after_min: ConfigSeconds::new(30), return_partial_tasks: false }
    }
}

/// An attempt timeout that follows the work: `ratio` times what recent successful train attempts
/// of the same workflow took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DynamicTimeoutConfig {
    /// Off: attempts may always last `explorer.max_timeout`.
    pub enable: bool,
    /// How many train batches must have been seen whole before anything is shortened.
    pub warmup_min_steps: u32,
    /// How many times the usual duration is allowed.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub ratio: f64,
    /// How many successful attempts of a workflow must have been seen.
    #[schemars(range(min = 1))]
    pub min_samples: u32,
    /// How many recent attempts are remembered for each workflow.
    #[schemars(range(min = 1))]
    pub window: u32,
    /// No attempt gets less than this.
    pub floor: ConfigSeconds,
}

impl Default for DynamicTimeoutConfig {
    fn default() -> Self {
        let core = rollway_core::DynamicTimeout::default();
        Self {
            enable: core.enable,
            warmup_min_steps: core.warmup_min_steps,
            ratio: core.ratio,
            min_samples: core.min_samples,
            window: core.window,
            floor: core.floor.into(),
        }
    }
}
