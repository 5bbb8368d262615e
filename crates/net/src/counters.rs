//! Counters of connections, for each listener and for the process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rollway_base::listener::ListenerKind;

/// Reason for which a listener refused or closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The maximum number of connections was reached, and none of them was idle.
    ConnectionLimit,
    /// An idle connection made room for a new one.
    Evicted,
    /// The head of a request was not received in time.
    HeaderTimeout,
    /// No request in time.
    IdleTimeout,
    /// The peer did not take data in time.
    WriteTimeout,
    /// The end of a request was ambiguous.
    AmbiguousFraming,
    /// The peer sent clear text to a listener that speaks TLS.
    ClearText,
    /// The TLS handshake failed, as when the peer refused the certificate.
    TlsHandshake,
    /// The system could not accept a connection, as without free file descriptors.
    AcceptFailed,
}

impl CloseReason {
    pub const ALL: [Self; 9] = [
        Self::ConnectionLimit,
        Self::Evicted,
        Self::HeaderTimeout,
        Self::IdleTimeout,
        Self::WriteTimeout,
        Self::AmbiguousFraming,
        Self::ClearText,
        Self::TlsHandshake,
        Self::AcceptFailed,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::ConnectionLimit => "connection_limit",
            Self::Evicted => "evicted",
            Self::HeaderTimeout => "header_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::WriteTimeout => "write_timeout",
            Self::AmbiguousFraming => "ambiguous_framing",
            Self::ClearText => "clear_text",
            Self::TlsHandshake => "tls_handshake",
            Self::AcceptFailed => "accept_failed",
        }
    }
}

const REASONS: usize = CloseReason::ALL.len();
const KINDS: usize = ListenerKind::ALL.len();

/// Counters of one listener. Every change is also counted for the process.
#[derive(Debug)]
pub struct ConnectionCounters {
    kind: ListenerKind,
    values: ConnectionCounts,
}

#[derive(Debug)]
struct ConnectionCounts {
    accepted: AtomicU64,
    open: AtomicU64,
    closed: [AtomicU64; REASONS],
    /// Peers refused by the protocol of the listener, by its reasons.
    refused: Mutex<BTreeMap<&'static str, u64>>,
}

impl ConnectionCounts {
    const fn new() -> Self {
        Self {
            accepted: AtomicU64::new(0),
            open: AtomicU64::new(0),
            closed: [const { AtomicU64::new(0) }; REASONS],
            refused: Mutex::new(BTreeMap::new()),
        }
    }
}

/// Totals of the process: file descriptors and memory are those of the process.
static TOTALS: [ConnectionCounts; KINDS] = [const { ConnectionCounts::new() }; KINDS];

/// Counters of all listeners of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterRow {
    pub listener: &'static str,
    pub accepted: u64,
    pub open: u64,
    /// Refused and closed connections by reason.
    pub closed: Vec<(&'static str, u64)>,
    /// Peers that the protocol of the listener refused, by reason.
    pub refused: Vec<(&'static str, u64)>,
}

/// Returns the counters of the process, of all kinds of listeners that accepted a connection.
pub fn counter_rows() -> Vec<CounterRow> {
    let rows = ListenerKind::ALL.iter().zip(&TOTALS).map(|(kind, values)| CounterRow {
        listener: kind.name(),
        accepted: values.accepted.load(Ordering::Relaxed),
        open: values.open.load(Ordering::Relaxed),
        closed: (CloseReason::ALL.iter().zip(&values.closed))
            .map(|(reason, count)| (reason.name(), count.load(Ordering::Relaxed)))
            .collect(),
        refused: values.refused.lock().iter().map(|(reason, count)| (*reason, *count)).collect(),
    });
    rows.filter(|row| row.accepted > 0).collect()
}

impl ConnectionCounters {
    pub(crate) const fn new(kind: ListenerKind) -> Self {
        Self { kind, values: ConnectionCounts::new() }
    }

    pub const fn kind(&self) -> ListenerKind {
        self.kind
    }

    pub(crate) fn opened(&self) {
        for values in self.both() {
            values.accepted.fetch_add(1, Ordering::Relaxed);
            values.open.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn ended(&self) {
        for values in self.both() {
            values.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn count(&self, reason: CloseReason) {
        for values in self.both() {
            values.closed[reason as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_refusal(&self, reason: &'static str) {
        for values in self.both() {
            *values.refused.lock().entry(reason).or_default() += 1;
        }
    }

    pub fn accepted(&self) -> u64 {
        self.values.accepted.load(Ordering::Relaxed)
    }

    pub fn open(&self) -> u64 {
        self.values.open.load(Ordering::Relaxed)
    }

    pub fn closed(&self, reason: CloseReason) -> u64 {
        self.values.closed[reason as usize].load(Ordering::Relaxed)
    }

    const fn both(&self) -> [&ConnectionCounts; 2] {
        [&self.values, &TOTALS[self.kind as usize]]
    }
}
