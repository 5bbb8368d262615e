//! Updates of the models to new weights.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rollway_gateway::models::{InFlightPolicy, Models, WeightSource, WeightUpdate};
use rollway_sync::folder_watch::FolderWatch;
use rollway_sync::{NewestWeights, WeightFinder};

/// Brings new weights to the models, one server after the other, for as long as it is let: when
/// their folder changes, and after every `interval`.
///
/// What did not work is tried again the next time: a server that keeps its old weights is asked
/// once more, one that has the new ones is left alone.
pub(super) async fn follow(
    models: Models,
    source: Arc<dyn WeightFinder>,
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
        let Some(NewestWeights { version, path }) = newest.filter(|it| !has(&models, it.version))
        else {
            continue;
        };
        let in_flight = InFlightPolicy::Drain { timeout, then_abort: false };
        let update =
            WeightUpdate { version, weights: WeightSource::Path(path), in_flight, timeout };
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
async fn watch(source: &Arc<dyn WeightFinder>) -> Option<FolderWatch> {
    let folder = source.folder()?.to_owned();
    tokio::task::spawn_blocking(move || FolderWatch::new(&folder)).await.ok()
}

async fn changed(watch: Option<&FolderWatch>) {
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
