//! The models behind the gateway: which servers there are, which of them can be used, and with
//! which version of the weights.
//!
//! `board` and `roll` decide: they know the state of every server, who waits, and which server is
//! updated next, and neither clocks nor sockets. `inner`, `watch`, `rolling` and `replace` do as
//! they say; `control` knows the words that each kind of server is looked after with.

mod connect;
mod control;
mod health_check;
mod options;
mod permit;
mod probe;
#[cfg(test)]
mod properties;
mod registry;
mod removal;
mod rolling_plan;
mod rolling_update;
mod routing;
mod server_update;
mod sessions;
mod view;
mod weight_update;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollway_base::Secret;
use rollway_base::ServerKind;
use rollway_model_api::{CallError, ErrorKind};
use tokio::sync::{Notify, oneshot};

pub use self::connect::http_client;
pub use self::options::RoutingOptions;
pub use self::permit::ServerPermit;
pub use self::probe::reach;
use self::registry::{ModelsInner, ServerHandle, ServerTable, WaitGuard};
pub use self::removal::RemovalReport;
use self::routing::{RouteOutcome, RouteRequest, RoutingRules, RoutingTable};
pub use self::view::{ModelView, ServerCounts, ServerState, ServerView};
pub use self::weight_update::{
    InFlightPolicy, ServerUpdateOutcome, ServerUpdateReport, WeightSource, WeightUpdate,
    WeightUpdateReport,
};

/// How long a server may take to abort a request.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Names a server for as long as the gateway lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(pub u64);

/// A server that is to be used.
#[derive(Clone, Debug)]
pub struct ServerSpec {
    /// The name that clients call the model by. Servers of the same name are the same model.
    pub model: String,
    /// Whether it is the model that is trained: the one that calls without a model's name reach,
    /// whose weights are updated, and whose answers are recorded. Others are judges and the like.
    pub trained: bool,
    pub engine: ServerKind,
    /// Its root, without `/v1`.
    pub url: String,
    /// What it wants to be shown.
    pub api_key: Option<Secret>,
    /// The name that the server knows its model by; none to ask it.
    pub server_model: Option<String>,
}

/// A server, and the connections to it.
#[derive(Debug)]
pub struct RegisteredServer {
    /// Its name here.
    pub id: ServerId,
    /// What was said of it.
    pub spec: ServerSpec,
    /// Connections to it.
    pub client: reqwest::Client,
}

/// What a call needs of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteNeeds<'a> {
    /// The name of the model; none means the one that is trained.
    pub model: Option<&'a str>,
    /// Calls of the same session go to the same server, for its prefix cache, unless that one is
    /// much busier than others.
    pub session: Option<u64>,
    /// Servers that have failed this call already.
    pub avoid: &'a [ServerId],
}

/// All servers. Clones are the same. Servers are watched for as long as a clone or a lease lives.
#[derive(Clone, Debug)]
pub struct Models {
    inner: Arc<ModelsInner>,
}

impl Models {
    /// Returns a set without servers.
    pub fn new(options: RoutingOptions) -> Self {
        let board = RoutingTable::new(RoutingRules {
            max_in_flight: options.max_in_flight.max(1),
            max_failures: options.max_failures.max(1),
            max_sessions: options.max_sessions,
            lead: options.lead,
        });
        let (handles, waiting) = (HashMap::new(), HashMap::new());
        let (wanted, latest) = (Vec::new(), None);
        let table = Mutex::new(ServerTable { board, handles, waiting, next_id: 0, wanted, latest });
        let (changed, updating) = (Notify::new(), tokio::sync::Mutex::new(()));
        Self { inner: Arc::new(ModelsInner { options, table, changed, updating }) }
    }

    /// Adds a server; it is used once it has said that it is well. Must be called where Tokio runs.
    pub fn add(&self, mut spec: ServerSpec) -> Result<ServerId, CallError> {
        spec.url = connect::root(&spec)?;
        let client = connect::client(&spec, &spec.url, self.inner.options.connect_timeout)?;
        let handle = self.inner.with(|table| table.add(spec, client))?;
        let id = handle.server.id;
        tokio::spawn(health_check::watch(Arc::downgrade(&self.inner), handle));
        Ok(id)
    }

