//! Kinds and limits of listeners.

use std::time::Duration;

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

    /// Default of the maximum number of open connections.
    pub const fn default_connections(self) -> u32 {
        match self {
            Self::Workers | Self::MockServer => 16_384,
            Self::Readers => 64,
            Self::Gateway => 65_536,
            Self::Dashboard => 256,
            Self::Metrics => 16,
            Self::Synchronizer => 1024,
            // Those that its server has room for, running and waiting.
            Self::EmbeddedModel => 16_896,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Maximum number of open connections.
    pub connections: usize,
    /// True if no other listener of the process has many connections. The open files that the
    /// process may have are then for this one.
    pub is_main: bool,
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

impl ListenerLimits {
    /// Returns the default limits of a kind of listener.
    pub const fn of(kind: ListenerKind) -> Self {
        Self {
            connections: kind.default_connections() as usize,
            is_main: false,
            refusable: 0,
            head_bytes: 64 << 10,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(300),
            write_timeout: Duration::from_secs(300),
            tcp_keepalive: Duration::from_secs(30),
        }
    }
}
