//! Follows the trainer with `sync_style: fully_async`.

use rollway_core::explore::PlanConfig;
use rollway_sync::{Synchronizer, WeightRequest, WeightWaitResult};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::resources::{ExplorerHandles, ExplorerResources};

#[derive(Debug)]
pub(super) enum TrainerEvent {
    Published(u64),
    TrainerDone,
    TrainerFailed(String),
}

/// Receives events of the trainer with `fully_async`; none with other styles.
#[derive(Debug)]
pub(super) struct TrainerWatch {
    task: Option<JoinHandle<()>>,
    events: mpsc::Receiver<TrainerEvent>,
    /// Version in the servers, sent after every event that may let the trainer make progress.
    have: watch::Sender<u64>,
}

impl TrainerWatch {
    pub(super) fn new(resources: &ExplorerResources, plan_config: &PlanConfig, have: u64) -> Self {
        let (sender, events) = mpsc::channel(1);
        let (have, has) = watch::channel(have);
        let synchronizer = resources.synchronizer.clone().filter(|_| !plan_config.has_periods());
        let task = synchronizer.map(|synchronizer| {
            tokio::spawn(follow(resources.handles(), synchronizer, sender, has))
        });
        Self { task, events, have }
    }

    /// Returns the next event. `None`: there are no more.
    pub(super) async fn next(&mut self) -> Option<TrainerEvent> {
        self.events.recv().await
    }

    /// Wakes the watch: the servers may have other weights, and the trainer new experiences.
    pub(super) fn wake(&self, have: u64) {
        self.have.send_replace(have);
    }
}

impl Drop for TrainerWatch {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn follow(
    handles: ExplorerHandles,
    synchronizer: Synchronizer,
    sender: mpsc::Sender<TrainerEvent>,
    mut has: watch::Receiver<u64>,
) {
    loop {
        let want = WeightRequest {
            explorer: handles.config.explorer.name.clone(),
            current: *has.borrow_and_update(),
            at_least: 0,
            publish_now: false,
            timeout: handles.config.synchronizer.sync_timeout.into(),
        };
        let continues = match synchronizer.wait(want).await {
            WeightWaitResult::New(published) => {
                let version = published.version;
                // Weights are not requested again before they are loaded.
                sender.send(TrainerEvent::Published(version)).await.is_ok()
                    && has.wait_for(|have| *have >= version).await.is_ok()
            }
            // No deadline applies here: the trainer may be waiting for experiences.
            WeightWaitResult::NothingNew | WeightWaitResult::TimedOut(_) => {
                has.changed().await.is_ok()
            }
            WeightWaitResult::TrainerDone(published) => {
                if let Some(published) = published {
                    let _ = sender.send(TrainerEvent::Published(published.version)).await;
                }
                let _ = sender.send(TrainerEvent::TrainerDone).await;
                false
            }
            WeightWaitResult::TrainerFailed(reason) => {
                let _ = sender.send(TrainerEvent::TrainerFailed(reason)).await;
                false
            }
        };
        if !continues {
            return;
        }
    }
}
