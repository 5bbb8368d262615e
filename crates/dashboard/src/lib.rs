//! The dashboard: pages that show a job, served by the job itself or by `rollway view`.
//!
//! ```text
//! browser ─► auth (host, token, origin) ─► routes ─► JobView
//!    ▲                                       └─► assets (embedded, no build step)
//!    └── event_stream: merged changes, at most twice a second
//! ```
//!
//! Owns the HTTP server and the pages; both read a job through `rollway_telemetry::view` alone. All
//! requests need the token; it grants read access and cancel. `docs/dashboard.md` has the pages.

mod address_file;
mod assets;
mod auth;
mod event_stream;
mod job_dashboard;
mod json_response;
mod routes;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rollway_base::net::advertised_url;
use rollway_base::tls::TlsOptions;
use rollway_base::{Address, Secret};
use rollway_config::Config;
use rollway_config::secrets::api_key;
use rollway_net::{BoundListener, ListenerKind, ListenerLimits, ListenerOptions, RunningListener};
use rollway_telemetry::prometheus::PrometheusExporter;
use rollway_telemetry::view::JobView;
use tokio_util::sync::CancellationToken;

pub use self::address_file::{CARD, DashboardAddress};
use self::auth::DashboardAuth;
use self::event_stream::EventHub;
pub use self::job_dashboard::JobDashboard;

/// Time for open responses to end when the dashboard stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub struct DashboardOptions {
    /// `host:port`; port 0 means any free port.
    pub listen: String,
    pub limits: ListenerLimits,
    pub tls: TlsOptions,
    /// `None`: a random token.
    pub token: Option<Secret>,
    pub view: Arc<dyn JobView>,
    /// Served at `/metrics`, if present.
    pub metrics: Option<Arc<PrometheusExporter>>,
}

impl DashboardOptions {
    /// Returns the options of a configuration.
    ///
    /// # Errors
    /// If the token's variable is not set.
    pub fn new(config: &Config, view: Arc<dyn JobView>) -> Result<Self, DashboardError> {
        let variable = config.dashboard.token_env.as_deref();
        let token = api_key("dashboard.token_env", variable)
            .map_err(|problem| DashboardError::Token(problem.to_string()))?;
        let listen = config.dashboard.listen.clone();
        let limits = config.listeners.limits(ListenerKind::Dashboard);
        let tls = config.tls_options();
        Ok(Self { listen, limits, tls, token, view, metrics: None })
    }
}

impl fmt::Debug for DashboardOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listen, view, .. } = self;
        f.debug_struct("DashboardOptions").field("listen", listen).field("view", view).finish()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DashboardError {
    #[error("the dashboard cannot listen at {address}: {source}; {}", remedy(source))]
    Listen { address: String, source: io::Error },
    #[error("the dashboard has no token: {0}")]
    Token(String),
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "choose another port, or 0 for any free port (`dashboard.listen=127.0.0.1:0`)"
        }
        _ => "name an address of this machine as `host:port` (`dashboard.listen`)",
    }
}

/// A running dashboard. Dropping it stops the server.
#[derive(Debug)]
pub struct Dashboard {
    address: DashboardAddress,
    hub: Arc<EventHub>,
    listening: RunningListener,
    shutdown: CancellationToken,
}

impl Dashboard {
    /// Serves in the background until the result is dropped.
    ///
    /// # Errors
    /// If it cannot listen there, or cannot create a token.
    pub async fn open(options: DashboardOptions) -> Result<Self, DashboardError> {
        let failed = |source| DashboardError::Listen { address: options.listen.clone(), source };
        let bound = BoundListener::bind(&Address::Tcp(options.listen.clone())).await;
        let bound = bound.map_err(|error| failed(error.into()))?;
        let address = bound.tcp_address().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let tls = bound.identity(&options.tls).map_err(|error| failed(error.into()))?;
        let fingerprint = tls.as_ref().map(|tls| tls.fingerprint().to_string());
        let token = match options.token {
            Some(token) => token,
            None => {
                Secret::random_short().map_err(|error| DashboardError::Token(error.to_string()))?
            }
        };
        let shutdown = CancellationToken::new();
        let hub = EventHub::start(Arc::clone(&options.view), shutdown.clone());
        let auth = DashboardAuth::new(token.clone(), address, tls.is_some());
        let shared =
            routes::DashboardState::new(options.view, options.metrics, auth, Arc::clone(&hub));
        let defaults = ListenerOptions::new(ListenerKind::Dashboard, options.limits);
        let listener_options = ListenerOptions { tls, ..defaults };
        let routes = routes::router(shared);
        let listening = RunningListener::serve_shared(bound, listener_options, routes);
        let scheme = if fingerprint.is_some() { "https" } else { "http" };
        let url = advertised_url(&format!("{scheme}://{address}"));
        let (token, pid) = (token.reveal().to_owned(), std::process::id());
        let address = DashboardAddress { url, token, pid, fingerprint };
        Ok(Self { address, hub, listening, shutdown })
    }

    /// Returns the URL with the token.
    pub fn address(&self) -> String {
        self.address.address()
    }

    /// Returns the content of the address file.
    pub const fn card(&self) -> &DashboardAddress {
        &self.address
    }

    /// Number of pages that were dropped because they did not read.
    pub fn slow(&self) -> u64 {
        self.hub.slow()
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.shutdown.cancel();
        // Pages get the last events.
        self.listening.close_within(SHUTDOWN_TIMEOUT);
    }
}
