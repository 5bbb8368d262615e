//! Server permits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::{ModelsInner, RegisteredServer, ServerHandle};

/// Right to one upstream request at a server; released when dropped.
#[derive(Debug)]
pub struct ServerPermit {
    pub(super) inner: Arc<ModelsInner>,
    pub(super) handle: Arc<ServerHandle>,
    pub(super) server_model: Arc<str>,
    pub(super) version: Option<u64>,
    /// Number of weight updates when the permit was taken.
    pub(super) weights: u64,
    pub(super) aborted: CancellationToken,
}

impl ServerPermit {
    pub fn server(&self) -> &RegisteredServer {
        &self.handle.server
    }

    /// The server's name of its model.
    pub fn server_model(&self) -> &str {
        &self.server_model
    }

    /// Version of the weights of all tokens received so far. `None`: unknown. Once the weights are
    /// replaced, it stays `None`: tokens that arrive later may have been generated before.
    pub fn version(&self) -> Option<u64> {
        let is_same = self.handle.weights.load(Ordering::Acquire) == self.weights;
        self.version.filter(|_| is_same)
    }

    /// Records a success.
    pub fn went_well(&self) {
        self.inner.with(|table| table.routing.went_well(self.handle.server.id));
        self.handle.seen();
    }

    /// Records a failure of a reachable server. Consecutive failures make it unhealthy until its
    /// next check.
    pub fn went_wrong(&self, reason: &str) {
        self.inner.went_wrong(&self.handle, reason, false);
    }

    /// Records that the server was unreachable. It is not used until its next check, which happens
    /// at once.
    pub fn unreachable(&self, reason: &str) {
        self.inner.went_wrong(&self.handle, reason, true);
    }

    /// Completes when the request must end: its server is removed, or an update aborts requests in
    /// flight.
    pub fn aborted(&self) -> WaitForCancellationFuture<'_> {
        self.aborted.cancelled()
    }
}

impl Drop for ServerPermit {
    fn drop(&mut self) {
        self.inner.give_back(&self.handle);
    }
}
