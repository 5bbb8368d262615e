//! The engine behind the simulated server's endpoints: who is being answered, whether answers go
//! on, and with which weights.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Method, StatusCode, Uri};
use parking_lot::{Mutex, MutexGuard};
use rollway_base::ServerKind;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::api_error::ApiError;
use super::faults::Faults;
use super::options::MockServerOptions;
use super::record::{RecordedRequest, Records};
use super::request::MockRequest;
use super::script::mix;
use super::template::Template;

/// Whether answers go on, and with which weights.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    /// Requests are begun.
    pub(super) admitting: bool,
    /// Nobody gets a token: a pause.
    pub(super) frozen: bool,
    /// The same: asleep.
    pub(super) asleep: bool,
    /// The same: the weights are being replaced.
    pub(super) updating: bool,
    /// Nobody gets a token at this position or later: a test wants to look.
    pub(super) hold: Option<u32>,
    /// The weights.
    pub(super) version: u64,
    /// What the server calls them.
    pub(super) name: Arc<str>,
}

impl Gate {
    pub(super) fn admits(&self) -> bool {
        self.admitting && !self.asleep && !self.updating
    }

    pub(super) fn gives(&self, position: u32) -> bool {
        let held = self.hold.is_some_and(|hold| position >= hold);
        !(self.frozen || self.asleep || self.updating || held)
    }
}

/// What goes on, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MockCounts {
    /// Requests for an answer that came in, refused ones among them.
    pub requests: u64,
    /// Requests that wait to be begun.
    pub waiting: u64,
    /// Requests that are being answered.
    pub running: u64,
    /// Those among them that get no token at the moment: paused, asleep, updating or held.
    pub frozen: u64,
    /// Answers that were completed.
    pub completed: u64,
    /// Answers that were aborted by word.
    pub aborted: u64,
    /// Answers whose client left.
    pub left: u64,
    /// Answers that an injected fault ended.
    pub failed: u64,
    /// Updates of the weights that took place.
    pub updates: u64,
    pub failed_updates: u64,
    /// Records that were dropped because there were too many.
    pub dropped_records: u64,
}

/// How fast tokens come.
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

/// How a pause treats what is being answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PauseMode {
    Abort,
    Wait,
    Keep,
}

/// Everything that the endpoints share.
#[derive(Debug)]
pub(super) struct GenerationState {
    pub(super) options: MockServerOptions,
    pub(super) template: Template,
    pub(super) gate: watch::Sender<Gate>,
    pub(super) counts: watch::Sender<MockCounts>,
    pub(super) slots: Arc<Semaphore>,
    ids: AtomicU64,
    inner: Mutex<Inner>,
}

/// What changes and has no watchers.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) healthy: bool,
    pub(super) speed: Speed,
    pub(super) faults: Faults,
    pub(super) records: Records,
    pub(super) active: HashMap<u64, Active>,
    pub(super) calls: VecDeque<String>,
    /// Weights that were sent but not yet taken into use.
    pub(super) pending: Option<u64>,
    pub(super) weights_path: Option<String>,
    next: u64,
}

/// A request that is being answered or waits for it.
#[derive(Debug)]
pub(super) struct Active {
    /// The ids that it can be aborted by.
    pub(super) ids: Vec<String>,
    pub(super) abort: CancellationToken,
}

