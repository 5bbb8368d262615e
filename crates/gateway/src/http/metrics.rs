//! What happens at the gateway, in numbers, for Prometheus.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use rollway_model_api::{CallError, ClientApi, ErrorKind, ModelResponse, ResponseEnd, client_api};

use super::observed_call::ObservedCall;
use super::responses;
use super::run_sessions::RecordDelta;
use super::server_metrics::Servers;
use super::state::GatewayState;
use super::turn_store::TurnStore;
use crate::models::Models;
use crate::options::TokenCounts;

/// All numbers.
#[derive(Debug)]
pub(super) struct GatewayMetrics {
    registry: Registry,
    requests: Family<RequestTimer, Counter>,
    tokens: Family<TokenTimer, Counter>,
    seconds: Family<Endpoint, Histogram, fn() -> Histogram>,
    added_seconds: Family<Endpoint, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    waiting: Gauge,
    sessions: Gauge,
    turns: Counter,
    retries: Counter,
    aborted: Counter,
    replaced: Counter,
    empty: Counter,
    dropped: Counter,
    untold: Counter,
    continued: Counter,
    drift: Counter,
    branches: Counter,
    recording_failures: Counter,
    /// Calls that were sent to another server.
    pub(super) resent: Counter,
    /// Answers that broke off in the middle.
    pub(super) broken: Counter,
    /// Requests that were aborted in their servers.
    pub(super) given_up: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestTimer {
    endpoint: &'static str,
    status: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Endpoint {
    endpoint: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenTimer {
    kind: &'static str,
}

/// From a tenth of a millisecond to a bit more than an hour.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.5, 20))
}

impl GatewayMetrics {
    pub(super) fn new(models: Models, history: Option<&dyn TurnStore>) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("rollway_gateway"),
            requests: Family::default(),
            tokens: Family::default(),
            seconds: Family::new_with_constructor(seconds as fn() -> Histogram),
            added_seconds: Family::new_with_constructor(seconds as fn() -> Histogram),
            in_flight: Gauge::default(),
            waiting: Gauge::default(),
            sessions: Gauge::default(),
            turns: Counter::default(),
            retries: Counter::default(),
            aborted: Counter::default(),
            replaced: Counter::default(),
            empty: Counter::default(),
            dropped: Counter::default(),
            untold: Counter::default(),
            continued: Counter::default(),
            drift: Counter::default(),
            branches: Counter::default(),
            recording_failures: Counter::default(),
            resent: Counter::default(),
            broken: Counter::default(),
            given_up: Counter::default(),
        };
        metrics.begin();
        let mut registry = Registry::with_prefix("rollway_gateway");
        metrics.register(&mut registry);
        registry.register_collector(Box::new(Servers(models)));
        if let Some(history) = history {
            history.register(&mut registry);
        }
        metrics.registry = registry;
        metrics
    }

    /// Has what everybody will ask for begin at zero, instead of being absent until it happens.
    fn begin(&self) {
        for kind in ["prompt", "completion"] {
            drop(self.tokens.get_or_create(&TokenTimer { kind }));
        }
        for endpoint in ["chat", "completions"] {
            drop(self.requests.get_or_create(&RequestTimer { endpoint, status: 200 }));
            drop(self.seconds.get_or_create(&Endpoint { endpoint }));
            drop(self.added_seconds.get_or_create(&Endpoint { endpoint }));
        }
    }

    fn register(&self, to: &mut Registry) {
        to.register("requests", "Requests by endpoint and status", self.requests.clone());
        to.register("tokens", "Tokens of prompts and of answers", self.tokens.clone());
        let help = "Calls from their first byte to the last of their answers, in seconds";
        to.register("call_seconds", help, self.seconds.clone());
        let help = "What of a call's time was the gateway's own, in seconds";
        to.register("overhead_seconds", help, self.added_seconds.clone());
        to.register("in_flight", "Calls under way", self.in_flight.clone());
        to.register("calls_waiting", "Calls that wait for a server", self.waiting.clone());
        to.register("run_sessions", "Runs that have called and are open", self.sessions.clone());
        let counters = [
            ("turns", "Turns that were recorded", &self.turns),
            (
                "calls_deduplicated",
                "Calls that were answered again, and not counted again",
                &self.retries,
            ),
            ("completions_aborted", "Answers that ended early and were recorded so", &self.aborted),
            ("calls_replaced", "Calls that a retry has replaced", &self.replaced),
            ("calls_without_tokens", "Aborted calls of which no token was heard", &self.untold),
            (
                "saved_responses_dropped",
                "Answers no longer kept for clients that ask again",
                &self.dropped,
            ),
            ("turns_empty", "Turns without a token", &self.empty),
            ("turns_continued", "Turns that continue an earlier one", &self.continued),
            (
                "turns_drifted",
                "Turns that begin like an earlier one, but not with all of it",
                &self.drift,
            ),
            (
                "turns_branched",
                "Turns that branch off in the middle of an experience",
                &self.branches,
            ),
            ("recording_failures", "Answers that could not be recorded", &self.recording_failures),
            ("calls_rerouted", "Calls that were sent to another server", &self.resent),
            ("streams_broken", "Answers that broke off in the middle", &self.broken),
            ("upstream_aborted", "Requests that were aborted in their servers", &self.given_up),
        ];
        for (name, help, counter) in counters {
            to.register(name, help, counter.clone());
        }
    }

