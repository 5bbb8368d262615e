//! An explorer: the process that lives and dies, and what outlives it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use rollway_core::Time;
use rollway_core::explore::PlanProgress;
use rollway_core::sync::{MemberId, WaitId};

use super::subject::Subject;

/// An explorer.
#[derive(Debug)]
pub(crate) struct SimExplorer {
    /// Its name at the board.
    pub(crate) name: String,
    /// How long a step takes.
    pub(crate) work: Duration,
    /// The process; none: it is not running.
    pub(crate) process: Option<ExploreProcess>,
    /// How often it was started.
    pub(crate) lives: u64,
    pub(crate) end: Option<ProcessEnd>,
    /// Since when it is not running.
    pub(crate) down_since: Option<Time>,
    pub(crate) kept: PlanProgress,
    /// Steps whose tasks were submitted, with the version that the servers had then.
    pub(crate) submitted: BTreeMap<u64, ExploreWork>,
    /// What steps have delivered.
    pub(crate) delivered: BTreeMap<u64, u64>,
    /// Evaluations that were submitted.
    pub(crate) evals: BTreeMap<u64, ExploreWork>,
    /// Evaluations whose results were taken.
    pub(crate) evaluated: BTreeSet<u64>,
    /// The version that the servers have.
    pub(crate) version: u64,
    /// When the servers are done with what they were given.
    pub(crate) busy_until: Time,
}

/// Work that was submitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExploreWork {
    /// The version that the servers had.
    pub(crate) version: u64,
    /// When it is done.
    pub(crate) ready: Time,
}

/// An explorer's process.
#[derive(Debug)]
pub(crate) struct ExploreProcess {
    /// Which of its processes it is.
    pub(crate) life: u64,
    /// What it decides by.
    pub(crate) subject: Subject,
    /// Its seat at the board.
    pub(crate) seat: MemberId,
    /// What it waits for at the board.
    pub(crate) wait: Option<OpenWait>,
    /// With `fully_async`, what it waits for beside everything else.
    pub(crate) watch: Watch,
    /// Whether it was told to end.
    pub(crate) stopping: bool,
    /// Whether it has told the trainer that no more come.
    pub(crate) closing: bool,
}

/// A wait of an explorer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenWait {
    /// Its number.
    pub(crate) ask: WaitId,
    /// When the first of those began that follow each other.
    pub(crate) began: Time,
}

/// How an explorer sees what the trainer does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// The newest version that it has seen.
    pub(crate) seen: u64,
    /// The wait for the next one; none while the trainer waits itself.
    pub(crate) ask: Option<WaitId>,
    /// Whether there is nothing left to see.
    pub(crate) is_over: bool,
}

/// How an explorer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// It did what it should.
    Done,
    /// The trainer failed; in words.
    TrainerFailed(String),
    /// It waited too long; in words.
    TimedOut(String),
}

impl ProcessEnd {
    /// Returns its name.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::TrainerFailed(_) => "trainer_failed",
            Self::TimedOut(_) => "timed_out",
        }
    }
}

impl fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::TrainerFailed(words) | Self::TimedOut(words) => {
                write!(f, "{}: {words}", self.name())
            }
        }
    }
}

impl SimExplorer {
    /// Returns an explorer that was never started.
    pub(crate) fn new(name: String, work: Duration) -> Self {
        Self {
            name,
            work,
            process: None,
            lives: 0,
            end: None,
            down_since: None,
            kept: PlanProgress::default(),
            submitted: BTreeMap::new(),
            delivered: BTreeMap::new(),
            evals: BTreeMap::new(),
            evaluated: BTreeSet::new(),
            version: 0,
            busy_until: Time::ZERO,
        }
    }

    /// Returns the process, if it is the one that is meant.
    pub(crate) fn alive(&mut self, life: u64) -> Option<&mut ExploreProcess> {
        self.process.as_mut().filter(|process| process.life == life)
    }

    /// Gives the servers something to do, and returns when it is done.
    pub(crate) fn occupy(&mut self, now: Time, work: Duration) -> ExploreWork {
        self.busy_until = self.busy_until.max(now).after(work);
        ExploreWork { version: self.version, ready: self.busy_until }
    }

    /// Returns how many experiences it has submitted, with what steps in flight are expected to
    /// yield.
    pub(crate) fn experiences(&self, expected: u64) -> u64 {
        let inflight = self.submitted.len().saturating_sub(self.delivered.len()) as u64;
        self.delivered.values().sum::<u64>() + inflight * expected
    }
}
