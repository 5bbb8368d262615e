//! `explorer`: runners, attempts, evaluation and serving.

use std::collections::BTreeMap;

use rollway_core::DynamicTimeout;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::batch::BatchConfig;
use super::failures::FailuresConfig;
use super::gateway::GatewayConfig;
use super::history::HistoryConfig;
use super::limits::LimitsConfig;
use super::model::ModelConfig;
use super::run_budget::RunBudgetConfig;
use super::sandbox::{SandboxConfig, StagesConfig};
use super::seconds::ConfigSeconds;
use super::server_restart::ServerRestartConfig;
use super::supervision::SupervisionConfig;

section! {
    /// Runners, attempts, evaluation and serving.
    pub struct ExplorerConfig {
        /// Name of this explorer in logs, metrics and file names.
        pub name: String = "explorer".to_owned(),
        /// Runners for each engine of `rollout_model`.
        #[schemars(range(min = 1))]
        pub runner_per_model: u32 = 8,
        /// Runners of one worker process. Async workflows of one process share one event loop; 1
        /// gives every runner its own process, for workflows that keep a processor busy.
        #[schemars(range(min = 1))]
        pub runner_per_worker: u32 = 4,
        /// Timeout of one attempt, counted from the runner's confirmation that it has begun.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub max_timeout: ConfigSeconds = ConfigSeconds::new(1800),
        /// Maximum retries after an exception, a timeout or invalid output. `explorer.failures`
        /// overrides it for each kind of failure.
        pub max_retry_times: u32 = 2,
        /// Python interpreter with the package `rollway`, for workflows in Python. Absent: the one
        /// that started the job, or `python3`.
        pub python: Option<String>,
        /// Environment variables of worker processes.
        pub env_vars: BTreeMap<String, String>,
        pub concurrent_mode: ConcurrentMode,
        /// Maximum runs of one task that one runner gets at once. Absent: all of them.
        #[schemars(range(min = 1))]
        pub max_repeat_times_per_runner: Option<u32>,
        /// The trained model. Its servers run already.
        pub rollout_model: ModelConfig,
        /// Further models for workflows and operators, such as a judge. They are not trained.
        pub auxiliary_models: Vec<ModelConfig>,
        /// Steps between two evaluations, rounded down to a multiple of
        /// `synchronizer.sync_interval`.
        #[schemars(range(min = 1))]
        pub eval_interval: u32 = 100,
        /// Evaluates the untrained model too.
        pub eval_on_startup: bool = true,
        /// Evaluates the model once more at the end, with the last weights.
        pub eval_at_end: bool = true,
        /// Delays weight updates until running evaluations have ended, so that each evaluation uses
        /// one version of the weights. Otherwise updates do not wait for them; the metrics
        /// `eval/model_version/begin` and `end` are the versions at its start and its end.
        pub eval_single_version: bool,
        /// Evaluates only the latest checkpoint in mode `bench`, instead of each of them.
        pub bench_on_latest_checkpoint: bool,
        pub over_rollout: OverRolloutConfig,
        pub dynamic_timeout: DynamicTimeoutConfig,
        pub failures: FailuresConfig,
        pub batch: BatchConfig,
        pub supervision: SupervisionConfig,
        pub limits: LimitsConfig,
        pub run_budget: RunBudgetConfig,
        pub stages: StagesConfig,
        pub sandbox: SandboxConfig,
        pub gateway: GatewayConfig,
        pub server_restart: ServerRestartConfig,
        /// Maximum time for pipeline and buffer to acknowledge a batch before the delivery has
        /// failed. The results are kept and delivered again.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub delivery_timeout: ConfigSeconds = ConfigSeconds::new(600),
        /// Attempts to deliver a batch. After this number of failures because of an operator or its
        /// experiences it is moved to the folder `quarantine` of the job, and the job continues;
        /// if failures of the storage are among them, the job ends. 0: the first failure ends it.
        pub delivery_attempts: u32 = 5,
        /// Interval at which the state of every runner is logged. 0: never.
        pub runner_state_report_interval: ConfigSeconds,
        /// Maximum train batches in flight with `sync_style: fully_async`.
        #[schemars(range(min = 1))]
        pub max_inflight_batches: u32 = 2,
        /// Port of mode `serve`. 0: any free one.
        pub proxy_port: u16 = 8010,
        /// Address that mode `serve` listens on. The default is reachable from this machine only.
        pub listen_address: String = "127.0.0.1".to_owned(),
        /// Requires the agent key from clients of mode `serve`.
        pub authentication: bool = true,
        /// Permits mode `serve` without authentication on an address that other machines reach:
        /// every client there can use the model and write experiences. Also permits
        /// `monitor.prometheus` on such an address with `tls.mode: off`.
        pub allow_unauthenticated_network: bool,
        /// Environment variable that holds the agent key of mode `serve`. Absent: a random key,
        /// kept in a file in the job's folder.
        pub proxy_key_env: Option<String>,
        /// Interval at which mode `serve` looks for new weights.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub service_status_check_interval: ConfigSeconds = ConfigSeconds::new(60),
        /// Servers that keep serving while others load new weights.
        pub min_running_model_num: u32 = 1,
        /// SQLite database of mode `serve`: `sqlite:///PATH`, or a path. Absent:
        /// `proxy_history.db` in `buffer.cache_dir`.
        pub db_url: Option<String>,
        pub serve_retention: HistoryConfig,
    }

    /// Truncation of train batches in which enough tasks have finished.
    pub struct OverRolloutConfig {
        /// Share of the tasks of a train batch that may be missing. 0: none. Needs a `sync_style`
        /// other than `fixed`.
        #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1))]
        pub ratio: f64,
        /// Time that the remaining tasks get once enough tasks have finished.
        pub wait_after_min: ConfigSeconds = ConfigSeconds::new(30),
        /// Keeps the finished runs of tasks that are truncated. Needs a `sync_style` other than
        /// `fixed`.
        pub return_partial_tasks: bool,
    }

    /// Attempt timeout that adapts to the workflow: `ratio` times the duration of its recent
    /// successful train attempts.
    pub struct DynamicTimeoutConfig {
        /// Shortens attempt timeouts below `explorer.max_timeout`.
        pub enable: bool = DynamicTimeout::default().enable,
        /// Complete train batches before any timeout is shortened.
        pub warmup_min_steps: u32 = DynamicTimeout::default().warmup_min_steps,
        /// Timeout as a multiple of the typical duration.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub ratio: f64 = DynamicTimeout::default().ratio,
        /// Successful attempts of a workflow before its timeout is shortened.
        #[schemars(range(min = 1))]
        pub min_samples: u32 = DynamicTimeout::default().min_samples,
        /// Recent attempts of each workflow that are taken into account.
        #[schemars(range(min = 1))]
        pub window: u32 = DynamicTimeout::default().window,
        /// Minimum timeout.
        pub floor: ConfigSeconds = DynamicTimeout::default().floor.into(),
    }
}

impl ExplorerConfig {
    /// Returns the auxiliary models with their names; the default is the index.
    pub fn named_auxiliary_models(&self) -> impl Iterator<Item = (String, &ModelConfig)> {
        let name = |(index, model): (usize, &ModelConfig)| {
            model.name.clone().unwrap_or_else(|| index.to_string())
        };
        self.auxiliary_models.iter().enumerate().map(move |it| (name(it), it.1))
    }
}

impl OverRolloutConfig {
    /// Returns the number of finished tasks that is enough for a batch of this size. `None`: all.
    pub fn min_wait_num(&self, batch_size: u32) -> Option<u32> {
        let min = (f64::from(batch_size) * (1.0 - self.ratio)).ceil() as u32;
        (self.ratio > 0.0).then_some(min)
    }
}

/// Execution of the runs of one task by a runner.
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
