//! Experience queue in memory or in files.
//!
//! Samples leave in FIFO order or by priority ([`QueueOptions::replay`]). A full queue blocks
//! writers, spills to disk or replaces samples; memory has a budget in bytes. Samples that were
//! read are kept until acknowledged.
//!
//! `fifo` and `priority` implement `store`; `writer` and `reader` wait and wake through
//! `wait_queue`; `seen_ids` deduplicates.

mod disk;
mod fifo;
mod options;
mod priority;
mod reader;
mod seen_ids;
mod store;
mod wait_queue;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use self::disk::failed;
use self::fifo::FifoStore;
pub use self::options::{
    QueueClock, QueueFullPolicy, QueueOptions, ReplayOptions, ReplayPriority, SAMPLE_COST,
};
use self::priority::PriorityStore;
use self::reader::QueueReader;
use self::seen_ids::SeenIds;
use self::store::QueueStore;
pub use self::store::QueueUsage;
use self::wait_queue::WaitQueue;
use self::writer::QueueWriter;
use super::process_queues::{QueueKey, Registration};
use super::{Buffer, BufferError, ExperienceReader, ExperienceWriter, Result};
use rollway_ledger::log::SegmentLog;

/// A queue of experiences.
///
/// **Writers** are served in the order in which they began to wait. **Readers** share one name and
/// one position: each sample goes to one of them, in the order of their requests. A reader holds
/// its samples until its next read without `keep`, which acknowledges them. A dropped reader
/// returns what it did not acknowledge; a read of zero samples acknowledges and takes nothing.
///
/// **A position** is a number. Everything before a reader's position is acknowledged or held by it.
/// Seeking to a position acknowledges everything before it and takes back everything held after it.
///
/// A durable queue counts writers anew each time it is opened.
#[derive(Debug)]
pub struct ExperienceQueue {
    pub(super) shared: Arc<QueueShared>,
}

#[derive(Debug)]
pub(super) struct QueueShared {
    options: QueueOptions,
    /// Synced without holding the lock.
    samples: Option<Arc<SegmentLog>>,
    removals: Option<Arc<SegmentLog>>,
    state: Mutex<QueueState>,
    /// Dropped last.
    _registration: Option<Registration>,
}

struct QueueState {
    store: Box<dyn QueueStore>,
    seen: SeenIds,
    /// Names of writers; true while open.
    writers: BTreeMap<String, bool>,
    /// Common name of all readers.
    reader: Option<String>,
    readers: u64,
    waiting_writers: WaitQueue,
    waiting_readers: WaitQueue,
    /// Newest model version ever written.
    newest: u64,
    closed: bool,
}

impl ExperienceQueue {
    /// Opens a queue outside the registry of this process.
    pub fn open(options: QueueOptions) -> Result<Arc<Self>> {
        Self::new(options, None).map(Arc::new)
    }

    pub(super) fn new(options: QueueOptions, key: Option<QueueKey>) -> Result<Self> {
        options.check()?;
        let mut seen = SeenIds::new(options.known_max);
        let store: Box<dyn QueueStore> = match &options.replay {
            Some(replay) => Box::new(PriorityStore::new(&options, replay)),
            None => Box::new(FifoStore::open(&options, &mut seen)?),
        };
        let (samples, removals) = store.logs().unzip();
        let state = QueueState {
            store,
            seen,
            writers: BTreeMap::new(),
            reader: None,
            readers: 0,
            waiting_writers: WaitQueue::default(),
            waiting_readers: WaitQueue::default(),
            newest: 0,
            closed: false,
        };
        let removals = removals.flatten();
        let (state, _registration) = (Mutex::new(state), key.map(Registration));
        let shared = Arc::new(QueueShared { options, samples, removals, state, _registration });
        Ok(Self { shared })
    }

    /// Closes the queue: writers, also waiting ones, are refused; readers get the remaining samples
    /// and then the end of data.
    pub fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        state.writers_changed();
        state.waiting_writers.call_all();
    }

    pub fn usage(&self) -> QueueUsage {
        let state = self.shared.state.lock();
        QueueUsage { waiting_writers: state.waiting_writers.len(), ..state.store.usage() }
    }

    /// Returns the number of writers waiting for room.
    pub fn waiting_writers(&self) -> usize {
        self.shared.state.lock().waiting_writers.len()
    }
}

impl Buffer for ExperienceQueue {
    fn writer(&self, name: &str) -> Result<Box<dyn ExperienceWriter>> {
        let mut state = self.shared.state.lock();
        if state.closed {
            return Err(self.shared.closed());
        }
        state.writers.insert(name.to_owned(), true);
        state.writers_changed();
        Ok(Box::new(QueueWriter::new(Arc::clone(&self.shared), name)))
    }

    fn reader(&self, name: &str) -> Result<Box<dyn ExperienceReader>> {
        let mut state = self.shared.state.lock();
        let first = state.reader.get_or_insert_with(|| name.to_owned());
        if first != name {
            let message = format!(
                "its only position belongs to the readers named {first:?}; read as {first:?}, or \
                 use a database for independent readers"
            );
            return Err(self.shared.unsupported(message));
        }
        state.readers += 1;
        Ok(Box::new(QueueReader::new(Arc::clone(&self.shared), state.readers)))
    }

    fn usage(&self) -> Option<QueueUsage> {
        Some(Self::usage(self))
    }
}

impl QueueShared {
    /// Syncs stored samples, so that they can be read.
    fn make_durable<'a>(&'a self, mut state: MutexGuard<'a, QueueState>) -> Result<()> {
        if let (Some(log), Some(end)) = (&self.samples, state.store.not_durable()) {
            drop(state);
            log.sync().map_err(|error| failed(&self.options, &error))?;
            state = self.state.lock();
            state.store.set_durable(end);
            state.waiting_readers.call();
        }
        Ok(())
    }

    /// Syncs the log of removed samples and frees their space.
    fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, QueueState>,
    ) -> Result<MutexGuard<'a, QueueState>> {
        state.store.flush()?;
        if let Some(log) = self.removals.as_ref().filter(|log| log.unsynced_bytes() > 0) {
            drop(state);
            log.sync().map_err(|error| failed(&self.options, &error))?;
            state = self.state.lock();
        }
        state.store.free()?;
        state.waiting_writers.call();
        Ok(state)
    }

    fn closed(&self) -> BufferError {
        BufferError::Closed(self.options.name.clone())
    }

    fn unsupported(&self, message: String) -> BufferError {
        BufferError::unsupported(&self.options.name, message)
    }

    fn full(&self, message: impl Into<String>) -> BufferError {
        BufferError::full(&self.options.name, message)
    }
}

impl QueueState {
    /// Returns whether no writer can write any more.
    fn has_ended(&self) -> bool {
        self.closed || (!self.writers.is_empty() && self.writers.values().all(|open| !open))
    }

    /// Updates the store and wakes a reader after a writer opened or closed.
    fn writers_changed(&mut self) {
        let ended = self.has_ended();
        self.store.finish(ended, &mut self.seen);
        self.waiting_readers.call();
    }
}

impl std::fmt::Debug for QueueState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("QueueState");
        debug.field("usage", &self.store.usage()).field("writers", &self.writers);
        debug.field("closed", &self.closed).finish_non_exhaustive()
    }
}
