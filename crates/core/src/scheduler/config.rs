//! What the core is told once: limits, timeouts and policies. Plain data with working defaults.

use std::time::Duration;

use crate::failure::FailurePolicy;
use crate::scheduler::scaling::ScalingBounds;

/// The configuration of a [`Core`](crate::Core).
#[derive(Clone, Debug, PartialEq)]
pub struct CoreConfig {
    /// Number of runners to keep.
    pub runners: u32,
    /// Whether and between which bounds the number of runners follows the work; it begins with
    /// `runners`, as far as the bounds allow.
    pub scaling: Option<ScalingBounds>,
    /// The most runs of one task that one runner gets at once; none: all of them.
    pub max_repeat_times_per_runner: Option<u32>,
    /// Whether runners execute the runs of an attempt one after another, in their order. Then only
    /// the first run that was not reported is to blame when an attempt takes too long or its runner
    /// is lost; otherwise all of them are.
    pub runs_in_turn: bool,
    /// How long one attempt may last, from the moment the runner says it has begun.
    pub max_timeout: Duration,
    /// How long a waiter waits when it names no time: this long without any progress anywhere. A
    /// queue that moves never times anybody out.
    pub default_timeout: Duration,
    /// What follows when runs fail.
    pub failures: FailurePolicy,
    /// When a batch is good enough although tasks are missing.
    pub over_rollout: OverRollout,
    /// What becomes of a train batch that is short when time is up.
    pub train: BatchPolicy,
    /// What becomes of an eval batch that is short when time is up.
    pub eval: BatchPolicy,
    /// Shorter attempt timeouts, learned from what attempts usually take.
    pub dynamic_timeout: DynamicTimeout,
    /// How the pool of runners is looked after.
    pub supervision: Supervision,
    /// How long a sink may take to acknowledge a delivery before it counts as failed. The results
    /// stay, and the next finalize delivers them again.
    pub delivery_timeout: Duration,
    /// The bounds of everything that is kept.
    pub limits: CoreLimits,
    /// Whether what must survive a crash is ordered as
    /// [`AppendRecord`](crate::Action::AppendRecord)s.
    pub ledger: bool,
    /// Which core this is of all that follow one another on one ledger: each has attempts, lives
    /// and deliveries with numbers of its own, so that no late word can be taken for a new one.
    pub epoch: u16,
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
            delivery_timeout: Duration::from_secs(600),
            limits: CoreLimits::default(),
            ledger: false,
            epoch: 0,
        }
    }
}

/// When a batch is cut although tasks are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverRollout {
    /// How long stragglers get once the minimum has finished.
    pub wait_after_min: Duration,
    /// Whether the finished runs of a task that is cut are delivered.
    pub return_partial_tasks: bool,
}

impl Default for OverRollout {
    fn default() -> Self {
        Self { wait_after_min: Duration::from_secs(30), return_partial_tasks: false }
    }
}

/// What becomes of a batch that is short when the time of its finalizer is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPolicy {
    /// The share of tasks that must have finished for the batch to be taken as it is; none: the
    /// finalizer fails, nothing is lost and it may be called again.
    pub quorum_percent: Option<u8>,
    /// The share of tasks with at least one good run below which finalizing is refused.
    pub success_min_percent: u8,
}

/// An attempt timeout that follows the work: `ratio` times what recent successful train attempts
/// of the same workflow took, and never less than `floor`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicTimeout {
    /// Off: attempts may always last `max_timeout`.
    pub enable: bool,
    /// How many train batches must have been seen whole before anything is shortened.
    pub warmup_min_steps: u32,
    /// How many successful attempts of a workflow must have been seen.
    pub min_samples: u32,
    /// How many recent attempts are remembered per workflow and number of runs.
    pub window: u32,
    /// How many times the usual duration is allowed.
    pub ratio: f64,
    /// No attempt gets less than this.
    pub floor: Duration,
}

impl Default for DynamicTimeout {
    fn default() -> Self {
        Self {
            enable: false,
            warmup_min_steps: 1,
            min_samples: 8,
            window: 64,
            ratio: 3.0,
            floor: Duration::from_secs(1),
        }
    }
}

/// How the pool of runners is looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supervision {
    /// How long a runner may take to say that it is ready.
    pub start_timeout: Duration,
    /// How long a runner may take to say that it has begun an attempt.
    pub begin_timeout: Duration,
    /// How long a runner may be silent before it counts as lost; none: it is not watched.
    pub silence_timeout: Option<Duration>,
    /// How long a runner has to acknowledge a cancel before it is replaced.
    pub cancel_grace: Duration,
    /// The pause before a runner is started again after a life that finished no attempt; doubles
    /// with each such life.
    pub restart_backoff: Duration,
    /// The longest pause.
    pub restart_backoff_max: Duration,
    /// After how many failed starts in a row a runner is shown as broken.
    pub start_failures_max: u32,
    /// How long a broken runner rests before it is tried again.
    pub broken_rest: Duration,
    /// How long a retry waits for a runner other than the one it failed on, while there is one.
    pub elsewhere_wait: Duration,
}

impl Default for Supervision {
    fn default() -> Self {
        Self {
            start_timeout: Duration::from_secs(120),
            begin_timeout: Duration::from_secs(60),
            silence_timeout: Some(Duration::from_secs(30)),
            cancel_grace: Duration::from_secs(5),
            restart_backoff: Duration::from_secs(1),
            restart_backoff_max: Duration::from_secs(60),
            start_failures_max: 3,
            broken_rest: Duration::from_secs(60),
            elsewhere_wait: Duration::from_secs(5),
        }
    }
}

/// The bounds of everything that is kept. What exceeds them is refused or dropped under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreLimits {
    /// Batches that are not finalized or aborted.
    pub batches: u32,
    /// Tasks that have not ended, over all batches.
    pub open_tasks: u64,
    pub runs_per_task: u32,
    /// Requests that wait for something.
    pub waiters: u32,
    /// Runners that are kept alive.
    pub runners: u32,
    /// Bytes of payloads held. Batches behind the first one are paused at half of it, and the first
    /// one goes on until it holds half of it itself: with what is under way, up to one and a half
    /// times this can be held.
    pub payload_bytes: u64,
    pub payload_bytes_per_run: u64,
    /// Bytes of one error message; longer ones are cut.
    pub message_bytes: u32,
    /// Metrics of one run; further ones are dropped.
    pub metrics_per_run: u32,
    /// Finalized and aborted batches whose result is remembered.
    pub terminal_batches: u32,
    /// Workflows that the dynamic timeout tells apart.
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
