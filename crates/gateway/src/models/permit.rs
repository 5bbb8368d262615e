//! A place at a server for one request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::{ModelsInner, RegisteredServer, ServerHandle};

/// A place at a server for one request; given back when dropped.
#[derive(Debug)]
pub struct ServerPermit {
    pub(super) inner: Arc<ModelsInner>,
    pub(super) handle: Arc<ServerHandle>,
    pub(super) server_model: Arc<str>,
    /// The version when the place was taken.
    pub(super) version: Option<u64>,
    /// Which of the server's weights that was the version of.
    pub(super) weights: u64,
    pub(super) aborted: CancellationToken,
}

impl ServerPermit {
    /// The server.
    pub fn server(&self) -> &RegisteredServer {
        &self.handle.server
    }

    /// The name that the server knows its model by.
    pub fn server_model(&self) -> &str {
        &self.server_model
    }

    /// The version of the weights that everything heard from the server so far was produced with;
    /// none if nobody knows. It is the same from the beginning of the request to its end, unless
    /// the weights are replaced meanwhile: from then on it is none for this request, because what
    /// arrives after the replacement may still have been produced before it.
    pub fn version(&self) -> Option<u64> {
        let is_same = self.handle.weights.load(Ordering::Acquire) == self.weights;
        self.version.filter(|_| is_same)
    }

    /// The request went well, as far as the server is concerned.
    pub fn went_well(&self) {
        self.inner.with(|table| table.board.went_well(self.handle.server.id));
        self.handle.seen();
    }

    /// The server was reached, but failed. Enough of these in a row make it unusable until it has
    /// been asked for its health the next time.
    pub fn went_wrong(&self, why: &str) {
        self.inner.went_wrong(&self.handle, why, false);
    }

    /// The server could not be reached, or its connection was lost before it answered anything. It
    /// is not used until it has been asked whether it is well, which is done at once.
    pub fn unreachable(&self, why: &str) {
        self.inner.went_wrong(&self.handle, why, true);
    }

    /// Returns when the request must end now, because its server is removed or an update was told
    /// to abort what is under way. Whoever streams from the server must stop then.
    pub fn aborted(&self) -> WaitForCancellationFuture<'_> {
        self.aborted.cancelled()
    }

    /// The same as a token, for whoever cannot borrow the lease.
    pub fn abort_token(&self) -> CancellationToken {
        self.aborted.clone()
    }

    /// Whether the request must end now.
    pub fn is_aborted(&self) -> bool {
        self.aborted.is_cancelled()
    }
}

impl Drop for ServerPermit {
    fn drop(&mut self) {
        self.inner.give_back(&self.handle);
    }
}
