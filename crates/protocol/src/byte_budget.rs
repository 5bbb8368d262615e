//! Byte budgets for queues whose messages may be large.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// Larger messages count against a byte budget, smaller ones only against the queue length.
pub(crate) const SMALL_MESSAGE_BYTES: usize = 16 * 1024;

/// A budget of bytes, counted in KiB.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    free: Arc<Semaphore>,
    all: u32,
}

impl ByteBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        let all = kib(bytes);
        Self { free: Arc::new(Semaphore::new(all as usize)), all }
    }

    /// Waits for budget. A message larger than the whole budget takes all of it.
    pub(crate) async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        if bytes <= SMALL_MESSAGE_BYTES {
            return None;
        }
        // The semaphore is never closed.
        Arc::clone(&self.free).acquire_many_owned(kib(bytes).min(self.all)).await.ok()
    }

    /// Takes budget if enough is free.
    pub(crate) fn try_take(
        &self,
        bytes: usize,
    ) -> Result<Option<OwnedSemaphorePermit>, TryAcquireError> {
        if bytes <= SMALL_MESSAGE_BYTES {
            return Ok(None);
        }
        let wanted = kib(bytes).min(self.all);
        Arc::clone(&self.free).try_acquire_many_owned(wanted).map(Some)
    }
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).clamp(1, u32::MAX >> 4)
}
