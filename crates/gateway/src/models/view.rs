//! Public view of models and servers.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use rollway_base::ServerKind;
use rollway_model_api::server_api::ServerLoad;

use super::ServerId;
use super::capabilities::ServerCapabilities;
use super::routing::{Health, ServerDuty, ServerSlot};

pub use super::routing::ServerCounts;

#[derive(Clone, Debug)]
pub struct ModelView {
    pub name: String,
    pub trained: bool,
    pub waiting: usize,
    pub servers: Vec<ServerView>,
}

#[derive(Clone, Debug)]
pub struct ServerView {
    pub id: ServerId,
    pub engine: ServerKind,
    pub url: String,
    /// The server's name of its model, once known.
    pub server_model: Option<String>,
    pub state: ServerState,
    pub in_flight: u32,
    /// Version of new tokens. `None`: unknown, as during an update, or because the server does not
    /// report it.
    pub version: Option<u64>,
    /// Version of the weights that were loaded, reported or not. `None`: unknown.
    pub loaded: Option<u64>,
    pub capabilities: ServerCapabilities,
    /// Load in its last report. `None`: it does not report any.
    pub load: Option<ServerLoad>,
    /// Maximum requests in flight, adapted to the load.
    pub limit: u32,
    /// Consecutive failed requests.
    pub failures: u32,
    /// Time since the last response. `None`: never.
    pub last_seen: Option<Duration>,
    pub counts: ServerCounts,
    /// Number of errors by kind: `unreachable`, `http_STATUS`, `broken_response`, `health_check`,
    /// `paused`, `weight_update`.
    pub errors: BTreeMap<String, u64>,
    pub last_error: Option<ServerError>,
}

/// Error of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    pub at: SystemTime,
    pub kind: String,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// Not checked successfully yet, with the reason of the last failure.
    Starting(Option<String>),
    Running,
    Unhealthy(String),
    Updating,
    /// Finishes its requests before an update or its removal.
    Draining,
    /// The version is unknown after a failed update. Another update can repair it.
    Broken(String),
}

impl ServerState {
    /// Tells whether calls reach the server, now or after its update.
    pub const fn is_usable(&self) -> bool {
        matches!(self, Self::Running | Self::Updating | Self::Draining)
    }

    /// Returns why it is not usable, if known.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Starting(reason) => reason.as_deref(),
            Self::Unhealthy(reason) | Self::Broken(reason) => Some(reason),
            Self::Running | Self::Updating | Self::Draining => None,
        }
    }

    pub const fn name(&self) -> &'static str {
        match self {
            Self::Starting(_) => "starting",
            Self::Running => "running",
            Self::Unhealthy(_) => "unhealthy",
            Self::Updating => "updating",
            Self::Draining => "draining",
            Self::Broken(_) => "broken",
        }
    }

    pub(super) fn of(slot: &ServerSlot) -> Self {
        match (&slot.duty, &slot.health) {
            (ServerDuty::Broken(reason), _) => Self::Broken(reason.clone()),
            (ServerDuty::Updating, _) => Self::Updating,
            (ServerDuty::Draining | ServerDuty::Leaving, _) => Self::Draining,
            (ServerDuty::Open, Health::Unknown(reason)) => Self::Starting(reason.clone()),
            (ServerDuty::Open, Health::Unhealthy(reason)) => Self::Unhealthy(reason.clone()),
            (ServerDuty::Open, Health::Healthy) if slot.is_unconfirmed => Self::Unhealthy(
                "a request could not reach it; a health check is running".to_owned(),
            ),
            (ServerDuty::Open, Health::Healthy) if slot.is_behind => Self::Updating,
            (ServerDuty::Open, Health::Healthy) => Self::Running,
        }
    }
}

impl fmt::Display for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting(Some(reason)) | Self::Unhealthy(reason) | Self::Broken(reason) => {
                write!(f, "{} ({reason})", self.name())
            }
            _ => f.write_str(self.name()),
        }
    }
}
