//! A client of the gateway, for workflows: one request with the key of a run, and all of its
//! answer. Connections are shared by everybody who has a clone.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// The largest answer, in bytes; the gateway itself keeps less of a run.
const ANSWER_MAX: usize = 1 << 30;

/// How long connecting to the gateway may take. It is on this machine.
const CONNECT: Duration = Duration::from_secs(10);

/// How many idle connections are kept.
const IDLE_MAX: usize = 64;

/// A client of gateways.
#[derive(Clone, Debug)]
pub struct Client(Pool<HttpConnector, Full<Bytes>>);

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code of HTTP.
    pub status: u16,
    /// The version of the model that answered, if the gateway knows one.
    pub version: Option<u64>,
    /// How many turns of the run are recorded, if that was asked for.
    pub turns: Option<u64>,
    /// The body.
    pub body: Bytes,
}

impl Default for Client {
    /// Nothing is connected yet.
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        let pool =
            Pool::builder(TokioExecutor::new()).pool_max_idle_per_host(IDLE_MAX).build(connector);
        Self(pool)
    }
}

impl Client {
    /// Posts a body to an address, or gets the address if there is none, with a key.
    ///
    /// # Errors
    /// In words, if there is no whole answer. Every status is an answer.
    pub async fn call(&self, url: &str, key: &str, body: Option<Bytes>) -> Result<Answer, String> {
        self.send(url, key, body, false).await
    }

    /// Posts a body to an address of a dashboard, which does something about it.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn act(&self, url: &str, key: &str, body: Bytes) -> Result<Answer, String> {
        self.send(url, key, Some(body), true).await
    }

    async fn send(
        &self,
        url: &str,
        key: &str,
        body: Option<Bytes>,
        acts: bool,
    ) -> Result<Answer, String> {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let wrong = |error: &dyn std::fmt::Display| format!("{url} cannot be asked: {error}");
        let key = HeaderValue::from_str(&format!("Bearer {key}"));
        let mut key = key.map_err(|error| wrong(&error))?;
        key.set_sensitive(true);
        let mut request = Request::builder();
        if acts {
            // What no page of another site can send.
            request = request.header("x-rollway", "1");
        }
        let request = request
            .method(method)
            .uri(url)
            .header(AUTHORIZATION, key)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|error| wrong(&error))?;
        let response = self.0.request(request).await;
        let response = response.map_err(|error| {
            format!("{url} does not answer: {}", rollway_base::error_chain(&error))
        })?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_MAX).collect().await;
        let body = body
            .map_err(|error| format!("{url} broke off: {}", rollway_base::error_chain(&*error)))?;
        Ok(Answer {
            status: head.status.as_u16(),
            version: number(&head.headers, "x-rollway-model-version"),
            turns: number(&head.headers, "x-rollway-turns"),
            body: body.to_bytes(),
        })
    }
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}
