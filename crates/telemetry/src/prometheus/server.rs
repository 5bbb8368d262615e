//! HTTP server for the metrics of a job alone: `monitor.prometheus`.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rollway_base::Address;
use rollway_base::net::{host_of, is_loopback};
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
        let mut routes = Router::new().route("/metrics", get(show)).with_state(exporter);
        if bound.tcp_address().is_some_and(|address| address.ip().is_loopback()) {
            routes = routes.layer(middleware::from_fn(host_check));
        }
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

/// Refuses names of this machine that another site could have made up (DNS rebinding).
async fn host_check(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if is_loopback(host_of(host)) {
        return next.run(request).await;
    }
    let message = "host refused: these metrics are for `localhost` and `127.0.0.1` only\n";
    (StatusCode::FORBIDDEN, message).into_response()
}
