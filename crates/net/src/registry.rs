//! Open connections of a listener, for its limit.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::connection::Connection;
use crate::counters::CloseReason;

/// Connections that are compared to find one that is idle.
const SAMPLE: usize = 16;

/// Minimum idle time of a connection that may be closed for another: its first request may be on
/// the way.
const MIN_IDLE_MILLIS: u64 = 200;

#[derive(Debug)]
pub(crate) struct Registry {
    open: Mutex<Vec<Arc<Connection>>>,
    /// Connections whose peers may still have to prove the secret, the oldest first. `None`: the
    /// listener needs no proof.
    unproven: Option<Mutex<VecDeque<Weak<Connection>>>>,
    random: RandomState,
}

impl Registry {
    pub(crate) fn new(needs_proof: bool) -> Self {
        let unproven = needs_proof.then(Mutex::default);
        Self { open: Mutex::default(), unproven, random: RandomState::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.open.lock().len()
    }

    pub(crate) fn insert(&self, connection: Arc<Connection>) {
        // Those beyond the limit are refused anyway.
        if let Some(unproven) = self.unproven.as_ref().filter(|_| !connection.is_surplus()) {
            let mut unproven = unproven.lock();
            if unproven.len() == unproven.capacity() {
                unproven.retain(|one| one.upgrade().is_some_and(|one| awaits_proof(&one)));
            }
            unproven.push_back(Arc::downgrade(&connection));
        }
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

    /// Closes the oldest connection without a proof, or else one without a request. Returns whether
    /// there was one.
    pub(crate) fn evict(&self, accepted: u64) -> bool {
        self.evict_unproven() || self.evict_idle(accepted)
    }

    fn evict_unproven(&self) -> bool {
        let Some(unproven) = &self.unproven else { return false };
        let mut unproven = unproven.lock();
        while let Some(oldest) = unproven.pop_front() {
            let oldest = oldest.upgrade();
            if let Some(connection) = oldest.filter(awaits_proof) {
                self.remove(&connection);
                connection.close(CloseReason::Evicted);
                return true;
            }
        }
        false
    }

    /// Closes the connection of a random sample that has been idle for longest.
    fn evict_idle(&self, accepted: u64) -> bool {
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

fn awaits_proof(connection: &Arc<Connection>) -> bool {
    !connection.is_proven() && connection.is_open()
}
