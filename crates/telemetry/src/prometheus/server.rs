//! HTTP server for the metrics of a job alone: `monitor.prometheus`.

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

#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics at {address}: {source}")]
pub struct MetricsServerError {
    pub address: String,
    pub source: io::Error,
}

impl MetricsServer {
    /// Listens at `host:port`; port 0 means any free port.
    ///
    /// # Errors
    /// If it cannot listen there.
    pub async fn start(
        address: &str,
        exporter: Arc<PrometheusExporter>,
    ) -> Result<Self, MetricsServerError> {
        let failed = |source| MetricsServerError { address: address.to_owned(), source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let routes = Router::new().route("/metrics", get(show)).with_state(exporter);
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::warn!(%error, "metrics server stopped");
            }
        });
        Ok(Self { address, task })
    }

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
    State(exporter): State<Arc<PrometheusExporter>>,
    headers: HeaderMap,
) -> impl IntoResponse {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let form = ExpositionFormat::accepted(accept);
    ([(CONTENT_TYPE, form.content_type())], exporter.render(form).await)
}
