//! Validation of server descriptions, and connections to servers.

use std::error::Error;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Client, ClientBuilder, Response, StatusCode, Url};
use rollway_base::Fingerprint;
use rollway_base::suggest::instead;
use rollway_model_api::server_api::server_api;
use rollway_model_api::{CallError, ErrorKind};
use rollway_net::tls::client_config;
use serde_json::Value;

use super::ServerSpec;
use super::capabilities::{self, ServerCapabilities};

const IDLE_CONNECTIONS: usize = 8192;
/// Some servers close idle connections earlier; a request that meets a closed connection is sent
/// again by the client.
const IDLE_TIME: Duration = Duration::from_secs(30);

const NAME_BYTES: usize = 256;
const URL_BYTES: usize = 2048;
/// Maximum size of a list of models.
const MODEL_LIST_BYTES: usize = 1 << 20;

/// Validates a description, and returns the root URL without a trailing slash.
pub(super) fn root(spec: &ServerSpec) -> Result<String, CallError> {
    let server_model = spec.server_model.as_deref().unwrap_or_default();
    let lengths = [
        ("model", spec.model.len(), NAME_BYTES),
        ("server_model", server_model.len(), NAME_BYTES),
        ("url", spec.url.len(), URL_BYTES),
    ];
    if let Some((name, length, most)) = lengths.iter().find(|(_, length, most)| length > most) {
        let message = format!("`{name}` has {length} bytes, of {most} at most");
        return Err(CallError::new(ErrorKind::InvalidRequest, message).at(*name));
    }
    let wrong = |reason: &str| {
        Err(CallError::new(
            ErrorKind::InvalidRequest,
            format!("server {:?} of model {:?}: {reason}", spec.url, spec.model),
        ))
    };
    if spec.model.trim().is_empty() {
        return wrong("the model has no name: set the one that clients request");
    }
    if spec.server_model.as_ref().is_some_and(|name| name.trim().is_empty()) {
        return wrong("`server_model` is empty: leave it out to ask the server");
    }
    let url = match Url::parse(&spec.url) {
        Ok(url) => url,
        Err(error) => {
            return wrong(&format!("no URL ({error}): write it as http://host:port"));
        }
    };
    if !matches!(url.scheme(), "http" | "https") {
        return wrong("the URL must begin with http:// or https://");
    }
    if url.host_str().is_none_or(str::is_empty) {
        return wrong("the URL names no host: write it as http://host:port");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return wrong("the URL contains a password: use `api_key` instead");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return wrong("the URL must end with its path: remove what follows ? or #");
    }
    let root = url.as_str().trim_end_matches('/');
    if root.ends_with("/v1") {
        return wrong("the URL must be the server's root: remove /v1 at its end");
    }
    Ok(root.to_owned())
}

/// Returns the HTTP client of a server for model calls.
pub(super) fn client(
    spec: &ServerSpec,
    root: &str,
    connect_timeout: Duration,
) -> Result<Client, CallError> {
    build(spec, root, |headers| http_client(root, headers, connect_timeout))
}

/// Returns the HTTP client of a server for control requests. Every request has its own connection:
/// a server may close a connection after a failed request, and a request on it would be lost.
pub(super) fn control_client(
    spec: &ServerSpec,
    root: &str,
    connect_timeout: Duration,
) -> Result<Client, CallError> {
    build(spec, root, |headers| {
        builder(root, headers, connect_timeout).pool_max_idle_per_host(0).build()
    })
}

fn build(
    spec: &ServerSpec,
    root: &str,
    build: impl FnOnce(HeaderMap) -> reqwest::Result<Client>,
) -> Result<Client, CallError> {
    let wrong = |reason: String| {
        let message = format!("server {root} of model {:?}: {reason}", spec.model);
        CallError::new(ErrorKind::InvalidRequest, message)
    };
    let mut headers = HeaderMap::new();
    if let Some(key) = &spec.api_key {
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", key.reveal())).map_err(|_| {
                wrong("`api_key` has characters that an HTTP header cannot contain".to_owned())
            })?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    build(headers).map_err(|error| wrong(format!("cannot prepare connections: {error}")))
}

/// Returns a client with HTTP/1.1, without proxies, redirects, request timeouts and limits on
/// connections.
pub fn http_client(
    root: &str,
    headers: HeaderMap,
    connect_timeout: Duration,
) -> reqwest::Result<Client> {
    pooled(builder(root, headers, connect_timeout))
}

/// Same as [`http_client`], for a server with the certificate of this fingerprint and no other.
///
/// # Errors
/// If the system has no random numbers.
pub fn pinned_client(
    fingerprint: Fingerprint,
    headers: HeaderMap,
    connect_timeout: Duration,
) -> Result<Client, Box<dyn Error + Send + Sync>> {
    let tls = client_config(fingerprint)?;
    let builder = builder("https://", headers, connect_timeout).tls_backend_preconfigured(tls);
    Ok(pooled(builder)?)
}

