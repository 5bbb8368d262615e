//! What did not fit somewhere and was dropped, counted under names: for metrics and alarms.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

/// Who is told when something was dropped.
type Listener = Box<dyn Fn(&'static str, u64) + Send + Sync>;

/// Counts of what was dropped. Clones are the same.
#[derive(Clone, Default)]
pub struct DropCounters(Arc<DropCounts>);

#[derive(Default)]
struct DropCounts {
    counts: Mutex<BTreeMap<&'static str, u64>>,
    listener: OnceLock<Listener>,
}

impl DropCounters {
    /// Counts what was dropped, under the name of whoever had to drop it.
    pub fn count(&self, who: &'static str, count: u64) {
        let mut counts = self.0.counts.lock();
        *counts.entry(who).or_default() += count;
        drop(counts);
        if let Some(listener) = self.0.listener.get() {
            listener(who, count);
        }
    }

    /// Says that somebody could drop something: then it is counted from zero on.
    pub fn expect(&self, who: &'static str) {
        let mut counts = self.0.counts.lock();
        counts.entry(who).or_default();
    }

    /// Returns all counts.
    pub fn read(&self) -> BTreeMap<&'static str, u64> {
        self.0.counts.lock().clone()
    }

    /// Has somebody told of everything that is dropped from now on. There can be one.
    pub(crate) fn listen(&self, listener: impl Fn(&'static str, u64) + Send + Sync + 'static) {
        let _ = self.0.listener.set(Box::new(listener));
    }
}

impl fmt::Debug for DropCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Drops").field(&self.read()).finish()
    }
}
