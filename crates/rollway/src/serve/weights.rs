//! Weight updates of mode `serve`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rollway_gateway::models::{InFlightPolicy, Models, WeightSource, WeightUpdate};
use rollway_sync::folder_watch::FolderWatch;
use rollway_sync::{NewestWeights, WeightFinder};

/// Loads new weights into the models, one server after the other, when their folder changes and
/// after every `interval`. Servers with old weights are retried the next time.
pub(super) async fn follow(
    models: Models,
    source: Arc<dyn WeightFinder>,
    interval: Duration,
    in_flight: InFlightPolicy,
    timeout: Duration,
) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last_failure = String::new();
    let watch = watch(&source).await;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = changed(watch.as_ref()) => {}
        }
        let finder = Arc::clone(&source);
        let newest = tokio::task::spawn_blocking(move || finder.newest()).await;
        let newest = match newest.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(newest) => newest,
            Err(error) => {
                tracing::warn!(%error, "search for new weights failed, retrying");
                continue;
            }
        };
        let Some(NewestWeights { version, path }) = newest.filter(|it| !has(&models, it.version))
        else {
            continue;
        };
        let update =
            WeightUpdate { version, weights: WeightSource::Path(path), in_flight, timeout };
        let report = models.update(update).await;
        if report.is_complete() {
            tracing::info!(version, "all servers have the new weights");
            last_failure.clear();
            continue;
        }
        // The same failure is logged once.
        let message: Vec<String> =
            report.servers.iter().map(|it| format!("{}: {:?}", it.url, it.outcome)).collect();
        let message = message.join(", ");
        if message != last_failure {
            tracing::warn!(version, servers = message, "not all servers have the new weights");
            last_failure = message;
        }
    }
}

/// Watches the folder of a source; opening it blocks.
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
    servers.all(|server| server.loaded == Some(version))
}
