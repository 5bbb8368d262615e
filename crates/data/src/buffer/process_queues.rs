//! Queues of this process by name: explorer and trainer in one process share one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Weak;

use parking_lot::{Condvar, Mutex};

use super::queue::{QueueOptions, QueueShared};
use super::{ExperienceQueue, Result};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum QueueKey {
    /// A queue in memory.
    Name(String),
    /// A durable queue; a folder belongs to one queue at a time.
    Folder(PathBuf),
}

/// The queues in use. One that cannot be upgraded is about to release its folder.
static OPEN: Mutex<BTreeMap<QueueKey, Weak<QueueShared>>> = Mutex::new(BTreeMap::new());
static CLOSED: Condvar = Condvar::new();

/// Opens a queue, or returns the one that is open.
pub(super) fn open(name: &str, options: &QueueOptions) -> Result<ExperienceQueue> {
    let key = match &options.path {
        Some(folder) => {
            QueueKey::Folder(std::path::absolute(folder).unwrap_or_else(|_| folder.clone()))
        }
        None => QueueKey::Name(name.to_owned()),
    };
    // Locked while a queue opens: a concurrent opener would find the folder in use.
    let mut open = OPEN.lock();
    while let Some(queue) = open.get(&key) {
        if let Some(shared) = queue.upgrade() {
            return Ok(ExperienceQueue { shared });
        }
        CLOSED.wait(&mut open);
    }
    let options = QueueOptions { name: format!("queue:{name}"), ..options.clone() };
    let queue = ExperienceQueue::new(options, Some(key.clone()))?;
    open.insert(key, std::sync::Arc::downgrade(&queue.shared));
    Ok(queue)
}

/// Removes a queue from the registry when it is dropped, after its files are closed.
#[derive(Debug)]
pub(super) struct Registration(pub(super) QueueKey);

impl Drop for Registration {
    fn drop(&mut self) {
        OPEN.lock().remove(&self.0);
        CLOSED.notify_all();
    }
}
