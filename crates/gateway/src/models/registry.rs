//! What all clones of the models share, and what happens to it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use rollway_model_api::{CallError, ErrorKind};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::routing::{Health, RoutingTable, ServerSlot, WaiterId};
use super::{
    RegisteredServer, RoutingOptions, ServerId, ServerPermit, ServerSpec, ServerState, ServerView,
    WeightUpdate, health_check, rolling_update,
};

#[derive(Debug)]
pub(super) struct ModelsInner {
    pub(super) options: RoutingOptions,
    /// Never locked across an await.
    pub(super) table: Mutex<ServerTable>,
    /// Tells that servers have become usable, or an update has ended.
    pub(super) changed: Notify,
    /// Updates come one after the other.
    pub(super) updating: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
pub(super) struct ServerTable {
    pub(super) board: RoutingTable,
    pub(super) handles: HashMap<ServerId, Arc<ServerHandle>>,
    pub(super) waiting: HashMap<WaiterId, oneshot::Sender<ServerPermit>>,
    pub(super) next_id: u64,
    /// The versions that wait for their update.
    pub(super) wanted: Vec<u64>,
    /// What servers that come late, or back, are brought up to.
    pub(super) latest: Option<WeightUpdate>,
}

/// What belongs to one server, besides its seat on the board.
#[derive(Debug)]
pub(super) struct ServerHandle {
    pub(super) server: Arc<RegisteredServer>,
    /// Counts the replacements of the weights: requests of an earlier number cannot tell any more
    /// which weights a token comes from.
    pub(super) weights: AtomicU64,
    /// Counts the beginnings and ends of updates: what a server said of its version across one of
    /// them counts no more.
    pub(super) said: AtomicU64,
    /// Asks for a check right now.
    pub(super) check_now: Notify,
    /// Tells that the last request has ended.
    pub(super) is_empty: Notify,
    /// The server is removed.
    pub(super) gone: CancellationToken,
    pub(super) told: Mutex<ServerInfo>,
}

/// What changes about a server, besides its seat.
#[derive(Debug)]
pub(super) struct ServerInfo {
    pub(super) server_model: Option<Arc<str>>,
    pub(super) last_seen: Option<Instant>,
    /// Where its weights were loaded from, if we know.
    pub(super) weights: Option<String>,
    /// Ends what is under way.
    pub(super) abort: CancellationToken,
}

/// Whoever waits, for as long as it does.
pub(super) struct WaitGuard<'a> {
    pub(super) inner: &'a ModelsInner,
    pub(super) ticket: WaiterId,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.inner.with(|table| {
            table.board.leave(self.ticket);
            table.waiting.remove(&self.ticket)
        });
    }
}

/// How many servers there may be: each is watched, and looked at for every call.
const MAX_SERVERS: usize = 1024;

impl ServerTable {
    pub(super) fn add(
        &mut self,
        spec: ServerSpec,
        client: reqwest::Client,
    ) -> Result<Arc<ServerHandle>, CallError> {
        let same = |handle: &Arc<ServerHandle>| {
            handle.server.spec.url == spec.url && handle.server.spec.model == spec.model
        };
        let wrong = |why: String| CallError::new(ErrorKind::InvalidRequest, why);
        if self.handles.values().any(same) {
            let message = format!("model {:?} has the server {} already", spec.model, spec.url);
            return Err(wrong(message));
        }
        if self.handles.len() >= MAX_SERVERS {
            let message = format!("there are {MAX_SERVERS} servers, which is the limit");
            return Err(wrong(message));
        }
        self.next_id += 1;
        let id = ServerId(self.next_id);
        self.board.add(id, &spec.model, spec.trained).map_err(wrong)?;
        let server = Arc::new(RegisteredServer { id, spec, client });
        let abort = CancellationToken::new();
        let told = ServerInfo { server_model: None, last_seen: None, weights: None, abort };
        let handle = Arc::new(ServerHandle {
            server,
            weights: AtomicU64::new(0),
            said: AtomicU64::new(0),
            check_now: Notify::new(),
            is_empty: Notify::new(),
            gone: CancellationToken::new(),
            told: Mutex::new(told),
        });
        self.handles.insert(id, Arc::clone(&handle));
        Ok(handle)
    }

    pub(super) fn unknown(&self, name: Option<&str>) -> CallError {
        let known: Vec<_> = self.board.models().map(|(_, name, ..)| format!("{name:?}")).collect();
        let known = known.join(", ");
        match name {
            _ if known.is_empty() => {
                let message = "the gateway has no models: add a server of one";
                CallError::new(ErrorKind::Unavailable, message)
            }
            Some(name) => {
                let message = format!("there is no model {name:?}; there are {known}");
                CallError::new(ErrorKind::NotFound, message).at("model")
            }
            None => {
                let message = format!("no model is being trained: name one of {known}");
                CallError::new(ErrorKind::NotFound, message).at("model")
            }
        }
    }
}

