//! Configuration of the core: limits, timeouts and policies. Plain data with working defaults.

use std::time::Duration;

use crate::{BatchType, FailurePolicy, ScalingBounds};

#[derive(Clone, Debug, PartialEq)]
pub struct CoreConfig {
    pub runners: u32,
    /// Bounds between which the number of runners follows the work, beginning with `runners`.
    /// `None`:
    /// fixed.
    pub scaling: Option<ScalingBounds>,
    /// Maximum runs of one task in one attempt. `None`: all of them.
    pub max_repeat_times_per_runner: Option<u32>,
    /// True if runners execute the runs of an attempt sequentially. Then only the first open run is
    /// charged when an attempt times out or its runner is lost; otherwise all of them are.
    pub runs_in_turn: bool,
    /// Maximum duration of an attempt, from its beginning.
    pub max_timeout: Duration,
    /// Timeout of waits without one: maximum time without any progress in the core.
    pub default_timeout: Duration,
    pub failures: FailurePolicy,
    /// Truncation of batches before all tasks have ended.
    pub over_rollout: OverRollout,
    /// Treatment of incomplete train batches at the timeout.
    pub train: BatchPolicy,
    /// Treatment of incomplete eval batches at the timeout.
    pub eval: BatchPolicy,
    /// Shorter attempt timeouts, learned from recent durations.
    pub dynamic_timeout: DynamicTimeout,
    pub supervision: Supervision,
    /// Number of runners that share a process.
    pub runners_per_worker: u32,
    /// Maximum time for the sink to acknowledge a delivery. After it the delivery has failed, and
    /// the next finalize repeats it.
    pub delivery_timeout: Duration,
    pub limits: CoreLimits,
    /// Emit [`AppendRecord`](crate::Action::AppendRecord) for everything that must survive a crash.
    pub ledger: bool,
    /// Number of earlier cores on the same ledger. Ids of attempts, incarnations and deliveries
    /// contain it, so that late reports are never confused.
    pub epoch: u16,
}

impl CoreConfig {
    pub const fn policy(&self, kind: BatchType) -> &BatchPolicy {
        match kind {
            BatchType::Train => &self.train,
            BatchType::Eval => &self.eval,
        }
    }
}

impl Default for CoreConfig {
    fn default() -> Self {
        let max_timeout = Duration::from_secs(1800);
        let retries = 2;
        Self {
            runners: 8,
            scaling: None,
            max_repeat_times_per_runner: None,
            runs_in_turn: true,
            max_timeout,
            default_timeout: max_timeout * (retries + 1),
            failures: FailurePolicy::with_retries(retries),
            over_rollout: OverRollout::default(),
            train: BatchPolicy { quorum_percent: None, success_min_percent: 0 },
            eval: BatchPolicy { quorum_percent: Some(0), success_min_percent: 0 },
            dynamic_timeout: DynamicTimeout::default(),
            supervision: Supervision::default(),
            runners_per_worker: 1,
            delivery_timeout: Duration::from_secs(600),
            limits: CoreLimits::default(),
            ledger: false,
            epoch: 0,
        }
    }
}

/// Truncation of batches before all tasks have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverRollout {
    /// Grace period for the remaining tasks once the minimum has finished.
    pub wait_after_min: Duration,
    /// Deliver the finished runs of truncated tasks.
    pub return_partial_tasks: bool,
}

impl Default for OverRollout {
    fn default() -> Self {
        Self { wait_after_min: Duration::from_secs(30), return_partial_tasks: false }
    }
}

/// Treatment of an incomplete batch at the timeout of its finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPolicy {
    /// Share of finished tasks with which the batch is accepted. `None`: the finalizer is refused,
    /// results are kept and it may be repeated.
    pub quorum_percent: Option<u8>,
    /// Minimum share of tasks with a successful run; below it finalizing is refused.
    pub success_min_percent: u8,
}

/// Attempt timeout of `ratio` times the mean duration of recent successful train attempts of the
/// same workflow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicTimeout {
    /// Off: the timeout is always `max_timeout`.
    pub enable: bool,
    /// Complete train batches before the first shorter timeout.
    pub warmup_min_steps: u32,
    /// Successful attempts of a workflow before its first shorter timeout.
    pub min_samples: u32,
    /// Recent attempts kept per workflow and number of runs.
    pub window: u32,
    pub ratio: f64,
    pub floor: Duration,
}

impl Default for DynamicTimeout {
    fn default() -> Self {
        Self {
            enable: false,
            warmup_min_steps: 1,
            min_samples: 4,
            window: 64,
            ratio: 3.0,
            floor: Duration::from_secs(1),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supervision {
    /// Maximum time from start to ready.
    pub start_timeout: Duration,
    /// Maximum time from the dispatch of an attempt to its beginning.
    pub begin_timeout: Duration,
    /// Maximum time without a report before a runner counts as lost. `None`: unlimited.
    pub heartbeat_timeout: Option<Duration>,
    /// Maximum time to acknowledge a cancel before the runner is replaced.
    pub cancel_grace: Duration,
    /// Delay before a restart after an incarnation that finished no attempt; doubles with each one.
    pub restart_backoff: Duration,
    pub max_restart_backoff: Duration,
    /// Consecutive failed starts after which a runner is shown as broken.
    pub max_start_failures: u32,
    /// Delay before a broken runner is started again.
    pub broken_retry_delay: Duration,
    /// Maximum wait of a retry for a runner other than that of the failure.
    pub other_runner_wait: Duration,
}

impl Default for Supervision {
    fn default() -> Self {
        Self {
            start_timeout: Duration::from_secs(120),
            begin_timeout: Duration::from_secs(60),
            heartbeat_timeout: Some(Duration::from_secs(30)),
            cancel_grace: Duration::from_secs(5),
            restart_backoff: Duration::from_secs(1),
            max_restart_backoff: Duration::from_secs(60),
            max_start_failures: 3,
            broken_retry_delay: Duration::from_secs(60),
            other_runner_wait: Duration::from_secs(5),
        }
    }
}

/// Bounds of all kept state. Everything beyond them is refused, or dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreLimits {
    /// Batches that are not finalized or aborted.
    pub batches: u32,
    /// Tasks that have not ended, over all batches.
    pub open_tasks: u64,
    pub runs_per_task: u32,
    pub waiters: u32,
    pub runners: u32,
    /// Bytes of held payloads. Batches behind the first are paused at half of it; the first
    /// continues until it holds half of it itself. With attempts in flight, up to one and a half
    /// times this can be held.
    pub payload_bytes: u64,
    pub payload_bytes_per_run: u64,
    /// Bytes of one error message; longer ones are truncated.
    pub message_bytes: u32,
    /// Metrics of one run; further ones are dropped.
    pub metrics_per_run: u32,
    /// Finalized and aborted batches whose result is kept.
    pub terminal_batches: u32,
    /// Workflows with their own dynamic timeout.
    pub workflows: u32,
}

impl Default for CoreLimits {
    fn default() -> Self {
        Self {
            batches: 100_000,
            open_tasks: 10_000_000,
            runs_per_task: 65_536,
            waiters: 100_000,
            runners: 100_000,
            payload_bytes: 4 << 30,
            payload_bytes_per_run: 256 << 20,
            message_bytes: 16 << 10,
            metrics_per_run: 512,
            terminal_batches: 64,
            workflows: 1_024,
        }
    }
}
