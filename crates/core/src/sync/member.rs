//! Members of a job: explorers and the trainer.

use std::time::Duration;

use crate::Time;
use crate::sync::{WaitId, WaitSummary, messages};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberRole {
    /// Produces experiences; there may be several.
    Explorer,
    /// Trains on them.
    Trainer,
}

/// One membership. A member that joins again gets another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// Accepted membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    pub member: MemberId,
    /// True if it replaces an earlier member: of explorers, one of the same name.
    pub takes_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatReply {
    /// The membership is current.
    Known,
    /// A member of the same name joined later.
    Replaced,
    /// The member has left, or never joined this synchronizer: it may join again.
    Unknown,
}

/// Reason why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinRefusal {
    /// Another trainer is present.
    OtherTrainer(String),
    /// The maximum number of explorers is reached.
    TooMany(usize),
    /// Versions never decrease.
    Older { version: u64, newest: u64 },
}

/// Reason why a member leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaveReason {
    Done,
    /// With an error message.
    Failed(String),
    /// Without a message.
    TimedOut,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplorerPresence {
    Present,
    Done,
    /// It left with an error message.
    Failed(String),
    /// Its heartbeat timed out.
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrainerPresence {
    /// Present, without information about its activity.
    Present,
    /// Executes a train step.
    Training,
    /// Waits for experiences. `seen`: last wait that it knew before it looked for them in vain.
    Idle { seen: WaitId },
    /// It has no more steps.
    Done,
    /// It ended with an error message.
    Failed(String),
    /// Its heartbeat timed out.
    Lost,
}

impl From<&TrainerPresence> for ExplorerPresence {
    fn from(state: &TrainerPresence) -> Self {
        match state {
            TrainerPresence::Present | TrainerPresence::Training | TrainerPresence::Idle { .. } => {
                Self::Present
            }
            TrainerPresence::Done => Self::Done,
            TrainerPresence::Failed(message) => Self::Failed(message.clone()),
            TrainerPresence::Lost => Self::Lost,
        }
    }
}

/// All members and their states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncView {
    /// Newest version. `None`: nothing was published.
    pub newest: Option<u64>,
    /// Explorers that ever joined, by name.
    pub explorers: Vec<ExplorerMember>,
    /// `None`: no trainer ever joined.
    pub trainer: Option<TrainerMember>,
    pub waits: WaitSummary,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplorerMember {
    pub name: String,
    pub state: ExplorerPresence,
    pub waiting: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainerMember {
    pub name: String,
    pub state: TrainerPresence,
}

/// Membership of an explorer or the trainer.
#[derive(Clone, Debug)]
pub(super) struct MemberRecord {
    pub(super) id: MemberId,
    /// Heartbeat deadline; of an absent member, the time of its end.
    pub(super) until: Time,
    pub(super) state: TrainerPresence,
}

impl MemberRecord {
    pub(super) const fn is_present(&self) -> bool {
        matches!(
            self.state,
            TrainerPresence::Present | TrainerPresence::Training | TrainerPresence::Idle { .. }
        )
    }

    /// Returns whether the member left for good.
    pub(super) const fn has_left(&self) -> bool {
        matches!(self.state, TrainerPresence::Done | TrainerPresence::Failed(_))
    }
    /// Applies a heartbeat. Returns false if the member has left.
    pub(super) fn renew(&mut self, until: Time) -> bool {
        if self.has_left() {
            return false;
        }
        if !self.is_present() {
            self.state = TrainerPresence::Present;
        }
        self.until = until;
        true
    }

    pub(super) fn leave(&mut self, now: Time, reason: &LeaveReason) {
        if !self.has_left() {
            self.until = self.until.min(now);
            self.state = match reason {
                LeaveReason::Done => TrainerPresence::Done,
                LeaveReason::Failed(message) => TrainerPresence::Failed(message.clone()),
                LeaveReason::TimedOut => TrainerPresence::Lost,
            };
        }
    }

    /// Marks a member without heartbeats as lost, and as failed after another timeout.
    pub(super) fn tick(&mut self, now: Time, timeout: Duration) {
        if self.is_present() && self.until <= now {
            self.state = TrainerPresence::Lost;
        }
        if self.deadline(timeout).is_some_and(|deadline| deadline <= now) {
            self.state = TrainerPresence::Failed(messages::heartbeats_missing(timeout));
        }
    }

    pub(super) fn deadline(&self, timeout: Duration) -> Option<Time> {
        if self.has_left() {
            None
        } else if self.is_present() {
            Some(self.until)
        } else {
            Some(self.until.after(timeout))
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct TrainerSlot {
    pub(super) name: String,
    pub(super) member: MemberRecord,
}
