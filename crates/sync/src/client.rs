//! The HTTP client of processes that do not host the synchronizer.

use std::time::Duration;

use reqwest::Client;
use reqwest::header::HeaderMap;

/// Returns a client for the host at `url`: HTTP/1.1, no proxies, no redirects.
pub(super) fn http_client(
    url: &str,
    headers: HeaderMap,
    connect_timeout: Duration,
) -> reqwest::Result<Client> {
    // Fails if the process has a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .default_headers(headers)
        .no_proxy()
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(connect_timeout)
        .tcp_nodelay(true);
    if url.starts_with("http://") {
        // Loads no certificates: the machine may have none.
        builder = builder.tls_certs_only([]);
    }
    builder.build()
}
