//! Watches a folder for new weights by file system events.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

use super::weight_folder::{LATEST, version};

/// Interval of rescans: a network file system reports no changes of other machines.
pub const RESCAN: Duration = Duration::from_secs(30);

/// Interval of rescans without events, and while weights cannot be read.
pub const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct FolderWatch {
    folder: PathBuf,
    watcher: Option<RecommendedWatcher>,
    notify: Arc<Notify>,
}

impl FolderWatch {
    /// Watches a folder; creates it if needed.
    pub fn new(folder: &Path) -> Self {
        let notify = Arc::new(Notify::new());
        // A failure shows as a failure to watch.
        let _ = fs::create_dir_all(folder);
        let watcher = watcher(folder, Arc::clone(&notify));
        if let Err(error) = &watcher {
            let folder = folder.display();
            tracing::warn!(%error, %folder, "cannot watch this folder; it is read every {RETRY:?} \
                                             instead");
        }
        Self { folder: folder.into(), watcher: watcher.ok(), notify }
    }

    /// Waits for a change since the last call, or for the next rescan.
    pub async fn changed(&self, retry: bool) {
        let polls = self.watcher.is_none() || retry;
        let anyway = if polls { RETRY } else { RESCAN };
        let _ = tokio::time::timeout(anyway, self.notify.notified()).await;
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn watcher(folder: &Path, notify: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // After an error, such as a queue overflow, events may be missing.
        if event.map_or(true, |event| may_concern_weights(&event)) {
            notify.notify_one();
        }
    })?;
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

/// Tells whether an event may concern weights: the job folder has other files that change often.
fn may_concern_weights(event: &notify::Event) -> bool {
    let is_written = event.kind == EventKind::Access(AccessKind::Close(AccessMode::Write));
    if event.kind.is_access() && !is_written {
        return false;
    }
    let about = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| name == LATEST || version(name).is_some())
    };
    event.need_rescan() || event.paths.iter().any(about)
}