    /// Waits for a place at the best server, for [`RoutingOptions::max_wait`] at most.
    pub async fn pick(&self, wanted: RouteNeeds<'_>) -> Result<ServerPermit, CallError> {
        let inner = &self.inner;
        let want = RouteRequest { session: wanted.session, avoid: wanted.avoid.to_vec() };
        let (waiting, receiver) = {
            let mut table = inner.lock();
            let Some(model) = table.board.model(wanted.model) else {
                return Err(table.unknown(wanted.model));
            };
            match table.board.route(model, want) {
                RouteOutcome::Placed(server) => return Ok(inner.lease(&table, server)),
                RouteOutcome::Waits(ticket) => {
                    let (sender, receiver) = oneshot::channel();
                    table.waiting.insert(ticket, sender);
                    (WaitGuard { inner, ticket }, receiver)
                }
            }
        };
        let waited = tokio::time::timeout(inner.options.max_wait, receiver).await;
        drop(waiting);
        match waited {
            Ok(Ok(lease)) => Ok(lease),
            Ok(Err(_)) | Err(_) => Err(inner.unavailable(wanted.model)),
        }
    }

    /// Whether calls of this name reach the model that is trained; calls without a name do.
    pub fn is_trained(&self, name: Option<&str>) -> bool {
        self.inner.with(|table| {
            let number = table.board.model(name);
            let mut models = table.board.models();
            models.any(|(model, _, trained, _)| trained && number == Some(model))
        })
    }

    /// Gives the servers of the trained model new weights, one after the other, so that at least
    /// [`RoutingOptions::min_running`] of them stay usable if there are more; calls wait while
    /// there are fewer. Every server is asked afterwards which version it has. Goes on to the end
    /// even if nobody waits for it. Updates come one after the other; one that waits is dropped if
    /// a newer one is asked for.
    pub async fn update(&self, update: WeightUpdate) -> WeightUpdateReport {
        let version = update.version;
        let task = tokio::spawn(rolling_update::update(Arc::clone(&self.inner), update));
        // It ends early only with the runtime.
        task.await.unwrap_or(WeightUpdateReport {
            version,
            superseded_by: None,
            servers: Vec::new(),
        })
    }

    /// Takes out a server: it gets no new requests, finishes what it has until the deadline, and
    /// then what is left is aborted. Goes on to the end even if nobody waits for it.
    pub async fn remove(
        &self,
        id: ServerId,
        deadline: Duration,
    ) -> Result<RemovalReport, CallError> {
        removal::remove(&self.inner, id, deadline).await
    }

    /// How many sessions are remembered, and how many were forgotten for want of room.
    pub fn sessions(&self) -> (usize, u64) {
        self.inner.with(|table| (table.board.sessions.len(), table.board.sessions.forgotten()))
    }

    /// Returns what can be seen of all models.
    pub fn view(&self) -> Vec<ModelView> {
        let now = Instant::now();
        self.inner.with(|table| {
            let models = table.board.models();
            let view = models.map(|(number, name, trained, waiting)| {
                let seats = table.board.seats(number);
                let servers = seats
                    .filter_map(|(id, seat)| Some(table.handles.get(&id)?.view(seat, now)))
                    .collect();
                ModelView { name: name.to_owned(), trained, waiting, servers }
            });
            view.collect()
        })
    }
}

impl RegisteredServer {
    /// Aborts a request in the server by the id that it was sent with. Dropping the connection must
    /// come with it: some servers know no other way.
    pub async fn abort(&self, request_id: &str) -> Result<(), CallError> {
        let done = control::abort(self, request_id, ABORT_TIMEOUT).await;
        done.map_err(|error| CallError::new(ErrorKind::Upstream, error.message))
    }
}
