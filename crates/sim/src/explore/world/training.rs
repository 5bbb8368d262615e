//! Events of the trainer.

use rollway_core::explore::PlanStyle;
use rollway_core::sync::{LeaveReason, MemberId, MemberRole, TrainerPresence};

use super::{ExploreEvent, ExploreWorld, ExploreWorldEvent};
use crate::explore::trainer::{SimSample, SimTrainerState};

impl ExploreWorld {
    pub(super) fn trainer_starts(&mut self) {
        if matches!(self.trainer.state, SimTrainerState::Up { .. } | SimTrainerState::Done) {
            return;
        }
        let Ok(joined) = self.sync.join(self.now, MemberRole::Trainer, "trainer") else {
            return self.fail("the trainer could not join".to_owned());
        };
        self.trainer.starts += 1;
        let incarnation = self.trainer.starts;
        self.coverage.add("trainer", "restarted", u64::from(incarnation > 1));
        self.trainer.state = SimTrainerState::Up { member: joined.member, idle: None };
        self.trainer.check_planned = true;
        self.later(ExploreWorldEvent::TrainerChecks { incarnation });
        self.plan(self.options.lease / 2, ExploreWorldEvent::TrainerHeartbeat { incarnation });
        self.handle_outcomes();
    }

    pub(super) fn trainer_heartbeat(&mut self, incarnation: u64) {
        let Some(member) = self.trainer.alive(incarnation) else { return };
        self.sync.heartbeat(self.now, member);
        self.handle_outcomes();
        self.plan(self.options.lease / 2, ExploreWorldEvent::TrainerHeartbeat { incarnation });
    }

    pub(super) fn trainer_crashes(&mut self) {
        let SimTrainerState::Up { member, .. } = self.trainer.state else { return };
        let reports_failure = self.options.trainer.reports_failure;
        self.coverage.add("trainer", "crashed", 1);
        self.trainer.state = SimTrainerState::Dead { since: self.now, reports_failure };
        self.trainer.check_planned = false;
        if reports_failure {
            self.sync.leave(self.now, member, &LeaveReason::Failed("out of memory".to_owned()));
            self.handle_outcomes();
        }
        if let Some((_, Some(again))) = self.options.trainer.crash {
            self.plan(again, ExploreWorldEvent::TrainerStarts);
        }
    }

    /// Plans a look of an idle trainer, if there is a reason.
    pub(super) fn rouse_trainer(&mut self) {
        let SimTrainerState::Up { idle: Some(seen), .. } = self.trainer.state else { return };
        let enough = self.trainer.buffer.len() as u64 >= self.options.plan_config.train_batch_size;
        let has_new_wait = self.sync.wait_summary().wait != seen;
        if !self.trainer.check_planned && (enough || has_new_wait || self.sync.explorers_left()) {
            self.trainer.check_planned = true;
            self.later(ExploreWorldEvent::TrainerChecks { incarnation: self.trainer.starts });
        }
    }

    pub(super) fn trainer_checks(&mut self, incarnation: u64) {
        let Some(member) = self.trainer.alive(incarnation) else { return };
        self.trainer.check_planned = false;
        // Known before the look: experiences of these waits were delivered before.
        let seen = self.sync.wait_summary().wait;
        let size = self.options.plan_config.train_batch_size;
        if self.trainer.version >= self.options.trainer.steps_max {
            self.coverage.add("trainer", "at_its_goal", 1);
            self.trainer_leaves();
        } else if self.trainer.buffer.len() as u64 >= size {
            let batch: Vec<SimSample> =
                self.trainer.buffer.iter().take(size as usize).copied().collect();
            self.on_event(0, &ExploreEvent::Trains(&batch));
            self.trainer.state = SimTrainerState::Up { member, idle: None };
            self.report_trainer(member, TrainerPresence::Training);
            let work = self.options.trainer.work;
            let work = self.rng.spread(work / 2, work * 2);
            self.plan(work, ExploreWorldEvent::TrainerSteps { incarnation });
        } else if self.sync.explorers_left() {
            self.on_event(0, &ExploreEvent::TrainerLeft);
            self.coverage.add("trainer", "left", 1);
            self.trainer_leaves();
        } else {
            self.coverage.add("trainer", "idle", 1);
            self.publish_on_demand();
            self.trainer.state = SimTrainerState::Up { member, idle: Some(seen) };
            self.report_trainer(member, TrainerPresence::Idle { seen });
        }
        self.handle_outcomes();
    }

    fn report_trainer(&mut self, member: MemberId, state: TrainerPresence) {
        if self.options.trainer.reports_state {
            self.sync.set_trainer_state(self.now, member, state);
        }
    }

    pub(super) fn trainer_steps(&mut self, incarnation: u64) {
        if self.trainer.alive(incarnation).is_none() {
            return;
        }
        self.coverage.add("trainer", "step", 1);
        self.trainer.version += 1;
        self.trainer.buffer.drain(..self.options.plan_config.train_batch_size as usize);
        let plan_config = &self.options.plan_config;
        let is_due = self.trainer.version.is_multiple_of(plan_config.sync_interval);
        if is_due && plan_config.style != PlanStyle::ExplorerDriven {
            self.publish();
        }
        self.publish_on_demand();
        self.trainer_checks(incarnation);
    }

    fn publish_on_demand(&mut self) {
        if self.sync.wait_summary().demanded.is_some_and(|version| version <= self.trainer.version)
        {
            self.publish();
        }
    }

    fn publish(&mut self) {
        let version = self.trainer.version;
        if version == 0 || self.sync.published(version) != Ok(true) {
            return;
        }
        self.handle_outcomes();
    }

    fn trainer_leaves(&mut self) {
        let SimTrainerState::Up { member, .. } = self.trainer.state else { return };
        self.publish();
        self.trainer.state = SimTrainerState::Done;
        self.sync.leave(self.now, member, &LeaveReason::Done);
        self.handle_outcomes();
    }
}
