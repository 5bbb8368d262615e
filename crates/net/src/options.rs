//! Options and limits of a listener.

use std::time::Duration;

use rollway_base::Address;

/// Purpose of a listener, the label of its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    Workers,
    Readers,
    Gateway,
    Dashboard,
    Metrics,
    Synchronizer,
    EmbeddedModel,
    MockServer,
}

impl ListenerKind {
    pub const ALL: [Self; 8] = [
        Self::Workers,
        Self::Readers,
        Self::Gateway,
        Self::Dashboard,
        Self::Metrics,
        Self::Synchronizer,
        Self::EmbeddedModel,
        Self::MockServer,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::Readers => "readers",
            Self::Gateway => "gateway",
            Self::Dashboard => "dashboard",
            Self::Metrics => "metrics",
            Self::Synchronizer => "synchronizer",
            Self::EmbeddedModel => "embedded_model",
            Self::MockServer => "mock_server",
        }
    }
}

/// Versions of HTTP that a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersions {
    /// HTTP/1.1, and HTTP/2 with prior knowledge.
    Http1And2,
    /// HTTP/2 alone, with these windows: gRPC.
    Http2 { stream_window: u32, connection_window: u32, max_streams: u32, keepalive: Duration },
}

#[derive(Clone, Debug)]
pub struct ListenerOptions {
    pub kind: ListenerKind,
    pub address: Address,
    pub versions: HttpVersions,
    pub limits: ListenerLimits,
}

impl ListenerOptions {
    pub fn new(kind: ListenerKind, address: Address) -> Self {
        let limits = ListenerLimits::default();
        Self { kind, address, versions: HttpVersions::Http1And2, limits }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Maximum number of open connections.
    pub connections: usize,
    /// Connections beyond the maximum that the service gets, marked as surplus, to refuse them with
    /// a reason. Others are closed at once.
    pub refusable: usize,
    /// Maximum size of the head of a request.
    pub head_bytes: usize,
    /// Timeout of the head of a request, from the connection or from its first byte.
    pub header_timeout: Duration,
    /// Maximum time between two parts of the body of a request.
    pub body_timeout: Duration,
    /// Maximum time without a request.
    pub idle_timeout: Duration,
    /// Maximum time for which a peer does not take data that is sent to it.
    pub write_timeout: Duration,
    /// Idle time before the system probes a TCP connection, and interval of the probes.
    pub tcp_keepalive: Duration,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            refusable: 0,
            head_bytes: 32 << 10,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(300),
            write_timeout: Duration::from_secs(300),
            tcp_keepalive: Duration::from_secs(30),
        }
    }
}

impl ListenerLimits {
    /// Returns the default limits with another number of connections.
    pub fn with_connections(connections: usize) -> Self {
        Self { connections, ..Self::default() }
    }
}
