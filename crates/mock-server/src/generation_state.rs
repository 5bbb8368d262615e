//! State shared by the endpoints: admitted requests, the gate that pauses generation, and the
//! weights.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Method, Uri};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::api_error::ApiError;
use super::faults::Faults;
use super::options::MockServerOptions;
use super::record::{RecordedRequest, Records};
use super::request::MockRequest;
use super::script::mix;
use super::server_api::MockApi;
use super::template::Template;

/// Pauses generation and holds the current weights.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    pub(super) admitting: bool,
    pub(super) frozen: bool,
    pub(super) asleep: bool,
    pub(super) updating: bool,
    /// A failed load has left no weights.
    pub(super) has_lost_weights: bool,
    /// Position from which no token is generated, set by a test.
    pub(super) hold: Option<u32>,
    pub(super) version: u64,
    /// Name by which the server reports the version.
    pub(super) name: Arc<str>,
}

impl Gate {
    pub(super) fn admits(&self) -> bool {
        self.admitting && !self.asleep && !self.updating
    }

    pub(super) fn emits(&self, position: u32) -> bool {
        let held = self.hold.is_some_and(|hold| position >= hold);
        !(self.frozen || self.asleep || self.updating || held)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MockCounts {
    /// Generation requests, including refused ones.
    pub requests: u64,
    pub waiting: u64,
    pub running: u64,
    /// Running requests that get no token now: paused, asleep, updating or held.
    pub frozen: u64,
    pub completed: u64,
    /// Responses aborted by a request.
    pub aborted: u64,
    /// Responses whose client disconnected.
    pub left: u64,
    /// Responses ended by an injected fault.
    pub failed: u64,
    pub updates: u64,
    pub failed_updates: u64,
    pub dropped_records: u64,
}

/// Use of the KV cache that the server reports, set by a test.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CachePressure {
    pub(super) usage: f64,
    pub(super) preemptions: u64,
}

/// Delays of the first and of each further token. `next` is `None`: no delay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    pub(super) first: Duration,
    pub(super) next: Option<Duration>,
}

impl Speed {
    pub(super) fn new(first: Duration, tokens_per_second: f64) -> Self {
        let next = (tokens_per_second > 0.0)
            .then(|| Duration::try_from_secs_f64(1.0 / tokens_per_second).ok())
            .flatten();
        Self { first, next }
    }
}

/// Treatment of running requests by a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PauseMode {
    Abort,
    Wait,
    Keep,
}

#[derive(Debug)]
pub(super) struct GenerationState {
    pub(super) api: &'static dyn MockApi,
    pub(super) options: MockServerOptions,
    pub(super) template: Template,
    pub(super) gate: watch::Sender<Gate>,
    pub(super) counts: watch::Sender<MockCounts>,
    pub(super) slots: Arc<Semaphore>,
    ids: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) healthy: bool,
    pub(super) speed: Speed,
    pub(super) cache_pressure: CachePressure,
    pub(super) faults: Faults,
    pub(super) records: Records,
    pub(super) active: HashMap<u64, Active>,
    pub(super) calls: VecDeque<String>,
    /// Version of weights that were sent and are not yet in use.
    pub(super) pending: Option<u64>,
    pub(super) weights_path: Option<String>,
    next: u64,
}

#[derive(Debug)]
pub(super) struct Active {
    /// Ids by which it can be aborted.
    pub(super) ids: Vec<String>,
    pub(super) abort: CancellationToken,
}

impl GenerationState {
    pub(super) fn new(api: &'static dyn MockApi, options: MockServerOptions) -> Self {
        let name = options.version_name.clone().unwrap_or_else(|| "default".to_owned());
        let gate = Gate {
            admitting: true,
            frozen: false,
            asleep: false,
            updating: false,
            has_lost_weights: false,
            hold: None,
            version: options.version,
            name: name.into(),
        };
        let inner = Inner {
            healthy: true,
            speed: Speed::new(options.first_token, options.tokens_per_second),
            cache_pressure: CachePressure::default(),
            faults: Faults::new(&options),
            records: Records::new(options.max_records),
            active: HashMap::new(),
            calls: VecDeque::new(),
            pending: None,
            weights_path: options.weights.as_ref().map(|path| path.display().to_string()),
            next: 0,
        };
        Self {
            api,
            template: Template::new(&options),
            gate: watch::Sender::new(gate),
            counts: watch::Sender::new(MockCounts::default()),
            slots: Arc::new(Semaphore::new(options.max_running.min(Semaphore::MAX_PERMITS))),
            ids: AtomicU64::new(0),
            inner: Mutex::new(inner),
            options,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut MockCounts)) {
        self.counts.send_modify(change);
    }

