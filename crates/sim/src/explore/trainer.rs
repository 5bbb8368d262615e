//! The trainer: it takes experiences in the order in which they were delivered, makes steps, and
//! publishes. What it has trained on survives it.

use std::collections::VecDeque;

use rollway_core::Time;
use rollway_core::sync::{MemberId, WaitId};

/// The trainer.
#[derive(Debug, Default)]
pub(crate) struct SimTrainer {
    pub(crate) state: SimTrainerState,
    /// How often it was started.
    pub(crate) lives: u64,
    /// The train steps that it has made.
    pub(crate) version: u64,
    /// Experiences that it has not trained on: where they are from, and the version that made them.
    pub(crate) buffer: VecDeque<SimSample>,
    /// Whether it is about to look for experiences.
    pub(crate) looks: bool,
}

/// An experience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SimSample {
    pub(crate) explorer: usize,
    pub(crate) step: u64,
    /// The version that the servers had when the step was begun.
    pub(crate) version: u64,
}

/// What a trainer is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SimTrainerState {
    /// It has not come yet.
    #[default]
    Absent,
    /// It runs.
    Up {
        /// Its seat at the board.
        seat: MemberId,
        /// None: it makes a step. Otherwise the last wait that it knew of when it looked for
        /// experiences in vain.
        idle: Option<WaitId>,
    },
    /// It died.
    Dead {
        since: Time,
        /// Whether it said so.
        loud: bool,
    },
    /// It has nothing left to do.
    Done,
}

impl SimTrainer {
    /// Returns its seat, if it is there and is the one that is meant.
    pub(crate) fn alive(&self, life: u64) -> Option<MemberId> {
        match self.state {
            SimTrainerState::Up { seat, .. } if life == self.lives => Some(seat),
            _ => None,
        }
    }
}
