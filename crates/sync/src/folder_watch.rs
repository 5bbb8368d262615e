//! Sees new weights come into a folder, by events of the file system.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

use super::weight_folder::{LATEST, version};

/// After how long a folder is looked at though nothing was heard: a network file system tells
/// nothing of what other machines do.
pub const RESCAN: Duration = Duration::from_secs(30);

/// The same, for a folder that cannot be watched, and for weights that cannot be read yet.
pub const RETRY: Duration = Duration::from_secs(1);

/// Hears of changes to the weights in a folder.
#[derive(Debug)]
pub struct FolderWatch {
    folder: PathBuf,
    watcher: Option<RecommendedWatcher>,
    bell: Arc<Notify>,
}

impl FolderWatch {
    /// Watches a folder, which is made if it is not there.
    pub fn new(folder: &Path) -> Self {
        let bell = Arc::new(Notify::new());
        // If it cannot be made, it cannot be watched, which is said.
        let _ = fs::create_dir_all(folder);
        let watcher = watcher(folder, Arc::clone(&bell));
        if let Err(error) = &watcher {
            let folder = folder.display();
            tracing::warn!(%error, %folder, "cannot watch this folder; looking every {RETRY:?}");
        }
        Self { folder: folder.into(), watcher: watcher.ok(), bell }
    }

    /// Waits until something about weights has changed since it was asked last, or it is time to
    /// look anyway.
    pub async fn changed(&self, retry: bool) {
        let is_blind = self.watcher.is_none() || retry;
        let anyway = if is_blind { RETRY } else { RESCAN };
        // Time passed is as good a reason to look as a change.
        let _ = tokio::time::timeout(anyway, self.bell.notified()).await;
    }

    /// Which folder it watches.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn watcher(folder: &Path, bell: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // After an error, such as a queue that ran over, nobody knows what was missed.
        if event.map_or(true, |event| is_telling(&event)) {
            bell.notify_one();
        }
    })?;
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

/// Tells whether an event may be about weights: the folder is that of the job, which also holds
/// files that change all the time.
fn is_telling(event: &notify::Event) -> bool {
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
