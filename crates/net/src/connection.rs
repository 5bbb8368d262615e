//! One accepted connection.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
    /// The peer has proven the secret of the listener.
    is_proven: AtomicBool,
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
            is_proven: AtomicBool::new(false),
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

    /// Records that the peer has proven the secret: it is no longer closed for others while a
    /// request is in flight.
    pub fn set_proven(&self) {
        self.is_proven.store(true, Ordering::Release);
    }

    pub fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Acquire)
    }

    /// Counts a peer that a protocol refused, for the process.
    pub fn count_refusal(&self, reason: &'static str) {
        self.counters.count_refusal(reason);
    }

    /// Closes the connection at once.
    pub fn cut(&self) {
        self.cut.cancel();
    }

    /// Returns whether neither side has closed it, and nothing has ordered it.
    pub(crate) fn is_open(&self) -> bool {
        !self.closed.is_cancelled() && !self.cut.is_cancelled()
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
