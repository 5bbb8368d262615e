//! Whether a server is described well, and the connections to it.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Client, Url};
use rollway_model_api::{CallError, ErrorKind};

use super::ServerSpec;

/// How many connections to one server are kept open while nobody uses them.
const IDLE_CONNECTIONS: usize = 8192;
/// How long they are kept. Shorter than the keep-alive of common servers would be safest, but some
/// close after 5 seconds; a request that meets a closed connection is sent again by the client.
const IDLE_TIME: Duration = Duration::from_secs(30);

/// The longest name of a model, in bytes.
const NAME_BYTES: usize = 256;
/// The longest URL, in bytes.
const URL_BYTES: usize = 2048;

/// Checks what was said of a server, and returns its root in the form that everything is appended
/// to: without a slash at the end.
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
    let wrong = |why: &str| {
        Err(CallError::new(
            ErrorKind::InvalidRequest,
            format!("server {:?} of model {:?}: {why}", spec.url, spec.model),
        ))
    };
    if spec.model.trim().is_empty() {
        return wrong("the model has no name: say what clients are to call it by");
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
        return wrong("a URL is no place for a password: use `api_key`");
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

/// Returns the connections to a server: HTTP/1.1, as many at once as there are requests, straight
/// to it whatever proxies the environment names, and without a limit in time on whole requests.
pub(super) fn client(
    spec: &ServerSpec,
    root: &str,
    connect_timeout: Duration,
) -> Result<Client, CallError> {
    let wrong = |why: String| {
        let message = format!("server {root} of model {:?}: {why}", spec.model);
        CallError::new(ErrorKind::InvalidRequest, message)
    };
    let mut headers = HeaderMap::new();
    if let Some(key) = &spec.api_key {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", key.reveal()))
            .map_err(|_| wrong("`api_key` has letters that no header can carry".to_owned()))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    http_client(root, headers, connect_timeout)
        .map_err(|error| wrong(format!("cannot prepare connections: {error}")))
}

/// Returns connections of that kind to whoever is at an address, with these headers.
pub fn http_client(
    root: &str,
    headers: HeaderMap,
    connect_timeout: Duration,
) -> reqwest::Result<Client> {
    // If there is one already, it serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .default_headers(headers)
        .no_proxy()
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(connect_timeout)
        .tcp_nodelay(true)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .pool_idle_timeout(IDLE_TIME);
    if root.starts_with("http://") {
        // No certificates are needed, so none are looked for: there may be none on this machine.
        builder = builder.tls_certs_only([]);
    }
    builder.build()
}
