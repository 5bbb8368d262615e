//! Models and their servers: health checks, routing and weight updates.
//!
//! `routing`, `concurrency` and `rolling_plan` decide, without clock or I/O. `registry`,
//! `health_check`, `load_watch`, `rolling_update` and `server_update` execute; `control` sends the
//! control requests of a server kind, `capabilities` knows which of them a server has.

mod capabilities;
mod concurrency;
mod connect;
mod control;
mod health_check;
mod load_watch;
mod options;
#[cfg(test)]
mod properties;
mod registry;
mod removal;
mod restart;
mod rolling_plan;
mod rolling_update;
mod routing;
mod server_update;
mod version_check;
mod view;
mod weight_update;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollway_base::{Secret, ServerKind};
use rollway_model_api::CallError;
use tokio::sync::{Notify, oneshot};

pub use self::capabilities::ServerCapabilities;
pub use self::connect::{ReachError, http_client, pinned_client, reach};
pub(crate) use self::connect::{failure_reason, lacks_descriptors, read_limited};
pub use self::options::RoutingOptions;
pub use self::registry::ServerPermit;
use self::registry::{ModelsInner, ServerHandle, ServerTable, WaitGuard};
pub use self::removal::RemovalReport;
pub use self::restart::RestartHook;
use self::routing::{RouteOutcome, RouteRequest, RoutingTable};
pub use self::view::{ModelView, ServerCounts, ServerError, ServerState, ServerView};
pub use self::weight_update::{
    InFlightPolicy, ServerUpdateOutcome, ServerUpdateReport, WeightSource, WeightUpdate,
    WeightUpdateReport,
};

/// Id of a server, unique in a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(pub u64);

/// Description of a server.
#[derive(Clone, Debug)]
pub struct ServerSpec {
    /// Name for clients. Servers of the same name serve the same model.
    pub model: String,
    /// True if it is the trained model: the default of calls without a model name, updated and
    /// recorded. Other models are auxiliary.
    pub trained: bool,
    pub engine: ServerKind,
    /// Root URL, without `/v1`.
    pub url: String,
    pub api_key: Option<Secret>,
    /// The server's name of its model. `None`: asked from the server.
    pub server_model: Option<String>,
}

impl ServerSpec {
    /// Returns a server without an API key, which is asked for the name of its model.
    pub fn new(model: impl Into<String>, trained: bool, engine: ServerKind, url: String) -> Self {
        Self { model: model.into(), trained, engine, url, api_key: None, server_model: None }
    }
}

#[derive(Debug)]
pub struct RegisteredServer {
    pub id: ServerId,
    pub spec: ServerSpec,
    pub client: reqwest::Client,
    /// Client of requests that change the server, with a connection for each.
    control: reqwest::Client,
}

/// Requirements of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteNeeds<'a> {
    /// `None`: the trained model.
    pub model: Option<&'a str>,
    /// Calls of a session go to the same server for its prefix cache, unless it is much busier than
    /// others.
    pub session: Option<u64>,
    /// Servers that have failed this call.
    pub avoid: &'a [ServerId],
}

/// All servers. Cheap to clone; clones share state. Servers are checked while a clone or a permit
/// exists.
#[derive(Clone, Debug)]
pub struct Models {
    inner: Arc<ModelsInner>,
}

impl Models {
    pub fn new(options: RoutingOptions) -> Self {
        let routing = RoutingTable::new(options.clone());
        let (handles, waiting) = (HashMap::new(), HashMap::new());
        let (wanted, latest, sent) = (Vec::new(), None, None);
        let table =
            Mutex::new(ServerTable { routing, handles, waiting, next_id: 0, wanted, latest, sent });
        let (changed, updating) = (Notify::new(), tokio::sync::Mutex::new(()));
        Self { inner: Arc::new(ModelsInner { options, table, changed, updating }) }
    }

