//! A seat at the synchronizer: it is kept by a beat, and left with a word.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rollway_core::rendezvous::{Beat, Left, Role};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::{SyncError, Synchronizer};

/// How many beats there are in a lease, so that one or two that are late do no harm.
const BEATS: u32 = 4;

/// A seat of an explorer or of the trainer. It is kept for as long as this lives; whoever drops it
/// before it has said [`Seat::done`] or [`Seat::failed`] has left without a word, and is missed.
#[derive(Debug)]
pub struct Seat {
    shared: Arc<Shared>,
    beats: JoinHandle<()>,
    runtime: Handle,
    has_left: bool,
}

#[derive(Debug)]
struct Shared {
    synchronizer: Synchronizer,
    role: Role,
    name: String,
    seat: AtomicU64,
    is_replaced: AtomicBool,
}

impl Seat {
    pub(super) async fn take(
        synchronizer: &Synchronizer,
        role: Role,
        name: &str,
    ) -> Result<Self, SyncError> {
        let shared = Arc::new(Shared {
            synchronizer: synchronizer.clone(),
            role,
            name: name.to_owned(),
            seat: AtomicU64::new(0),
            is_replaced: AtomicBool::new(false),
        });
        let lease = shared.enter().await?;
        let beats = tokio::spawn(Arc::clone(&shared).beat(lease));
        Ok(Self { shared, beats, runtime: Handle::current(), has_left: false })
    }

    /// The name that it was taken under.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Whether another process of the same name has taken it.
    pub fn is_replaced(&self) -> bool {
        self.shared.is_replaced.load(Ordering::Relaxed)
    }

    /// Leaves: all is done.
    pub async fn done(self) -> Result<(), SyncError> {
        self.leave(Left::Done).await
    }

    /// Leaves with an error, which those who wait get to know.
    pub async fn failed(self, message: &str) -> Result<(), SyncError> {
        self.leave(Left::Failed(message.to_owned())).await
    }

    async fn leave(mut self, how: Left) -> Result<(), SyncError> {
        self.beats.abort();
        let left = self.shared.leave(how).await;
        self.has_left = true;
        left
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.beats.abort();
        if self.has_left {
            return;
        }
        let shared = Arc::clone(&self.shared);
        // If the runtime ends before that is said, the lease runs out.
        self.runtime.spawn(async move {
            let _ = shared.leave(Left::Silent).await;
        });
    }
}

impl Shared {
    async fn enter(&self) -> Result<Duration, SyncError> {
        let synchronizer = &self.synchronizer;
        let patience = synchronizer.0.options.patience;
        let entered = synchronizer
            .call(patience, |link| async move { link.enter(self.role, &self.name).await });
        let (seat, lease) = entered.await?;
        self.seat.store(seat, Ordering::Relaxed);
        if self.role == Role::Trainer {
            // What it is at is not told again: a number of one host means nothing to another, and
            // a trainer that makes a step will say when it is idle.
            let trainer = &synchronizer.0.trainer;
            *trainer.lock() = Some(seat);
        }
        Ok(lease)
    }

    async fn leave(&self, how: Left) -> Result<(), SyncError> {
        let seat = self.seat.load(Ordering::Relaxed);
        let synchronizer = &self.synchronizer;
        let patience = synchronizer.0.options.patience;
        let left = synchronizer.call(patience, |link| {
            let how = how.clone();
            async move { link.leave(seat, how).await }
        });
        left.await
    }

    /// Says again and again that it is there.
    async fn beat(self: Arc<Self>, lease: Duration) {
        let mut ticks = tokio::time::interval((lease / BEATS).max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let seat = self.seat.load(Ordering::Relaxed);
            let synchronizer = &self.synchronizer;
            let beat = synchronizer.call(lease, |link| async move { link.beat(seat).await });
            match beat.await {
                Ok(Beat::Known) => {}
                Ok(Beat::Replaced) => {
                    self.is_replaced.store(true, Ordering::Relaxed);
                    tracing::warn!(name = self.name, "another process of this name took the seat");
                    return;
                }
                Ok(Beat::Unknown) => match self.enter().await {
                    Ok(_) => tracing::info!(name = self.name, "the seat is taken again"),
                    Err(error) => tracing::warn!(%error, name = self.name, "no seat; trying again"),
                },
                Err(error) => tracing::warn!(%error, name = self.name, "cannot be heard"),
            }
        }
    }
}
