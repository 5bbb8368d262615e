//! Connections of peers: their state, and refusals by reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rollway_net::{Connection, Peer};

use crate::refusal::RefusalCode;

/// Counters of refused peers.
#[derive(Debug)]
pub(crate) struct RefusalCounters {
    /// Indexed by `RefusalCode as usize`.
    refused: Box<[AtomicU64]>,
}

impl RefusalCounters {
    pub(crate) fn new() -> Self {
        Self { refused: RefusalCode::ALL.iter().map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts a refused peer, also for the process.
    pub(crate) fn count(&self, code: RefusalCode, socket: &ConnectionSocket) {
        self.refused[code as usize].fetch_add(1, Ordering::Relaxed);
        socket.connection.count_refusal(code.name());
    }

    /// Returns the nonzero numbers of refused or disconnected peers by reason.
    pub(crate) fn refused(&self) -> Vec<(RefusalCode, u64)> {
        let counts = RefusalCode::ALL.iter().copied().zip(&self.refused);
        counts
            .map(|(code, count)| (code, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

/// State of a connection, shared with its stream.
#[derive(Debug)]
pub(crate) struct ConnectionSocket {
    connection: Arc<Connection>,
    /// Set once the only stream is opened.
    pub(crate) taken: AtomicBool,
}

impl ConnectionSocket {
    pub(crate) const fn new(connection: Arc<Connection>) -> Self {
        Self { connection, taken: AtomicBool::new(false) }
    }

    pub(crate) fn peer(&self) -> Peer {
        self.connection.peer()
    }

    /// Returns whether it was accepted beyond the limit.
    pub(crate) fn is_surplus(&self) -> bool {
        self.connection.is_surplus()
    }

    /// Records that the peer has proven that it has the secret.
    pub(crate) fn set_authenticated(&self) {
        self.connection.set_proven();
    }

    pub(crate) fn is_authenticated(&self) -> bool {
        self.connection.is_proven()
    }

    /// Closes the connection immediately.
    pub(crate) fn cut(&self) {
        self.connection.cut();
    }

    /// Waits until the connection is closed by either side.
    pub(crate) async fn closed(&self) {
        self.connection.closed().await;
    }
}

/// Counts a connection that ends without a stream. Held by its service.
#[derive(Debug)]
pub(crate) struct StreamExpected {
    pub(crate) socket: Arc<ConnectionSocket>,
    pub(crate) counters: Arc<RefusalCounters>,
}

impl Drop for StreamExpected {
    fn drop(&mut self) {
        if !self.socket.taken.load(Ordering::Relaxed) {
            self.counters.count(RefusalCode::NoStream, &self.socket);
            let peer = self.socket.peer();
            tracing::debug!(%peer, "a peer disconnected without opening a stream");
        }
    }
}