impl GenerationState {
    pub(super) fn new(options: MockServerOptions) -> Self {
        let name = options.version_name.clone().unwrap_or_else(|| "default".to_owned());
        let gate = Gate {
            admitting: true,
            frozen: false,
            asleep: false,
            updating: false,
            hold: None,
            version: options.version,
            name: name.into(),
        };
        let inner = Inner {
            healthy: true,
            speed: Speed::new(options.first_token, options.tokens_per_second),
            faults: Faults::new(&options),
            records: Records::new(options.max_records),
            active: HashMap::new(),
            calls: VecDeque::new(),
            pending: None,
            weights_path: options.weights.as_ref().map(|path| path.display().to_string()),
            next: 0,
        };
        Self {
            template: Template { tokenizer: options.tokenizer(), drift: options.drift },
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

    pub(super) fn kind(&self) -> ServerKind {
        self.options.kind
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut MockCounts)) {
        self.counts.send_modify(change);
    }

    /// Takes a request in: from now on it can be aborted, and is remembered.
    pub(super) fn admit(&self, request: &MockRequest) -> (u64, CancellationToken) {
        let abort = CancellationToken::new();
        let mut inner = self.lock();
        inner.next += 1;
        let number = inner.next;
        inner.active.insert(number, Active { ids: request.ids.clone(), abort: abort.clone() });
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

    /// Remembers that something was called.
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

    /// An id that no other answer of this server has.
    pub(super) fn fresh_id(&self) -> String {
        let number = self.ids.fetch_add(1, Ordering::Relaxed);
        let seed = self.options.seed;
        format!("{:016x}{:016x}", mix(mix(seed, number), 1), mix(mix(seed, number), 2))
    }

    /// Waits until requests may be begun.
    pub(super) async fn admitted(&self) {
        let mut gate = self.gate.subscribe();
        let _ = gate.wait_for(Gate::admits).await;
    }

    /// Stops giving tokens, as the kind of pause says.
    pub(super) async fn pause(&self, how: PauseMode) {
        self.gate.send_modify(|gate| {
            gate.admitting = false;
            gate.frozen |= how == PauseMode::Keep;
        });
        match how {
            PauseMode::Keep => return,
            PauseMode::Abort => {
                self.abort(|_| true);
            }
            PauseMode::Wait => {}
        }
        let _ = self.counts.subscribe().wait_for(|counts| counts.running == 0).await;
        // Somebody may have resumed in the meantime.
        self.gate.send_modify(|gate| gate.frozen |= !gate.admitting);
    }

    pub(super) fn resume(&self) {
        self.gate.send_modify(|gate| {
            gate.admitting = true;
            gate.frozen = false;
        });
    }

    /// Aborts the requests whose ids are meant; returns how many there are.
    pub(super) fn abort(&self, meant: impl Fn(&str) -> bool) -> usize {
        let inner = self.lock();
        let found = inner.active.values().filter(|active| active.ids.iter().any(|id| meant(id)));
        found.map(|active| active.abort.cancel()).count()
    }

    /// Waits until nobody is being answered.
    pub(super) async fn idle(&self) {
        let _ = self.counts.subscribe().wait_for(|counts| counts.running == 0).await;
    }

    /// Replaces the weights by those in a directory, or those that were sent before. The name of
    /// the version stays what it was.
    pub(super) async fn update(&self, from: WeightSource<'_>) -> Result<u64, ApiError> {
        self.gate.send_modify(|gate| gate.updating = true);
        if !self.options.update_time.is_zero() {
            tokio::time::sleep(self.options.update_time).await;
        }
        let found = self.take(from);
        self.gate.send_modify(|gate| {
            gate.updating = false;
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

    fn take(&self, from: WeightSource<'_>) -> Result<u64, ApiError> {
        let mut inner = self.lock();
        if inner.faults.update_fails() {
            return Err(ApiError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the update of the weights failed, as it was told to",
            ));
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

    /// Gives the weights a name.
    pub(super) fn rename(&self, name: &str) {
        self.gate.send_modify(|gate| gate.name = name.into());
    }

    pub(super) fn version_name(&self) -> String {
        self.gate.borrow().name.to_string()
    }
}

/// Where weights come from.
#[derive(Clone, Copy, Debug)]
pub(super) enum WeightSource<'a> {
    Directory(&'a str),
    Sent(u64),
}

/// Reads the version of the weights in a directory: `{"version": 7}` in its `weights.json`, or the
/// digits that its name ends with.
fn read_version(directory: &Path) -> Result<u64, ApiError> {
    let missing = || {
        let path = directory.display();
        let message = format!("Cannot find any model weights with `{path}`");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
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
