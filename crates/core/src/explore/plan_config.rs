//! Configuration of a plan, and the arithmetic that depends on it alone: period ends, reachable
//! versions, staleness.

/// Condition for weight syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanStyle {
    /// Explorer and trainer sync every `sync_interval` steps.
    Fixed,
    /// The explorer requests weights.
    ExplorerDriven,
    /// The trainer publishes, the explorer follows.
    TrainerDriven,
    /// Explorer and trainer never wait for each other.
    FullyAsync,
}

/// Configuration of a plan. Intervals and sizes of zero count as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanConfig {
    pub style: PlanStyle,
    pub sync_interval: u64,
    /// Steps by which the explorer may lead at the start.
    pub sync_offset: u64,
    /// Steps in flight with [`PlanStyle::FullyAsync`].
    pub max_inflight: u64,
    /// Maximum age of weights, in train steps, when a step's experiences are trained on, with
    /// [`PlanStyle::FullyAsync`]. `None`: unlimited.
    pub max_staleness: Option<u64>,
    pub step_experiences: u64,
    pub train_batch_size: u64,
    /// Steps between evaluations. `None`: no evaluation.
    pub eval_interval: Option<u64>,
    /// Evaluate the first weights.
    pub eval_on_startup: bool,
    /// Evaluate the last weights when all steps are done.
    pub eval_at_end: bool,
    /// Weights change only between evaluations, so that each uses one version. Otherwise no
    /// evaluation delays them, as long as fewer than `max_inflight` are active.
    pub eval_single_version: bool,
    pub total_steps: u64,
}

impl PlanConfig {
    /// Returns the first step after `step` that a weight sync follows.
    pub fn sync_after(&self, step: u64) -> u64 {
        let interval = self.sync_interval.max(1);
        let periods = step.saturating_sub(self.sync_offset) / interval + 1;
        self.sync_offset.saturating_add(periods.saturating_mul(interval))
    }

    /// Returns the first step after `step` that is evaluated. `None`: no evaluation.
    pub fn eval_after(&self, step: u64) -> Option<u64> {
        let interval = self.eval_interval?.max(1);
        Some((step / interval).saturating_add(1).saturating_mul(interval))
    }

    pub fn train_steps(&self, experiences: u64) -> u64 {
        experiences / self.train_batch_size.max(1)
    }

    /// Returns the last version that a trainer with `experiences` publishes, at one publication
    /// every `sync_interval` train steps.
    pub fn published(&self, experiences: u64) -> u64 {
        let steps = self.train_steps(experiences);
        steps - steps % self.sync_interval.max(1)
    }

    /// Returns the oldest version with which a step may begin, if `submitted` includes its
    /// experiences. The last of them is trained on after `(submitted - 1) / train_batch_size` train
    /// steps, at most `max_staleness` ahead of the version.
    pub fn oldest(&self, submitted: u64) -> u64 {
        let Some(staleness) = self.max_staleness else { return 0 };
        self.train_steps(submitted.saturating_sub(1)).saturating_sub(staleness)
    }

    pub fn has_periods(&self) -> bool {
        self.style != PlanStyle::FullyAsync
    }
}
