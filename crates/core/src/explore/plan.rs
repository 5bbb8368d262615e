//! The plan: the next actions, from the progress and the open actions.

use super::plan_config::PlanConfig;
use super::progress::PlanProgress;
use super::{PlanAction, PlanInput, SyncResult};

/// Decides what an explorer does next.
///
/// ```
/// use rollway_core::explore::{
///     Plan, PlanAction, PlanConfig, PlanInput, PlanProgress, PlanStyle, SyncResult,
/// };
///
/// let config = PlanConfig {
///     style: PlanStyle::Fixed,
///     sync_interval: 1,
///     sync_offset: 0,
///     max_inflight: 2,
///     max_staleness: None,
///     step_experiences: 8,
///     train_batch_size: 8,
///     eval_interval: None,
///     eval_on_startup: false,
///     eval_at_end: false,
///     eval_single_version: false,
///     total_steps: 2,
/// };
/// let mut plan = Plan::new(config, PlanProgress::default());
/// assert_eq!(plan.actions(), [PlanAction::BeginStep(1)]);
/// plan.apply(PlanInput::Begun(1));
/// assert_eq!(plan.actions(), [PlanAction::FinalizeStep(1)]);
/// plan.apply(PlanInput::Finalized { step: 1, delivered: 8 });
/// assert_eq!(plan.actions(), [PlanAction::Sync { step: 1, at_least: 1 }]);
/// plan.apply(PlanInput::Synced(SyncResult::Version(1)));
/// assert_eq!(plan.actions(), [PlanAction::BeginStep(2)]);
/// ```
///
/// Save [`Plan::progress`] after every [`Plan::actions`], before the actions are performed: a new
/// plan continues from it and repeats actions that may be half done.
#[derive(Clone, Debug)]
pub struct Plan {
    config: PlanConfig,
    progress: PlanProgress,
    open: OpenActions,
    /// Newest published version.
    published: u64,
    /// Step that begins regardless of staleness, because the trainer waits for it.
    forced: Option<u64>,
    stopped: bool,
    ended: bool,
    forced_steps: u64,
    ignored: u64,
}

/// Actions without a result yet.
#[derive(Clone, Debug, Default)]
struct OpenActions {
    /// True if this process has emitted the action for `Progress::beginning` or
    /// `Progress::evaluating`.
    begin: bool,
    evaluate: bool,
    finalize: Option<u64>,
    finish_eval: Option<u64>,
    weights: Option<WeightAction>,
}

/// Open action that changes weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WeightAction {
    Sync(u64),
    Load,
    Close,
}

impl Plan {
    /// Returns the plan of an explorer at `progress`: new or restarted. Open actions of the
    /// previous process are emitted again.
    ///
    /// After a restart, the servers must have `progress.version`, or [`PlanInput::Loaded`] follows.
    pub fn new(config: PlanConfig, mut progress: PlanProgress) -> Self {
        progress.repair();
        Self {
            config,
            published: progress.version,
            progress,
            open: OpenActions::default(),
            forced: None,
            stopped: false,
            ended: false,
            forced_steps: 0,
            ignored: 0,
        }
    }

    /// Returns the state that a restart needs; valid at every moment.
    pub const fn progress(&self) -> &PlanProgress {
        &self.progress
    }

    /// Returns whether nothing is left to do: the job is complete, or the explorer was stopped and
    /// no submission is open.
    pub const fn is_over(&self) -> bool {
        self.ended || (self.stopped && !self.open.begin && !self.open.evaluate)
    }

    /// Returns the number of inputs that were ignored because they contradict the state.
    pub const fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Returns the number of steps that began although they may be too stale, because the trainer
    /// could not continue without them.
    pub const fn forced(&self) -> u64 {
        self.forced_steps
    }

    /// Returns the last step of the job, as far as known.
    pub fn last_step(&self) -> u64 {
        let last = self.progress.last.unwrap_or(u64::MAX);
        last.min(self.config.total_steps).max(self.progress.begun)
    }

    /// Returns the number of experiences that this explorer has submitted, including the expected
    /// yield of steps in flight; see [`PlanInput::OthersSubmitted`].
    pub fn submitted(&self) -> u64 {
        let PlanProgress { begun, beginning, finalized, delivered, .. } = self.progress;
        let steps = begun - finalized + u64::from(beginning.is_some());
        delivered.saturating_add(steps.saturating_mul(self.config.step_experiences.max(1)))
    }

