//! Queues of this process, found by their names: explorer and trainer in one process share one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    Buffer, ExperienceQueue, ExperienceReader, ExperienceWriter, QueueUsage, ReadRequest,
    ReadResult, Result, WriteResult, queue,
};
use crate::WriteBatch;

/// What a queue is found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum QueueKey {
    /// It is in memory.
    Name(String),
    /// It is kept in a folder, which only one can have.
    Folder(PathBuf),
}

/// The queues that somebody has. One that cannot be upgraded is about to leave its folder.
static OPEN: Mutex<Option<HashMap<QueueKey, Weak<OpenQueue>>>> = Mutex::new(None);
static LEFT: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Option<HashMap<QueueKey, Weak<OpenQueue>>>> {
    OPEN.lock()
}

/// Opens a queue, or returns the one that is open.
pub(super) fn open(name: &str, options: &queue::QueueOptions) -> Result<SharedQueue> {
    let key = match &options.path {
        Some(folder) => {
            QueueKey::Folder(std::path::absolute(folder).unwrap_or_else(|_| folder.clone()))
        }
        None => QueueKey::Name(name.to_owned()),
    };
    let mut open = lock();
    // Held while a queue opens: of two who come at once, one would find the folder taken.
    while let Some(held) = open.get_or_insert_default().get(&key) {
        if let Some(held) = held.upgrade() {
            return Ok(SharedQueue { held });
        }
        LEFT.wait(&mut open);
    }
    let queue = ExperienceQueue::open(queue::QueueOptions {
        name: format!("queue:{name}"),
        ..options.clone()
    })?;
    let held = Arc::new(OpenQueue { queue: Some(queue), key: key.clone() });
    open.get_or_insert_default().insert(key, Arc::downgrade(&held));
    Ok(SharedQueue { held })
}

/// A queue while anybody has it.
#[derive(Debug)]
struct OpenQueue {
    /// Absent only while it is dropped.
    queue: Option<Arc<ExperienceQueue>>,
    key: QueueKey,
}

impl Drop for OpenQueue {
    fn drop(&mut self) {
        let mut open = lock();
        self.queue = None;
        if let Some(open) = &mut *open {
            open.remove(&self.key);
        }
        LEFT.notify_all();
    }
}

/// One of those who have a queue.
#[derive(Debug)]
pub(super) struct SharedQueue {
    held: Arc<OpenQueue>,
}

impl SharedQueue {
    fn queue(&self) -> &ExperienceQueue {
        self.held.queue.as_ref().expect("it is there until nobody has it")
    }
}

impl Buffer for SharedQueue {
    fn writer(&self, name: &str) -> Result<Box<dyn ExperienceWriter>> {
        let inner = self.queue().writer(name)?;
        Ok(Box::new(QueueEnd { inner, _held: Arc::clone(&self.held) }))
    }

    fn reader(&self, name: &str) -> Result<Box<dyn ExperienceReader>> {
        let inner = self.queue().reader(name)?;
        Ok(Box::new(QueueEnd { inner, _held: Arc::clone(&self.held) }))
    }

    fn usage(&self) -> Option<QueueUsage> {
        Some(self.queue().usage())
    }
}

/// A writer or a reader, dropped before it lets go of its queue.
struct QueueEnd<T: ?Sized> {
    inner: Box<T>,
    _held: Arc<OpenQueue>,
}

impl ExperienceWriter for QueueEnd<dyn ExperienceWriter> {
    fn write(&mut self, lot: &WriteBatch) -> Result<WriteResult> {
        self.inner.write(lot)
    }

    fn close(&mut self) -> Result<()> {
        self.inner.close()
    }
}

impl ExperienceReader for QueueEnd<dyn ExperienceReader> {
    fn read(&mut self, ask: &ReadRequest) -> Result<ReadResult> {
        self.inner.read(ask)
    }

    fn position(&self) -> String {
        self.inner.position()
    }

    fn seek(&mut self, position: &str) -> Result<()> {
        self.inner.seek(position)
    }
}
