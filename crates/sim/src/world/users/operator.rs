//! Users that operate the whole core: they stop, start and wait for all tasks.

use std::time::Duration;

use rollway_core::Request;

use super::NextUserAction;
use crate::reference_model::Pool;
use crate::world::SimWorld;

impl SimWorld {
    pub(super) fn operate(&mut self) -> NextUserAction {
        if self.model.pool != Pool::Running {
            return NextUserAction::Ask(Request::Start);
        }
        match self.rng.below(9) {
            0..4 => NextUserAction::Ask(Request::WaitAll {
                timeout: self.wait_timeout(),
                clear_timeout_tasks: self.rng.percent(30),
            }),
            4 => {
                let longest = self.model.config.max_timeout * 2;
                let patient = self.rng.percent(70);
                let timeout =
                    if patient { self.rng.spread(self.shape.run, longest) } else { Duration::ZERO };
                NextUserAction::Ask(Request::Stop { timeout })
            }
            5 => NextUserAction::Ask(Request::Start),
            6..8 => NextUserAction::Ask(self.cancel_one()),
            _ => NextUserAction::Think,
        }
    }
}
