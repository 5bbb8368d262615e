//! The synchronizer in another process, over HTTP.

use std::path::Path;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Body, Client, Method, StatusCode};
use rollway_base::Secret;
use rollway_config::SyncMethod;
use rollway_core::rendezvous::{Beat, Left, Role};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::client::http_client;
use super::error::{Said, SyncError, Trouble};
use super::message::{Asked, Location, NewWeights, TrainerState, View, Waited, Want};
use super::routes::{
    About, Enter, Entered, Leave, POLL, Publish, Refusal, Seated, Since, Submitted, Tell, Wait,
};

/// How long it may take to be connected.
const CONNECT: Duration = Duration::from_secs(3);

/// How long an answer may take, beyond what is waited for.
const SLACK: Duration = Duration::from_secs(20);

/// How long weights may take to be pushed: an hour, for the largest on a slow network.
const PUSH: Duration = Duration::from_secs(3600);

/// The synchronizer in another process.
#[derive(Debug)]
pub(super) struct Remote {
    url: String,
    client: Client,
    about: About,
}

impl Remote {
    /// Joins the synchronizer at an address, if there is one.
    pub(super) async fn join(url: &str, secret: &Secret) -> Said<Self> {
        let url = url.trim_end_matches('/').to_owned();
        let refused = |why: String| Trouble::Refused(SyncError::Address(why));
        let mut headers = HeaderMap::new();
        let mut bearer = HeaderValue::from_str(&format!("Bearer {}", secret.reveal()))
            .map_err(|_| refused("the secret has letters that no header can carry".to_owned()))?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let client = http_client(&url, headers, CONNECT)
            .map_err(|error| refused(format!("{url}: {error}")))?;
        let about = About { job: String::new(), method: SyncMethod::default() };
        let remote = Self { url, client, about };
        let about = remote.ask(Method::GET, "/v1/job", &(), CONNECT).await?;
        Ok(Self { about, ..remote })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) const fn about(&self) -> &About {
        &self.about
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, call: &impl Serialize) -> Said<T> {
        self.ask(Method::POST, path, call, SLACK).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        call: &impl Serialize,
        timeout: Duration,
    ) -> Said<T> {
        let body = serde_json::to_vec(call)
            .map_err(|error| Trouble::Refused(SyncError::Refused(error.to_string())))?;
        self.send(method, path, Body::from(body), timeout).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Body,
        timeout: Duration,
    ) -> Said<T> {
        let url = format!("{}{path}", self.url);
        let gone = |error: reqwest::Error| {
            Trouble::Gone(format!(
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
                Trouble::Gone(format!("{} does not speak like a synchronizer: {error}", self.url))
            };
            return serde_json::from_slice(&bytes).map_err(strange);
        }
        let said: Option<Refusal> = serde_json::from_slice(&bytes).ok();
        Err(match (status, said) {
            (StatusCode::SERVICE_UNAVAILABLE | StatusCode::UNAUTHORIZED, Some(said)) => {
                Trouble::Gone(format!("{}: {}", self.url, said.error))
            }
            (_, Some(said)) if said.kind == "weights" => {
                Trouble::Refused(SyncError::Weights(said.error))
            }
            (_, Some(said)) => Trouble::Refused(SyncError::Refused(said.error)),
            (_, None) => Trouble::Gone(format!(
                "{} is no synchronizer: it answers {status} to {path}",
                self.url
            )),
        })
    }

    pub(super) async fn enter(&self, role: Role, name: &str) -> Said<(u64, Duration)> {
        let role = match role {
            Role::Explorer => "explorer",
            Role::Trainer => "trainer",
        };
        let call = Enter { role: role.to_owned(), name: name.to_owned() };
        let entered: Entered = self.post("/v1/enter", &call).await?;
        Ok((entered.seat, Duration::try_from_secs_f64(entered.lease).unwrap_or(POLL)))
    }

    pub(super) async fn beat(&self, seat: u64) -> Said<Beat> {
        let beat: String = self.post("/v1/beat", &Seated { seat }).await?;
        Ok(match beat.as_str() {
            "known" => Beat::Known,
            "replaced" => Beat::Replaced,
            _ => Beat::Unknown,
        })
    }

    pub(super) async fn leave(&self, seat: u64, how: Left) -> Said<()> {
        let (how, message) = match how {
            Left::Done => ("done", String::new()),
            Left::Failed(why) => ("failed", why),
            Left::Silent => ("silent", String::new()),
        };
        self.post("/v1/leave", &Leave { seat, how: how.to_owned(), message }).await
    }

    pub(super) async fn trainer(&self, seat: u64, state: TrainerState) -> Said<bool> {
        self.post("/v1/trainer", &Tell { seat, state }).await
    }

    pub(super) async fn submitted(&self, explorer: &str, experiences: u64) -> Said<u64> {
        let call = Submitted { explorer: explorer.to_owned(), experiences };
        self.post("/v1/submitted", &call).await
    }

    pub(super) async fn wait(&self, want: Want, waited: Duration) -> Said<Option<Waited>> {
        let call = Wait {
            explorer: want.explorer,
            have: want.have,
            at_least: want.at_least,
            demand: want.demand,
            timeout: want.timeout.as_secs_f64(),
            waited: waited.as_secs_f64(),
        };
        self.ask(Method::POST, "/v1/wait", &call, POLL + SLACK).await
    }

    pub(super) async fn asked(&self, since: Option<Asked>, timeout: Duration) -> Said<Asked> {
        let call = Since { since, timeout: timeout.as_secs_f64() };
        self.ask(Method::POST, "/v1/asked", &call, POLL + SLACK).await
    }

    pub(super) async fn explorers_left(&self, timeout: Duration) -> Said<bool> {
        let call = Since { since: None, timeout: timeout.as_secs_f64() };
        self.ask(Method::POST, "/v1/left", &call, POLL + SLACK).await
    }

    pub(super) async fn publish(&self, version: u64, weights: NewWeights) -> Said<()> {
        let location = match weights {
            NewWeights::Bytes(bytes) => {
                let path = format!("/v1/weights/{version}");
                return self.send(Method::PUT, &path, Body::from(bytes), PUSH).await;
            }
            NewWeights::Folder(path) => Location::Folder(whole(&path)),
            NewWeights::Group(group) => Location::Group(group),
        };
        self.post("/v1/publish", &Publish { version, location }).await
    }

    pub(super) async fn view(&self) -> Said<View> {
        self.ask(Method::GET, "/v1/view", &(), SLACK).await
    }
}

/// Another process may have another folder of work.
fn whole(path: &Path) -> std::path::PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
