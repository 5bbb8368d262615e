//! An explorer: its process, and the state that survives it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use rollway_core::Time;
use rollway_core::explore::PlanProgress;
use rollway_core::sync::{MemberId, WaitId};

use super::subject::Subject;

#[derive(Debug, Default)]
pub(crate) struct SimExplorer {
    pub(crate) name: String,
    pub(crate) work: Duration,
    /// `None`: it is not running.
    pub(crate) process: Option<ExploreProcess>,
    pub(crate) starts: u64,
    pub(crate) end: Option<ProcessEnd>,
    /// Time since which it is not running.
    pub(crate) down_since: Option<Time>,
    pub(crate) checkpoint: PlanProgress,
    /// Submitted steps, with the version of the servers at that time.
    pub(crate) submitted: BTreeMap<u64, ExploreWork>,
    /// Experiences delivered per step.
    pub(crate) delivered: BTreeMap<u64, u64>,
    pub(crate) evals: BTreeMap<u64, ExploreWork>,
    /// Evaluations whose results were taken.
    pub(crate) evaluated: BTreeSet<u64>,
    pub(crate) version: u64,
    /// Time at which the servers have finished all work.
    pub(crate) busy_until: Time,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ExploreWork {
    /// Version of the servers at its submission.
    pub(crate) version: u64,
    pub(crate) ready: Time,
}

#[derive(Debug)]
pub(crate) struct ExploreProcess {
    /// Number of this process.
    pub(crate) incarnation: u64,
    pub(crate) subject: Subject,
    pub(crate) member: MemberId,
    pub(crate) wait: Option<OpenWait>,
    /// With `fully_async`, the concurrent wait for published weights.
    pub(crate) watch: Watch,
    pub(crate) stopping: bool,
    /// True if it has informed the trainer of its end.
    pub(crate) closing: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenWait {
    pub(crate) wait_id: WaitId,
    /// Begin of the first of consecutive waits.
    pub(crate) began: Time,
}

/// Concurrent wait for published weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// Newest known version.
    pub(crate) seen: u64,
    /// Open wait. `None` while the trainer waits itself.
    pub(crate) wait_id: Option<WaitId>,
    /// True if no more weights will be published.
    pub(crate) is_over: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    Done,
    TrainerFailed(String),
    TimedOut(String),
}

impl ProcessEnd {
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
            Self::TrainerFailed(message) | Self::TimedOut(message) => {
                write!(f, "{}: {message}", self.name())
            }
        }
    }
}

impl SimExplorer {
    pub(crate) fn new(name: String, work: Duration) -> Self {
        Self { name, work, ..Self::default() }
    }

    /// Returns the process with this number, if it is running.
    pub(crate) fn alive(&mut self, incarnation: u64) -> Option<&mut ExploreProcess> {
        self.process.as_mut().filter(|process| process.incarnation == incarnation)
    }

    /// Gives the servers work, and returns its end.
    pub(crate) fn occupy(&mut self, now: Time, work: Duration) -> ExploreWork {
        self.busy_until = self.busy_until.max(now).after(work);
        ExploreWork { version: self.version, ready: self.busy_until }
    }

    /// Returns the number of submitted experiences, including the expected yield of steps in
    /// flight.
    pub(crate) fn experiences(&self, expected: u64) -> u64 {
        let inflight = self.submitted.len().saturating_sub(self.delivered.len()) as u64;
        self.delivered.values().sum::<u64>() + inflight * expected
    }
}
