//! HTTP client of a synchronizer in another process.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Body, Client, Method, StatusCode};
use rollway_base::Secret;
use rollway_config::SyncMethod;
use rollway_core::sync::{HeartbeatReply, LeaveReason, MemberRole};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::client::http_client;
use super::error::{SyncError, SyncLinkError, SyncReply};
use super::messages::{
    NewWeightsMessage, SyncStatus, TrainerProgress, WaitStatus, WeightLocation, WeightRequest,
    WeightWaitResult,
};
use super::routes::{
    Enter, JobIdentity, JoinReply, LONG_POLL_TIMEOUT, Leave, MemberRef, Publish, Since, Submitted,
    SyncErrorBody, TrainerStateRequest, Wait,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Time for a response beyond the requested wait.
const SLACK: Duration = Duration::from_secs(20);

/// Timeout of a push: an hour.
const PUSH: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct SyncClient {
    url: String,
    client: Client,
    about: JobIdentity,
}

impl SyncClient {
    /// Connects to a synchronizer and reads its identity.
    pub(super) async fn join(url: &str, secret: &Secret) -> SyncReply<Self> {
        let url = url.trim_end_matches('/').to_owned();
        let refused = |message: String| SyncLinkError::Refused(SyncError::Address(message));
        let mut headers = HeaderMap::new();
        let mut bearer =
            HeaderValue::from_str(&format!("Bearer {}", secret.reveal())).map_err(|_| {
                refused("the secret has characters that an HTTP header cannot contain".to_owned())
            })?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let client = http_client(&url, headers, CONNECT_TIMEOUT)
            .map_err(|error| refused(format!("{url}: {error}")))?;
        let about = JobIdentity { job: String::new(), method: SyncMethod::default() };
        let remote = Self { url, client, about };
        let about = remote.ask(Method::GET, "/v1/job", &(), CONNECT_TIMEOUT).await?;
        Ok(Self { about, ..remote })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) const fn about(&self) -> &JobIdentity {
        &self.about
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, call: &impl Serialize) -> SyncReply<T> {
        self.ask(Method::POST, path, call, SLACK).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        call: &impl Serialize,
        timeout: Duration,
    ) -> SyncReply<T> {
        let body = serde_json::to_vec(call)
            .map_err(|error| SyncLinkError::Refused(SyncError::Refused(error.to_string())))?;
        self.send(method, path, Body::from(body), timeout).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Body,
        timeout: Duration,
    ) -> SyncReply<T> {
        let url = format!("{}{path}", self.url);
        let gone = |error: reqwest::Error| {
            let cause = rollway_base::error_chain(&error);
            SyncLinkError::Gone(format!("no synchronizer answers at {}: {cause}", self.url))
        };
        let sent = self.client.request(method, url).timeout(timeout).body(body).send();
        let answer = sent.await.map_err(gone)?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(gone)?;
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| {
                SyncLinkError::Gone(format!("{}: not a synchronizer's response: {error}", self.url))
            });
        }
        let Ok(body) = serde_json::from_slice::<SyncErrorBody>(&bytes) else {
            let message = format!("{} is no synchronizer: status {status} for {path}", self.url);
            return Err(SyncLinkError::Gone(message));
        };
        Err(match status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::UNAUTHORIZED => {
                SyncLinkError::Gone(format!("{}: {}", self.url, body.error))
            }
            _ if body.kind == "weights" => SyncLinkError::Refused(SyncError::Weights(body.error)),
            _ => SyncLinkError::Refused(SyncError::Refused(body.error)),
        })
    }

    pub(super) async fn enter(&self, role: MemberRole, name: &str) -> SyncReply<(u64, Duration)> {
        let role = match role {
            MemberRole::Explorer => "explorer",
            MemberRole::Trainer => "trainer",
        };
        let call = Enter { role: role.to_owned(), name: name.to_owned() };
        let entered: JoinReply = self.post("/v1/enter", &call).await?;
        Ok((entered.seat, Duration::try_from_secs_f64(entered.lease).unwrap_or(LONG_POLL_TIMEOUT)))
    }

    pub(super) async fn beat(&self, seat: u64) -> SyncReply<HeartbeatReply> {
        let beat: String = self.post("/v1/beat", &MemberRef { seat }).await?;
        Ok(match beat.as_str() {
            "known" => HeartbeatReply::Known,
            "replaced" => HeartbeatReply::Replaced,
            _ => HeartbeatReply::Unknown,
        })
    }

    pub(super) async fn leave(&self, seat: u64, how: LeaveReason) -> SyncReply<()> {
        let (how, message) = match how {
            LeaveReason::Done => ("done", String::new()),
            LeaveReason::Failed(error) => ("failed", error),
            LeaveReason::TimedOut => ("silent", String::new()),
        };
        self.post("/v1/leave", &Leave { seat, how: how.to_owned(), message }).await
    }

    pub(super) async fn trainer(&self, seat: u64, state: TrainerProgress) -> SyncReply<bool> {
        self.post("/v1/trainer", &TrainerStateRequest { seat, state }).await
    }

    pub(super) async fn submitted(&self, explorer: &str, experiences: u64) -> SyncReply<u64> {
        let call = Submitted { explorer: explorer.to_owned(), experiences };
        self.post("/v1/submitted", &call).await
    }

    pub(super) async fn wait(
        &self,
        want: WeightRequest,
        waited: Duration,
    ) -> SyncReply<Option<WeightWaitResult>> {
        let call = Wait { want, waited: waited.as_secs_f64() };
        self.ask(Method::POST, "/v1/wait", &call, LONG_POLL_TIMEOUT + SLACK).await
    }

    pub(super) async fn wait_status(
        &self,
        since: Option<WaitStatus>,
        timeout: Duration,
    ) -> SyncReply<WaitStatus> {
        let call = Since { since, timeout: timeout.as_secs_f64() };
        self.ask(Method::POST, "/v1/asked", &call, LONG_POLL_TIMEOUT + SLACK).await
    }

    pub(super) async fn explorers_left(&self, timeout: Duration) -> SyncReply<bool> {
        let call = Since { since: None, timeout: timeout.as_secs_f64() };
        self.ask(Method::POST, "/v1/left", &call, LONG_POLL_TIMEOUT + SLACK).await
    }

    pub(super) async fn publish(&self, version: u64, weights: NewWeightsMessage) -> SyncReply<()> {
        let location = match weights {
            NewWeightsMessage::Bytes(bytes) => {
                let path = format!("/v1/weights/{version}");
                return self.send(Method::PUT, &path, Body::from(bytes), PUSH).await;
            }
            // The host may have another working directory.
            NewWeightsMessage::Folder(path) => {
                WeightLocation::Folder(std::path::absolute(&path).unwrap_or(path))
            }
            NewWeightsMessage::Group(group) => WeightLocation::Group(group),
        };
        self.post("/v1/publish", &Publish { version, location }).await
    }

    pub(super) async fn view(&self) -> SyncReply<SyncStatus> {
        self.ask(Method::GET, "/v1/view", &(), SLACK).await
    }
}