fn pooled(builder: ClientBuilder) -> reqwest::Result<Client> {
    builder.pool_max_idle_per_host(IDLE_CONNECTIONS).pool_idle_timeout(IDLE_TIME).build()
}

fn builder(root: &str, headers: HeaderMap, connect_timeout: Duration) -> ClientBuilder {
    // An installed provider serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .default_headers(headers)
        .no_proxy()
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(connect_timeout)
        .tcp_nodelay(true);
    if root.starts_with("http://") {
        // Plain HTTP needs no certificates, and the machine may have none.
        builder = builder.tls_certs_only([]);
    }
    builder
}

/// Reason why a server cannot be used, by what has to be corrected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReachError {
    /// The server is not started, or elsewhere.
    #[error("{0}")]
    Down(String),
    /// Something else answers at the address.
    #[error("{0}")]
    Address(String),
    #[error("{0}")]
    Key(String),
    #[error("{0}")]
    Model(String),
}

/// Requests the models of a server, and its control endpoints. The error is the reason why it
/// cannot be used.
pub async fn reach(spec: &ServerSpec, timeout: Duration) -> Result<ServerCapabilities, ReachError> {
    let invalid = |error: CallError| ReachError::Address(error.to_string());
    let root = root(spec).map_err(invalid)?;
    let client = client(spec, &root, timeout).map_err(invalid)?;
    let answer = client.get(format!("{root}/v1/models")).timeout(timeout).send().await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) if error.is_timeout() => {
            let seconds = timeout.as_secs_f64();
            return Err(ReachError::Down(format!("no response within {seconds} s")));
        }
        Err(error) if error.is_connect() => {
            return Err(ReachError::Down(format!("no connection ({})", root_cause(&error))));
        }
        Err(error) => return Err(ReachError::Down(root_cause(&error))),
    };
    match answer.status() {
        status if status.is_success() => listed(spec, answer).await?,
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            return Err(ReachError::Key(format!("it rejects the key with status {status}")));
        }
        status => {
            let message = format!("/v1/models responded with status {status}");
            return Err(ReachError::Address(message));
        }
    }
    let probed = capabilities::probe(&client, &root, spec.engine, timeout).await;
    probed.map_err(|error| ReachError::Down(root_cause(&error)))
}

/// Checks that a server which refuses unknown names lists the model. Unreadable lists are accepted.
async fn listed(spec: &ServerSpec, answer: Response) -> Result<(), ReachError> {
    let refuses = server_api(spec.engine).refuses_unknown_models();
    let Some(name) = spec.server_model.as_deref().filter(|_| refuses) else { return Ok(()) };
    let Ok(body) = read_limited(answer, MODEL_LIST_BYTES).await else { return Ok(()) };
    let list: Value = serde_json::from_slice(&body).unwrap_or_default();
    let models = list["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names: Vec<&str> = models.iter().filter_map(|model| model["id"].as_str()).collect();
    if names.is_empty() || names.contains(&name) {
        return Ok(());
    }
    let hint = instead(name, names.into_iter());
    Err(ReachError::Model(format!("it has no model `{name}`: {hint}")))
}

fn root_cause(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

pub(crate) enum ReadError {
    Broken(reqwest::Error),
    TooLarge,
}

/// Returns the reason of a failed request without the address of the server, which clients do not
/// get to know.
pub(crate) fn failure_reason(error: reqwest::Error) -> String {
    rollway_base::error_chain(&error.without_url())
}

/// Returns whether a request failed because the process or the machine has no more file
/// descriptors.
pub(crate) fn lacks_descriptors(error: &(dyn Error + 'static)) -> bool {
    // ENFILE and EMFILE, on Linux and macOS.
    const CODES: [i32; 2] = [23, 24];
    let mut cause = Some(error);
    while let Some(error) = cause {
        let code = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        if code.is_some_and(|code| CODES.contains(&code)) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Reads a body of at most `limit` bytes.
pub(crate) async fn read_limited(mut response: Response, limit: usize) -> Result<Bytes, ReadError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(ReadError::Broken)? {
        if body.len() + chunk.len() > limit {
            return Err(ReadError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("no connection")]
    struct Unconnected(#[source] io::Error);

    #[test]
    fn a_lack_of_descriptors_is_no_failure_of_a_server() {
        let failed = |code| Unconnected(io::Error::from_raw_os_error(code));
        assert!(lacks_descriptors(&io::Error::from_raw_os_error(24)));
        assert!(lacks_descriptors(&failed(23)) && lacks_descriptors(&failed(24)));
        // Refused connections, which have a number too.
        assert!(!lacks_descriptors(&failed(111)) && !lacks_descriptors(&failed(61)));
    }
}
