//! How an explorer proceeds, and the arithmetic that follows from it alone: where periods end,
//! which version a trainer can reach, how old weights would be.

/// Who decides when weights are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanStyle {
    /// Both sides stop every `sync_interval` steps.
    Fixed,
    /// The explorer asks, the trainer serves.
    ExplorerDriven,
    /// The trainer publishes, the explorer follows.
    TrainerDriven,
    /// Nobody stops.
    FullyAsync,
}

/// How an explorer proceeds. Intervals and sizes of zero count as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanConfig {
    /// Who decides when weights are exchanged.
    pub style: PlanStyle,
    /// Steps of a period.
    pub sync_interval: u64,
    /// Steps that the explorer may be ahead at the start.
    pub sync_offset: u64,
    /// Steps in flight with [`PlanStyle::FullyAsync`].
    pub max_inflight: u64,
    /// How many train steps old weights may be when a step's experiences are trained on, with
    /// [`PlanStyle::FullyAsync`].
    pub max_staleness: Option<u64>,
    /// Experiences that a step is expected to yield.
    pub step_experiences: u64,
    /// Experiences of a train step.
    pub train_batch_size: u64,
    /// Steps between evaluations; none: there is nothing to evaluate on.
    pub eval_interval: Option<u64>,
    /// Whether the first weights are evaluated.
    pub eval_on_startup: bool,
    /// Whether the last weights are evaluated when all steps are done.
    pub eval_at_end: bool,
    /// Steps of the whole job.
    pub total_steps: u64,
}

impl PlanConfig {
    /// Returns the first step after `step` behind which weights are exchanged.
    pub fn sync_after(&self, step: u64) -> u64 {
        let interval = self.sync_interval.max(1);
        let periods = step.saturating_sub(self.sync_offset) / interval + 1;
        self.sync_offset.saturating_add(periods.saturating_mul(interval))
    }

    /// Returns the first step after `step` that is evaluated; none: there is nothing to evaluate
    /// on.
    pub fn eval_after(&self, step: u64) -> Option<u64> {
        let interval = self.eval_interval?.max(1);
        Some((step / interval).saturating_add(1).saturating_mul(interval))
    }

    /// Returns how many train steps can be made of so many experiences.
    pub fn train_steps(&self, experiences: u64) -> u64 {
        experiences / self.train_batch_size.max(1)
    }

    /// Returns the last version that a trainer publishes which has got so many experiences, if it
    /// publishes every `sync_interval` train steps.
    pub fn published(&self, experiences: u64) -> u64 {
        let steps = self.train_steps(experiences);
        steps - steps % self.sync_interval.max(1)
    }

    /// Returns the oldest version with which a step may be begun, if so many experiences were
    /// submitted when it is. Its last experience is trained on by the train step after
    /// `(submitted - 1) / train_batch_size` others, which must not be more than `max_staleness`
    /// ahead of the version.
    pub fn oldest(&self, submitted: u64) -> u64 {
        let Some(staleness) = self.max_staleness else { return 0 };
        self.train_steps(submitted.saturating_sub(1)).saturating_sub(staleness)
    }

    /// Tells whether there are periods.
    pub fn has_periods(&self) -> bool {
        self.style != PlanStyle::FullyAsync
    }
}
