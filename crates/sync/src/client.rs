//! The HTTP client of processes that do not host the synchronizer.

use std::error::Error;
use std::time::Duration;

use reqwest::Client;
use reqwest::header::HeaderMap;
use rollway_base::Fingerprint;
use rollway_net::tls::client_config;

/// Returns a client for the host at `url`: HTTP/1.1, no proxies, no redirects. With a fingerprint
/// it accepts this certificate alone.
pub(super) fn http_client(
    url: &str,
    fingerprint: Option<Fingerprint>,
    headers: HeaderMap,
    connect_timeout: Duration,
) -> Result<Client, Box<dyn Error>> {
    // Fails if the process has a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .default_headers(headers)
        .no_proxy()
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(connect_timeout)
        .tcp_nodelay(true);
    if let Some(fingerprint) = fingerprint {
        builder = builder.tls_backend_preconfigured(client_config(fingerprint)?);
    } else if url.starts_with("http://") {
        // Loads no certificates: the machine may have none.
        builder = builder.tls_certs_only([]);
    }
    Ok(builder.build()?)
}
