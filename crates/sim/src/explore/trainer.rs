//! The trainer: it consumes experiences in the order of their delivery, executes train steps and
//! publishes weights. Its version survives it.

use std::collections::VecDeque;

use rollway_core::Time;
use rollway_core::sync::{MemberId, WaitId};

#[derive(Debug, Default)]
pub(crate) struct SimTrainer {
    pub(crate) state: SimTrainerState,
    pub(crate) starts: u64,
    pub(crate) version: u64,
    /// Experiences that it has not trained on.
    pub(crate) buffer: VecDeque<SimSample>,
    /// True if a look for experiences is planned.
    pub(crate) check_planned: bool,
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
        member: MemberId,
        /// `None`: it executes a step. Otherwise the last wait that it knew when it looked for
        /// experiences in vain.
        idle: Option<WaitId>,
    },
    Dead {
        since: Time,
        /// True if it reported its crash.
        reports_failure: bool,
    },
    Done,
}

impl SimTrainer {
    /// Returns its membership, if the start with this number is up.
    pub(crate) fn alive(&self, incarnation: u64) -> Option<MemberId> {
        match self.state {
            SimTrainerState::Up { member, .. } if incarnation == self.starts => Some(member),
            _ => None,
        }
    }
}
