//! Machines: groups of runners that are lost, or cut off, together.

use rollway_core::{Incarnation, RunnerId};

use super::{SimWorld, WorldEvent};
use crate::process::{Cut, ProcessState};

impl SimWorld {
    /// Returns the machine that a runner lives on.
    fn machine(&self, runner: RunnerId) -> u32 {
        runner.0 / self.shape.machine.max(1)
    }

    /// Tells whether the machine of a runner was lost and has not come back.
    pub(super) fn is_away(&self, runner: RunnerId) -> bool {
        let back = self.away.get(&self.machine(runner));
        !self.healed && back.is_some_and(|back| *back > self.now)
    }

    /// Returns everybody on the machine of a runner who is not dead.
    fn neighbours(&self, runner: RunnerId) -> Vec<(RunnerId, Incarnation, ProcessState)> {
        let machine = self.machine(runner);
        let all =
            self.processes.iter().map(|(runner, life, process)| (runner, life, process.state));
        let here = all.filter(|(runner, ..)| self.machine(*runner) == machine);
        here.filter(|(.., state)| matches!(state, ProcessState::Starting | ProcessState::Alive))
            .collect()
    }

    /// The machine of a runner is gone, with everybody on it. It comes back after a while, empty.
    pub(super) fn lose_machine(&mut self, runner: RunnerId) {
        let stays = self.dice.spread(self.shape.heartbeat, self.shape.heartbeat * 8);
        self.away.insert(self.machine(runner), self.now.after(stays));
        for (runner, life, state) in self.neighbours(runner) {
            match state {
                ProcessState::Alive => self.crash(runner, life, None, false),
                // Nobody has heard of it, and nobody will.
                _ => {
                    if let Some(process) = self.processes.get_mut(runner, life) {
                        process.state = ProcessState::Dead;
                    }
                }
            }
        }
    }

    /// Nothing goes to the machine of a runner or comes from it, until all of it does again.
    pub(super) fn cut_machine(&mut self, runner: RunnerId) {
        let wait = self.dice.spread(self.shape.heartbeat / 4, self.shape.heartbeat * 12);
        for (runner, life, state) in self.neighbours(runner) {
            let Some(process) = self.processes.get_mut(runner, life) else { continue };
            if state == ProcessState::Alive && process.cut.is_none() {
                process.cut = Some(Cut { backlog: Some(Vec::new()), unreachable: Some(false) });
                self.plan(wait, WorldEvent::Reconnect { runner, life });
            }
        }
    }
}