    /// A request came in.
    pub(super) fn entry(&self, path: &str) -> MetricEntry<'_> {
        MetricEntry { metrics: self, endpoint: endpoint(path) }
    }

    /// A call begins.
    pub(super) fn call(app: &Arc<GatewayState>, api: &dyn ClientApi) -> Timed {
        let endpoint = api.name();
        app.metrics.in_flight.inc();
        let app = Arc::clone(app);
        let (began, upstream) = (Instant::now(), Duration::ZERO);
        Timed { app, endpoint, began, upstream, watched: ObservedCall::default() }
    }

    /// A call begins to wait for a server.
    pub(super) fn wait(&self) -> impl Drop + '_ {
        self.waiting.inc();
        Waiting(&self.waiting)
    }

    /// A server has answered.
    pub(super) fn answered(&self, answer: &ModelResponse) {
        if let Some(prompt) = &answer.prompt {
            let count = u64::try_from(prompt.len()).unwrap_or(u64::MAX);
            self.tokens.get_or_create(&TokenTimer { kind: "prompt" }).inc_by(count);
        }
        let said = answer.choices.iter().filter_map(|choice| choice.tokens.as_ref());
        let count = u64::try_from(said.map(Vec::len).sum::<usize>()).unwrap_or(u64::MAX);
        self.tokens.get_or_create(&TokenTimer { kind: "completion" }).inc_by(count);
        self.aborted.inc_by(u64::from(answer.end == ResponseEnd::Aborted));
    }

    /// Returns how many tokens were counted.
    pub(super) fn token_counts(&self) -> TokenCounts {
        let count = |kind| self.tokens.get_or_create(&TokenTimer { kind }).get();
        TokenCounts { prompt: count("prompt"), answer: count("completion") }
    }

    /// Turns were kept.
    pub(super) fn kept(&self, turns: u64) {
        self.turns.inc_by(turns);
    }

    /// A call of a run was recorded.
    pub(super) fn recorded(&self, counted: RecordDelta) {
        let RecordDelta { before, after } = counted;
        let counts = [
            (&self.turns, before.turns, after.turns),
            (&self.replaced, before.replaced, after.replaced),
            (&self.untold, before.untold, after.untold),
            (&self.dropped, before.dropped, after.dropped),
            (&self.empty, before.empty, after.empty),
            (&self.continued, before.continued, after.continued),
            (&self.drift, before.drift, after.drift),
            (&self.branches, before.branches, after.branches),
        ];
        for (counter, before, after) in counts {
            counter.inc_by(after.saturating_sub(before));
        }
    }

    /// A client was given an earlier answer again.
    pub(super) fn answered_again(&self) {
        self.retries.inc();
    }

    /// An answer could not be recorded.
    pub(super) fn recording_failed(&self) {
        self.recording_failures.inc();
    }
}

/// Returns the numbers as OpenMetrics, without the line that ends them.
pub(super) fn text(app: &GatewayState) -> Result<String, fmt::Error> {
    app.metrics.sessions.set(i64::try_from(app.runs.sessions()).unwrap_or(i64::MAX));
    let mut text = String::new();
    encode_registry(&mut text, &app.metrics.registry)?;
    Ok(text)
}

/// Shows the numbers.
pub(super) async fn show(State(app): State<Arc<GatewayState>>) -> Response {
    let Ok(mut text) = text(&app) else {
        let message = "the metrics cannot be written";
        return responses::error(&CallError::new(ErrorKind::Unavailable, message));
    };
    if let Some(further) = app.further.get() {
        text.push_str(&further.metrics().await);
    }
    // Writing to a text does not fail.
    let _ = encode_eof(&mut text);
    let mut response = responses::json(StatusCode::OK, text);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A request whose answer is to be counted.
#[derive(Debug)]
pub(super) struct MetricEntry<'a> {
    metrics: &'a GatewayMetrics,
    endpoint: &'static str,
}

impl MetricEntry<'_> {
    pub(super) fn answered(self, status: StatusCode) {
        let request = RequestTimer { endpoint: self.endpoint, status: status.as_u16() };
        self.metrics.requests.get_or_create(&request).inc();
    }
}

/// A call under way.
#[derive(Debug)]
pub(super) struct Timed {
    app: Arc<GatewayState>,
    endpoint: &'static str,
    pub(super) began: Instant,
    /// What others have taken of its time.
    pub(super) upstream: Duration,
    /// For whoever sees calls, and learns of the end with this.
    pub(super) watched: ObservedCall,
}

impl Drop for Timed {
    fn drop(&mut self) {
        let metrics = &self.app.metrics;
        metrics.in_flight.dec();
        let endpoint = Endpoint { endpoint: self.endpoint };
        let took = self.began.elapsed();
        metrics.seconds.get_or_create(&endpoint).observe(took.as_secs_f64());
        let added = took.saturating_sub(self.upstream);
        metrics.added_seconds.get_or_create(&endpoint).observe(added.as_secs_f64());
    }
}

struct Waiting<'a>(&'a Gauge);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// A few names, whatever clients ask for.
fn endpoint(path: &str) -> &'static str {
    if let Some(api) = client_api::at_path(path) {
        return api.name();
    }
    match path {
        "/rollway/v1/run/experiences" => "experiences",
        "/health" => "health",
        "/metrics" => "metrics",
        "/feedback" => "feedback",
        "/commit" => "commit",
        path if path.starts_with("/v1/models") => "models",
        path if path.starts_with("/rollway/v1/models") => "servers",
        _ => "other",
    }
}
