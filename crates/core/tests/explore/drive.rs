//! Executor of a plan's actions, and the record that the plan is compared with.

use std::collections::BTreeSet;

use rollway_core::explore::{
    Plan, PlanAction, PlanConfig, PlanInput, PlanProgress, PlanStyle, SyncResult,
};

/// Executor of a plan's actions, and its record.
pub(crate) struct Drive {
    pub(crate) config: PlanConfig,
    pub(crate) plan: Plan,
    /// Actions without a result.
    pub(crate) open: Vec<PlanAction>,
    pub(crate) begun: u64,
    pub(crate) finalized: u64,
    pub(crate) delivered: u64,
    pub(crate) submitted_by_others: u64,
    pub(crate) version: u64,
    /// Evaluations that were submitted, and those that were finished.
    pub(crate) submitted: BTreeSet<u64>,
    pub(crate) finished: BTreeSet<u64>,
    pub(crate) synced: Vec<u64>,
    /// Last step that a `BeginStep` named.
    pub(crate) ordered: u64,
    /// True if the trainer needs another step to continue.
    pub(crate) starving: bool,
    pub(crate) closed: bool,
    pub(crate) facts: u64,
    /// Number of experiences that a step delivers too few.
    pub(crate) lost: u64,
    /// Step at which the tasks are exhausted, and number of train steps of the trainer.
    pub(crate) tasks: u64,
    pub(crate) train_steps: u64,
    pub(crate) trainer_done: bool,
    pub(crate) stopped: bool,
}

impl Drive {
    pub(crate) fn new(config: PlanConfig) -> Self {
        let mut drive = Self {
            plan: Plan::new(config.clone(), PlanProgress::default()),
            config,
            open: Vec::new(),
            begun: 0,
            finalized: 0,
            delivered: 0,
            submitted_by_others: 0,
            version: 0,
            submitted: BTreeSet::new(),
            finished: BTreeSet::new(),
            synced: Vec::new(),
            ordered: 0,
            starving: false,
            closed: false,
            facts: 0,
            lost: 0,
            tasks: u64::MAX,
            train_steps: u64::MAX,
            trainer_done: false,
            stopped: false,
        };
        drive.take();
        drive
    }

    /// Restarts the process from the saved progress.
    pub(crate) fn crash(&mut self) {
        self.plan = Plan::new(self.config.clone(), self.plan.progress().clone());
        self.open.clear();
        self.starving = false;
        self.take();
    }

    /// Performs one of the open actions.
    pub(crate) fn answer(&mut self, choice: usize) {
        let order = self.open.remove(choice % self.open.len());
        let fact = match order {
            PlanAction::BeginStep(step) if step > self.tasks => PlanInput::Exhausted,
            PlanAction::BeginStep(step) => PlanInput::Begun(step),
            PlanAction::FinalizeStep(step) => {
                let delivered = self.config.step_experiences.saturating_sub(self.lost);
                PlanInput::Finalized { step, delivered }
            }
            PlanAction::Evaluate(step) => PlanInput::EvalBegun(step),
            PlanAction::FinishEval(step) => PlanInput::EvalFinished(step),
            PlanAction::Sync { .. } | PlanAction::FinishTraining => {
                PlanInput::Synced(self.exchange())
            }
            PlanAction::Load => PlanInput::Loaded(self.reached().max(self.version)),
            PlanAction::End => panic!("End has no result"),
        };
        self.apply(fact);
    }

    /// Returns the version that the trainer has reached.
    pub(crate) fn reached(&self) -> u64 {
        (self.delivered / self.config.train_batch_size).min(self.train_steps)
    }

    fn exchange(&self) -> SyncResult {
        match self.reached() {
            reached if reached == self.train_steps => SyncResult::TrainerDone(reached),
            reached if reached > self.version => SyncResult::Version(reached),
            _ => SyncResult::NothingNew,
        }
    }

    pub(crate) fn apply(&mut self, fact: PlanInput) {
        self.facts += 1;
        assert!(self.facts < 10_000, "no end: {:?}", self.plan);
        self.note(&fact);
        let ignored = self.plan.ignored();
        self.plan.apply(fact.clone());
        assert_eq!(self.plan.ignored(), ignored, "{fact:?} is valid");
        self.take();
    }

    fn note(&mut self, fact: &PlanInput) {
        match *fact {
            PlanInput::Begun(step) => self.begun = step,
            PlanInput::Finalized { step, delivered } => {
                self.finalized = step;
                self.delivered += delivered;
            }
            PlanInput::EvalBegun(step) => assert!(self.submitted.insert(step), "{step} again"),
            PlanInput::EvalFinished(step) => assert!(self.finished.insert(step), "{step} again"),
            PlanInput::Synced(SyncResult::Version(version)) => self.version = version,
            PlanInput::Loaded(version) => {
                self.version = version;
                self.open.retain(|order| *order != PlanAction::Load);
            }
            PlanInput::Synced(SyncResult::TrainerDone(version)) => {
                self.version = version;
                self.trainer_done = true;
            }
            PlanInput::Synced(SyncResult::NothingNew) => self.starving = true,
            PlanInput::TrainerDone => self.trainer_done = true,
            PlanInput::OthersSubmitted(experiences) => self.submitted_by_others = experiences,
            PlanInput::Stopped => self.stopped = true,
            PlanInput::Exhausted | PlanInput::Published(_) => {}
        }
    }

