//! The runners as they really are: processes with lives, work and links, whatever the core believes
//! about them.

use std::collections::BTreeMap;

use rollway_core::{AttemptId, BatchKey, Incarnation, RunnerId, RunnerReport, TaskId, Time};

/// All processes there ever were.
#[derive(Debug, Default)]
pub struct Processes(BTreeMap<(RunnerId, Incarnation), SimProcess>);

/// One life of a runner.
#[derive(Debug)]
pub struct SimProcess {
    pub state: ProcessState,
    pub work: Option<ProcessWork>,
    /// The latest attempt it has heard of.
    pub last: Option<AttemptId>,
    /// Whether it is cut off.
    pub cut: Option<Cut>,
    /// When the last report that it sent arrives, so that the next one arrives later.
    pub reports_until: Time,
    /// When the last order to it arrives.
    pub orders_until: Time,
}

/// How far a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It was ordered and is not up.
    Starting,
    /// It is up.
    Alive,
    /// It is dead, and nobody has said so.
    DiedUnseen,
    Dead,
}

/// What a process works on.
#[derive(Debug)]
pub struct ProcessWork {
    pub attempt: AttemptId,
    pub batch: BatchKey,
    pub task: TaskId,
    /// The runs that have not ended.
    pub left: Vec<u32>,
    /// The runs that will not be reported.
    pub unspoken: Vec<u32>,
    /// Whether it does not listen to a cancel.
    pub deaf: bool,
}

/// A link that is down.
#[derive(Debug)]
pub struct Cut {
    /// What was said meanwhile; none: it is lost.
    pub backlog: Option<Vec<RunnerReport>>,
    /// Whether nobody can end it meanwhile, and if so, whether somebody has tried.
    pub unreachable: Option<bool>,
}

impl Processes {
    /// Adds a process.
    pub fn add(&mut self, runner: RunnerId, life: Incarnation, now: Time) {
        let process = SimProcess {
            state: ProcessState::Starting,
            work: None,
            last: None,
            cut: None,
            reports_until: now,
            orders_until: now,
        };
        self.0.insert((runner, life), process);
    }

    /// Returns a process, dead or alive.
    pub fn get(&self, runner: RunnerId, life: Incarnation) -> Option<&SimProcess> {
        self.0.get(&(runner, life))
    }

    /// Returns a process, dead or alive.
    pub fn get_mut(&mut self, runner: RunnerId, life: Incarnation) -> Option<&mut SimProcess> {
        self.0.get_mut(&(runner, life))
    }

    /// Returns a process that is up.
    pub fn alive(&mut self, runner: RunnerId, life: Incarnation) -> Option<&mut SimProcess> {
        self.get_mut(runner, life).filter(|process| process.state == ProcessState::Alive)
    }

    /// Iterates over all of them.
    pub fn iter(&self) -> impl Iterator<Item = (RunnerId, Incarnation, &SimProcess)> {
        self.0.iter().map(|((runner, life), process)| (*runner, *life, process))
    }

    /// Iterates over the lives whose processes are up.
    pub fn up(&self) -> impl Iterator<Item = (RunnerId, Incarnation, &SimProcess)> {
        self.iter().filter(|(.., process)| process.state == ProcessState::Alive)
    }
}
