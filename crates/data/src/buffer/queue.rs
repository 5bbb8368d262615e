//! The queue: experiences on their way from the explorer to the trainer, in memory or in files.
//!
//! [`ExperienceQueue::open`] makes one. Samples leave in the order in which they came, or by
//! priority ([`QueueOptions::replay`]). A full queue lets writers wait, spills to disk or replaces;
//! memory has a budget in bytes either way. What was read is kept until it is acknowledged.
//!
//! `fifo` and `priority` are the two orders, data structures behind `store`; `writer` and `reader`
//! wait and wake; `line` says who is next; `known` tells what has been here before.

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
use super::{Buffer, BufferError, ExperienceReader, ExperienceWriter, Result};
use rollway_ledger::log::SegmentLog;

/// A queue of experiences.
///
/// **Writers** are served in the order in which they began to wait. **Readers** all have one name
/// and share one position: each sample goes to one of them, and they too are served in order, so
/// that the first gets its whole batch. What a reader got is its own until its next read without
/// `keep`, which acknowledges it. A reader that is dropped gives back what it had not acknowledged,
/// also the last batch: a read of zero samples acknowledges and takes nothing.
///
/// **A position** is a number. A reader's own says that everything before it was acknowledged or is
/// in its hands. Seeking to a position acknowledges everything before it and takes back everything
/// that anybody holds after it.
///
/// A durable queue counts writers anew each time it is opened.
#[derive(Debug)]
pub struct ExperienceQueue {
    shared: Arc<QueueShared>,
}

/// What writers and readers share.
#[derive(Debug)]
struct QueueShared {
    options: QueueOptions,
    /// Waited for without the lock.
    samples: Option<Arc<SegmentLog>>,
    gone: Option<Arc<SegmentLog>>,
    state: Mutex<QueueState>,
}

/// Everything that changes.
struct QueueState {
    store: Box<dyn QueueStore>,
    known: SeenIds,
    /// Which writers there were, and whether they are open.
    writers: BTreeMap<String, bool>,
    /// The name that all readers have.
    reader: Option<String>,
    readers: u64,
    waiting_writers: WaitQueue,
    waiting_readers: WaitQueue,
    /// The newest version ever written.
    newest: u64,
    closed: bool,
}

impl ExperienceQueue {
    /// Opens a queue.
    pub fn open(options: QueueOptions) -> Result<Arc<Self>> {
        options.check()?;
        let mut known = SeenIds::new(options.known_max);
        let store: Box<dyn QueueStore> = match &options.replay {
            Some(replay) => Box::new(PriorityStore::new(&options, replay)),
            None => Box::new(FifoStore::open(&options, &mut known)?),
        };
        let (samples, gone) = store.logs().unzip();
        let state = QueueState {
            store,
            known,
            writers: BTreeMap::new(),
            reader: None,
            readers: 0,
            waiting_writers: WaitQueue::default(),
            waiting_readers: WaitQueue::default(),
            newest: 0,
            closed: false,
        };
        let gone = gone.flatten();
        let shared = QueueShared { options, samples, gone, state: Mutex::new(state) };
        Ok(Arc::new(Self { shared: Arc::new(shared) }))
    }

    /// Closes the queue: writers are refused from now on, also those that wait, and readers get
    /// what there is and then the end of data.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.news_of_writers();
        state.waiting_writers.call_all();
    }

    /// Returns what there is.
    pub fn usage(&self) -> QueueUsage {
        self.shared.lock().store.usage()
    }

    /// Returns how many writers wait for room.
    pub fn waiting_writers(&self) -> usize {
        self.shared.lock().waiting_writers.len()
    }
}

impl Buffer for ExperienceQueue {
    fn writer(&self, name: &str) -> Result<Box<dyn ExperienceWriter>> {
        let mut state = self.shared.lock();
        if state.closed {
            return Err(self.shared.closed());
        }
        state.writers.insert(name.to_owned(), true);
        state.news_of_writers();
        Ok(Box::new(QueueWriter::new(Arc::clone(&self.shared), name)))
    }

    fn reader(&self, name: &str) -> Result<Box<dyn ExperienceReader>> {
        let mut state = self.shared.lock();
        let first = state.reader.get_or_insert_with(|| name.to_owned());
        if first != name {
            let message = format!(
                "it has one position, which belongs to the readers named {first:?}; read as \
                 {first:?}, or use a database for readers that each get everything"
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
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }

    /// Waits until what was stored is durable, so that it can be read.
    fn make_durable<'a>(&'a self, mut state: MutexGuard<'a, QueueState>) -> Result<()> {
        if let (Some(log), Some(end)) = (&self.samples, state.store.not_durable()) {
            drop(state);
            log.sync().map_err(|error| failed(&self.options, &error))?;
            state = self.lock();
            state.store.set_durable(end);
            state.waiting_readers.call();
        }
        Ok(())
    }

    /// Waits until it is durable what has left, and frees what it took.
    fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, QueueState>,
    ) -> Result<MutexGuard<'a, QueueState>> {
        state.store.flush()?;
        if let Some(log) = self.gone.as_ref().filter(|log| log.unsynced_bytes() > 0) {
            drop(state);
            log.sync().map_err(|error| failed(&self.options, &error))?;
            state = self.lock();
        }
        state.store.free()?;
        state.waiting_writers.call();
        Ok(state)
    }

    fn storage(&self) -> String {
        self.options.name.clone()
    }

    fn closed(&self) -> BufferError {
        BufferError::Closed(self.storage())
    }

    fn closed_writer(&self, name: &str) -> BufferError {
        BufferError::Closed(format!("the writer {name:?} of {}", self.options.name))
    }

    fn unsupported(&self, message: String) -> BufferError {
        BufferError::Unsupported { storage: self.storage(), message }
    }

    fn full(&self, message: String) -> BufferError {
        BufferError::Full { storage: self.storage(), message }
    }
}

impl QueueState {
    /// Tells whether nobody will write any more.
    fn has_ended(&self) -> bool {
        self.closed || (!self.writers.is_empty() && self.writers.values().all(|open| !open))
    }

    /// Says what follows from a writer that came or went.
    fn news_of_writers(&mut self) {
        let ended = self.has_ended();
        self.store.finish(ended, &mut self.known);
        self.waiting_readers.call();
    }
}

impl std::fmt::Debug for QueueState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("State");
        debug.field("usage", &self.store.usage()).field("writers", &self.writers);
        debug.field("closed", &self.closed).finish_non_exhaustive()
    }
}
