//! Where an explorer is: everything about the loop that a restart needs, and nothing else.

use super::plan_config::{PlanConfig, PlanStyle};

/// No job has as many steps, so that the next can always be counted.
const MAX_STEPS: u64 = u64::MAX / 2;

/// Where an explorer is, or was when its last process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanProgress {
    /// The last step that was begun.
    pub begun: u64,
    /// The step whose tasks are being submitted: an order that must come again after a crash,
    /// because they may be there.
    pub beginning: Option<u64>,
    /// The last step that was finalized.
    pub finalized: u64,
    /// The step whose evaluations are being submitted.
    pub evaluating: Option<u64>,
    /// Steps whose evaluations were submitted and not finished, in order.
    pub evals: Vec<u64>,
    /// The last step whose evaluations were submitted; none: not even those at the start.
    pub evaluated: Option<u64>,
    pub evaluated_version: u64,
    /// The last step after which weights were exchanged.
    pub synced: u64,
    /// Experiences that were delivered.
    pub delivered: u64,
    /// How many of them by each of the last `sync_offset` steps, the oldest first: those that the
    /// trainer of style `fixed` need not have trained on yet.
    pub ahead: Vec<u64>,
    /// Experiences that other explorers of the job have submitted.
    pub elsewhere: u64,
    /// The version of the weights.
    pub version: u64,
    /// The last step of the job, if it is over before its `total_steps`: no more tasks, or a
    /// trainer that is done. Whoever makes a job longer that ended so clears it.
    pub last: Option<u64>,
    /// The step behind which the trainer was told that no more come, and has answered.
    pub closed: Option<u64>,
}

impl PlanProgress {
    /// Makes the best of what contradicts itself, as a file can that somebody has edited.
    pub(super) fn mend(&mut self) {
        self.finalized = self.finalized.min(MAX_STEPS);
        self.begun = self.begun.min(MAX_STEPS).max(self.finalized);
        self.synced = self.synced.min(self.finalized);
        self.evals.sort_unstable();
        self.evals.dedup();
        self.evaluated = self.evaluated.max(self.evals.last().copied());
        self.beginning = self.beginning.filter(|step| *step == self.begun + 1);
        self.evaluating = self.evaluating.filter(|step| Some(*step) > self.evaluated);
        self.closed = self.closed.filter(|step| *step <= self.finalized);
    }

    /// Notes that the next step is finalized.
    pub(super) fn finalize(&mut self, pace: &PlanConfig, delivered: u64) {
        self.finalized += 1;
        self.delivered = self.delivered.saturating_add(delivered);
        if pace.style == PlanStyle::Fixed {
            self.ahead.push(delivered);
            let keep = usize::try_from(pace.sync_offset).unwrap_or(usize::MAX);
            self.ahead.drain(..self.ahead.len().saturating_sub(keep));
        }
    }

    /// Returns the version that the trainer can be expected to reach with what it got, and which
    /// is worth waiting for.
    pub(super) fn expected(&self, pace: &PlanConfig) -> u64 {
        match pace.style {
            PlanStyle::Fixed => {
                let keep = usize::try_from(pace.sync_offset).unwrap_or(usize::MAX);
                let ahead = self.ahead.iter().rev().take(keep);
                let counted = ahead.fold(self.delivered, |left, one| left.saturating_sub(*one));
                pace.published(counted)
            }
            // It publishes what it has when asked; all that is wanted is something newer, if it
            // has got enough for that.
            PlanStyle::ExplorerDriven => {
                let reached = pace.train_steps(self.delivered);
                if reached > self.version { self.version + 1 } else { 0 }
            }
            PlanStyle::TrainerDriven | PlanStyle::FullyAsync => 0,
        }
    }

    /// Returns how many experiences will have been submitted when one more step is begun.
    pub(super) fn submitted_next(&self, pace: &PlanConfig) -> u64 {
        let steps = self.begun - self.finalized + 1;
        let inflight = steps.saturating_mul(pace.step_experiences.max(1));
        // Whatever was trained on was submitted, whether or not this explorer was told by whom.
        let trained = self.version.saturating_mul(pace.train_batch_size.max(1));
        let known = self.delivered.saturating_add(self.elsewhere);
        known.max(trained).saturating_add(inflight)
    }
}
