//! The synchronizer in another process, over HTTP.

use std::path::Path;
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

/// How long it may take to be connected.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long an answer may take, beyond what is waited for.
const SLACK: Duration = Duration::from_secs(20);

/// How long weights may take to be pushed: an hour, for the largest on a slow network.
const PUSH: Duration = Duration::from_secs(3600);

/// The synchronizer in another process.
#[derive(Debug)]
pub(super) struct SyncClient {
    url: String,
    client: Client,
    about: JobIdentity,
}

impl SyncClient {
    /// Joins the synchronizer at an address, if there is one.
    pub(super) async fn join(url: &str, secret: &Secret) -> SyncReply<Self> {
        let url = url.trim_end_matches('/').to_owned();
        let refused = |why: String| SyncLinkError::Refused(SyncError::Address(why));
        let mut headers = HeaderMap::new();
        let mut bearer = HeaderValue::from_str(&format!("Bearer {}", secret.reveal()))
            .map_err(|_| refused("the secret has letters that no header can carry".to_owned()))?;
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
            SyncLinkError::Gone(format!(
                "no synchronizer answers at {}: {}",
                self.url,
                rollway_base::error_chain(&error)
            ))
        };
        let sent = self.client.request(method, url).timeout(timeout).body(body).send();
        let answer = sent.await.map_err(gone)?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(gone)?;
        if status.is_success() {
            let strange = |error| {
                SyncLinkError::Gone(format!(
                    "{} does not speak like a synchronizer: {error}",
                    self.url
                ))
            };
            return serde_json::from_slice(&bytes).map_err(strange);
        }
        let said: Option<SyncErrorBody> = serde_json::from_slice(&bytes).ok();
        Err(match (status, said) {
            (StatusCode::SERVICE_UNAVAILABLE | StatusCode::UNAUTHORIZED, Some(said)) => {
                SyncLinkError::Gone(format!("{}: {}", self.url, said.error))
            }
            (_, Some(said)) if said.kind == "weights" => {
                SyncLinkError::Refused(SyncError::Weights(said.error))
            }
            (_, Some(said)) => SyncLinkError::Refused(SyncError::Refused(said.error)),
            (_, None) => SyncLinkError::Gone(format!(
                "{} is no synchronizer: it answers {status} to {path}",
                self.url
            )),
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
            LeaveReason::Failed(why) => ("failed", why),
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
        let call = Wait {
            explorer: want.explorer,
            have: want.have,
            at_least: want.at_least,
            demand: want.demand,
            timeout: want.timeout.as_secs_f64(),
            waited: waited.as_secs_f64(),
        };
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
            NewWeightsMessage::Folder(path) => WeightLocation::Folder(whole(&path)),
            NewWeightsMessage::Group(group) => WeightLocation::Group(group),
        };
        self.post("/v1/publish", &Publish { version, location }).await
    }

    pub(super) async fn view(&self) -> SyncReply<SyncStatus> {
        self.ask(Method::GET, "/v1/view", &(), SLACK).await
    }
}

/// Another process may have another folder of work.
fn whole(path: &Path) -> std::path::PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