    /// Returns the version that the trainer is expected to publish with the experiences of this
    /// explorer: the target of [`PlanAction::FinishTraining`] while other explorers continue. The
    /// last explorer waits until the trainer is done.
    pub fn expected(&self) -> u64 {
        self.config.published(self.progress.delivered)
    }

    /// Applies an input. An input that contradicts the state is ignored and counted.
    pub fn apply(&mut self, input: PlanInput) {
        if !self.accept(input) {
            self.ignored += 1;
        }
    }

    /// Returns the actions that are possible now; every action is returned once.
    pub fn actions(&mut self) -> Vec<PlanAction> {
        let mut actions = Vec::new();
        while let Some(action) = self.next() {
            self.note(action);
            actions.push(action);
        }
        actions
    }

    fn accept(&mut self, input: PlanInput) -> bool {
        match input {
            PlanInput::Begun(step) => {
                let accepted = self.open.begin && clear_if(&mut self.progress.beginning, step);
                if accepted {
                    self.open.begin = false;
                    self.progress.begun = step;
                }
                accepted
            }
            PlanInput::Exhausted => {
                let answered = std::mem::take(&mut self.open.begin);
                if answered {
                    self.progress.beginning = None;
                }
                self.end_early() || answered
            }
            PlanInput::Finalized { step, delivered } => {
                let accepted = clear_if(&mut self.open.finalize, step);
                if accepted {
                    self.progress.finalize(&self.config, delivered);
                }
                accepted
            }
            PlanInput::EvalBegun(step) => {
                let accepted = self.open.evaluate && clear_if(&mut self.progress.evaluating, step);
                if accepted {
                    self.open.evaluate = false;
                    self.progress.evals.push(step);
                    self.progress.evaluated = Some(step);
                    self.progress.evaluated_version = self.progress.version;
                }
                accepted
            }
            PlanInput::EvalFinished(step) => {
                let accepted = clear_if(&mut self.open.finish_eval, step);
                self.progress.evals.retain(|eval| !accepted || *eval != step);
                accepted
            }
            PlanInput::Synced(result) => self.synced(result),
            PlanInput::Published(version) => raise(&mut self.published, version),
            PlanInput::Loaded(version) => self.loaded(version),
            PlanInput::OthersSubmitted(experiences) => {
                raise(&mut self.progress.submitted_by_others, experiences)
            }
            PlanInput::TrainerDone => self.end_early(),
            PlanInput::Stopped => !std::mem::replace(&mut self.stopped, true),
        }
    }

    fn synced(&mut self, result: SyncResult) -> bool {
        let (closing, step) = match self.open.weights {
            Some(WeightAction::Sync(step)) => (false, step),
            Some(WeightAction::Close) => (true, self.last_step()),
            Some(WeightAction::Load) | None => return false,
        };
        self.open.weights = None;
        self.progress.synced = step;
        let newer = match result {
            SyncResult::Version(version) | SyncResult::TrainerDone(version) => {
                raise(&mut self.progress.version, version)
            }
            SyncResult::NothingNew => false,
        };
        if closing {
            self.progress.closed = Some(step);
        } else if matches!(result, SyncResult::TrainerDone(_)) {
            self.end_early();
        } else if !newer && !self.config.has_periods() {
            // Trainer and explorer would wait for each other: one step begins, however stale.
            self.forced = Some(self.progress.begun + 1);
        }
        true
    }

    fn loaded(&mut self, version: u64) -> bool {
        let answered = self.open.weights == Some(WeightAction::Load);
        if answered {
            self.open.weights = None;
            // The newest version that could be loaded.
            self.published = version.max(self.progress.version);
        }
        raise(&mut self.progress.version, version) || answered
    }

    /// Begins no more steps.
    fn end_early(&mut self) -> bool {
        let first = self.progress.last.is_none();
        self.progress.last.get_or_insert(self.progress.begun);
        first
    }

