//! The trainer: it consumes experiences in the order of their delivery, executes train steps and
//! publishes weights. Its version survives it.

use std::collections::VecDeque;

use rollway_core::Time;
use rollway_core::sync::{MemberId, WaitId};

#[derive(Debug, Default)]
pub(crate) struct SimTrainer {
    pub(crate) state: SimTrainerState,
    pub(crate) lives: u64,
    pub(crate) version: u64,
    /// Experiences that it has not trained on.
    pub(crate) buffer: VecDeque<SimSample>,
    /// True if a look for experiences is planned.
    pub(crate) looks: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SimSample {
    pub(crate) explorer: usize,
    pub(crate) step: u64,
    /// Version of the servers when the step began.
    pub(crate) version: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SimTrainerState {
    #[default]
    Absent,
    Up {
        seat: MemberId,
        /// `None`: it executes a step. Otherwise the last wait that it knew when it looked for
        /// experiences in vain.
        idle: Option<WaitId>,
    },
    Dead {
        since: Time,
        /// True if it reported its crash.
        loud: bool,
    },
    Done,
}

impl SimTrainer {
    /// Returns its membership, if the start with this number is up.
    pub(crate) fn alive(&self, life: u64) -> Option<MemberId> {
        match self.state {
            SimTrainerState::Up { seat, .. } if life == self.lives => Some(seat),
            _ => None,
        }
    }
}
