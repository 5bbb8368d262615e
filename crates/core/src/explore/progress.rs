//! Progress of an explorer: the part of the loop's state that a restart needs.

use super::plan_config::{PlanConfig, PlanStyle};

/// Upper bound of step numbers, so that they never overflow.
const MAX_STEPS: u64 = u64::MAX / 2;

/// Progress of an explorer, current or at the end of its last process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanProgress {
    /// Last step that was begun.
    pub begun: u64,
    /// Step that is being submitted: repeated after a crash, because its tasks may exist.
    pub beginning: Option<u64>,
    pub finalized: u64,
    /// Step whose evaluations are being submitted.
    pub evaluating: Option<u64>,
    /// Steps whose evaluations were submitted and not finished, in order.
    pub evals: Vec<u64>,
    /// Last step whose evaluations were submitted. `None`: not even those at the start.
    pub evaluated: Option<u64>,
    pub evaluated_version: u64,
    /// Last step that a weight sync followed.
    pub synced: u64,
    /// Experiences delivered by this explorer.
    pub delivered: u64,
    /// Experiences of each of the last `sync_offset` steps, oldest first: the trainer of style
    /// `fixed` need not have trained on them yet.
    pub ahead: Vec<u64>,
    /// Experiences submitted by other explorers of the job.
    pub submitted_by_others: u64,
    /// Version of the weights in the servers.
    pub version: u64,
    /// Last step of the job, if it ended before `total_steps`: no more tasks, or the trainer is
    /// done. To extend such a job, clear it.
    pub last: Option<u64>,
    /// Step after which the trainer confirmed that no more experiences come.
    pub closed: Option<u64>,
}

impl PlanProgress {
    /// Repairs contradictions, as in an edited file.
    pub(super) fn repair(&mut self) {
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

    /// Counts the next step as finalized.
    pub(super) fn finalize(&mut self, config: &PlanConfig, delivered: u64) {
        self.finalized += 1;
        self.delivered = self.delivered.saturating_add(delivered);
        if config.style == PlanStyle::Fixed {
            self.ahead.push(delivered);
            let keep = usize::try_from(config.sync_offset).unwrap_or(usize::MAX);
            self.ahead.drain(..self.ahead.len().saturating_sub(keep));
        }
    }

    /// Returns the version to wait for: the one that the trainer can reach with its experiences.
    pub(super) fn expected(&self, config: &PlanConfig) -> u64 {
        match config.style {
            PlanStyle::Fixed => {
                let keep = usize::try_from(config.sync_offset).unwrap_or(usize::MAX);
                let ahead = self.ahead.iter().rev().take(keep);
                let counted = ahead.fold(self.delivered, |left, one| left.saturating_sub(*one));
                config.published(counted)
            }
            // The trainer publishes on request: any newer version, if it has enough experiences.
            PlanStyle::ExplorerDriven => {
                let reached = config.train_steps(self.delivered);
                if reached > self.version { self.version + 1 } else { 0 }
            }
            PlanStyle::TrainerDriven | PlanStyle::FullyAsync => 0,
        }
    }

    /// Returns the number of submitted experiences after one more step has begun.
    pub(super) fn submitted_next(&self, config: &PlanConfig) -> u64 {
        let steps = self.begun - self.finalized + 1;
        let inflight = steps.saturating_mul(config.step_experiences.max(1));
        // Everything that was trained on was submitted, by this or another explorer.
        let trained = self.version.saturating_mul(config.train_batch_size.max(1));
        let known = self.delivered.saturating_add(self.submitted_by_others);
        known.max(trained).saturating_add(inflight)
    }
}
