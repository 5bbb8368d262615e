//! Weight updates and their reports.

use std::path::PathBuf;
use std::time::Duration;

use rollway_core::sync::TransferGroup;

use super::ServerId;

#[derive(Clone, Debug, PartialEq)]
pub struct WeightUpdate {
    /// Servers with this version are not updated.
    pub version: u64,
    pub weights: WeightSource,
    pub in_flight: InFlightPolicy,
    /// Timeout of one server, once it is drained.
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub enum WeightSource {
    /// A directory that the servers can read.
    Path(PathBuf),
    /// The trainer sends them over a group. All servers are updated at once, regardless of
    /// [`super::RoutingOptions::min_running`].
    Group(TransferGroup),
}

/// Treatment of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlightPolicy {
    /// They finish first.
    Drain {
        timeout: Duration,
        /// True if they are aborted after the timeout. Otherwise the server keeps its weights.
        then_abort: bool,
    },
    /// They are paused, and continue with the new weights.
    Keep,
    Abort,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightUpdateReport {
    pub version: u64,
    /// Newer version that replaced this update before it began.
    pub superseded_by: Option<u64>,
    pub servers: Vec<ServerUpdateReport>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ServerUpdateReport {
    pub id: ServerId,
    pub url: String,
    pub outcome: ServerUpdateOutcome,
    /// Time during which it was not used.
    pub took: Duration,
    /// Requests in flight at the beginning.
    pub in_flight: u32,
    /// Requests that were aborted.
    pub aborted: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerUpdateOutcome {
    Updated,
    AlreadyCurrent,
    /// It has its old weights, verified, with the reason.
    RolledBack(String),
    /// Its version is unknown, and it is not used until an update succeeds.
    Broken(String),
    /// Not updated, with the reason.
    Skipped(String),
}

impl WeightUpdateReport {
    /// Returns whether every server has the new weights.
    pub fn is_complete(&self) -> bool {
        let has_it = |it: &ServerUpdateReport| {
            matches!(it.outcome, ServerUpdateOutcome::Updated | ServerUpdateOutcome::AlreadyCurrent)
        };
        self.superseded_by.is_none() && self.servers.iter().all(has_it)
    }
}
