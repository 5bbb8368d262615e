//! HTTP client of the gateway and of the dashboard: one request with a bearer key, and the whole
//! response. Cheap to clone; clones share connections.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Response};
use rollway_base::Fingerprint;
use rollway_gateway::models::{http_client, pinned_client};

/// Maximum size of a response body. The gateway itself keeps less of a run.
const MAX_RESPONSE_BYTES: usize = 1 << 30;

/// Maximum time to connect: both servers are on this machine or near it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Client(reqwest::Client);

/// Response of the gateway or the dashboard.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Version of the model that generated the completion, if known.
    pub version: Option<u64>,
    /// Recorded turns of the run, if requested.
    pub turns: Option<u64>,
    pub body: Bytes,
}

impl Default for Client {
    fn default() -> Self {
        let connections = http_client("http://", HeaderMap::new(), CONNECT_TIMEOUT);
        Self(connections.expect("a client without certificates can always be built"))
    }
}

impl Client {
    /// Returns a client of a server. With a fingerprint it accepts that certificate alone, else
    /// the roots of the system (`SSL_CERT_FILE`) decide about an `https://` URL.
    ///
    /// # Errors
    /// A message, if there are no roots.
    pub fn of(url: &str, fingerprint: Option<Fingerprint>) -> Result<Self, String> {
        let headers = HeaderMap::new();
        let connections = match fingerprint {
            Some(_) if !url.starts_with("https://") => {
                return Err(format!("{url}: an address with a certificate begins with https://"));
            }
            Some(fingerprint) => pinned_client(fingerprint, headers, CONNECT_TIMEOUT)
                .map_err(|error| format!("{url}: {error}"))?,
            None => http_client(url, headers, CONNECT_TIMEOUT)
                .map_err(|error| format!("{url}: {}", rollway_base::error_chain(&error)))?,
        };
        Ok(Self(connections))
    }

    /// Sends POST with a body, or GET without one, and a bearer key.
    ///
    /// # Errors
    /// A message, if there is no complete response. Every HTTP status is a response.
    pub async fn call(&self, url: &str, key: &str, body: Option<Bytes>) -> Result<Answer, String> {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        self.send(method, url, key, body, false).await
    }

    /// Sends DELETE and a bearer key.
    ///
    /// # Errors
    /// A message, if there is no complete response. Every HTTP status is a response.
    pub async fn delete(&self, url: &str, key: &str) -> Result<Answer, String> {
        self.send(Method::DELETE, url, key, None, false).await
    }

    /// Like [`call`](Self::call), for requests to the dashboard that change something.
    pub async fn act(&self, url: &str, key: &str, body: Bytes) -> Result<Answer, String> {
        self.send(Method::POST, url, key, Some(body), true).await
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        key: &str,
        body: Option<Bytes>,
        changes: bool,
    ) -> Result<Answer, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("invalid request to {url}: {error}");
        let key = HeaderValue::from_str(&format!("Bearer {key}"));
        let mut key = key.map_err(|error| wrong(&error))?;
        key.set_sensitive(true);
        let mut request = self
            .0
            .request(method, url)
            .header(AUTHORIZATION, key)
            .header(CONTENT_TYPE, "application/json");
        if changes {
            // Pages of other sites cannot send this header.
            request = request.header("x-rollway", "1");
        }
        let failed = |event: &str, error: reqwest::Error| {
            format!("{event} {url}: {}", rollway_base::error_chain(&error.without_url()))
        };
        let request = request.body(body.unwrap_or_default()).build();
        let request = request.map_err(|error| failed("invalid request to", error))?;
        let response = self.0.execute(request).await;
        let response = response.map_err(|error| failed("no response from", error))?;
        let status = response.status().as_u16();
        let version = number(response.headers(), "x-rollway-model-version");
        let turns = number(response.headers(), "x-rollway-turns");
        let body =
            read(response).await.map_err(|error| failed("incomplete response from", error))?;
        let body = body.ok_or_else(|| {
            format!("response from {url} is larger than {MAX_RESPONSE_BYTES} bytes")
        })?;
        Ok(Answer { status, version, turns, body })
    }
}

/// Returns the body of a response. `None`: it is larger than the limit.
async fn read(mut response: Response) -> reqwest::Result<Option<Bytes>> {
    let Some(first) = response.chunk().await? else { return Ok(Some(Bytes::new())) };
    let Some(mut chunk) = response.chunk().await? else { return Ok(Some(first)) };
    let mut body = BytesMut::from(first);
    loop {
        if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
        match response.chunk().await? {
            Some(next) => chunk = next,
            None => return Ok(Some(body.freeze())),
        }
    }
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}
