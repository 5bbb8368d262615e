//! An address at which nothing is served but the metrics of a job: `monitor.prometheus`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::{ExpositionFormat, PrometheusExporter};

/// Serves metrics until it is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

/// Why metrics are not served.
#[derive(Debug, thiserror::Error)]
#[error("metrics cannot be served at {address}: {source}")]
pub struct MetricsServerError {
    pub address: String,
    /// Why not.
    pub source: io::Error,
}

impl MetricsServer {
    /// Begins to serve at an address, as `host:port`; port 0 means any that is free.
    ///
    /// # Errors
    /// If the address cannot be listened at.
    pub async fn start(
        address: &str,
        meters: Arc<PrometheusExporter>,
    ) -> Result<Self, MetricsServerError> {
        let failed = |source| MetricsServerError { address: address.to_owned(), source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let routes = Router::new().route("/metrics", get(show)).with_state(meters);
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::warn!(%error, "metrics are no longer served");
            }
        });
        Ok(Self { address, task })
    }

    /// Where it is.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn show(
    State(meters): State<Arc<PrometheusExporter>>,
    headers: HeaderMap,
) -> impl IntoResponse {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let form = ExpositionFormat::accepted(accept);
    ([(CONTENT_TYPE, form.content_type())], meters.render(form).await)
}