    fn note(&mut self, action: PlanAction) {
        match action {
            PlanAction::BeginStep(step) => {
                self.open.begin = true;
                self.forced = None;
                let again = self.progress.beginning.replace(step).is_some();
                self.forced_steps += u64::from(!again && !self.is_fresh());
            }
            PlanAction::FinalizeStep(step) => self.open.finalize = Some(step),
            PlanAction::Evaluate(step) => {
                self.open.evaluate = true;
                self.progress.evaluating = Some(step);
            }
            PlanAction::FinishEval(step) => self.open.finish_eval = Some(step),
            PlanAction::Sync { step, .. } => self.open.weights = Some(WeightAction::Sync(step)),
            PlanAction::Load => self.open.weights = Some(WeightAction::Load),
            PlanAction::FinishTraining => self.open.weights = Some(WeightAction::Close),
            PlanAction::End => self.ended = true,
        }
    }

    fn next(&self) -> Option<PlanAction> {
        if self.stopped || self.ended {
            return None;
        }
        self.finish_eval()
            .or_else(|| self.finalize())
            .or_else(|| self.load())
            .or_else(|| self.evaluate())
            .or_else(|| self.begin())
            .or_else(|| self.sync())
            .or_else(|| self.close())
    }

    fn finish_eval(&self) -> Option<PlanAction> {
        if self.open.finish_eval.is_some() {
            return None;
        }
        let step = *self.progress.evals.first()?;
        let PlanProgress { begun, finalized, .. } = self.progress;
        // An evaluated step that is not in flight is the last one, of this job or of a shorter one.
        let in_flight = finalized < step && step <= begun;
        let now = !self.config.has_periods() || !in_flight;
        now.then_some(PlanAction::FinishEval(step))
    }

    fn finalize(&self) -> Option<PlanAction> {
        let PlanProgress { begun, finalized, .. } = self.progress;
        if self.open.finalize.is_some() || finalized >= begun {
            return None;
        }
        let submitting = self.progress.beginning.is_some() || self.eval_is_coming();
        let waits = self.config.has_periods() && (submitting || begun < self.period_end());
        (!waits).then_some(PlanAction::FinalizeStep(finalized + 1))
    }

    fn load(&self) -> Option<PlanAction> {
        // After the last step `Close` loads.
        let needed = self.progress.finalized < self.last_step() || self.due().is_some();
        let wanted = !self.config.has_periods() && self.has_offer() && needed;
        (wanted && self.weights_are_free()).then_some(PlanAction::Load)
    }

    fn evaluate(&self) -> Option<PlanAction> {
        if self.open.evaluate || self.open.weights.is_some() {
            return None;
        }
        if let Some(again) = self.progress.evaluating {
            return Some(PlanAction::Evaluate(again));
        }
        if self.is_closed() {
            return self.final_eval().map(PlanAction::Evaluate);
        }
        // With `fully_async`, published weights go first: evaluations in quick succession would
        // delay them indefinitely.
        let is_offered = !self.config.has_periods() && self.has_offer();
        if is_offered || self.is_full_of_evals() {
            return None;
        }
        self.due().map(PlanAction::Evaluate)
    }

    /// Returns whether the next evaluation in the loop waits for the end of another.
    fn is_full_of_evals(&self) -> bool {
        let PlanProgress { evals, finalized, .. } = &self.progress;
        let active = match (self.config.has_periods(), self.config.eval_single_version) {
            // A period ends with the end of its evaluations.
            (true, true) => return false,
            // Those of the current period end only after its steps, which wait for the next one.
            (true, false) => evals.iter().filter(|step| **step <= *finalized).count(),
            (false, _) => evals.len(),
        };
        active as u64 >= self.config.max_inflight.max(1)
    }

    fn begin(&self) -> Option<PlanAction> {
        let PlanProgress { begun, finalized, synced, .. } = self.progress;
        let step = begun + 1;
        if self.open.begin || self.open.evaluate {
            return None;
        }
        if let Some(again) = self.progress.beginning {
            return Some(PlanAction::BeginStep(again));
        }
        if begun >= self.last_step() {
            return None;
        }
        let due = self.due();
        let now = if self.config.has_periods() {
            due.is_none() && self.open.weights.is_none() && begun < self.config.sync_after(synced)
        } else {
            let window = self.config.max_inflight.max(1);
            // An evaluation that waits for weights may be late by at most one window.
            let lag = due.map_or(0, |eval| step - eval);
            due != Some(0) && begun - finalized < window && lag < window && self.is_fresh()
        };
        now.then_some(PlanAction::BeginStep(step))
    }

