//! State shared by all clones of the models, and its changes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Mutex, MutexGuard};
use rollway_model_api::server_api::PauseMode;
use rollway_model_api::{CallError, ErrorKind};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::capabilities::ServerCapabilities;
use super::control::{ServerIdentity, ServerVersion};
use super::restart::RestartState;
use super::routing::{Health, RoutingTable, ServerSlot, WaiterId};
use super::version_check::{VersionReads, set_reported};
use super::{
    RegisteredServer, RoutingOptions, ServerError, ServerId, ServerSpec, ServerState, ServerView,
    WeightUpdate, rolling_update,
};

#[derive(Debug)]
pub(super) struct ModelsInner {
    pub(super) options: RoutingOptions,
    /// Never locked across an await.
    pub(super) table: Mutex<ServerTable>,
    /// Notified when a server became usable or an update ended.
    pub(super) changed: Notify,
    /// Serializes updates.
    pub(super) updating: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
pub(super) struct ServerTable {
    pub(super) routing: RoutingTable,
    pub(super) handles: HashMap<ServerId, Arc<ServerHandle>>,
    pub(super) waiting: HashMap<WaiterId, oneshot::Sender<ServerPermit>>,
    pub(super) next_id: u64,
    /// Versions that wait for their update.
    pub(super) wanted: Vec<u64>,
    /// Update that late or returning servers get.
    pub(super) latest: Option<WeightUpdate>,
    /// Version of the latest update, if it was sent over a group.
    pub(super) sent: Option<u64>,
}

/// Parts of a server outside the routing table.
#[derive(Debug)]
pub(super) struct ServerHandle {
    pub(super) server: Arc<RegisteredServer>,
    pub(super) added: tokio::time::Instant,
    /// Number of weight updates. Permits of an earlier number cannot tell the version of a token.
    pub(super) weights: AtomicU64,
    /// Number of beginnings and ends of updates. A version reported across one of them is outdated.
    pub(super) update_marks: AtomicU64,
    /// Number of noticed changes of the weights from outside.
    pub(super) outside_changes: AtomicU64,
    pub(super) version_reads: VersionReads,
    /// Requests a health check.
    pub(super) check_now: Notify,
    /// Requests a look at the load.
    pub(super) check_load: Notify,
    /// Notified when the last request has ended.
    pub(super) is_empty: Notify,
    /// Cancelled when the server is removed.
    pub(super) removed: CancellationToken,
    pub(super) info: Mutex<ServerInfo>,
}

#[derive(Debug)]
pub(super) struct ServerInfo {
    pub(super) server_model: Option<Arc<str>>,
    pub(super) last_seen: Option<Instant>,
    /// Path of the weights, if known.
    pub(super) weights: Option<String>,
    /// Pause of an update whose end was not verified.
    pub(super) paused: Option<PauseMode>,
    pub(super) capabilities: ServerCapabilities,
    pub(super) restart: RestartState,
    /// Cancels requests in flight.
    pub(super) abort: CancellationToken,
    /// Number of errors by kind.
    errors: BTreeMap<String, u64>,
    last_error: Option<ServerError>,
}

/// Leaves the queue when dropped.
pub(super) struct WaitGuard<'a> {
    pub(super) inner: &'a ModelsInner,
    pub(super) waiter: WaiterId,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.inner.with(|table| {
            table.routing.leave(self.waiter);
            table.waiting.remove(&self.waiter)
        });
    }
}

const MAX_SERVERS: usize = 1024;

/// Wait of a call for servers that were not reached for the maximum wait.
const MIN_WAIT: Duration = Duration::from_secs(1);

/// Maximum bytes of the message of a server's last error.
const MAX_ERROR_BYTES: usize = 500;

impl ServerTable {
    pub(super) fn add(
        &mut self,
        spec: ServerSpec,
        client: reqwest::Client,
        control: reqwest::Client,
    ) -> Result<Arc<ServerHandle>, CallError> {
        let same = |handle: &Arc<ServerHandle>| {
            handle.server.spec.url == spec.url && handle.server.spec.model == spec.model
        };
        let wrong = |reason: String| CallError::new(ErrorKind::InvalidRequest, reason);
        if self.handles.values().any(same) {
            let message = format!("model {:?} already has the server {}", spec.model, spec.url);
            return Err(wrong(message));
        }
        if self.handles.len() >= MAX_SERVERS {
            let message = format!("there are {MAX_SERVERS} servers, which is the limit");
            return Err(wrong(message));
        }
        self.next_id += 1;
        let id = ServerId(self.next_id);
        self.routing.add(id, &spec.model, spec.trained).map_err(wrong)?;
        let server = Arc::new(RegisteredServer { id, spec, client, control });
        let info = ServerInfo {
            server_model: None,
            last_seen: None,
            weights: None,
            paused: None,
            capabilities: ServerCapabilities::of_kind(server.spec.engine),
            restart: RestartState::default(),
            abort: CancellationToken::new(),
            errors: BTreeMap::new(),
            last_error: None,
        };
        let handle = Arc::new(ServerHandle {
            server,
            added: tokio::time::Instant::now(),
            weights: AtomicU64::new(0),
            update_marks: AtomicU64::new(0),
            outside_changes: AtomicU64::new(0),
            version_reads: VersionReads::default(),
            check_now: Notify::new(),
            check_load: Notify::new(),
            is_empty: Notify::new(),
            removed: CancellationToken::new(),
            info: Mutex::new(info),
        });
        self.handles.insert(id, Arc::clone(&handle));
        Ok(handle)
    }