    /// Registers a request, so that it can be aborted and is recorded.
    pub(super) fn admit(&self, request: &MockRequest) -> (u64, CancellationToken) {
        let abort = CancellationToken::new();
        let mut inner = self.lock();
        inner.next += 1;
        let number = inner.next;
        inner
            .active
            .insert(number, Active { ids: request.abort_ids.clone(), abort: abort.clone() });
        let dropped = if inner.records.is_on() {
            inner.records.push(RecordedRequest {
                number,
                id: request.id.clone(),
                path: request.path,
                body: Arc::clone(&request.body),
                prompts: request.prompts.clone(),
                choices: Vec::new(),
                end: None,
            })
        } else {
            1
        };
        drop(inner);
        self.count(|counts| counts.dropped_records += dropped);
        (number, abort)
    }

    /// Records a request to any endpoint.
    pub(super) fn note(&self, method: &Method, uri: &Uri) {
        let max = self.options.max_records;
        if max == 0 {
            return;
        }
        let mut inner = self.lock();
        while inner.calls.len() >= max {
            inner.calls.pop_front();
        }
        inner.calls.push_back(format!("{method} {uri}"));
    }

    pub(super) fn new_id(&self) -> String {
        let number = self.ids.fetch_add(1, Ordering::Relaxed);
        let seed = self.options.seed;
        format!("{:016x}{:016x}", mix(mix(seed, number), 1), mix(mix(seed, number), 2))
    }

    pub(super) async fn admitted(&self) {
        let mut gate = self.gate.subscribe();
        let _ = gate.wait_for(Gate::admits).await;
    }

    pub(super) async fn pause(&self, mode: PauseMode) {
        self.gate.send_modify(|gate| {
            gate.admitting = false;
            gate.frozen |= mode == PauseMode::Keep;
        });
        match mode {
            PauseMode::Keep => return,
            PauseMode::Abort => {
                self.abort(|_| true);
            }
            PauseMode::Wait => {}
        }
        self.wait_until_idle().await;
        // A resume may have come in the meantime.
        self.gate.send_modify(|gate| gate.frozen |= !gate.admitting);
    }

    pub(super) fn resume(&self) {
        self.gate.send_modify(|gate| {
            gate.admitting = true;
            gate.frozen = false;
        });
    }

    /// Aborts the requests with matching ids, and returns their number.
    pub(super) fn abort(&self, meant: impl Fn(&str) -> bool) -> usize {
        let inner = self.lock();
        let found = inner.active.values().filter(|active| active.ids.iter().any(|id| meant(id)));
        found.map(|active| active.abort.cancel()).count()
    }

    pub(super) async fn wait_until_idle(&self) {
        let _ = self.counts.subscribe().wait_for(|counts| counts.running == 0).await;
    }

    /// Replaces the weights. The name of the version stays.
    pub(super) async fn update(&self, from: WeightSource<'_>) -> Result<u64, ApiError> {
        self.gate.send_modify(|gate| gate.updating = true);
        if !self.options.update_time.is_zero() {
            tokio::time::sleep(self.options.update_time).await;
        }
        let found = self.load_weights(from);
        self.gate.send_modify(|gate| {
            gate.updating = false;
            gate.has_lost_weights = found.is_err() && self.api.loses_weights();
            if let Ok(version) = found {
                gate.version = version;
            }
        });
        self.count(|counts| match found {
            Ok(_) => counts.updates += 1,
            Err(_) => counts.failed_updates += 1,
        });
        found
    }

    fn load_weights(&self, from: WeightSource<'_>) -> Result<u64, ApiError> {
        let mut inner = self.lock();
        if inner.faults.update_fails() {
            return Err(ApiError::server_error("injected fault: weight update"));
        }
        match from {
            WeightSource::Sent(version) => Ok(version),
            WeightSource::Directory(path) => {
                let version = read_version(Path::new(path))?;
                inner.weights_path = Some(path.to_owned());
                Ok(version)
            }
        }
    }

    pub(super) fn rename(&self, name: &str) {
        self.gate.send_modify(|gate| gate.name = name.into());
    }

    pub(super) fn version_name(&self) -> String {
        self.gate.borrow().name.to_string()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum WeightSource<'a> {
    Directory(&'a str),
    Sent(u64),
}

/// Reads the version of the weights in a directory: `{"version": 7}` in its `weights.json`, or the
/// digits at the end of its name.
fn read_version(directory: &Path) -> Result<u64, ApiError> {
    let missing = || {
        let path = directory.display();
        let message = format!("Cannot find any model weights with `{path}`");
        ApiError::server_error(message)
    };
    if !directory.is_dir() {
        return Err(missing());
    }
    if let Ok(text) = std::fs::read_to_string(directory.join("weights.json")) {
        let file: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        return file.and_then(|file| file.get("version")?.as_u64()).ok_or_else(missing);
    }
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    name[name.len() - digits..].parse().map_err(|_| missing())
}