    fn sync(&self) -> Option<PlanAction> {
        let PlanProgress { begun, finalized, .. } = self.progress;
        if !self.is_idle() || begun != finalized || begun >= self.last_step() {
            return None;
        }
        let at_least = if self.config.has_periods() {
            if begun < self.period_end() {
                return None;
            }
            self.progress.expected(&self.config)
        } else {
            if self.is_fresh() {
                return None;
            }
            self.config.oldest(self.progress.submitted_next(&self.config))
        };
        Some(PlanAction::Sync { step: finalized, at_least })
    }

    fn close(&self) -> Option<PlanAction> {
        let PlanProgress { begun, finalized, .. } = self.progress;
        if !self.is_idle() || begun != finalized || begun < self.last_step() {
            return None;
        }
        if !self.is_closed() {
            return Some(PlanAction::FinishTraining);
        }
        let is_evaluated = self.final_eval().is_none() && self.progress.evals.is_empty();
        is_evaluated.then_some(PlanAction::End)
    }

    /// Returns the last step of the current period.
    fn period_end(&self) -> u64 {
        self.config.sync_after(self.progress.synced).min(self.last_step())
    }

    /// Returns the next step whose evaluations are to be submitted in the loop.
    fn due(&self) -> Option<u64> {
        let PlanProgress { begun, beginning, finalized, evaluated, .. } = self.progress;
        if self.is_closed() {
            return None;
        }
        let fresh = evaluated.is_none() && begun == 0 && beginning.is_none();
        if fresh && self.config.eval_on_startup && self.config.eval_interval.is_some() {
            return Some(0);
        }
        // Steps that passed without evaluation, as after a change of the interval, are skipped.
        let window = self.config.max_inflight.max(1);
        let passed =
            if self.config.has_periods() { finalized } else { begun.saturating_sub(window) };
        let due = self.config.eval_after(evaluated.unwrap_or(0).max(passed))?;
        let replaced = self.config.eval_at_end && due == self.last_step();
        (due <= begun && !replaced).then_some(due)
    }

    fn eval_is_coming(&self) -> bool {
        self.progress.evaluating.is_some() || self.due().is_some()
    }

    /// Returns the step under which the last weights are evaluated, if that is still open.
    fn final_eval(&self) -> Option<u64> {
        let PlanProgress { evaluated, evaluated_version, version, begun, .. } = self.progress;
        if !self.config.eval_at_end
            || self.config.eval_interval.is_none()
            || evaluated > Some(begun)
        {
            return None;
        }
        if evaluated < Some(begun) {
            return Some(begun);
        }
        (evaluated_version != version).then_some(begun + 1)
    }

    /// Returns whether the trainer was informed that no more experiences come.
    pub fn is_closed(&self) -> bool {
        self.progress.closed == Some(self.last_step())
    }

    /// Returns whether weights newer than those of the servers are published.
    const fn has_offer(&self) -> bool {
        self.published > self.progress.version
    }

    /// Returns whether the next step may begin with the current weights.
    fn is_fresh(&self) -> bool {
        let oldest = self.config.oldest(self.progress.submitted_next(&self.config));
        self.forced == Some(self.progress.begun + 1) || self.progress.version >= oldest
    }

    /// Returns whether weights may change: no change is active, no evaluation is being submitted,
    /// and none needs the current weights.
    fn weights_are_free(&self) -> bool {
        let needed = self.config.eval_single_version && !self.progress.evals.is_empty();
        self.open.weights.is_none() && self.progress.evaluating.is_none() && !needed
    }

    /// Returns whether nothing is active or due that a weight sync would have to wait for.
    fn is_idle(&self) -> bool {
        let finalizing = self.progress.beginning.is_some() || self.open.finalize.is_some();
        self.weights_are_free() && !finalizing && self.due().is_none()
    }
}

/// Clears the value if it equals `step`, and returns whether it did.
fn clear_if(open: &mut Option<u64>, step: u64) -> bool {
    let matching = *open == Some(step);
    if matching {
        *open = None;
    }
    matching
}

/// Sets `number` to `to` if that is larger, and returns whether it was.
const fn raise(number: &mut u64, to: u64) -> bool {
    let higher = to > *number;
    if higher {
        *number = to;
    }
    higher
}
