//! File descriptors of the process.
//!
//! A call needs two: the connection of its client and one to a server. Half of them are kept for
//! servers, so that connections of clients cannot make healthy servers unreachable.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for files, listeners and workers.
const RESERVED: u64 = 256;

/// Minimum number of connections that is worth a start.
const MIN_CONNECTIONS: usize = 16;

/// Raises the limit of open files as far as the system allows, and returns it. `None`: no limit.
fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files cannot be raised");
        }
    }
    getrlimit(Resource::Nofile).current
}

/// Returns the maximum number of client connections: the configured one, or as many as the limit of
/// open files allows. Fails if these are too few.
pub(crate) fn max_connections(configured: usize) -> Result<usize, String> {
    let limit = raise_limit();
    let allowed = allowed_connections(configured, limit)?;
    // More than half of them is no reason to change a machine.
    if allowed < configured / 2 {
        tracing::info!(
            open_files = limit,
            connections = allowed,
            "fewer connections than configured: raise the hard limit of open files (ulimit -Hn)"
        );
    }
    Ok(allowed)
}

fn allowed_connections(configured: usize, limit: Option<u64>) -> Result<usize, String> {
    let Some(limit) = limit else { return Ok(configured) };
    let share = limit.saturating_sub(RESERVED) / 2;
    let share = usize::try_from(share).unwrap_or(usize::MAX);
    if share < MIN_CONNECTIONS.min(configured) {
        return Err(format!(
            "the process can open {limit} files, too few for model calls: raise the limit to at \
             least 4096 (ulimit -n)"
        ));
    }
    Ok(configured.min(share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_descriptors_are_for_clients() {
        assert_eq!(allowed_connections(65_536, None), Ok(65_536));
        assert_eq!(allowed_connections(65_536, Some(20_256)), Ok(10_000));
        assert_eq!(allowed_connections(100, Some(20_256)), Ok(100));
        let error = allowed_connections(65_536, Some(256)).unwrap_err();
        assert!(error.contains("256 files") && error.contains("ulimit -n"), "{error}");
    }

    #[test]
    fn the_limit_is_raised() {
        let allowed = max_connections(1);
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum, "{allowed:?}");
    }
}
