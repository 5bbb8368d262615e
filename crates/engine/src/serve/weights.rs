//! New weights, found and handed to the models.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use rollway_gateway::models::{InFlight, Models, Update, Weights};

use crate::synchronizer::folder::{LATEST, weights};
use crate::synchronizer::watch::Watch;

/// The newest weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    /// Their version.
    pub version: u64,
    /// The folder that they are in, as the servers see it.
    pub path: PathBuf,
}

/// Knows the newest weights. Asked from a thread that may wait for disks.
pub trait WeightSource: Debug + Send + Sync + 'static {
    /// Returns the newest weights; none if there are none yet.
    fn newest(&self) -> io::Result<Option<Newest>>;

    /// Returns the folder whose changes tell that there may be others; none if there is none.
    fn folder(&self) -> Option<&Path> {
        None
    }
}

/// A folder with checkpoints: `latest_state_dict_iteration.txt` names the last complete one, which
/// is in `global_step_N`.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
}

impl Checkpoints {
    /// Takes the folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }
}

impl WeightSource for Checkpoints {
    fn newest(&self) -> io::Result<Option<Newest>> {
        let named = self.folder.join(LATEST);
        let text = match fs::read_to_string(&named) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let version = text.trim().parse().map_err(|_| {
            let message = format!("{}: {text:?} is no number", named.display());
            io::Error::new(io::ErrorKind::InvalidData, message)
        })?;
        let path = weights(&self.folder, version);
        if is_folder(&path)? {
            return Ok(Some(Newest { version, path }));
        }
        let message = format!("{} names {}, which is no folder", named.display(), path.display());
        Err(io::Error::new(io::ErrorKind::NotFound, message))
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.folder)
    }
}

fn is_folder(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        data => Ok(data?.is_dir()),
    }
}

/// Brings new weights to the models, one server after the other, for as long as it is let: when
/// their folder changes, and after every `interval`.
///
/// What did not work is tried again the next time: a server that keeps its old weights is asked
/// once more, one that has the new ones is left alone.
pub async fn follow(
    models: Models,
    source: Arc<dyn WeightSource>,
    interval: Duration,
    timeout: Duration,
) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut said = String::new();
    let watch = watch(&source).await;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = changed(watch.as_ref()) => {}
        }
        let asked = Arc::clone(&source);
        let newest = tokio::task::spawn_blocking(move || asked.newest()).await;
        let newest = match newest.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(newest) => newest,
            Err(error) => {
                tracing::warn!(%error, "cannot look for new weights; trying again");
                continue;
            }
        };
        let Some(Newest { version, path }) = newest.filter(|it| !has(&models, it.version)) else {
            continue;
        };
        let in_flight = InFlight::Drain { timeout, then_abort: false };
        let update = Update { version, weights: Weights::Path(path), in_flight, timeout };
        let report = models.update(update).await;
        if report.is_complete() {
            tracing::info!(version, "all servers have the new weights");
            said.clear();
            continue;
        }
        // A server that cannot be updated is not worth the same words every time.
        let words: Vec<String> =
            report.servers.iter().map(|it| format!("{}: {:?}", it.url, it.outcome)).collect();
        let words = words.join(", ");
        if words != said {
            tracing::warn!(version, servers = words, "not all servers have the new weights");
            said = words;
        }
    }
}

/// Watches the folder of a source, on a thread that may wait for disks.
async fn watch(source: &Arc<dyn WeightSource>) -> Option<Watch> {
    let folder = source.folder()?.to_owned();
    tokio::task::spawn_blocking(move || Watch::new(&folder)).await.ok()
}

async fn changed(watch: Option<&Watch>) {
    match watch {
        Some(watch) => watch.changed(false).await,
        None => std::future::pending().await,
    }
}

/// Tells whether every server of the trained model has these weights.
fn has(models: &Models, version: u64) -> bool {
    let view = models.view();
    let mut servers = view.iter().filter(|model| model.trained).flat_map(|model| &model.servers);
    servers.all(|server| server.version == Some(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checkpoint_that_is_named_is_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let source = Checkpoints::new(root);
        assert_eq!(source.newest().unwrap(), None);
        fs::create_dir_all(root.join("global_step_4/actor/huggingface")).unwrap();
        fs::create_dir_all(root.join("global_step_9")).unwrap();
        assert_eq!(source.newest().unwrap(), None, "nobody says that they are complete");
        fs::write(root.join(LATEST), "4\n").unwrap();
        let path = root.join("global_step_4/actor/huggingface");
        assert_eq!(source.newest().unwrap(), Some(Newest { version: 4, path }));
        fs::write(root.join(LATEST), "9").unwrap();
        let path = root.join("global_step_9");
        assert_eq!(source.newest().unwrap(), Some(Newest { version: 9, path }));
        fs::write(root.join(LATEST), "10").unwrap();
        let error = source.newest().unwrap_err().to_string();
        assert!(error.contains("global_step_10"), "{error}");
        fs::write(root.join(LATEST), "").unwrap();
        source.newest().unwrap_err();
    }
}
