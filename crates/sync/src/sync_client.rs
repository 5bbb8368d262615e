//! HTTP client of a synchronizer in another process.

use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Body, Client, Method, StatusCode};
use rollway_base::Secret;
use rollway_config::SyncMethod;
use rollway_net::tls::split_url;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::client::http_client;
use super::error::{SyncError, SyncLinkError, SyncReply};
use super::messages::SyncStatus;
use super::routes::{JobIdentity, LONG_POLL_TIMEOUT, SyncErrorBody};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Time for a response beyond the requested wait.
const SLACK: Duration = Duration::from_secs(20);

/// Timeout of a push: an hour.
const PUSH: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct SyncClient {
    /// With the fingerprint of the certificate.
    address: String,
    http_url: String,
    client: Client,
    about: JobIdentity,
}

impl SyncClient {
    /// Connects to a synchronizer and reads its identity.
    pub(super) async fn join(url: &str, secret: &Secret) -> SyncReply<Self> {
        let address = url;
        let refused = |message: String| SyncLinkError::Refused(SyncError::Address(message));
        let mut headers = HeaderMap::new();
        let mut bearer =
            HeaderValue::from_str(&format!("Bearer {}", secret.reveal())).map_err(|_| {
                refused("the secret has characters that an HTTP header cannot contain".to_owned())
            })?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let (url, fingerprint) =
            split_url(address).map_err(|error| refused(format!("{address}: {error}")))?;
        let url = url.trim_end_matches('/').to_owned();
        let client = http_client(&url, fingerprint, headers, CONNECT_TIMEOUT)
            .map_err(|error| refused(format!("{url}: {error}")))?;
        let about = JobIdentity { job: String::new(), method: SyncMethod::default() };
        let address = address.to_owned();
        let remote = Self { address, http_url: url, client, about };
        let about = remote.request(Method::GET, "/v1/job", &(), CONNECT_TIMEOUT).await?;
        Ok(Self { about, ..remote })
    }

    pub(super) fn url(&self) -> &str {
        &self.address
    }

    pub(super) const fn about(&self) -> &JobIdentity {
        &self.about
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        call: &impl Serialize,
    ) -> SyncReply<T> {
        self.request(Method::POST, path, call, SLACK).await
    }

    async fn request<T: DeserializeOwned>(
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
        let url = format!("{}{path}", self.http_url);
        let unreachable = |error: reqwest::Error| {
            let cause = rollway_base::error_chain(&error);
            SyncLinkError::Unreachable(format!(
                "no synchronizer responds at {}: {cause}",
                self.http_url
            ))
        };
        let sent = self.client.request(method, url).timeout(timeout).body(body).send();
        let answer = sent.await.map_err(unreachable)?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(unreachable)?;
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| {
                SyncLinkError::Unreachable(format!(
                    "{}: not a synchronizer's response: {error}",
                    self.http_url
                ))
            });
        }
        let Ok(body) = serde_json::from_slice::<SyncErrorBody>(&bytes) else {
            let text: String = String::from_utf8_lossy(&bytes).trim().chars().take(200).collect();
            let message = format!(
                "{} is not a synchronizer: status {status} for {path}: {text}",
                self.http_url
            );
            return Err(SyncLinkError::Unreachable(message));
        };
        Err(match status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::UNAUTHORIZED => {
                SyncLinkError::Unreachable(format!("{}: {}", self.http_url, body.error))
            }
            _ if body.kind == "weights" => SyncLinkError::Refused(SyncError::Weights(body.error)),
            _ => SyncLinkError::Refused(SyncError::Refused(body.error)),
        })
    }

    /// Sends a request that the host may answer after [`LONG_POLL_TIMEOUT`].
    pub(super) async fn long_poll<T: DeserializeOwned>(
        &self,
        path: &str,
        call: &impl Serialize,
    ) -> SyncReply<T> {
        self.request(Method::POST, path, call, LONG_POLL_TIMEOUT + SLACK).await
    }

    /// Uploads weights.
    pub(super) async fn push(&self, version: u64, bytes: Bytes) -> SyncReply<()> {
        let path = format!("/v1/weights/{version}");
        self.send(Method::PUT, &path, Body::from(bytes), PUSH).await
    }

    pub(super) async fn view(&self) -> SyncReply<SyncStatus> {
        self.request(Method::GET, "/v1/status", &(), SLACK).await
    }
}
