//! The dashboard: pages that show a job, served by the job itself or by `rollway view`.
//!
//! ```text
//! browser ─► auth (host, token, origin) ─► routes ─► JobView
//!    ▲                                       └─► assets (embedded, no build step)
//!    └── event_stream: what changed, put together, twice a second at most
//! ```
//!
//! Owns the HTTP server and the pages; both read a job through `rollway_telemetry::view` alone, and
//! know nothing of explorers and trainers. All requests need the token; it grants read access and
//! cancel. `docs/dashboard.md` describes the pages.

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

use axum::serve::ListenerExt as _;
use rollway_base::Secret;
use rollway_base::net::advertised_url;
use rollway_config::Config;
use rollway_config::secrets::api_key;
use rollway_telemetry::prometheus::PrometheusExporter;
use rollway_telemetry::view::JobView;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use self::address_file::{CARD, DashboardAddress};
use self::auth::DashboardAuth;
use self::event_stream::EventHub;
pub use self::job_dashboard::JobDashboard;

/// Where the dashboard is, and what it shows.
#[derive(Clone)]
pub struct DashboardOptions {
    /// Where, as `host:port`; port 0 means any that is free.
    pub listen: String,
    /// What opens it; absent: a new token.
    pub token: Option<Secret>,
    /// What is looked at.
    pub scene: Arc<dyn JobView>,
    /// What `/metrics` says; absent: there is no such page.
    pub metrics: Option<Arc<PrometheusExporter>>,
}

impl DashboardOptions {
    /// Returns the options of a configuration.
    ///
    /// # Errors
    /// The token's variable is not set.
    pub fn new(config: &Config, scene: Arc<dyn JobView>) -> Result<Self, DashboardError> {
        let variable = config.dashboard.token_env.as_deref();
        let token = api_key("dashboard.token_env", variable)
            .map_err(|problem| DashboardError::Token(problem.to_string()))?;
        Ok(Self { listen: config.dashboard.listen.clone(), token, scene, metrics: None })
    }
}

impl fmt::Debug for DashboardOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listen, scene, .. } = self;
        f.debug_struct("Options").field("listen", listen).field("scene", scene).finish()
    }
}

/// Why there is no dashboard.
#[derive(Debug, thiserror::Error)]
pub enum DashboardError {
    /// Nobody can listen there.
    #[error("the dashboard cannot listen at {address}: {source}; {}", remedy(source))]
    Listen {
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// There is no token.
    #[error("the dashboard has no token: {0}")]
    Token(String),
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "somebody else does: name another port, or 0 for any that is free \
             (`dashboard.listen=127.0.0.1:0`)"
        }
        _ => "name an address of this machine as `host:port` (`dashboard.listen`)",
    }
}

/// A dashboard that is served. It ends when this is dropped.
#[derive(Debug)]
pub struct Dashboard {
    card: DashboardAddress,
    hub: Arc<EventHub>,
    over: CancellationToken,
}

impl Dashboard {
    /// Serves in the background until the result is dropped.
    ///
    /// # Errors
    /// Nobody can listen there, or no token can be made.
    pub async fn open(options: DashboardOptions) -> Result<Self, DashboardError> {
        let unheard = |source| DashboardError::Listen { address: options.listen.clone(), source };
        let listener = TcpListener::bind(&options.listen).await.map_err(unheard)?;
        let address = listener.local_addr().map_err(unheard)?;
        let token = match options.token {
            Some(token) => token,
            None => Secret::random().map_err(|error| DashboardError::Token(error.to_string()))?,
        };
        let over = CancellationToken::new();
        let hub = EventHub::start(Arc::clone(&options.scene), over.clone());
        let guard = DashboardAuth::new(token.clone(), address);
        let shared =
            routes::DashboardState::new(options.scene, options.metrics, guard, Arc::clone(&hub));
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        let serving = axum::serve(listener, routes::router(shared))
            .with_graceful_shutdown(over.clone().cancelled_owned());
        tokio::spawn(async move {
            // It never fails: what goes wrong with a connection is seen at its other end.
            let _ = serving.await;
        });
        let url = advertised_url(&format!("http://{address}"));
        let card =
            DashboardAddress { url, token: token.reveal().to_owned(), pid: std::process::id() };
        Ok(Self { card, hub, over })
    }

    /// Where it is, with the token that opens it: what is printed for a person.
    pub fn address(&self) -> String {
        self.card.address()
    }

    /// What others on this machine need to find it.
    pub const fn card(&self) -> &DashboardAddress {
        &self.card
    }

    /// How many who followed the changes were let go because they did not listen.
    pub fn slow(&self) -> u64 {
        self.hub.slow()
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.over.cancel();
    }
}
