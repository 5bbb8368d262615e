//! Who is at the board, and what they are at.

use std::time::Duration;

use crate::Time;
use crate::sync::{WaitId, WaitSummary, messages};

/// What somebody is in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberRole {
    /// Makes experiences; there may be several.
    Explorer,
    /// Learns from them.
    Trainer,
}

/// The place of somebody at the board. Whoever comes again has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// Somebody was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    pub seat: MemberId,
    /// Whether somebody had been there before: of explorers, of the same name.
    pub takes_over: bool,
}

/// What is known of somebody who says that they are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatReply {
    /// They have this seat.
    Known,
    /// Somebody of the same name has come after them.
    Replaced,
    /// They have left, or never came to this board: they may enter again.
    Unknown,
}

/// Why something was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinRefusal {
    /// Another trainer is there.
    OtherTrainer(String),
    /// There are as many explorers as are remembered.
    TooMany(usize),
    /// Versions never go backwards.
    Older {
        /// The version that somebody published.
        version: u64,
        newest: u64,
    },
}

/// How somebody leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaveReason {
    Done,
    /// With an error.
    Failed(String),
    /// Without a word.
    TimedOut,
}

/// What an explorer is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplorerPresence {
    Present,
    /// It left when it was done.
    Done,
    /// It left with an error.
    Failed(String),
    /// Nothing was heard of it for too long.
    Lost,
}

/// What a trainer is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrainerPresence {
    /// It is there; what it does, it does not tell.
    Here,
    /// It makes a step.
    Training,
    /// It waits for experiences for its next step.
    Idle {
        /// The last wait that it had heard of before it looked for experiences in vain.
        seen: WaitId,
    },
    Done,
    /// It ended with an error.
    Failed(String),
    /// Nothing was heard of it for too long.
    Lost,
}

/// Everybody, and what they are at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncView {
    /// The newest version; none if nothing was ever published.
    pub newest: Option<u64>,
    /// Explorers that ever came, by name.
    pub explorers: Vec<ExplorerMember>,
    /// The trainer; none if none ever came.
    pub trainer: Option<TrainerMember>,
    pub asked: WaitSummary,
}

/// An explorer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplorerMember {
    pub name: String,
    pub state: ExplorerPresence,
    /// How many waits of it are open.
    pub waiting: usize,
}

/// The trainer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainerMember {
    pub name: String,
    pub state: TrainerPresence,
}

/// Somebody with a seat.
#[derive(Clone, Debug)]
pub(super) struct MemberRecord<S> {
    pub(super) seat: MemberId,
    /// How long they are believed to be there; of somebody who is not, when that ended.
    pub(super) until: Time,
    pub(super) state: S,
}

/// States of presence, which explorers and trainers have in common.
pub(super) trait MemberPresence: Sized {
    /// They are there, and no more is known.
    const HERE: Self;
    /// Nothing was heard of them for too long.
    const LOST: Self;

    /// Returns the state of somebody who left.
    fn left(how: &LeaveReason) -> Self;
    /// Tells whether they are there, as far as is known.
    fn is_there(&self) -> bool;
    /// Tells whether they left for good.
    fn has_left(&self) -> bool;
}

impl MemberPresence for ExplorerPresence {
    const HERE: Self = Self::Present;
    const LOST: Self = Self::Lost;

    fn left(how: &LeaveReason) -> Self {
        match how {
            LeaveReason::Done => Self::Done,
            LeaveReason::Failed(why) => Self::Failed(why.clone()),
            LeaveReason::TimedOut => Self::Lost,
        }
    }

    fn is_there(&self) -> bool {
        *self == Self::Present
    }

    fn has_left(&self) -> bool {
        matches!(self, Self::Done | Self::Failed(_))
    }
}

impl MemberPresence for TrainerPresence {
    const HERE: Self = Self::Here;
    const LOST: Self = Self::Lost;

    fn left(how: &LeaveReason) -> Self {
        match how {
            LeaveReason::Done => Self::Done,
            LeaveReason::Failed(why) => Self::Failed(why.clone()),
            LeaveReason::TimedOut => Self::Lost,
        }
    }

    fn is_there(&self) -> bool {
        matches!(self, Self::Here | Self::Training | Self::Idle { .. })
    }

    fn has_left(&self) -> bool {
        matches!(self, Self::Done | Self::Failed(_))
    }
}

/// Somebody with a seat, whoever it is.
pub(super) trait AnyMember {
    fn seat(&self) -> MemberId;
    /// Hears of them; false if they have left.
    fn beat(&mut self, until: Time) -> bool;
    /// Hears that they leave.
    fn leave(&mut self, now: Time, how: &LeaveReason);
    /// Lets time pass: who says nothing is lost, and who is lost for long has failed.
    fn tick(&mut self, now: Time, lease: Duration);
    /// When time changes something about them.
    fn deadline(&self, lease: Duration) -> Option<Time>;
}

impl<S: MemberPresence> AnyMember for MemberRecord<S> {
    fn seat(&self) -> MemberId {
        self.seat
    }

    fn beat(&mut self, until: Time) -> bool {
        if self.state.has_left() {
            return false;
        }
        if !self.state.is_there() {
            self.state = S::HERE;
        }
        self.until = until;
        true
    }

    fn leave(&mut self, now: Time, how: &LeaveReason) {
        if !self.state.has_left() {
            self.until = self.until.min(now);
            self.state = S::left(how);
        }
    }

    fn tick(&mut self, now: Time, lease: Duration) {
        if self.state.is_there() && self.until <= now {
            self.state = S::LOST;
        }
        if self.deadline(lease).is_some_and(|deadline| deadline <= now) {
            self.state = S::left(&LeaveReason::Failed(messages::lost(lease)));
        }
    }

    fn deadline(&self, lease: Duration) -> Option<Time> {
        match &self.state {
            state if state.has_left() => None,
            state if state.is_there() => Some(self.until),
            _ => Some(self.until.after(lease)),
        }
    }
}

/// The trainer's seat.
#[derive(Clone, Debug)]
pub(super) struct TrainerSlot {
    pub(super) name: String,
    pub(super) seated: MemberRecord<TrainerPresence>,
}