    pub(super) fn unknown(&self, name: Option<&str>) -> CallError {
        let known: Vec<_> =
            self.routing.models().map(|(_, name, ..)| format!("{name:?}")).collect();
        let known = known.join(", ");
        match name {
            _ if known.is_empty() => {
                let message = "the gateway has no models: add a server with the name of its model";
                CallError::new(ErrorKind::Unavailable, message)
            }
            Some(name) => {
                let message = format!("unknown model {name:?}; known models: {known}");
                CallError::new(ErrorKind::NotFound, message).at("model")
            }
            None => {
                let message =
                    format!("the gateway has no trained model: give the model, one of {known}");
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

    /// Changes the table, then grants free permits to waiters.
    pub(super) fn change<T>(self: &Arc<Self>, f: impl FnOnce(&mut ServerTable) -> T) -> T {
        let mut table = self.lock();
        let result = f(&mut table);
        let mut served = Vec::new();
        for placed in table.routing.grant_waiting() {
            let permit = self.permit(&table, placed.server);
            served.push((table.waiting.remove(&placed.waiter), permit));
        }
        drop(table);
        for (sender, permit) in served {
            // A waiter that left drops the permit, which grants it to the next one.
            let _ = sender.map(|sender| sender.send(permit));
        }
        result
    }

    /// Creates a granted permit. It must not be dropped while the table is locked.
    pub(super) fn permit(self: &Arc<Self>, table: &ServerTable, server: ServerId) -> ServerPermit {
        let Some(handle) = table.handles.get(&server) else {
            unreachable!("every routed server has a handle")
        };
        let version = table.routing.slot(server).and_then(|slot| slot.version);
        let info = handle.info();
        let server_model = info.server_model.clone().unwrap_or_else(|| "".into());
        ServerPermit {
            inner: Arc::clone(self),
            handle: Arc::clone(handle),
            server_model,
            version,
            weights: handle.weights.load(Ordering::Acquire),
            outside_changes: handle.outside_changes.load(Ordering::Acquire),
            aborted: info.abort.clone(),
        }
    }

    pub(super) fn release(self: &Arc<Self>, handle: &ServerHandle) {
        let id = handle.server.id;
        let left = self.change(|table| {
            table.routing.release(id);
            table.routing.slot(id).map_or(0, |slot| slot.in_flight)
        });
        if left == 0 {
            handle.is_empty.notify_waiters();
        }
    }

    pub(super) fn record_failure(&self, handle: &ServerHandle, reason: &str, is_unreached: bool) {
        let id = handle.server.id;
        handle.count_error(request_error(reason, is_unreached), reason);
        let is_lost = self.with(|table| table.routing.record_failure(id, reason, is_unreached));
        if is_lost {
            let RegisteredServer { spec, .. } = &*handle.server;
            tracing::warn!(
                model = spec.model,
                url = spec.url,
                reason,
                "server unhealthy, not routed"
            );
        }
        // A reachable server is not checked at once: it would be healthy, used again, and fail the
        // next request.
        if is_unreached {
            handle.check_now.notify_one();
        }
    }

    /// Records a passed check, with the identity of the server if it was asked for. A server with
    /// older weights than the latest update is not used before it has them.
    pub(super) fn check_passed(
        self: &Arc<Self>,
        handle: &ServerHandle,
        reply: Option<ServerIdentity>,
        version: &ServerVersion,
        marks_before: u64,
    ) {
        let id = handle.server.id;
        handle.seen();
        let is_identified = reply.is_some();
        if let Some(reply) = reply {
            handle.identified(reply, version);
        }
        let RegisteredServer { spec, .. } = &*handle.server;
        let (is_back, latest) = self.change(|table| {
            if is_identified && *version == ServerVersion::Unsupported {
                // A restart cannot be told from an outage: it has the weights of its start.
                let can_load = handle.info().capabilities.cannot_load_folder().is_none();
                table.routing.set_unreported(id, can_load);
            }
            let is_changed = set_reported(table, handle, version, marks_before);
            let is_back = table.routing.check_passed(id);
            let was_behind = table.routing.slot(id).is_some_and(|slot| slot.is_behind);
            let needs_look = is_back || is_changed || was_behind;
            (is_back, needs_look.then(|| rolling_update::mark_behind(table, handle)).flatten())
        });
        if is_back {
            let (model, url) = (&spec.model, &spec.url);
            tracing::info!(model, url, weights = %version, "server healthy");
            handle.check_load.notify_one();
            self.changed.notify_waiters();
        }
        if let Some(latest) = latest {
            rolling_update::catch_up(self, latest);
        }
    }

    /// Records that a server is paused, although no update is in progress.
    pub(super) fn found_paused(&self, handle: &ServerHandle, reason: &str) {
        let id = handle.server.id;
        handle.count_error("paused".to_owned(), reason);
        if self.with(|table| table.routing.found_paused(id, reason)) {
            let RegisteredServer { spec, .. } = &*handle.server;
            let (model, url) = (&spec.model, &spec.url);
            tracing::warn!(model, url, reason, "server unhealthy, not routed");
        }
    }

    pub(super) fn failed(&self, handle: &ServerHandle, reason: &str, is_gone: bool) {
        let id = handle.server.id;
        let RegisteredServer { spec, .. } = &*handle.server;
        handle.count_error("health_check".to_owned(), reason);
        let is_first = |slot: &ServerSlot| slot.health == Health::Unknown(None);
        if self.with(|table| table.routing.slot(id).is_some_and(is_first)) {
            let (model, url) = (&spec.model, &spec.url);
            tracing::warn!(model, url, reason, "server has not been reachable yet");
        }
        if self.with(|table| table.routing.check_failed(id, reason, is_gone)) {
            tracing::warn!(
                model = spec.model,
                url = spec.url,
                reason,
                "server unhealthy, not routed"
            );
        }
    }

    /// Returns whether a wait for a server of a model will end: one is being updated, or is held at
    /// its load.
    pub(super) fn will_have_room(&self, name: Option<&str>) -> bool {
        self.with(|table| {
            let slots = table.routing.model(name).map(|model| table.routing.slots(model));
            slots.into_iter().flatten().any(|(_, slot)| slot.is_updating() || slot.is_held())
        })
    }

    /// Returns the maximum wait of a call for a server of a model. Servers that were never reached
    /// are waited for once, from their addition on, and not again by every retry.
    pub(super) fn max_wait(&self, name: Option<&str>) -> Duration {
        let table = self.lock();
        let max_wait = self.options.max_wait;
        let Some(model) = table.routing.model(name) else { return max_wait };
        let handles = table.routing.slots(model).filter_map(|(id, _)| table.handles.get(&id));
        let mut newest = None;
        for handle in handles {
            if handle.info().last_seen.is_some() {
                return max_wait;
            }
            newest = newest.max(Some(handle.added));
        }
        let left = newest.map_or(max_wait, |added| max_wait.saturating_sub(added.elapsed()));
        left.max(MIN_WAIT.min(max_wait))
    }

    /// Explains why no server could take a call in time.
    pub(super) fn unavailable(&self, name: Option<&str>, waited: Duration) -> CallError {
        let table = self.lock();
        let Some(number) = table.routing.model(name) else { return table.unknown(name) };
        let name = table.routing.models().find(|(n, ..)| *n == number).map_or("", |(_, n, ..)| n);
        let mut reasons = Vec::new();
        for (id, slot) in table.routing.slots(number) {
            let url = table.handles.get(&id).map_or("", |handle| &handle.server.spec.url);
            let state = match ServerState::of(slot) {
                ServerState::Running => format!("busy with {} requests", slot.in_flight),
                state => state.to_string(),
            };
            reasons.push(format!("{url} is {state}"));
        }
        if reasons.is_empty() {
            reasons.push("it has no servers left".to_owned());
        }
        let message = format!(
            "no server of model {name:?} could take the call within {} s: {}",
            waited.as_secs_f64(),
            reasons.join("; ")
        );
        CallError::new(ErrorKind::Unavailable, message).retry_after(1)
    }
}

impl Drop for ModelsInner {
    fn drop(&mut self) {
        for handle in self.lock().handles.values() {
            handle.removed.cancel();
        }
    }
}

impl ServerHandle {
    pub(super) fn info(&self) -> MutexGuard<'_, ServerInfo> {
        self.info.lock()
    }

    /// Records the identity of a server, and warns of missing endpoints once.
    fn identified(&self, reply: ServerIdentity, version: &ServerVersion) {
        let mut info = self.info();
        info.server_model = Some(reply.name.into());
        // Later replies are the same, whatever was loaded since.
        if matches!(version, ServerVersion::Number(0) | ServerVersion::Unsupported) {
            info.weights = reply.weights_path;
        }
        let mut capabilities = reply.capabilities;
        capabilities.set_reports_version(*version != ServerVersion::Unsupported);
        let is_new = info.last_seen.is_none() || info.capabilities != capabilities;
        let RegisteredServer { spec, .. } = &*self.server;
        if is_new
            && spec.trained
            && let Some(missing) = capabilities.describe_missing()
        {
            tracing::warn!(url = spec.url, missing, "server lacks endpoints");
        }
        info.capabilities = capabilities;
    }

    pub(super) fn seen(&self) {
        self.info().last_seen = Some(Instant::now());
    }

    /// Counts an error and keeps it as the last one.
    pub(super) fn count_error(&self, kind: String, message: &str) {
        let mut info = self.info();
        *info.errors.entry(kind.clone()).or_default() += 1;
        let message = message[..message.floor_char_boundary(MAX_ERROR_BYTES)].to_owned();
        info.last_error = Some(ServerError { at: SystemTime::now(), kind, message });
    }

    pub(super) fn view(&self, slot: &ServerSlot, now: Instant) -> ServerView {
        let info = self.info();
        ServerView {
            id: self.server.id,
            engine: self.server.spec.engine,
            url: self.server.spec.url.clone(),
            server_model: info.server_model.as_deref().map(str::to_owned),
            state: ServerState::of(slot),
            in_flight: slot.in_flight,
            version: slot.version,
            loaded: slot.loaded,
            capabilities: info.capabilities.clone(),
            load: slot.load,
            limit: slot.concurrency.get(),
            failures: slot.failures,
            last_seen: info.last_seen.map(|seen| now.duration_since(seen)),
            counts: slot.counts,
            errors: info.errors.clone(),
            last_error: info.last_error.clone(),
        }
    }
}

/// Returns the kind of a failed request: `unreachable`, `http_STATUS` or `broken_response`.
fn request_error(reason: &str, is_unreached: bool) -> String {
    let status = reason.split(' ').next().and_then(|word| word.parse::<u16>().ok());
    match status {
        _ if is_unreached => "unreachable".to_owned(),
        Some(status) => format!("http_{status}"),
        None => "broken_response".to_owned(),
    }
}

/// Returns whether the server need not be identified again.
pub(super) fn is_known(slot: &ServerSlot) -> bool {
    slot.health == Health::Healthy && !slot.is_unconfirmed
}

/// Right to one upstream request at a server; released when dropped.
#[derive(Debug)]
pub struct ServerPermit {
    inner: Arc<ModelsInner>,
    handle: Arc<ServerHandle>,
    server_model: Arc<str>,
    version: Option<u64>,
    /// Number of weight updates when the permit was taken.
    weights: u64,
    /// Number of changes from outside when the permit was taken.
    outside_changes: u64,
    aborted: CancellationToken,
}

impl ServerPermit {
    pub(super) fn parts(&self) -> (&Arc<ModelsInner>, &ServerHandle) {
        (&self.inner, &self.handle)
    }

    /// Returns whether the weights were changed from outside since the permit was taken.
    pub(super) fn is_changed_outside(&self) -> bool {
        self.handle.outside_changes.load(Ordering::Acquire) != self.outside_changes
    }

    pub fn server(&self) -> &RegisteredServer {
        &self.handle.server
    }

    /// The server's name of its model.
    pub fn server_model(&self) -> &str {
        &self.server_model
    }

    /// Version of the weights of all tokens received so far. `None`: unknown. Once the weights are
    /// replaced, it stays `None`: tokens that arrive later may have been generated before.
    pub fn version(&self) -> Option<u64> {
        let is_same = self.handle.weights.load(Ordering::Acquire) == self.weights;
        self.version.filter(|_| is_same)
    }

    /// Records a success.
    pub fn record_success(&self) {
        self.inner.with(|table| table.routing.record_success(self.handle.server.id));
        self.handle.seen();
    }

    /// Records a failure of a reachable server. Consecutive failures make it unhealthy until its
    /// next check.
    pub fn record_failure(&self, reason: &str) {
        self.inner.record_failure(&self.handle, reason, false);
    }

    /// Records that the server was unreachable. It is not used until its next check, which happens
    /// at once.
    pub fn unreachable(&self, reason: &str) {
        self.inner.record_failure(&self.handle, reason, true);
    }

    /// Completes when the request must end: its server is removed, or an update aborts requests in
    /// flight.
    pub fn aborted(&self) -> WaitForCancellationFuture<'_> {
        self.aborted.cancelled()
    }
}

impl Drop for ServerPermit {
    fn drop(&mut self) {
        self.inner.release(&self.handle);
    }
}
