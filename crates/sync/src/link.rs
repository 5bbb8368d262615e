//! Requests to the synchronizer, in this process or over HTTP.

use std::sync::Arc;
use std::time::Duration;

use rollway_core::sync::{HeartbeatReply, LeaveReason, MemberRole};

use super::error::{SyncLinkError, SyncReply};
use super::host::SyncServer;
use super::messages::{
    NewWeightsMessage, ServerFleet, SyncStatus, TrainMetrics, TrainMetricsPage, TrainerProgress,
    WaitStatus, WeightRequest, WeightWaitResult,
};
use super::routes::{
    FleetReport, JoinReply, JoinRequest, LONG_POLL_TIMEOUT, LeaveRequest, MemberRef, MetricsSince,
    Publish, Since, Submitted, TrainerStateRequest, Wait,
};
use super::sync_client::SyncClient;

/// Access to the synchronizer, in this process or over HTTP.
#[derive(Clone, Debug)]
pub(super) enum SyncLink {
    Local(Arc<SyncServer>),
    Remote(Arc<SyncClient>),
}

impl SyncLink {
    pub(super) fn url(&self) -> &str {
        match self {
            Self::Local(host) => host.url(),
            Self::Remote(client) => client.url(),
        }
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Local(this), Self::Local(that)) => Arc::ptr_eq(this, that),
            (Self::Remote(this), Self::Remote(that)) => Arc::ptr_eq(this, that),
            _ => false,
        }
    }

    /// Returns the member id and its heartbeat timeout.
    pub(super) async fn join(&self, role: MemberRole, name: &str) -> SyncReply<(u64, Duration)> {
        match self {
            Self::Local(host) => host.store().join(role, name).map_err(SyncLinkError::Refused),
            Self::Remote(client) => {
                let role = match role {
                    MemberRole::Explorer => "explorer",
                    MemberRole::Trainer => "trainer",
                };
                let call = JoinRequest { role: role.to_owned(), name: name.to_owned() };
                let JoinReply { member, heartbeat_timeout } =
                    client.post("/v1/join", &call).await?;
                Ok((
                    member,
                    Duration::try_from_secs_f64(heartbeat_timeout).unwrap_or(LONG_POLL_TIMEOUT),
                ))
            }
        }
    }

    pub(super) async fn heartbeat(&self, member: u64) -> SyncReply<HeartbeatReply> {
        match self {
            Self::Local(host) => Ok(host.driver().heartbeat(member)),
            Self::Remote(client) => {
                let reply: String = client.post("/v1/heartbeat", &MemberRef { member }).await?;
                Ok(match reply.as_str() {
                    "known" => HeartbeatReply::Known,
                    "replaced" => HeartbeatReply::Replaced,
                    _ => HeartbeatReply::Unknown,
                })
            }
        }
    }

    pub(super) async fn leave(&self, member: u64, reason: LeaveReason) -> SyncReply<()> {
        match self {
            Self::Local(host) => {
                host.store().leave(member, &reason).await;
                Ok(())
            }
            Self::Remote(client) => {
                let (reason, message) = match reason {
                    LeaveReason::Done => ("done", String::new()),
                    LeaveReason::Failed(error) => ("failed", error),
                    LeaveReason::TimedOut => ("timed_out", String::new()),
                };
                client
                    .post("/v1/leave", &LeaveRequest { member, reason: reason.to_owned(), message })
                    .await
            }
        }
    }

    pub(super) async fn trainer(&self, member: u64, state: TrainerProgress) -> SyncReply<bool> {
        match self {
            Self::Local(host) => Ok(host.store().trainer(member, state).await),
            Self::Remote(client) => {
                client.post("/v1/trainer", &TrainerStateRequest { member, state }).await
            }
        }
    }

    /// Reports an explorer's submitted experiences; returns those of the others.
    pub(super) async fn submitted(&self, explorer: &str, experiences: u64) -> SyncReply<u64> {
        match self {
            Self::Local(host) => Ok(host.driver().submitted(explorer, experiences)),
            Self::Remote(client) => {
                let call = Submitted { explorer: explorer.to_owned(), experiences };
                client.post("/v1/submitted", &call).await
            }
        }
    }

    pub(super) async fn set_fleet(&self, explorer: &str, servers: ServerFleet) -> SyncReply<()> {
        match self {
            Self::Local(host) => {
                host.driver().set_fleet(explorer, servers);
                Ok(())
            }
            Self::Remote(client) => {
                let call = FleetReport { explorer: explorer.to_owned(), servers };
                client.post("/v1/servers", &call).await
            }
        }
    }

    /// `None`: the request must be repeated.
    pub(super) async fn wait(
        &self,
        request: WeightRequest,
        waited: Duration,
    ) -> SyncReply<Option<WeightWaitResult>> {
        match self {
            Self::Local(host) => {
                host.driver().wait(request, waited).await.map(Some).ok_or_else(host_ends)
            }
            Self::Remote(client) => {
                let call = Wait { request, waited: waited.as_secs_f64() };
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
            Self::Local(host) => {
                host.driver().wait_status(since, timeout).await.ok_or_else(host_ends)
            }
            Self::Remote(client) => {
                let call = Since { since, timeout: timeout.as_secs_f64() };
                client.long_poll("/v1/waits", &call).await
            }
        }
    }

    pub(super) async fn explorers_left(&self, timeout: Duration) -> SyncReply<bool> {
        match self {
            Self::Local(host) => host.driver().explorers_left(timeout).await.ok_or_else(host_ends),
            Self::Remote(client) => {
                let call = Since { since: None, timeout: timeout.as_secs_f64() };
                client.long_poll("/v1/explorers-left", &call).await
            }
        }
    }

    pub(super) async fn add_metrics(&self, report: TrainMetrics) -> SyncReply<()> {
        match self {
            Self::Local(host) => {
                host.driver().add_metrics(report);
                Ok(())
            }
            Self::Remote(client) => client.post("/v1/metrics", &report).await,
        }
    }

    pub(super) async fn metrics(
        &self,
        since: u64,
        timeout: Duration,
    ) -> SyncReply<TrainMetricsPage> {
        match self {
            Self::Local(host) => host.driver().metrics(since, timeout).await.ok_or_else(host_ends),
            Self::Remote(client) => {
                let call = MetricsSince { since, timeout: timeout.as_secs_f64() };
                client.long_poll("/v1/metrics/read", &call).await
            }
        }
    }

    pub(super) async fn publish(&self, version: u64, weights: NewWeightsMessage) -> SyncReply<()> {
        match self {
            Self::Local(host) => {
                host.store().publish(version, weights).await.map_err(SyncLinkError::Refused)
            }
            Self::Remote(client) => {
                let location = match weights {
                    NewWeightsMessage::Bytes(bytes) => return client.push(version, bytes).await,
                    NewWeightsMessage::At(location) => location.absolute(),
                };
                client.post("/v1/publish", &Publish { version, location }).await
            }
        }
    }

    pub(super) async fn view(&self) -> SyncReply<SyncStatus> {
        match self {
            Self::Local(host) => Ok(host.driver().view()),
            Self::Remote(client) => client.view().await,
        }
    }
}

fn host_ends() -> SyncLinkError {
    SyncLinkError::Unreachable("the synchronizer of this process is stopping".to_owned())
}
