//! `listeners`: limits of the connections to a job.

use rollway_base::listener::{ListenerKind, ListenerLimits};

use super::seconds::ConfigSeconds;

section! {
    /// Limits of all connections to a job. Connections that are refused or closed are counted by
    /// reason (`rollway_connections_closed_total`).
    pub struct ListenersConfig {
        pub connections: ConnectionLimitsConfig,
        /// Bytes of the head of a request.
        #[schemars(range(min = 8192))]
        pub head_bytes: u32 = 64 << 10,
        /// Timeout of the head of a request, from the connection or from its first byte.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub header_timeout: ConfigSeconds = ConfigSeconds::new(10),
        /// Maximum time between two parts of the body of a request.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub body_timeout: ConfigSeconds = ConfigSeconds::new(60),
        /// Maximum time of a connection without a request.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub idle_timeout: ConfigSeconds = ConfigSeconds::new(300),
        /// Maximum time for which a peer does not take data that is sent to it.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub write_timeout: ConfigSeconds = ConfigSeconds::new(300),
    }

    /// Maximum number of open connections of each listener. With that many, an idle connection is
    /// closed in favour of a new one; without an idle one the new one is refused. A listener has
    /// fewer if the limit of open files of the process (`ulimit -Hn`) is too low for all of them.
    pub struct ConnectionLimitsConfig {
        /// Workers.
        #[schemars(range(min = 1))]
        pub workers: u32 = ListenerKind::Workers.default_connections(),
        /// Readers of buffers.
        #[schemars(range(min = 1))]
        pub readers: u32 = ListenerKind::Readers.default_connections(),
        /// Clients of the model gateway.
        #[schemars(range(min = 1))]
        pub gateway: u32 = ListenerKind::Gateway.default_connections(),
        /// Pages and clients of the dashboard.
        #[schemars(range(min = 1))]
        pub dashboard: u32 = ListenerKind::Dashboard.default_connections(),
        /// Clients of `monitor.prometheus`.
        #[schemars(range(min = 1))]
        pub metrics: u32 = ListenerKind::Metrics.default_connections(),
        /// Explorers and trainers at the synchronizer.
        #[schemars(range(min = 1))]
        pub synchronizer: u32 = ListenerKind::Synchronizer.default_connections(),
        /// Connections to the embedded model (`engine_type: tiny`).
        #[schemars(range(min = 1))]
        pub embedded_model: u32 = ListenerKind::EmbeddedModel.default_connections(),
    }
}

impl ListenersConfig {
    /// Returns the limits of a listener.
    pub fn limits(&self, kind: ListenerKind) -> ListenerLimits {
        ListenerLimits {
            connections: self.connections.of(kind) as usize,
            head_bytes: self.head_bytes as usize,
            header_timeout: self.header_timeout.into(),
            body_timeout: self.body_timeout.into(),
            idle_timeout: self.idle_timeout.into(),
            write_timeout: self.write_timeout.into(),
            ..ListenerLimits::of(kind)
        }
    }
}

impl ConnectionLimitsConfig {
    const fn of(&self, kind: ListenerKind) -> u32 {
        match kind {
            ListenerKind::Workers => self.workers,
            ListenerKind::Readers => self.readers,
            ListenerKind::Gateway => self.gateway,
            ListenerKind::Dashboard => self.dashboard,
            ListenerKind::Metrics => self.metrics,
            ListenerKind::Synchronizer => self.synchronizer,
            ListenerKind::EmbeddedModel => self.embedded_model,
            ListenerKind::MockServer => kind.default_connections(),
        }
    }
}
