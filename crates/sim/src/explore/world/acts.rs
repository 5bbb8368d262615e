//! Execution of an explorer's actions. Effects are durable before the plan gets the result, and the
//! process may die in between.

use rollway_core::explore::{PlanAction, PlanInput};
use rollway_core::sync::LeaveReason;

use super::{Around, ExploreEvent, ExploreWorld, ExploreWorldEvent, ProcessEnd};
use crate::explore::trainer::SimSample;

impl ExploreWorld {
    pub(super) fn perform(&mut self, at: usize, incarnation: u64, order: PlanAction) {
        let explorer = &self.explorers[at];
        let ready = match order {
            PlanAction::FinalizeStep(step) => explorer.submitted.get(&step).map(|work| work.ready),
            PlanAction::FinishEval(step) => explorer.evals.get(&step).map(|work| work.ready),
            PlanAction::Sync { at_least, .. } => return self.wait(at, at_least, self.now),
            PlanAction::FinishTraining => return self.close(at),
            PlanAction::End => return self.ends(at, ProcessEnd::Done),
            PlanAction::BeginStep(_) | PlanAction::Evaluate(_) | PlanAction::Load => None,
        };
        let wait = ready.map_or_else(Default::default, |ready| ready.since(self.now));
        let latency = self.rng.spread(self.options.latency / 4, self.options.latency * 4);
        self.plan(wait + latency, ExploreWorldEvent::Act { at, incarnation, order });
    }

    pub(super) fn act(&mut self, at: usize, incarnation: u64, order: PlanAction) {
        if self.is_struck(at) {
            return;
        }
        let input = match order {
            PlanAction::BeginStep(step) if step > self.options.tasks => PlanInput::Exhausted,
            PlanAction::BeginStep(step) => {
                self.submit(at, step);
                PlanInput::Begun(step)
            }
            PlanAction::FinalizeStep(step) => {
                PlanInput::Finalized { step, delivered: self.deliver(at, step) }
            }
            PlanAction::Evaluate(step) => {
                self.begin_eval(at, step);
                PlanInput::EvalBegun(step)
            }
            PlanAction::FinishEval(step) => {
                // Results that were taken and not saved can be taken again.
                if self.explorers[at].evaluated.insert(step) {
                    self.on_event(at, &ExploreEvent::EvalEnded { step });
                }
                PlanInput::EvalFinished(step)
            }
            PlanAction::Load => PlanInput::Loaded(self.load(at, self.sync.newest())),
            PlanAction::Sync { .. } | PlanAction::FinishTraining | PlanAction::End => return,
        };
        // The process may have ended through the events of others.
        if self.explorers[at].alive(incarnation).is_some() && !self.is_struck(at) {
            self.later(ExploreWorldEvent::Input { at, incarnation, input });
        }
    }

    /// Loads weights into an explorer's servers, if they are newer, and returns their version.
    pub(super) fn load(&mut self, at: usize, version: Option<u64>) -> u64 {
        let explorer = &mut self.explorers[at];
        if let Some(newer) = version.filter(|version| *version > explorer.version) {
            explorer.version = newer;
            self.on_event(at, &ExploreEvent::Loaded { version: newer });
        }
        self.explorers[at].version
    }

    fn submit(&mut self, at: usize, step: u64) {
        let explorer = &mut self.explorers[at];
        if explorer.submitted.contains_key(&step) {
            return;
        }
        let work = self.rng.spread(explorer.work / 4, explorer.work * 2);
        let work = explorer.occupy(self.now, work);
        explorer.submitted.insert(step, work);
        self.on_event(at, &ExploreEvent::Submitted { step });
        self.share_submissions();
    }

    fn begin_eval(&mut self, at: usize, step: u64) {
        let explorer = &mut self.explorers[at];
        if explorer.evals.contains_key(&step) {
            return;
        }
        let work = self.rng.spread(explorer.work / 8, explorer.work * 4);
        let work = explorer.occupy(self.now, work);
        explorer.evals.insert(step, work);
        self.on_event(at, &ExploreEvent::EvalBegan { step });
    }

    /// Adds the experiences of a step to the buffer, once.
    fn deliver(&mut self, at: usize, step: u64) -> u64 {
        let again = self.has_bug(Around::DeliveredAgain);
        if let Some(delivered) = self.explorers[at].delivered.get(&step).filter(|_| !again) {
            self.coverage.add("experiences", "delivered_again", 1);
            return *delivered;
        }
        let whole = self.options.plan_config.step_experiences;
        let mut delivered = whole;
        if self.rng.chance(self.options.loss) {
            delivered = self.rng.between(0, whole);
        }
        let explorer = &mut self.explorers[at];
        let version = explorer.submitted.get(&step).map_or(explorer.version, |work| work.version);
        explorer.delivered.insert(step, delivered);
        for _ in 0..delivered {
            self.trainer.buffer.push_back(SimSample { explorer: at, step, version });
        }
        self.coverage.add("experiences", "delivered", delivered);
        self.coverage.add("experiences", "lost", whole - delivered);
        self.on_event(at, &ExploreEvent::Delivered { step });
        delivered
    }

    /// Informs every explorer of the experiences that the others have submitted.
    pub(super) fn share_submissions(&mut self) {
        if !self.is_async() || self.explorers.len() == 1 {
            return;
        }
        for explorer in &self.explorers {
            if let Some(process) = &explorer.process {
                self.sync.submitted(&explorer.name, process.subject.plan().submitted());
            }
        }
        for at in 0..self.explorers.len() {
            let submitted_by_others = self.sync.submitted_by_others(&self.explorers[at].name);
            let process = self.explorers[at].process.as_ref();
            let known = process.map(|it| it.subject.plan().progress().submitted_by_others);
            if known.is_some_and(|known| known < submitted_by_others) {
                self.apply(at, Some(PlanInput::OthersSubmitted(submitted_by_others)));
            }
        }
    }

    fn close(&mut self, at: usize) {
        let Some(process) = &mut self.explorers[at].process else { return };
        process.closing = true;
        let member = process.member;
        self.sync.leave(self.now, member, &LeaveReason::Done);
        self.handle_outcomes();
        self.wait_to_close(at, self.now);
    }
}
