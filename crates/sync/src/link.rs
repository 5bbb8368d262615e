//! Requests to the synchronizer, in this process or over HTTP.

use std::sync::Arc;
use std::time::Duration;

use rollway_core::sync::{HeartbeatReply, LeaveReason, MemberRole};

use super::error::{SyncLinkError, SyncReply};
use super::host::SyncServer;
use super::messages::{
    NewWeightsMessage, SyncStatus, TrainMetrics, TrainMetricsPage, TrainerProgress, WaitStatus,
    WeightLocation, WeightRequest, WeightWaitResult,
};
use super::routes::{
    Enter, JoinReply, LONG_POLL_TIMEOUT, Leave, MemberRef, MetricsSince, Publish, Since, Submitted,
    TrainerStateRequest, Wait,
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
            Self::There(client) => client.url(),
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
            Self::There(client) => {
                let role = match role {
                    MemberRole::Explorer => "explorer",
                    MemberRole::Trainer => "trainer",
                };
                let call = Enter { role: role.to_owned(), name: name.to_owned() };
                let JoinReply { seat, lease } = client.post("/v1/enter", &call).await?;
                Ok((seat, Duration::try_from_secs_f64(lease).unwrap_or(LONG_POLL_TIMEOUT)))
            }
        }
    }

    pub(super) async fn beat(&self, seat: u64) -> SyncReply<HeartbeatReply> {
        match self {
            Self::Here(host) => Ok(host.driver().beat(seat)),
            Self::There(client) => {
                let reply: String = client.post("/v1/beat", &MemberRef { seat }).await?;
                Ok(match reply.as_str() {
                    "known" => HeartbeatReply::Known,
                    "replaced" => HeartbeatReply::Replaced,
                    _ => HeartbeatReply::Unknown,
                })
            }
        }
    }

    pub(super) async fn leave(&self, seat: u64, how: LeaveReason) -> SyncReply<()> {
        match self {
            Self::Here(host) => {
                host.store().leave(seat, &how).await;
                Ok(())
            }
            Self::There(client) => {
                let (how, message) = match how {
                    LeaveReason::Done => ("done", String::new()),
                    LeaveReason::Failed(error) => ("failed", error),
                    LeaveReason::TimedOut => ("silent", String::new()),
                };
                client.post("/v1/leave", &Leave { seat, how: how.to_owned(), message }).await
            }
        }
    }

    pub(super) async fn trainer(&self, seat: u64, state: TrainerProgress) -> SyncReply<bool> {
        match self {
            Self::Here(host) => Ok(host.store().trainer(seat, state).await),
            Self::There(client) => {
                client.post("/v1/trainer", &TrainerStateRequest { seat, state }).await
            }
        }
    }

    /// Reports an explorer's submitted experiences; returns those of the others.
    pub(super) async fn submitted(&self, explorer: &str, experiences: u64) -> SyncReply<u64> {
        match self {
            Self::Here(host) => Ok(host.driver().submitted(explorer, experiences)),
            Self::There(client) => {
                let call = Submitted { explorer: explorer.to_owned(), experiences };
                client.post("/v1/submitted", &call).await
            }
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
            Self::There(client) => {
                let call = Wait { want, waited: waited.as_secs_f64() };
                client.long_poll("/v1/wait", &call).await
            }
        }
    }

    pub(super) async fn wait_status(
        &self,
        since: Option<WaitStatus>,
        timeout: Duration,
    ) -> SyncReply<WaitStatus> {
        match self {
            Self::Here(host) => host.driver().wait_status(since, timeout).await.ok_or_else(goes),
            Self::There(client) => {
                let call = Since { since, timeout: timeout.as_secs_f64() };
                client.long_poll("/v1/asked", &call).await
            }
        }
    }

    pub(super) async fn explorers_left(&self, timeout: Duration) -> SyncReply<bool> {
        match self {
            Self::Here(host) => host.driver().explorers_left(timeout).await.ok_or_else(goes),
            Self::There(client) => {
                let call = Since { since: None, timeout: timeout.as_secs_f64() };
                client.long_poll("/v1/left", &call).await
            }
        }
    }

    pub(super) async fn add_metrics(&self, report: TrainMetrics) -> SyncReply<()> {
        match self {
            Self::Here(host) => {
                host.driver().add_metrics(report);
                Ok(())
            }
            Self::There(client) => client.post("/v1/metrics", &report).await,
        }
    }

    pub(super) async fn metrics(
        &self,
        since: u64,
        timeout: Duration,
    ) -> SyncReply<TrainMetricsPage> {
        match self {
            Self::Here(host) => host.driver().metrics(since, timeout).await.ok_or_else(goes),
            Self::There(client) => {
                let call = MetricsSince { since, timeout: timeout.as_secs_f64() };
                client.long_poll("/v1/metrics/read", &call).await
            }
        }
    }

    pub(super) async fn publish(&self, version: u64, weights: NewWeightsMessage) -> SyncReply<()> {
        match self {
            Self::Here(host) => {
                host.store().publish(version, weights).await.map_err(SyncLinkError::Refused)
            }
            Self::There(client) => {
                let location = match weights {
                    NewWeightsMessage::Bytes(bytes) => return client.push(version, bytes).await,
                    // The host may have another working directory.
                    NewWeightsMessage::Folder(path) => {
                        WeightLocation::Folder(std::path::absolute(&path).unwrap_or(path))
                    }
                    NewWeightsMessage::Group(group) => WeightLocation::Group(group),
                };
                client.post("/v1/publish", &Publish { version, location }).await
            }
        }
    }

    pub(super) async fn view(&self) -> SyncReply<SyncStatus> {
        match self {
            Self::Here(host) => Ok(host.driver().view()),
            Self::There(client) => client.view().await,
        }
    }
}

fn goes() -> SyncLinkError {
    SyncLinkError::Gone("the synchronizer of this process ends".to_owned())
}
