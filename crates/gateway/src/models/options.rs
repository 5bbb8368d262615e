//! Options of health checks and routing.

use std::time::Duration;

use super::restart::RestartHook;

#[derive(Clone, Debug)]
pub struct RoutingOptions {
    pub health_interval: Duration,
    pub health_timeout: Duration,
    /// Timeout of the version request after a response. Without a reply the version of its tokens
    /// is unknown.
    pub confirm_timeout: Duration,
    /// Consecutive failures that make a server unhealthy.
    pub max_failures: u32,
    /// Maximum requests in flight at one server.
    pub max_in_flight: u32,
    /// Lower bound of the limit that follows the load of a server.
    pub min_in_flight: u32,
    /// True if a server gets fewer requests than `max_in_flight` when it reports a queue or
    /// preemptions.
    pub is_adaptive: bool,
    /// Interval at which servers are asked for their load. `None`: never.
    pub load_interval: Option<Duration>,
    /// A session leaves its server if that has more requests in flight than the least busy one,
    /// plus a quarter of those, plus `lead`.
    pub lead: u32,
    /// Maximum wait of a call for a usable server.
    pub max_wait: Duration,
    /// Minimum number of usable servers of the trained model during an update, if there are more.
    pub min_running: u32,
    /// Maximum number of servers that are updated at the same time.
    pub updates_at_once: u32,
    /// Maximum number of sessions whose server is remembered.
    pub max_sessions: usize,
    pub connect_timeout: Duration,
    /// `None`: unusable servers are not restarted.
    pub restart: Option<RestartHook>,
}

impl Default for RoutingOptions {
    fn default() -> Self {
        Self {
            health_interval: Duration::from_secs(5),
            health_timeout: Duration::from_secs(5),
            confirm_timeout: Duration::from_secs(30),
            max_failures: 3,
            max_in_flight: 16_384,
            min_in_flight: 8,
            is_adaptive: false,
            load_interval: Some(Duration::from_secs(1)),
            lead: 16,
            max_wait: Duration::from_secs(60),
            min_running: 1,
            updates_at_once: 1,
            max_sessions: 100_000,
            connect_timeout: Duration::from_secs(5),
            restart: None,
        }
    }
}
