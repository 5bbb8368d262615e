//! A seat at the synchronizer: it is kept by a beat, and left with a word.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rollway_core::sync::{HeartbeatReply, LeaveReason, MemberRole};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::error::SyncError;
use super::synchronizer::Synchronizer;

/// How many beats there are in a lease, so that one or two that are late do no harm.
const HEARTBEATS_PER_TIMEOUT: u32 = 4;

/// A seat of an explorer or of the trainer. It is kept for as long as this lives; whoever drops it
/// before it has said [`Membership::done`] or [`Membership::failed`] has left without a word, and
/// is missed.
#[derive(Debug)]
pub struct Membership {
    shared: Arc<MembershipShared>,
    beats: JoinHandle<()>,
    runtime: Handle,
    has_left: bool,
}

#[derive(Debug)]
struct MembershipShared {
    synchronizer: Synchronizer,
    role: MemberRole,
    name: String,
    seat: AtomicU64,
    is_replaced: AtomicBool,
}

impl Synchronizer {
    /// Takes the seat of an explorer. Who has the same name was started again, and takes it over.
    pub async fn enter_explorer(&self, name: &str) -> Result<Membership, SyncError> {
        Membership::take(self, MemberRole::Explorer, name).await
    }

    /// Takes the seat of the trainer, of which there is one.
    pub async fn enter_trainer(&self, name: &str) -> Result<Membership, SyncError> {
        Membership::take(self, MemberRole::Trainer, name).await
    }
}

impl Membership {
    async fn take(
        synchronizer: &Synchronizer,
        role: MemberRole,
        name: &str,
    ) -> Result<Self, SyncError> {
        let shared = Arc::new(MembershipShared {
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
        self.leave(LeaveReason::Done).await
    }

    /// Leaves with an error, which those who wait get to know.
    pub async fn failed(self, message: &str) -> Result<(), SyncError> {
        self.leave(LeaveReason::Failed(message.to_owned())).await
    }

    async fn leave(mut self, how: LeaveReason) -> Result<(), SyncError> {
        self.beats.abort();
        let left = self.shared.leave(how).await;
        self.has_left = true;
        left
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.beats.abort();
        if self.has_left {
            return;
        }
        let shared = Arc::clone(&self.shared);
        // If the runtime ends before that is said, the lease runs out.
        self.runtime.spawn(async move {
            let _ = shared.leave(LeaveReason::TimedOut).await;
        });
    }
}

impl MembershipShared {
    async fn enter(&self) -> Result<Duration, SyncError> {
        let synchronizer = &self.synchronizer;
        let patience = synchronizer.patience();
        let entered = synchronizer
            .call(patience, |link| async move { link.enter(self.role, &self.name).await });
        let (seat, lease) = entered.await?;
        self.seat.store(seat, Ordering::Relaxed);
        if self.role == MemberRole::Trainer {
            // What it is at is not told again: a number of one host means nothing to another, and
            // a trainer that makes a step will say when it is idle.
            synchronizer.set_trainer(seat);
        }
        Ok(lease)
    }

    async fn leave(&self, how: LeaveReason) -> Result<(), SyncError> {
        let seat = self.seat.load(Ordering::Relaxed);
        let synchronizer = &self.synchronizer;
        let patience = synchronizer.patience();
        let left = synchronizer.call(patience, |link| {
            let how = how.clone();
            async move { link.leave(seat, how).await }
        });
        left.await
    }

    /// Says again and again that it is there.
    async fn beat(self: Arc<Self>, lease: Duration) {
        let mut ticks =
            tokio::time::interval((lease / HEARTBEATS_PER_TIMEOUT).max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let seat = self.seat.load(Ordering::Relaxed);
            let synchronizer = &self.synchronizer;
            let beat = synchronizer.call(lease, |link| async move { link.beat(seat).await });
            match beat.await {
                Ok(HeartbeatReply::Known) => {}
                Ok(HeartbeatReply::Replaced) => {
                    self.is_replaced.store(true, Ordering::Relaxed);
                    tracing::warn!(name = self.name, "another process of this name took the seat");
                    return;
                }
                Ok(HeartbeatReply::Unknown) => match self.enter().await {
                    Ok(_) => tracing::info!(name = self.name, "the seat is taken again"),
                    Err(error) => tracing::warn!(%error, name = self.name, "no seat; trying again"),
                },
                Err(error) => tracing::warn!(%error, name = self.name, "cannot be heard"),
            }
        }
    }
}