    pub(crate) fn take(&mut self) {
        for order in self.plan.actions() {
            self.look(order);
            if order != PlanAction::End {
                self.open.push(order);
            }
        }
        let again = self.plan.actions();
        assert!(again.is_empty(), "emitted twice: {again:?}");
    }

    /// Compares an action with the record.
    fn look(&mut self, order: PlanAction) {
        let kind = std::mem::discriminant(&order);
        let open = |one: &PlanAction| std::mem::discriminant(one) == kind;
        assert!(!self.open.iter().any(open), "{order:?} beside {:?}", self.open);
        assert!(!self.stopped, "{order:?} after the stop");
        let evaluating = self.open.iter().any(|order| matches!(order, PlanAction::Evaluate(_)));
        match order {
            PlanAction::BeginStep(step) => self.look_at_begin(step),
            PlanAction::FinalizeStep(step) => {
                assert_eq!(step, self.finalized + 1);
                assert!(step <= self.begun, "{step} was not begun");
            }
            PlanAction::Evaluate(step) => {
                assert!(!self.changes_weights(), "weights change under the evaluation of {step}");
                assert!(!self.submitted.contains(&step), "{step} is evaluated again");
                assert!(step <= self.begun || self.closed, "{step} was not begun");
            }
            PlanAction::FinishEval(step) => {
                assert!(self.submitted.contains(&step) && !self.finished.contains(&step));
                let periods = self.config.style != PlanStyle::FullyAsync;
                assert!(!periods || step <= self.finalized || self.closed, "{step} too early");
            }
            PlanAction::Sync { step, .. } => {
                assert_eq!((step, step), (self.begun, self.finalized));
                if self.config.style != PlanStyle::FullyAsync {
                    let since = step.saturating_sub(self.config.sync_offset);
                    assert!(since > 0 && since.is_multiple_of(self.config.sync_interval), "{step}");
                }
                self.synced.push(step);
            }
            PlanAction::Load => assert_eq!(self.config.style, PlanStyle::FullyAsync),
            PlanAction::FinishTraining => {
                assert_eq!(self.begun, self.finalized);
                let is_eval = |one: &PlanAction| matches!(one, PlanAction::FinishEval(_));
                assert!(self.open.iter().all(is_eval), "{:?} is open", self.open);
                self.closed = true;
                self.synced.push(self.begun);
            }
            PlanAction::End => assert!(self.closed && self.open.is_empty()),
        }
        if matches!(order, PlanAction::Sync { .. } | PlanAction::Load | PlanAction::FinishTraining)
        {
            let needed = self.config.eval_single_version && self.submitted != self.finished;
            assert!(!needed && !evaluating, "{order:?} during an evaluation");
        }
    }

    fn changes_weights(&self) -> bool {
        let changes = |order: &PlanAction| {
            matches!(order, PlanAction::Sync { .. } | PlanAction::Load | PlanAction::FinishTraining)
        };
        self.open.iter().any(changes)
    }

    fn look_at_begin(&mut self, step: u64) {
        assert_eq!(step, self.begun + 1);
        if step == self.ordered {
            // Repeated after a crash.
            return;
        }
        self.ordered = step;
        assert!(step <= self.config.total_steps && !self.trainer_done, "{step} is one too many");
        let startup = self.config.eval_on_startup && self.config.eval_interval.is_some();
        assert!(!startup || self.submitted.contains(&0), "begun before the first evaluation");
        if self.config.style != PlanStyle::FullyAsync {
            // All earlier periods ended with a weight sync.
            let since = self.begun.saturating_sub(self.config.sync_offset);
            let point = since - since % self.config.sync_interval;
            let last = self.synced.last().copied().unwrap_or(0);
            assert!(point == 0 || last == self.config.sync_offset + point, "{step} before Sync");
            return;
        }
        let inflight = step - self.finalized;
        assert!(inflight <= self.config.max_inflight, "{inflight} steps in flight");
        if let Some(staleness) = self.config.max_staleness {
            let others = self.delivered + self.submitted_by_others;
            let last = others + inflight * self.config.step_experiences - 1;
            let is_stale = last / self.config.train_batch_size > self.version + staleness;
            assert!(!is_stale || self.starving, "{step} is stale");
        }
        self.starving = false;
    }

    /// Performs actions in order until the end.
    pub(crate) fn finish(&mut self) {
        while !self.open.is_empty() {
            self.answer(0);
        }
    }

    pub(crate) fn ended(&self) {
        assert!(self.plan.is_over(), "the plan is stuck: {:?}", self.plan);
        let last = self.config.total_steps.min(self.tasks);
        assert_eq!(self.begun, self.finalized);
        if !self.trainer_done {
            assert_eq!(self.begun, last);
        }
        assert_eq!(self.submitted, self.finished, "evaluations got lost");
        let Some(interval) = self.config.eval_interval else {
            assert!(self.submitted.is_empty());
            return;
        };
        for step in 1..self.begun {
            let is_due = step.is_multiple_of(interval);
            assert_eq!(self.submitted.contains(&step), is_due, "evaluation of {step}");
        }
        assert!(!self.config.eval_on_startup || self.submitted.contains(&0));
        if self.config.eval_at_end {
            let last = self.submitted.last().copied();
            let is_last = last == Some(self.begun) || last == Some(self.begun + 1);
            assert!(is_last, "{last:?} of {}", self.begun);
            assert_eq!(self.plan.progress().evaluated_version, self.version, "an older version");
        } else if self.begun > 0 {
            let is_due = self.begun.is_multiple_of(interval);
            assert_eq!(self.submitted.contains(&self.begun), is_due);
        }
    }
}
