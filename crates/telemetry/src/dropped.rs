//! Counts of items that observers dropped, for metrics and alarms.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

type Listener = Box<dyn Fn(&'static str, u64) + Send + Sync>;

/// Dropped items by observer. Cheap to clone; clones share state.
#[derive(Clone, Default)]
pub struct DropCounters(Arc<DropCounts>);

#[derive(Default)]
struct DropCounts {
    counts: Mutex<BTreeMap<&'static str, u64>>,
    listener: OnceLock<Listener>,
}

impl DropCounters {
    pub fn count(&self, observer: &'static str, count: u64) {
        *self.0.counts.lock().entry(observer).or_default() += count;
        if let Some(listener) = self.0.listener.get() {
            listener(observer, count);
        }
    }

    /// Registers an observer with a count of zero.
    pub fn expect(&self, observer: &'static str) {
        self.0.counts.lock().entry(observer).or_default();
    }

    pub fn read(&self) -> BTreeMap<&'static str, u64> {
        self.0.counts.lock().clone()
    }

    /// Sets the listener of further drops; there can be one.
    pub(crate) fn listen(&self, listener: impl Fn(&'static str, u64) + Send + Sync + 'static) {
        let _ = self.0.listener.set(Box::new(listener));
    }
}

impl fmt::Debug for DropCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DropCounters").field(&self.read()).finish()
    }
}
