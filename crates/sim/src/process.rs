//! The runners as they really are: processes with incarnations, work and connections, independent
//! of the core's state.

use std::collections::BTreeMap;

use rollway_core::{AttemptId, BatchKey, Incarnation, RunnerId, RunnerReport, TaskId, Time};

/// All processes that ever existed.
#[derive(Debug, Default)]
pub struct Processes(BTreeMap<RunnerKey, SimProcess>);

pub type RunnerKey = (RunnerId, Incarnation);

/// One incarnation of a runner.
#[derive(Debug)]
pub struct SimProcess {
    pub state: ProcessState,
    /// True if it has a process of its own; other runners share one with their neighbours.
    pub isolated: bool,
    pub work: Option<ProcessWork>,
    /// Latest attempt that it has received.
    pub last: Option<AttemptId>,
    /// `None`: connected.
    pub cut: Option<Cut>,
    /// Arrival of its last report, so that the next one arrives later.
    pub reports_until: Time,
    /// Arrival of the last command to it.
    pub orders_until: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    Starting,
    Alive,
    /// Dead without a report.
    DiedUnseen,
    Dead,
}

#[derive(Debug)]
pub struct ProcessWork {
    pub attempt: AttemptId,
    pub batch: BatchKey,
    pub task: TaskId,
    /// Runs that have not ended.
    pub left: Vec<u32>,
    /// Runs that will not be reported.
    pub unreported: Vec<u32>,
    /// True if it ignores a cancel.
    pub deaf: bool,
}

/// A broken connection.
#[derive(Debug)]
pub struct Cut {
    /// Reports in the meantime. `None`: they are lost.
    pub backlog: Option<Vec<RunnerReport>>,
    /// True if a kill was attempted, if kills cannot reach it.
    pub unreachable: Option<bool>,
}

impl Processes {
    pub fn add(&mut self, at: RunnerKey, isolated: bool, now: Time) {
        let process = SimProcess {
            state: ProcessState::Starting,
            isolated,
            work: None,
            last: None,
            cut: None,
            reports_until: now,
            orders_until: now,
        };
        self.0.insert(at, process);
    }

    pub fn get(&self, at: RunnerKey) -> Option<&SimProcess> {
        self.0.get(&at)
    }

    pub fn get_mut(&mut self, at: RunnerKey) -> Option<&mut SimProcess> {
        self.0.get_mut(&at)
    }

    /// Returns a process that is up.
    pub fn alive(&mut self, at: RunnerKey) -> Option<&mut SimProcess> {
        self.get_mut(at).filter(|process| process.state == ProcessState::Alive)
    }

    pub fn iter(&self) -> impl Iterator<Item = (RunnerKey, &SimProcess)> {
        self.0.iter().map(|(at, process)| (*at, process))
    }

    pub fn up(&self) -> impl Iterator<Item = (RunnerKey, &SimProcess)> {
        self.iter().filter(|(_, process)| process.state == ProcessState::Alive)
    }
}
