//! File descriptors: every connection of a worker takes one, and many systems give a process no
//! more than 1024 unless it asks.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than anybody has workers.
const MAX_DESCRIPTORS: u64 = 1 << 16;

/// Asks for as many descriptors as the system allows, up to a bound. Processes that are started
/// later may have as many. Returns how many there may be now; none: there is no limit.
pub(crate) fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(MAX_DESCRIPTORS, |most| most.min(MAX_DESCRIPTORS));
    if current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, "the limit of file descriptors stays as it is");
        }
    }
    getrlimit(Resource::Nofile).current
}
