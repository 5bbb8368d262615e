//! Notification across processes: writers change a small file, readers watch it.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::{Condvar, Mutex};

use super::IoContext;
use crate::buffer::{BufferError, Result};

/// Writer side.
pub(super) struct WakeFile {
    file: File,
}

impl WakeFile {
    pub(super) fn open(folder: &Path, storage: &str) -> Result<Self> {
        let file = File::options().create(true).truncate(false).write(true).open(path(folder));
        Ok(Self { file: file.at(storage)? })
    }

    /// Wakes waiting readers. A failure does not undo the write.
    pub(super) fn ring(&mut self) {
        let rung = self.file.rewind().and_then(|()| self.file.write_all(b"!"));
        if let Err(error) = rung {
            tracing::warn!(%error, "waiting readers are not woken: they find it later");
        }
    }
}

/// Reader side.
pub(super) struct WakeWatcher {
    rung: Arc<Rung>,
    // Watches as long as it lives.
    _watcher: RecommendedWatcher,
}

#[derive(Default)]
struct Rung {
    times: Mutex<u64>,
    changed: Condvar,
}

impl WakeWatcher {
    pub(super) fn open(folder: &Path, storage: &str) -> Result<Self> {
        let failed = |error: notify::Error| BufferError::Unavailable {
            storage: storage.to_owned(),
            message: format!("it cannot be watched for news: {error}"),
        };
        let rung = Arc::<Rung>::default();
        let heard = rung.clone();
        // Read accesses are ignored; an error is a reason to look.
        let hear = move |event: notify::Result<notify::Event>| {
            if event.map_or(true, |event| !event.kind.is_access()) {
                *heard.times.lock() += 1;
                heard.changed.notify_all();
            }
        };
        let mut watcher = notify::recommended_watcher(hear).map_err(failed)?;
        watcher.watch(&path(folder), RecursiveMode::NonRecursive).map_err(failed)?;
        Ok(Self { rung, _watcher: watcher })
    }

    /// Returns how often it was rung.
    pub(super) fn times(&self) -> u64 {
        *self.rung.times.lock()
    }

    /// Waits until it was rung more often than that. Returns whether it was.
    pub(super) fn wait(&self, times: u64, until: Instant) -> bool {
        let mut heard = self.rung.times.lock();
        self.rung.changed.wait_while_until(&mut heard, |heard| *heard == times, until);
        *heard != times
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("bell")
}
