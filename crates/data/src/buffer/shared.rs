//! Queues of this process, found by their names: explorer and trainer in one process share one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Ask, Buffer, Queue, Reader, Result, Taken, Usage, Writer, Written, queue};
use crate::Lot;

/// What a queue is found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// It is in memory.
    Name(String),
    /// It is kept in a folder, which only one can have.
    Folder(PathBuf),
}

/// The queues that somebody has. One that cannot be upgraded is about to leave its folder.
static OPEN: Mutex<Option<HashMap<Key, Weak<Held>>>> = Mutex::new(None);
static LEFT: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Option<HashMap<Key, Weak<Held>>>> {
    OPEN.lock()
}

/// Opens a queue, or returns the one that is open.
pub(super) fn open(name: &str, options: &queue::Options) -> Result<SharedQueue> {
    let key = match &options.path {
        Some(folder) => Key::Folder(std::path::absolute(folder).unwrap_or_else(|_| folder.clone())),
        None => Key::Name(name.to_owned()),
    };
    let mut open = lock();
    // Held while a queue opens: of two who come at once, one would find the folder taken.
    while let Some(held) = open.get_or_insert_default().get(&key) {
        if let Some(held) = held.upgrade() {
            return Ok(SharedQueue { held });
        }
        LEFT.wait(&mut open);
    }
    let queue = Queue::open(queue::Options { name: format!("queue:{name}"), ..options.clone() })?;
    let held = Arc::new(Held { queue: Some(queue), key: key.clone() });
    open.get_or_insert_default().insert(key, Arc::downgrade(&held));
    Ok(SharedQueue { held })
}

/// A queue while anybody has it.
#[derive(Debug)]
struct Held {
    /// Absent only while it is dropped.
    queue: Option<Arc<Queue>>,
    key: Key,
}

impl Drop for Held {
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
    held: Arc<Held>,
}

impl SharedQueue {
    fn queue(&self) -> &Queue {
        self.held.queue.as_ref().expect("it is there until nobody has it")
    }
}

impl Buffer for SharedQueue {
    fn writer(&self, name: &str) -> Result<Box<dyn Writer>> {
        let inner = self.queue().writer(name)?;
        Ok(Box::new(End { inner, _held: Arc::clone(&self.held) }))
    }

    fn reader(&self, name: &str) -> Result<Box<dyn Reader>> {
        let inner = self.queue().reader(name)?;
        Ok(Box::new(End { inner, _held: Arc::clone(&self.held) }))
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.queue().usage())
    }
}

/// A writer or a reader, dropped before it lets go of its queue.
struct End<T: ?Sized> {
    inner: Box<T>,
    _held: Arc<Held>,
}

impl Writer for End<dyn Writer> {
    fn write(&mut self, lot: &Lot) -> Result<Written> {
        self.inner.write(lot)
    }

    fn close(&mut self) -> Result<()> {
        self.inner.close()
    }
}

impl Reader for End<dyn Reader> {
    fn read(&mut self, ask: &Ask) -> Result<Taken> {
        self.inner.read(ask)
    }

    fn position(&self) -> String {
        self.inner.position()
    }

    fn seek(&mut self, position: &str) -> Result<()> {
        self.inner.seek(position)
    }
}
