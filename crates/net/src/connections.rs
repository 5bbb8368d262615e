//! Number of connections that a listener may have.

use rollway_base::listener::{ListenerKind, ListenerLimits};
use rollway_base::open_files;

/// Number of connections that most jobs do not exceed. A larger share is not reported.
const FEW_CONNECTIONS: usize = 512;

/// Returns the maximum number of connections of a listener: the configured one, or its share of the
/// file descriptors, whose limit is raised.
pub(crate) fn allowed(kind: ListenerKind, limits: &ListenerLimits) -> usize {
    let configured = limits.connections;
    if let Err(error) = open_files::raise_limit() {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
    let Some(limit) = open_files::limit() else { return configured };
    let share = match limits.is_main {
        true => open_files::main_connection_share(kind, limit),
        false => open_files::connection_share(kind, limit),
    };
    let allowed = usize::try_from(share).unwrap_or(usize::MAX).min(configured);
    // The defaults are above what usual limits of open files allow.
    if allowed < configured.min(FEW_CONNECTIONS) {
        tracing::info!(
            listener = kind.name(),
            open_files = limit,
            connections = allowed,
            configured,
            "fewer connections than configured: raise the hard limit of open files (ulimit -Hn)"
        );
    }
    allowed
}
