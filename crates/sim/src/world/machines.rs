//! Machines: groups of runners that are lost or disconnected together.

use rollway_core::{RunnerId, Suspicion};

use super::{SimWorld, WorldEvent};
use crate::process::{Cut, ProcessState, RunnerKey};

impl SimWorld {
    fn machine(&self, runner: RunnerId) -> u32 {
        runner.0 / self.shape.machine.max(1)
    }

    /// Returns whether the machine of a runner is lost now.
    pub(super) fn is_away(&self, runner: RunnerId) -> bool {
        let back = self.away.get(&self.machine(runner));
        !self.faults_ended && back.is_some_and(|back| *back > self.now)
    }

    /// Returns the live processes on the machine of a runner.
    fn processes_on_machine(&self, runner: RunnerId) -> Vec<(RunnerKey, ProcessState)> {
        let machine = self.machine(runner);
        let all = self.processes.iter().map(|(at, process)| (at, process.state));
        let here = all.filter(|((runner, _), _)| self.machine(*runner) == machine);
        here.filter(|(_, state)| matches!(state, ProcessState::Starting | ProcessState::Alive))
            .collect()
    }

    /// Loses the machine of a runner with all its processes. It returns later, empty.
    pub(super) fn lose_machine(&mut self, runner: RunnerId) {
        let stays = self.rng.spread(self.shape.heartbeat, self.shape.heartbeat * 8);
        self.away.insert(self.machine(runner), self.now.after(stays));
        for (at, state) in self.processes_on_machine(runner) {
            if state == ProcessState::Alive {
                self.crash(at, None, Suspicion::None);
            } else if let Some(process) = self.processes.get_mut(at) {
                // Without a report.
                process.state = ProcessState::Dead;
            }
        }
    }

    /// Disconnects the machine of a runner; messages arrive after the reconnection.
    pub(super) fn cut_machine(&mut self, runner: RunnerId) {
        let wait = self.rng.spread(self.shape.heartbeat / 4, self.shape.heartbeat * 12);
        for (at, state) in self.processes_on_machine(runner) {
            let Some(process) = self.processes.get_mut(at) else { continue };
            if state == ProcessState::Alive && process.cut.is_none() {
                process.cut = Some(Cut { backlog: Some(Vec::new()), unreachable: Some(false) });
                self.plan(wait, WorldEvent::Reconnect(at));
            }
        }
    }
}
