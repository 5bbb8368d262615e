//! What can be seen of the models: for clients, metrics and people.

use std::fmt;
use std::time::Duration;

use rollway_base::ServerKind;

use super::ServerId;
use super::routing::{Health, ServerDuty, ServerSlot};

pub use super::routing::ServerCounts;

/// A model and its servers.
#[derive(Clone, Debug)]
pub struct ModelView {
    /// The name that clients call it by.
    pub name: String,
    /// Whether it is the one that is trained.
    pub trained: bool,
    /// How many calls wait for a server.
    pub waiting: usize,
    pub servers: Vec<ServerView>,
}

/// A server.
#[derive(Clone, Debug)]
pub struct ServerView {
    /// Its name here.
    pub id: ServerId,
    pub engine: ServerKind,
    /// Its root.
    pub url: String,
    /// The name that it knows its model by, once it was heard of.
    pub server_model: Option<String>,
    /// What it does.
    pub state: ServerState,
    /// Requests under way.
    pub in_flight: u32,
    /// The version of its weights; none if nobody knows, as in an update.
    pub version: Option<u64>,
    /// Requests in a row that it failed.
    pub failures: u32,
    /// How long ago it was last heard of; none if never.
    pub last_seen: Option<Duration>,
    /// What happened at it, in numbers.
    pub counts: ServerCounts,
}

/// What a server does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It has not been heard of yet; why it does not answer, if it was asked.
    Starting(Option<String>),
    /// It takes requests.
    Running,
    /// It does not answer as it should, and is asked again and again.
    Unhealthy(String),
    /// Its weights are being replaced.
    Updating,
    /// It finishes what it has, before its weights are replaced or it is removed.
    Draining,
    /// An update failed, and nobody knows which weights it has. Another update can heal it.
    Broken(String),
}

impl ServerState {
    /// A word for it.
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

    pub(super) fn of(seat: &ServerSlot) -> Self {
        match (&seat.duty, &seat.health) {
            (ServerDuty::Broken(why), _) => Self::Broken(why.clone()),
            (ServerDuty::Updating, _) => Self::Updating,
            (ServerDuty::Draining | ServerDuty::Leaving, _) => Self::Draining,
            (ServerDuty::Open, Health::Unknown(why)) => Self::Starting(why.clone()),
            (ServerDuty::Open, Health::Unhealthy(why)) => Self::Unhealthy(why.clone()),
            (ServerDuty::Open, Health::Healthy) if seat.is_doubtful => {
                Self::Unhealthy("a request could not reach it; it is being asked".to_owned())
            }
            (ServerDuty::Open, Health::Healthy) => Self::Running,
        }
    }
}

impl fmt::Display for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting(Some(why)) | Self::Unhealthy(why) | Self::Broken(why) => {
                write!(f, "{} ({why})", self.name())
            }
            _ => f.write_str(self.name()),
        }
    }
}
