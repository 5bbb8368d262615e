use std::sync::Arc;
use std::time::Duration;

use rollway_core::sync::{HeartbeatReply, LeaveReason, MemberRole};

use super::error::{SyncLinkError, SyncReply};
use super::host::SyncServer;
use super::messages::{
    NewWeightsMessage, SyncStatus, TrainerProgress, WaitStatus, WeightRequest, WeightWaitResult,
};
use super::sync_client::SyncClient;

/// Access to the synchronizer, in this process or over HTTP.
#[derive(Clone, Debug)]
pub(super) enum SyncLink {
    Here(Arc<SyncServer>),
    There(Arc<SyncClient>),
}

impl SyncLink {
    pub(super) fn url(&self) -> &str {
        match self {
            Self::Here(host) => host.url(),
            Self::There(remote) => remote.url(),
        }
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Here(this), Self::Here(that)) => Arc::ptr_eq(this, that),
            (Self::There(this), Self::There(that)) => Arc::ptr_eq(this, that),
            _ => false,
        }
    }

    /// Returns the member id and its heartbeat timeout.
    pub(super) async fn enter(&self, role: MemberRole, name: &str) -> SyncReply<(u64, Duration)> {
        match self {
            Self::Here(host) => host.store().enter(role, name).map_err(SyncLinkError::Refused),
            Self::There(remote) => remote.enter(role, name).await,
        }
    }

    pub(super) async fn beat(&self, seat: u64) -> SyncReply<HeartbeatReply> {
        match self {
            Self::Here(host) => Ok(host.driver().beat(seat)),
            Self::There(remote) => remote.beat(seat).await,
        }
    }

    pub(super) async fn leave(&self, seat: u64, how: LeaveReason) -> SyncReply<()> {
        match self {
            Self::Here(host) => {
                host.store().leave(seat, &how).await;
                Ok(())
            }
            Self::There(remote) => remote.leave(seat, how).await,
        }
    }

    pub(super) async fn trainer(&self, seat: u64, state: TrainerProgress) -> SyncReply<bool> {
        match self {
            Self::Here(host) => Ok(host.store().trainer(seat, state).await),
            Self::There(remote) => remote.trainer(seat, state).await,
        }
    }

    /// Reports an explorer's submitted experiences; returns those of the others.
    pub(super) async fn submitted(&self, explorer: &str, experiences: u64) -> SyncReply<u64> {
        match self {
            Self::Here(host) => Ok(host.driver().submitted(explorer, experiences)),
            Self::There(remote) => remote.submitted(explorer, experiences).await,
        }
    }

    /// `None`: the request must be repeated.
    pub(super) async fn wait(
        &self,
        want: WeightRequest,
        waited: Duration,
    ) -> SyncReply<Option<WeightWaitResult>> {
        match self {
            Self::Here(host) => host.driver().wait(want, waited).await.map(Some).ok_or_else(goes),
            Self::There(remote) => remote.wait(want, waited).await,
        }
    }

    pub(super) async fn wait_status(
        &self,
        since: Option<WaitStatus>,
        timeout: Duration,
    ) -> SyncReply<WaitStatus> {
        match self {
            Self::Here(host) => host.driver().wait_status(since, timeout).await.ok_or_else(goes),
            Self::There(remote) => remote.wait_status(since, timeout).await,
        }
    }

    pub(super) async fn explorers_left(&self, timeout: Duration) -> SyncReply<bool> {
        match self {
            Self::Here(host) => host.driver().explorers_left(timeout).await.ok_or_else(goes),
            Self::There(remote) => remote.explorers_left(timeout).await,
        }
    }

    pub(super) async fn publish(&self, version: u64, weights: NewWeightsMessage) -> SyncReply<()> {
        match self {
            Self::Here(host) => {
                host.store().publish(version, weights).await.map_err(SyncLinkError::Refused)
            }
            Self::There(remote) => remote.publish(version, weights).await,
        }
    }

    pub(super) async fn view(&self) -> SyncReply<SyncStatus> {
        match self {
            Self::Here(host) => Ok(host.driver().view()),
            Self::There(remote) => remote.view().await,
        }
    }
}

fn goes() -> SyncLinkError {
    SyncLinkError::Gone("the synchronizer of this process ends".to_owned())
}
