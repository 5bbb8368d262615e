//! Limit of open files of the process, and its division among listeners.
//!
//! Peers without a secret can open connections. Every kind of listener has a share of the file
//! descriptors, so that they can exhaust neither those of another listener nor those of the ledger,
//! of buffers, of worker processes and of connections to inference servers.

use rustix::io;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::listener::ListenerKind;

/// Descriptors for files, pipes of workers and listeners.
const RESERVED: u64 = 256;

/// Share of any listener.
const MIN_SHARE: u64 = 16;

/// Raises the limit of open files as far as the system allows.
///
/// # Errors
/// If the system refuses.
pub fn raise_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
}

/// Returns the limit of open files. `None`: there is no limit.
pub fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Returns the share of a listener of the connections that a limit of open files allows. A call of
/// the gateway needs two descriptors: the other one is the connection to an inference server, which
/// may be the embedded model or a mock server of the same process.
pub fn connection_share(kind: ListenerKind, limit: u64) -> u64 {
    let usable = limit.saturating_sub(RESERVED);
    let share = match kind {
        ListenerKind::Gateway | ListenerKind::EmbeddedModel | ListenerKind::MockServer => {
            usable / 4
        }
        ListenerKind::Workers => usable / 8,
        ListenerKind::Synchronizer => usable / 32,
        ListenerKind::Dashboard | ListenerKind::Readers | ListenerKind::Metrics => usable / 64,
    };
    share.max(MIN_SHARE)
}

/// Returns the share of a listener without others beside it that have many connections. An eighth
/// is left for those of dashboards and metrics.
pub fn main_connection_share(kind: ListenerKind, limit: u64) -> u64 {
    let usable = limit.saturating_sub(RESERVED);
    let descriptors = if kind == ListenerKind::Gateway { 2 } else { 1 };
    ((usable - usable / 8) / descriptors).max(MIN_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_listeners_and_the_reserve_are_below_the_limit() {
        for limit in [1024, 4096, 65_536, 1 << 20] {
            let share = |kind: &ListenerKind| connection_share(*kind, limit);
            // A process has an embedded model or a mock server.
            let is_real = |kind: &&ListenerKind| **kind != ListenerKind::MockServer;
            let listeners: u64 = ListenerKind::ALL.iter().filter(is_real).map(share).sum();
            let servers = connection_share(ListenerKind::Gateway, limit);
            let used = listeners + servers;
            assert!(used + RESERVED / 2 <= limit, "{used} of {limit}");
        }
        let sums = connection_share(ListenerKind::Gateway, 1 << 20);
        assert!(sums > u64::from(ListenerKind::Gateway.default_connections()));
    }

    #[test]
    fn a_main_listener_has_more_and_leaves_enough_for_small_ones() {
        for limit in [1024, 20_000, 1 << 20] {
            let shares = [ListenerKind::Dashboard, ListenerKind::Metrics, ListenerKind::Readers];
            let small: u64 = shares.map(|kind| connection_share(kind, limit)).iter().sum();
            for (kind, descriptors) in [(ListenerKind::Gateway, 2), (ListenerKind::MockServer, 1)] {
                let main = main_connection_share(kind, limit);
                assert!(main > connection_share(kind, limit));
                assert!(main * descriptors + small + RESERVED / 2 <= limit);
            }
        }
        assert!(main_connection_share(ListenerKind::MockServer, 20_000) > 10_000);
        assert!(main_connection_share(ListenerKind::Gateway, 20_000) > 8000);
    }

    #[test]
    fn the_limit_is_raised() {
        raise_limit().unwrap();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
