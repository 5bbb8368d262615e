//! How servers are watched and chosen.

use std::time::Duration;

/// How servers are watched and chosen.
#[derive(Clone, Debug)]
pub struct RoutingOptions {
    /// How often each server is asked whether it is well.
    pub health_interval: Duration,
    /// How long it may take to answer that.
    pub health_timeout: Duration,
    /// How many failures in a row make a server unusable, until it is well again.
    pub max_failures: u32,
    /// How many requests may be under way at one server.
    pub max_in_flight: u32,
    /// How many requests more than the least busy server, plus a quarter of that one's, a session's
    /// own server may have before the session is sent elsewhere.
    pub lead: u32,
    /// How long a call waits for a server that can be used.
    pub max_wait: Duration,
    /// How many servers of the trained model must stay usable during an update, if there are that
    /// many to begin with and at least one more.
    pub min_running: u32,
    /// How many servers may be updated at the same time.
    pub updates_at_once: u32,
    /// How many sessions are remembered for the sake of their prefix caches.
    pub max_sessions: usize,
    /// How long connecting may take.
    pub connect_timeout: Duration,
}

impl Default for RoutingOptions {
    fn default() -> Self {
        Self {
            health_interval: Duration::from_secs(5),
            health_timeout: Duration::from_secs(5),
            max_failures: 3,
            max_in_flight: 4096,
            lead: 16,
            max_wait: Duration::from_secs(60),
            min_running: 1,
            updates_at_once: 1,
            max_sessions: 100_000,
            connect_timeout: Duration::from_secs(5),
        }
    }
}
