//! Sees what the trainer does without being asked, with `fully_async`.

use rollway_core::explore::PlanConfig;
use rollway_sync::{Synchronizer, WeightRequest, WeightWaitResult};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::resources::{ExplorerHandles, ExplorerResources};

/// What the trainer did without being asked.
#[derive(Debug)]
pub(super) enum TrainerEvent {
    Published(u64),
    TrainerDone,
    TrainerFailed(String),
}

/// Sees what the trainer publishes, with `fully_async`; nothing otherwise.
#[derive(Debug)]
pub(super) struct TrainerWatch {
    task: Option<JoinHandle<()>>,
    seen: mpsc::Receiver<TrainerEvent>,
    /// The version that the servers have; told after everything that may be news for the trainer.
    have: watch::Sender<u64>,
}

impl TrainerWatch {
    pub(super) fn new(world: &ExplorerResources, pace: &PlanConfig, have: u64) -> Self {
        let (tell, seen) = mpsc::channel(1);
        let (have, has) = watch::channel(have);
        let synchronizer = world.synchronizer.clone().filter(|_| !pace.has_periods());
        let task = synchronizer
            .map(|synchronizer| tokio::spawn(follow(world.hands(), synchronizer, tell, has)));
        Self { task, seen, have }
    }

    /// Returns what was seen next; none if nothing will be.
    pub(super) async fn next(&mut self) -> Option<TrainerEvent> {
        self.seen.recv().await
    }

    /// Something has happened: the servers may have other weights, and a trainer that waited for
    /// experiences may have some.
    pub(super) fn poke(&self, have: u64) {
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
    hands: ExplorerHandles,
    synchronizer: Synchronizer,
    tell: mpsc::Sender<TrainerEvent>,
    mut has: watch::Receiver<u64>,
) {
    loop {
        let want = WeightRequest {
            explorer: hands.config.explorer.name.clone(),
            have: *has.borrow_and_update(),
            at_least: 0,
            demand: false,
            timeout: hands.config.synchronizer.sync_timeout.into(),
        };
        let seen = match synchronizer.wait(want).await {
            WeightWaitResult::New(published) => vec![TrainerEvent::Published(published.version)],
            // Whoever needs weights waits for them with a deadline; here nobody does. A trainer
            // that waits for experiences has nothing before it gets some.
            WeightWaitResult::NothingNew | WeightWaitResult::TimedOut(_) => Vec::new(),
            WeightWaitResult::TrainerDone(published) => {
                let published = published.map(|it| TrainerEvent::Published(it.version));
                published.into_iter().chain([TrainerEvent::TrainerDone]).collect()
            }
            WeightWaitResult::TrainerFailed(why) => vec![TrainerEvent::TrainerFailed(why)],
        };
        let published = match seen.last() {
            Some(TrainerEvent::Published(version)) => Some(*version),
            Some(TrainerEvent::TrainerDone | TrainerEvent::TrainerFailed(_)) => None,
            None => Some(0),
        };
        for seen in seen {
            if tell.send(seen).await.is_err() {
                return;
            }
        }
        // They are not asked for again before they are loaded.
        let goes_on = match published {
            Some(0) => has.changed().await.is_ok(),
            Some(version) => has.wait_for(|have| *have >= version).await.is_ok(),
            None => false,
        };
        if !goes_on {
            return;
        }
    }
}
