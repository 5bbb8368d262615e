//! Users who look after the whole: they stop, start and wait for everything.

use std::time::Duration;

use rollway_core::Request;

use super::Next;
use crate::book::Pool;
use crate::world::World;

impl World {
    pub(super) fn operate(&mut self) -> Next {
        if self.book.pool != Pool::Running {
            return Next::Ask(Request::Start);
        }
        match self.dice.below(9) {
            0..4 => Next::Ask(Request::WaitAll {
                timeout: self.patience(),
                clear_timeout_tasks: self.dice.percent(30),
            }),
            4 => {
                let longest = self.book.config.max_timeout * 2;
                let patient = self.dice.percent(70);
                let timeout = if patient {
                    self.dice.spread(self.shape.run, longest)
                } else {
                    Duration::ZERO
                };
                Next::Ask(Request::Stop { timeout })
            }
            5 => Next::Ask(Request::Start),
            6..8 => Next::Ask(self.cancel_one()),
            _ => Next::Think,
        }
    }
}
