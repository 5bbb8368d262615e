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
        let Ok(entered) = self.board.join(self.now, MemberRole::Trainer, "trainer") else {
            return self.give_up("the trainer could not join".to_owned());
        };
        self.trainer.lives += 1;
        let life = self.trainer.lives;
        self.coverage.add("trainer", "restarted", u64::from(life > 1));
        self.trainer.state = SimTrainerState::Up { seat: entered.seat, idle: None };
        self.trainer.looks = true;
        self.later(ExploreWorldEvent::TrainerLooks { life });
        self.plan(self.options.lease / 2, ExploreWorldEvent::TrainerHeartbeat { life });
        self.answers();
    }

    pub(super) fn trainer_heartbeat(&mut self, life: u64) {
        let Some(seat) = self.trainer.alive(life) else { return };
        self.board.heartbeat(self.now, seat);
        self.answers();
        self.plan(self.options.lease / 2, ExploreWorldEvent::TrainerHeartbeat { life });
    }

    pub(super) fn trainer_dies(&mut self) {
        let SimTrainerState::Up { seat, .. } = self.trainer.state else { return };
        let loud = self.options.trainer.is_loud;
        self.coverage.add("trainer", "crashed", 1);
        self.trainer.state = SimTrainerState::Dead { since: self.now, loud };
        self.trainer.looks = false;
        if loud {
            self.board.leave(self.now, seat, &LeaveReason::Failed("out of memory".to_owned()));
            self.answers();
        }
        if let Some((_, Some(again))) = self.options.trainer.crash {
            self.plan(again, ExploreWorldEvent::TrainerStarts);
        }
    }

    /// Plans a look of an idle trainer, if there is a reason.
    pub(super) fn rouse_trainer(&mut self) {
        let SimTrainerState::Up { idle: Some(seen), .. } = self.trainer.state else { return };
        let enough = self.trainer.buffer.len() as u64 >= self.options.pace.train_batch_size;
        let asked = self.board.wait_summary().ask != seen;
        if !self.trainer.looks && (enough || asked || self.board.explorers_left()) {
            self.trainer.looks = true;
            self.later(ExploreWorldEvent::TrainerLooks { life: self.trainer.lives });
        }
    }

    pub(super) fn trainer_looks(&mut self, life: u64) {
        let Some(seat) = self.trainer.alive(life) else { return };
        self.trainer.looks = false;
        // Known before the look: experiences of these waits were delivered before.
        let seen = self.board.wait_summary().ask;
        let size = self.options.pace.train_batch_size;
        if self.trainer.version >= self.options.trainer.steps_max {
            self.coverage.add("trainer", "at_its_goal", 1);
            self.trainer_leaves();
        } else if self.trainer.buffer.len() as u64 >= size {
            let batch: Vec<SimSample> =
                self.trainer.buffer.iter().take(size as usize).copied().collect();
            self.see(0, &ExploreEvent::Trains(&batch));
            self.trainer.state = SimTrainerState::Up { seat, idle: None };
            self.report_trainer(seat, TrainerPresence::Training);
            let work = self.options.trainer.work;
            let work = self.rng.spread(work / 2, work * 2);
            self.plan(work, ExploreWorldEvent::TrainerSteps { life });
        } else if self.board.explorers_left() {
            self.see(0, &ExploreEvent::TrainerLeft);
            self.coverage.add("trainer", "left", 1);
            self.trainer_leaves();
        } else {
            self.coverage.add("trainer", "idle", 1);
            self.publish_if_wanted();
            self.trainer.state = SimTrainerState::Up { seat, idle: Some(seen) };
            self.report_trainer(seat, TrainerPresence::Idle { seen });
        }
        self.answers();
    }

    fn report_trainer(&mut self, seat: MemberId, state: TrainerPresence) {
        if self.options.trainer.tells {
            self.board.set_trainer_state(self.now, seat, state);
        }
    }

    pub(super) fn trainer_steps(&mut self, life: u64) {
        if self.trainer.alive(life).is_none() {
            return;
        }
        self.coverage.add("trainer", "step", 1);
        self.trainer.version += 1;
        self.trainer.buffer.drain(..self.options.pace.train_batch_size as usize);
        let pace = &self.options.pace;
        let is_due = self.trainer.version.is_multiple_of(pace.sync_interval);
        if is_due && pace.style != PlanStyle::ExplorerDriven {
            self.publish();
        }
        self.publish_if_wanted();
        self.trainer_looks(life);
    }

    fn publish_if_wanted(&mut self) {
        if self.board.wait_summary().wanted.is_some_and(|wanted| wanted <= self.trainer.version) {
            self.publish();
        }
    }

    fn publish(&mut self) {
        let version = self.trainer.version;
        if version == 0 || self.board.published(version) != Ok(true) {
            return;
        }
        self.answers();
    }

    fn trainer_leaves(&mut self) {
        let SimTrainerState::Up { seat, .. } = self.trainer.state else { return };
        self.publish();
        self.trainer.state = SimTrainerState::Done;
        self.board.leave(self.now, seat, &LeaveReason::Done);
        self.answers();
    }
}
