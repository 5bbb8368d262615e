//! What an update of the weights is, and what came of it.

use std::path::PathBuf;
use std::time::Duration;

use rollway_core::sync::TransferGroup;

use super::ServerId;

/// New weights for the trained model.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightUpdate {
    /// Their version. A server that has this version already is left alone.
    pub version: u64,
    pub weights: WeightSource,
    /// What happens to requests that are under way.
    pub in_flight: InFlightPolicy,
    /// How long one server may take to load them, once its requests are out of the way.
    pub timeout: Duration,
}

/// Where weights come from.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightSource {
    /// A directory that the servers can read.
    Path(PathBuf),
    /// The trainer sends them over a group that it and all servers are members of. All servers are
    /// updated at the same time then, whatever [`super::RoutingOptions::min_running`] says.
    Group(TransferGroup),
}

/// What happens to requests that are under way at a server that is to be updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlightPolicy {
    /// They are finished first.
    Drain {
        /// How long they may take.
        timeout: Duration,
        /// Whether what is left then is aborted. Otherwise the server keeps its old weights.
        then_abort: bool,
    },
    /// They stay, are halted meanwhile, and go on with the new weights.
    Keep,
    Abort,
}

/// What came of an update.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightUpdateReport {
    pub version: u64,
    /// The newer version that made this one useless before it began.
    pub superseded_by: Option<u64>,
    /// What became of each server of the trained model.
    pub servers: Vec<ServerUpdateReport>,
}

/// What became of one server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerUpdateReport {
    /// Its name here.
    pub id: ServerId,
    /// Its root.
    pub url: String,
    /// How it ended.
    pub outcome: ServerUpdateOutcome,
    /// How long it was not used.
    pub took: Duration,
    /// Requests that were under way when its turn came.
    pub in_flight: u32,
    /// How many of them were under way when they were aborted.
    pub aborted: u32,
}

/// How the update of a server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerUpdateOutcome {
    /// It has the new weights, and says so.
    Updated,
    /// It had them before.
    AlreadyCurrent,
    /// It keeps the old weights, and says so; why.
    RolledBack(String),
    /// Nobody knows which weights it has, and it is not used until an update succeeds; why.
    Broken(String),
    /// It was not touched; why.
    Skipped(String),
}

impl WeightUpdateReport {
    /// Whether every server has the new weights.
    pub fn is_complete(&self) -> bool {
        let has_it = |it: &ServerUpdateReport| {
            matches!(it.outcome, ServerUpdateOutcome::Updated | ServerUpdateOutcome::AlreadyCurrent)
        };
        self.superseded_by.is_none() && self.servers.iter().all(has_it)
    }
}
