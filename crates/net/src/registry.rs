//! Open connections of a listener, for its limit.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::connection::Connection;
use crate::counters::CloseReason;

/// Connections that are compared to find one that is idle.
const SAMPLE: usize = 16;

/// Minimum idle time of a connection that may be closed for another: its first request may be on
/// the way.
const MIN_IDLE_MILLIS: u64 = 200;

#[derive(Debug, Default)]
pub(crate) struct Registry {
    open: Mutex<Vec<Arc<Connection>>>,
    random: RandomState,
}

impl Registry {
    pub(crate) fn len(&self) -> usize {
        self.open.lock().len()
    }

    pub(crate) fn insert(&self, connection: Arc<Connection>) {
        let mut open = self.open.lock();
        connection.slot.store(open.len(), Ordering::Relaxed);
        open.push(connection);
    }

    pub(crate) fn remove(&self, connection: &Arc<Connection>) {
        let mut open = self.open.lock();
        let slot = connection.slot.load(Ordering::Relaxed);
        // An evicted connection was removed before it ended.
        if open.get(slot).is_some_and(|found| Arc::ptr_eq(found, connection)) {
            open.swap_remove(slot);
            if let Some(moved) = open.get(slot) {
                moved.slot.store(slot, Ordering::Relaxed);
            }
        }
    }

    /// Closes a connection without a request: the one of a random sample that has been idle for
    /// longest. Returns whether there was one.
    pub(crate) fn evict_idle(&self, accepted: u64) -> bool {
        let found = {
            let open = self.open.lock();
            if open.is_empty() {
                return false;
            }
            let sample = (0..SAMPLE as u64).map(|number| {
                let random = self.random.hash_one((accepted, number));
                &open[usize::try_from(random % open.len() as u64).unwrap_or(0)]
            });
            let idle = sample.filter_map(|one| Some((one.activity.idle_millis()?, one)));
            let longest = idle.max_by_key(|(millis, _)| *millis);
            longest.filter(|(millis, _)| *millis >= MIN_IDLE_MILLIS).map(|(_, one)| Arc::clone(one))
        };
        let Some(connection) = found else { return false };
        self.remove(&connection);
        connection.close(CloseReason::Evicted);
        true
    }
}
