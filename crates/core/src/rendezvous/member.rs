//! Who is at the board, and what they are at.

use std::time::Duration;

use crate::Time;
use crate::rendezvous::{Ask, Asked, words};

/// What somebody is in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Makes experiences; there may be several.
    Explorer,
    /// Learns from them.
    Trainer,
}

/// The place of somebody at the board. Whoever comes again has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeatId(pub u64);

/// Somebody was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Their seat.
    pub seat: SeatId,
    /// Whether somebody had been there before: of explorers, of the same name.
    pub takes_over: bool,
}

/// What is known of somebody who says that they are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// They have this seat.
    Known,
    /// Somebody of the same name has come after them.
    Replaced,
    /// They have left, or never came to this board: they may enter again.
    Unknown,
}

/// Why something was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another trainer is there.
    OtherTrainer(String),
    /// There are as many explorers as are remembered.
    TooMany(usize),
    /// Versions never go backwards.
    Older {
        /// The version that somebody published.
        version: u64,
        /// The newest one.
        newest: u64,
    },
}

/// How somebody leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// All is done.
    Done,
    /// With an error.
    Failed(String),
    /// Without a word.
    Silent,
}

/// What an explorer is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplorerState {
    /// It is there.
    Here,
    /// It left when it was done.
    Done,
    /// It left with an error.
    Failed(String),
    /// Nothing was heard of it for too long.
    Lost,
}

/// What a trainer is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrainerState {
    /// It is there; what it does, it does not tell.
    Here,
    /// It makes a step.
    Training,
    /// It waits for experiences for its next step.
    Idle {
        /// The last wait that it had heard of before it looked for experiences in vain.
        seen: Ask,
    },
    /// It is done.
    Done,
    /// It ended with an error.
    Failed(String),
    /// Nothing was heard of it for too long.
    Lost,
}

/// Everybody, and what they are at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The newest version; none if nothing was ever published.
    pub newest: Option<u64>,
    /// Explorers that ever came, by name.
    pub explorers: Vec<ExplorerView>,
    /// The trainer; none if none ever came.
    pub trainer: Option<TrainerView>,
    /// Who waits.
    pub asked: Asked,
}

/// An explorer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplorerView {
    /// Its name.
    pub name: String,
    /// What it is at.
    pub state: ExplorerState,
    /// How many waits of it are open.
    pub waiting: usize,
}

/// The trainer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainerView {
    /// Its name.
    pub name: String,
    /// What it is at.
    pub state: TrainerState,
}

/// Somebody with a seat.
#[derive(Clone, Debug)]
pub(super) struct Member<S> {
    pub(super) seat: SeatId,
    /// How long they are believed to be there; of somebody who is not, when that ended.
    pub(super) until: Time,
    pub(super) state: S,
}

/// States of presence, which explorers and trainers have in common.
pub(super) trait Presence: Sized {
    /// They are there, and no more is known.
    const HERE: Self;
    /// Nothing was heard of them for too long.
    const LOST: Self;

    /// Returns the state of somebody who left.
    fn left(how: &Left) -> Self;
    /// Tells whether they are there, as far as is known.
    fn is_there(&self) -> bool;
    /// Tells whether they left for good.
    fn has_left(&self) -> bool;
}

impl Presence for ExplorerState {
    const HERE: Self = Self::Here;
    const LOST: Self = Self::Lost;

    fn left(how: &Left) -> Self {
        match how {
            Left::Done => Self::Done,
            Left::Failed(why) => Self::Failed(why.clone()),
            Left::Silent => Self::Lost,
        }
    }

    fn is_there(&self) -> bool {
        *self == Self::Here
    }

    fn has_left(&self) -> bool {
        matches!(self, Self::Done | Self::Failed(_))
    }
}

impl Presence for TrainerState {
    const HERE: Self = Self::Here;
    const LOST: Self = Self::Lost;

    fn left(how: &Left) -> Self {
        match how {
            Left::Done => Self::Done,
            Left::Failed(why) => Self::Failed(why.clone()),
            Left::Silent => Self::Lost,
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
pub(super) trait Seated {
    fn seat(&self) -> SeatId;
    /// Hears of them; false if they have left.
    fn beat(&mut self, until: Time) -> bool;
    /// Hears that they leave.
    fn leave(&mut self, now: Time, how: &Left);
    /// Lets time pass: who says nothing is lost, and who is lost for long has failed.
    fn tick(&mut self, now: Time, lease: Duration);
    /// When time changes something about them.
    fn deadline(&self, lease: Duration) -> Option<Time>;
}

impl<S: Presence> Seated for Member<S> {
    fn seat(&self) -> SeatId {
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

    fn leave(&mut self, now: Time, how: &Left) {
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
            self.state = S::left(&Left::Failed(words::lost(lease)));
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
pub(super) struct Trainer {
    pub(super) name: String,
    pub(super) seated: Member<TrainerState>,
}
