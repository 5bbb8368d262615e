//! One accepted connection.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio_util::sync::CancellationToken;

use crate::activity::Activity;
use crate::counters::{CloseReason, ConnectionCounters};

/// Remote end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Unix { pid: Option<i32> },
    Tcp(SocketAddr),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { pid: Some(pid) } => write!(f, "pid {pid}"),
            Self::Unix { pid: None } => f.write_str("unix"),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// State of a connection, shared with its service.
#[derive(Debug)]
pub struct Connection {
    pub(crate) peer: Peer,
    pub(crate) is_surplus: bool,
    pub(crate) activity: Activity,
    pub(crate) counters: Arc<ConnectionCounters>,
    /// Cancelled to close it.
    pub(crate) cut: CancellationToken,
    /// Cancelled when it is closed by either side.
    closed: CancellationToken,
    /// Position in the registry.
    pub(crate) slot: AtomicUsize,
}

impl Connection {
    pub(crate) fn new(
        peer: Peer,
        is_surplus: bool,
        counters: Arc<ConnectionCounters>,
        cut: CancellationToken,
    ) -> Self {
        counters.opened();
        Self {
            peer,
            is_surplus,
            activity: Activity::new(),
            counters,
            cut,
            closed: CancellationToken::new(),
            slot: AtomicUsize::new(0),
        }
    }

    pub const fn peer(&self) -> Peer {
        self.peer
    }

    /// Returns whether it was accepted beyond the limit, to be refused with a reason.
    pub const fn is_surplus(&self) -> bool {
        self.is_surplus
    }

    /// Closes the connection at once.
    pub fn cut(&self) {
        self.cut.cancel();
    }

    /// Waits until the connection is closed by either side.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    pub(crate) fn close(&self, reason: CloseReason) {
        self.counters.count(reason);
        tracing::debug!(
            listener = self.counters.kind().name(), peer = %self.peer, reason = reason.name(),
            "connection closed"
        );
        self.cut.cancel();
    }

    pub(crate) fn ended(&self) {
        self.counters.ended();
        self.closed.cancel();
    }
}
