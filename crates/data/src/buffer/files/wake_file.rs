//! Notification across processes: writers change a small file, readers watch it.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};

use super::IoContext;
use crate::buffer::change_counter::ChangeCounter;
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
    pub(super) fn notify(&mut self) {
        let written = self.file.rewind().and_then(|()| self.file.write_all(b"!"));
        if let Err(error) = written {
            tracing::warn!(%error, "waiting readers are not notified; they find the batch later");
        }
    }
}

/// Reader side.
pub(super) struct WakeWatcher {
    pub(super) changes: Arc<ChangeCounter>,
    // Watches as long as it lives.
    _watcher: RecommendedWatcher,
}

impl WakeWatcher {
    pub(super) fn open(folder: &Path, storage: &str) -> Result<Self> {
        let failed = |error: notify::Error| {
            BufferError::unavailable(storage, format!("cannot watch it for changes: {error}"))
        };
        let changes = Arc::<ChangeCounter>::default();
        let counter = Arc::clone(&changes);
        // Read accesses are ignored; an error is a reason to look.
        let notify = move |event: notify::Result<notify::Event>| {
            if event.map_or(true, |event| !event.kind.is_access()) {
                counter.increment();
            }
        };
        let mut watcher = notify::recommended_watcher(notify).map_err(failed)?;
        watcher.watch(&path(folder), RecursiveMode::NonRecursive).map_err(failed)?;
        Ok(Self { changes, _watcher: watcher })
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("bell")
}
