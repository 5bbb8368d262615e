//! Membership at the synchronizer, kept by heartbeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rollway_core::sync::{HeartbeatReply, LeaveReason, MemberRole};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::error::SyncError;
use super::synchronizer::Synchronizer;

/// Heartbeats per timeout, so that one or two may be late.
const HEARTBEATS_PER_TIMEOUT: u32 = 4;

/// Membership of an explorer or the trainer. Dropping it without [`Membership::done`] or
/// [`Membership::failed`] counts as lost.
#[derive(Debug)]
pub struct Membership {
    shared: Arc<MembershipShared>,
    heartbeats: JoinHandle<()>,
    runtime: Handle,
    has_left: bool,
}

#[derive(Debug)]
struct MembershipShared {
    synchronizer: Synchronizer,
    role: MemberRole,
    name: String,
    member: AtomicU64,
    is_replaced: AtomicBool,
}

impl Synchronizer {
    /// Joins as an explorer; replaces a member of the same name.
    pub async fn join_explorer(&self, name: &str) -> Result<Membership, SyncError> {
        Membership::take(self, MemberRole::Explorer, name).await
    }

    /// Joins as the only trainer.
    pub async fn join_trainer(&self, name: &str) -> Result<Membership, SyncError> {
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
            member: AtomicU64::new(0),
            is_replaced: AtomicBool::new(false),
        });
        let heartbeat_timeout = shared.join().await?;
        let heartbeats = tokio::spawn(Arc::clone(&shared).heartbeat(heartbeat_timeout));
        Ok(Self { shared, heartbeats, runtime: Handle::current(), has_left: false })
    }

    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Tells whether another process of the same name has joined.
    pub fn is_replaced(&self) -> bool {
        self.shared.is_replaced.load(Ordering::Relaxed)
    }

    /// Leaves after success.
    pub async fn done(self) -> Result<(), SyncError> {
        self.leave(LeaveReason::Done).await
    }

    /// Leaves with an error, which ends waits.
    pub async fn failed(self, message: &str) -> Result<(), SyncError> {
        self.leave(LeaveReason::Failed(message.to_owned())).await
    }

    async fn leave(mut self, reason: LeaveReason) -> Result<(), SyncError> {
        self.heartbeats.abort();
        let left = self.shared.leave(reason).await;
        self.has_left = true;
        left
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.heartbeats.abort();
        if self.has_left {
            return;
        }
        let shared = Arc::clone(&self.shared);
        // If the runtime ends first, the heartbeat timeout applies.
        self.runtime.spawn(async move {
            let _ = shared.leave(LeaveReason::TimedOut).await;
        });
    }
}

impl MembershipShared {
    async fn join(&self) -> Result<Duration, SyncError> {
        let synchronizer = &self.synchronizer;
        let lookup_timeout = synchronizer.lookup_timeout();
        let joined = synchronizer
            .call(lookup_timeout, |link| async move { link.join(self.role, &self.name).await });
        let (member, heartbeat_timeout) = joined.await?;
        self.member.store(member, Ordering::Relaxed);
        if self.role == MemberRole::Trainer {
            // Its progress is not repeated: wait ids differ between hosts, and the trainer will
            // report idle.
            synchronizer.set_trainer(member);
        }
        Ok(heartbeat_timeout)
    }

    async fn leave(&self, reason: LeaveReason) -> Result<(), SyncError> {
        let member = self.member.load(Ordering::Relaxed);
        let synchronizer = &self.synchronizer;
        let lookup_timeout = synchronizer.lookup_timeout();
        let left = synchronizer.call(lookup_timeout, |link| {
            let reason = reason.clone();
            async move { link.leave(member, reason).await }
        });
        left.await
    }

    async fn heartbeat(self: Arc<Self>, heartbeat_timeout: Duration) {
        let mut ticks = tokio::time::interval(
            (heartbeat_timeout / HEARTBEATS_PER_TIMEOUT).max(Duration::from_millis(1)),
        );
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let member = self.member.load(Ordering::Relaxed);
            let synchronizer = &self.synchronizer;
            let heartbeat = synchronizer
                .call(heartbeat_timeout, |link| async move { link.heartbeat(member).await });
            match heartbeat.await {
                Ok(HeartbeatReply::Known) => {}
                Ok(HeartbeatReply::Replaced) => {
                    self.is_replaced.store(true, Ordering::Relaxed);
                    tracing::warn!(name = self.name, "another process of this name has joined");
                    return;
                }
                Ok(HeartbeatReply::Unknown) => match self.join().await {
                    Ok(_) => tracing::info!(name = self.name, "membership renewed"),
                    Err(error) => tracing::warn!(%error, name = self.name, "join failed, retrying"),
                },
                Err(error) => {
                    tracing::warn!(%error, name = self.name, "heartbeat failed, retrying")
                }
            }
        }
    }
}