impl ModelsInner {
    pub(super) fn lock(&self) -> MutexGuard<'_, ServerTable> {
        self.table.lock()
    }

    pub(super) fn with<T>(&self, f: impl FnOnce(&mut ServerTable) -> T) -> T {
        f(&mut self.lock())
    }

    /// Changes something by which places may have become free, and gives those to whoever waits.
    pub(super) fn change<T>(self: &Arc<Self>, f: impl FnOnce(&mut ServerTable) -> T) -> T {
        let mut table = self.lock();
        let result = f(&mut table);
        let mut served = Vec::new();
        for placed in table.board.serve() {
            let lease = self.lease(&table, placed.server);
            served.push((table.waiting.remove(&placed.ticket), lease));
        }
        drop(table);
        for (sender, lease) in served {
            // Whoever has stopped waiting drops the lease, which gives the place to the next.
            let _ = sender.map(|sender| sender.send(lease));
        }
        result
    }

    /// Makes a lease of a place that the board has given. It must not be dropped while the table
    /// is locked.
    pub(super) fn lease(self: &Arc<Self>, table: &ServerTable, server: ServerId) -> ServerPermit {
        let Some(handle) = table.handles.get(&server) else {
            unreachable!("every server on the board has a handle")
        };
        let version = table.board.seat(server).and_then(|seat| seat.version);
        let told = handle.info();
        let server_model = told.server_model.clone().unwrap_or_else(|| "".into());
        ServerPermit {
            inner: Arc::clone(self),
            handle: Arc::clone(handle),
            server_model,
            version,
            weights: handle.weights.load(Ordering::Acquire),
            aborted: told.abort.clone(),
        }
    }

    pub(super) fn give_back(self: &Arc<Self>, handle: &ServerHandle) {
        let id = handle.server.id;
        let left = self.change(|table| {
            table.board.give_back(id);
            table.board.seat(id).map_or(0, |seat| seat.in_flight)
        });
        if left == 0 {
            handle.is_empty.notify_waiters();
        }
    }

    pub(super) fn went_wrong(&self, handle: &ServerHandle, why: &str, is_unreached: bool) {
        let id = handle.server.id;
        let is_lost = self.with(|table| table.board.went_wrong(id, why, is_unreached));
        if is_lost {
            let RegisteredServer { spec, .. } = &*handle.server;
            tracing::warn!(model = spec.model, url = spec.url, why, "server is not used any more");
        }
        // One that was reached is not asked at once: it would say that it is well, be used again,
        // and fail the next request.
        if is_unreached {
            handle.check_now.notify_one();
        }
    }

    /// A server is well; what it says of itself, if it was asked.
    pub(super) fn passed(
        self: &Arc<Self>,
        handle: &ServerHandle,
        said: Option<health_check::HealthReply>,
        said_before: u64,
    ) {
        let id = handle.server.id;
        handle.seen();
        let version = said.as_ref().and_then(|said| said.version);
        if let Some(said) = said {
            let mut told = handle.info();
            told.server_model = Some(said.model.name.into());
            // Later it says the same, whatever it was told to load since.
            if said.version == Some(0) {
                told.weights = said.model.root;
            }
        }
        let is_back = self.change(|table| {
            if let Some(version) = version
                && handle.said.load(Ordering::Acquire) == said_before
            {
                table.board.told_version(id, version);
            }
            table.board.check_passed(id)
        });
        if is_back {
            let RegisteredServer { spec, .. } = &*handle.server;
            tracing::info!(model = spec.model, url = spec.url, version, "server is well");
            self.changed.notify_waiters();
            rolling_update::catch_up(self, handle);
        }
    }

    pub(super) fn failed(&self, handle: &ServerHandle, why: &str, is_gone: bool) {
        let id = handle.server.id;
        if self.with(|table| table.board.check_failed(id, why, is_gone)) {
            let RegisteredServer { spec, .. } = &*handle.server;
            tracing::warn!(model = spec.model, url = spec.url, why, "server is not used any more");
        }
    }

    /// Says why nobody can be served, server by server.
    pub(super) fn unavailable(&self, name: Option<&str>) -> CallError {
        let table = self.lock();
        let Some(number) = table.board.model(name) else { return table.unknown(name) };
        let name = table.board.models().find(|(n, ..)| *n == number).map_or("", |(_, n, ..)| n);
        let mut reasons = Vec::new();
        for (id, seat) in table.board.seats(number) {
            let url = table.handles.get(&id).map_or("", |handle| &handle.server.spec.url);
            let state = match ServerState::of(seat) {
                ServerState::Running => format!("busy with {} requests", seat.in_flight),
                state => state.to_string(),
            };
            reasons.push(format!("{url} is {state}"));
        }
        if reasons.is_empty() {
            reasons.push("it has no servers any more".to_owned());
        }
        let message = format!(
            "no server of model {name:?} could take the call within {} s: {}",
            self.options.max_wait.as_secs_f64(),
            reasons.join("; ")
        );
        CallError::new(ErrorKind::Unavailable, message).retry_after(1)
    }
}

impl Drop for ModelsInner {
    fn drop(&mut self) {
        for handle in self.lock().handles.values() {
            handle.gone.cancel();
        }
    }
}

impl ServerHandle {
    pub(super) fn info(&self) -> MutexGuard<'_, ServerInfo> {
        self.told.lock()
    }

    /// The server was heard of.
    pub(super) fn seen(&self) {
        self.info().last_seen = Some(Instant::now());
    }

    pub(super) fn view(&self, seat: &ServerSlot, now: Instant) -> ServerView {
        let told = self.info();
        ServerView {
            id: self.server.id,
            engine: self.server.spec.engine,
            url: self.server.spec.url.clone(),
            server_model: told.server_model.as_deref().map(str::to_owned),
            state: ServerState::of(seat),
            in_flight: seat.in_flight,
            version: seat.version,
            failures: seat.failures,
            last_seen: told.last_seen.map(|seen| now.duration_since(seen)),
            counts: seat.counts,
        }
    }
}

/// Whether a server need not be asked again who it is.
pub(super) fn is_known(seat: &ServerSlot) -> bool {
    seat.health == Health::Healthy && !seat.is_doubtful
}