    /// Adds a server, which is used after its first successful health check. Needs a Tokio runtime.
    pub fn add(&self, mut spec: ServerSpec) -> Result<ServerId, CallError> {
        spec.url = connect::root(&spec)?;
        let client = connect::client(&spec, &spec.url, self.inner.options.connect_timeout)?;
        let control =
            connect::control_client(&spec, &spec.url, self.inner.options.connect_timeout)?;
        let handle = self.inner.with(|table| table.add(spec, client, control))?;
        let id = handle.server.id;
        tokio::spawn(load_watch::watch(Arc::downgrade(&self.inner), Arc::clone(&handle)));
        tokio::spawn(health_check::watch(Arc::downgrade(&self.inner), handle));
        Ok(id)
    }

    /// Waits for a permit of the best server, at most [`RoutingOptions::max_wait`]. While a weight
    /// update of the model is in progress, or a healthy server is full only by its reported load,
    /// the wait goes on. Servers that were never reached get this time once; later calls fail after
    /// a second.
    pub async fn pick(&self, wanted: RouteNeeds<'_>) -> Result<ServerPermit, CallError> {
        let inner = &self.inner;
        let want = RouteRequest { session: wanted.session, avoid: wanted.avoid.to_vec() };
        let (waiting, mut receiver) = {
            let mut table = inner.lock();
            let Some(model) = table.routing.model(wanted.model) else {
                return Err(table.unknown(wanted.model));
            };
            match table.routing.route(model, want) {
                RouteOutcome::Placed(server) => return Ok(inner.permit(&table, server)),
                RouteOutcome::Waits(waiter) => {
                    let (sender, receiver) = oneshot::channel();
                    table.waiting.insert(waiter, sender);
                    (WaitGuard { inner, waiter }, receiver)
                }
            }
        };
        let max_wait = inner.max_wait(wanted.model);
        let waited = loop {
            let waited = tokio::time::timeout(max_wait, &mut receiver).await;
            if waited.is_ok() || !inner.will_have_room(wanted.model) {
                break waited;
            }
        };
        drop(waiting);
        match waited {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(inner.unavailable(wanted.model, max_wait)),
        }
    }

    /// Returns whether calls with this model name reach the trained model.
    pub fn is_trained(&self, name: Option<&str>) -> bool {
        self.inner.with(|table| {
            let number = table.routing.model(name);
            let mut models = table.routing.models();
            models.any(|(model, _, trained, _)| trained && number == Some(model))
        })
    }

    /// Updates the weights of the trained model, server by server, so that at least
    /// [`RoutingOptions::min_running`] servers stay usable if there are more. The version of every
    /// server is read back. The update is completed even if the caller stops waiting. A waiting
    /// update is dropped when a newer one is requested.
    pub async fn update(&self, update: WeightUpdate) -> WeightUpdateReport {
        let version = update.version;
        let task = tokio::spawn(rolling_update::update(Arc::clone(&self.inner), update));
        // The task ends early only with the runtime.
        task.await.unwrap_or_else(|_| WeightUpdateReport { version, ..Default::default() })
    }

    /// Removes a server: it gets no new requests, and those in flight are aborted at the deadline.
    /// Completed even if the caller stops waiting.
    pub async fn remove(
        &self,
        id: ServerId,
        deadline: Duration,
    ) -> Result<RemovalReport, CallError> {
        removal::remove(&self.inner, id, deadline).await
    }

    /// Runs the restart command of a server now. Refused without a command, or while it runs.
    pub fn restart(&self, id: ServerId) -> Result<(), CallError> {
        restart::request(&self.inner, id)
    }

    pub fn view(&self) -> Vec<ModelView> {
        let now = Instant::now();
        self.inner.with(|table| {
            let models = table.routing.models();
            let view = models.map(|(number, name, trained, waiting)| {
                let slots = table.routing.slots(number);
                let servers = slots
                    .filter_map(|(id, slot)| Some(table.handles.get(&id)?.view(slot, now)))
                    .collect();
                ModelView { name: name.to_owned(), trained, waiting, servers }
            });
            view.collect()
        })
    }
}
