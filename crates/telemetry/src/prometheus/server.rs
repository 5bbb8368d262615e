//! HTTP server for the metrics of a job alone: `monitor.prometheus`.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;
use rollway_base::Address;
use rollway_base::tls::TlsOptions;
use rollway_net::{BoundListener, ListenerKind, ListenerLimits, ListenerOptions, RunningListener};

use super::{ExpositionFormat, PrometheusExporter};

/// Serves metrics until it is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    listening: RunningListener,
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
        limits: ListenerLimits,
        tls: &TlsOptions,
        exporter: Arc<PrometheusExporter>,
    ) -> Result<Self, MetricsServerError> {
        let bound = BoundListener::bind(&Address::Tcp(address.to_owned())).await;
        let failed = |source| MetricsServerError { address: address.to_owned(), source };
        let bound = bound.map_err(|error| failed(error.into()))?;
        let tls = bound.identity(tls).map_err(|error| failed(error.into()))?;
        let routes = Router::new().route("/metrics", get(show)).with_state(exporter);
        let options =
            ListenerOptions { tls, ..ListenerOptions::new(ListenerKind::Metrics, limits) };
        Ok(Self { listening: RunningListener::serve_shared(bound, options, routes) })
    }

    /// Returns the URL of the metrics, with the port that the system chose.
    pub fn url(&self) -> String {
        let address = self.listening.address();
        let scheme = if address.fingerprint().is_some() { "https" } else { "http" };
        format!("{scheme}://{}/metrics", address.host_port().unwrap_or_default())
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
