//! Versions that servers report: at health checks, and after responses that do not name theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::control::{self, ServerVersion};
use super::registry::{ModelsInner, ServerHandle, ServerPermit, ServerTable};
use super::rolling_update;

/// Version requests of one server. Responses that end during a request share the next one.
#[derive(Debug, Default)]
pub(super) struct VersionReads {
    /// Number of begun requests.
    begun: AtomicU64,
    /// The last ended request. Locked during a request.
    last: tokio::sync::Mutex<LastRead>,
}

#[derive(Debug, Default)]
struct LastRead {
    number: u64,
    /// `None`: not a version, or the request failed.
    version: Option<u64>,
}

impl ServerPermit {
    /// Returns whether the versions of [`version`](Self::version) since the permit was taken were
    /// right: the server still has the same weights, or the gateway replaced them. Weights that
    /// were changed from outside are noticed here, before a response gets the wrong version.
    pub async fn confirm_version(&self) -> bool {
        let (inner, handle) = self.parts();
        if self.is_changed_outside() {
            return false;
        }
        // An update has confirmed the version before it replaced the weights.
        let Some(version) = self.version() else { return true };
        if !handle.info().capabilities.reports_version() {
            return true;
        }
        let needed = handle.version_reads.begun.load(Ordering::Acquire) + 1;
        let mut last = handle.version_reads.last.lock().await;
        if last.number < needed {
            let number = handle.version_reads.begun.fetch_add(1, Ordering::AcqRel) + 1;
            // A cancelled request leaves the last one unchanged.
            let version = read(inner, handle).await;
            *last = LastRead { number, version };
        }
        last.version == Some(version)
    }
}

/// Checks the version of a paused server before its weights are replaced. Requests in flight keep
/// the versions of earlier tokens only if it is the known one.
pub(super) async fn before_update(handle: &ServerHandle, known: Option<u64>, timeout: Duration) {
    if known.is_none() || !handle.info().capabilities.reports_version() {
        return;
    }
    let reported = control::version(&handle.server, timeout).await;
    if !reported.is_ok_and(|reported| reported.number() == known) {
        handle.changed_outside();
    }
}

impl ServerHandle {
    /// Makes the versions of all requests in flight unknown.
    fn changed_outside(&self) {
        self.outside_changes.fetch_add(1, Ordering::AcqRel);
        self.weights.fetch_add(1, Ordering::AcqRel);
    }
}

async fn read(inner: &Arc<ModelsInner>, handle: &ServerHandle) -> Option<u64> {
    let marks_before = handle.update_marks.load(Ordering::Acquire);
    match control::version(&handle.server, inner.options.confirm_timeout).await {
        Ok(reported) => {
            inner.reported(handle, &reported, marks_before);
            reported.number()
        }
        Err(error) => {
            let url = &handle.server.spec.url;
            tracing::warn!(url, %error, "version of a response not confirmed, label dropped");
            None
        }
    }
}

impl ModelsInner {
    /// Applies a version that was reported outside of a health check.
    fn reported(
        self: &Arc<Self>,
        handle: &ServerHandle,
        version: &ServerVersion,
        marks_before: u64,
    ) {
        let latest = self.change(|table| {
            let is_changed = set_reported(table, handle, version, marks_before);
            is_changed.then(|| rolling_update::mark_behind(table, handle)).flatten()
        });
        if let Some(latest) = latest {
            rolling_update::catch_up(self, latest);
        }
    }
}

/// Applies a reported version, unless an update began or ended since. Returns whether the weights
/// were changed from outside.
pub(super) fn set_reported(
    table: &mut ServerTable,
    handle: &ServerHandle,
    version: &ServerVersion,
    marks_before: u64,
) -> bool {
    let id = handle.server.id;
    if handle.update_marks.load(Ordering::Acquire) != marks_before {
        return false;
    }
    let known = table.routing.slot(id).and_then(|slot| slot.version);
    let is_changed = match version {
        ServerVersion::Unsupported => return false,
        ServerVersion::Number(version) => table.routing.set_version(id, Some(*version)),
        ServerVersion::Other(_) => table.routing.set_version(id, None),
    };
    if is_changed {
        // Running requests may have tokens of both versions.
        handle.changed_outside();
        let spec = &handle.server.spec;
        let (model, url) = (&spec.model, &spec.url);
        tracing::warn!(model, url, known, %version, "weights changed by another program");
    }
    is_changed
}
