//! Prometheus metrics of the gateway.

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
use rollway_model_api::client_api::{self, CLIENT_APIS};
use rollway_model_api::{CallError, ClientApi, ErrorKind, ModelResponse, ResponseEnd};

use super::EMBEDDINGS;
use super::exact_history::ExactOutcome;
use super::observed_call::ObservedCall;
use super::refusal::RefusalReason;
use super::responses;
use super::run_sessions::RecordDelta;
use super::server_metrics::Servers;
use super::state::GatewayState;
use super::turn_store::TurnStore;
use crate::models::Models;
use crate::options::TokenCounts;

#[derive(Debug)]
pub(crate) struct GatewayMetrics {
    registry: Registry,
    seconds: Family<Label, Histogram, fn() -> Histogram>,
    overhead_seconds: Family<Label, Histogram, fn() -> Histogram>,
    pub(super) values: Values,
}

#[derive(Debug, Default)]
pub(super) struct Values {
    requests: Family<RequestLabels, Counter>,
    tokens: Family<Label, Counter>,
    exact_prompts: Family<Label, Counter>,
    refused: Family<Label, Counter>,
    in_flight: Gauge,
    waiting: Gauge,
    sessions: Gauge,
    held_bytes: Family<Label, Gauge>,
    pub(super) turns: Counter,
    pub(super) retries: Counter,
    aborted: Counter,
    replaced: Counter,
    empty: Counter,
    dropped: Counter,
    aborted_empty: Counter,
    continued: Counter,
    drift: Counter,
    branches: Counter,
    pub(super) recording_failures: Counter,
    pub(super) resent: Counter,
    pub(super) budgets_exhausted: Counter,
    pub(super) broken: Counter,
    pub(super) given_up: Counter,
}

/// One label with its value.
type Label = [(&'static str, &'static str); 1];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: &'static str,
    status: u16,
}

/// Buckets from 0.1 ms to more than an hour.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.5, 20))
}

impl GatewayMetrics {
    pub(super) fn new(models: Models, history: Option<&dyn TurnStore>) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("rollway_gateway"),
            seconds: Family::new_with_constructor(seconds as fn() -> Histogram),
            overhead_seconds: Family::new_with_constructor(seconds as fn() -> Histogram),
            values: Values::default(),
        };
        metrics.begin();
        metrics.register();
        metrics.registry.register_collector(Box::new(Servers(models)));
        if let Some(history) = history {
            history.register(&mut metrics.registry);
        }
        metrics
    }

    /// Creates common labels with the value zero, so that they are not absent.
    fn begin(&self) {
        for kind in ["prompt", "completion"] {
            drop(self.values.tokens.get_or_create(&[("kind", kind)]));
        }
        for outcome in ExactOutcome::ALL {
            drop(self.values.exact_prompts.get_or_create(&[("outcome", outcome.name())]));
        }
        for reason in RefusalReason::ALL {
            drop(self.values.refused.get_or_create(&[("reason", reason.name())]));
        }
        for endpoint in CLIENT_APIS.iter().map(|api| api.name()) {
            drop(self.values.requests.get_or_create(&RequestLabels { endpoint, status: 200 }));
            drop(self.seconds.get_or_create(&[("endpoint", endpoint)]));
            drop(self.overhead_seconds.get_or_create(&[("endpoint", endpoint)]));
        }
    }

    fn register(&mut self) {
        let (to, values) = (&mut self.registry, &self.values);
        to.register("requests", "Requests by endpoint and status", values.requests.clone());
        to.register("tokens", "Tokens of prompts and completions", values.tokens.clone());
        let help = "Chats that continue a recorded turn, by the treatment of their prompt";
        to.register("exact_prompts", help, values.exact_prompts.clone());
        let help = "Memory of requests and responses in flight and of recordings, in bytes";
        to.register("held_bytes", help, values.held_bytes.clone());
        let help = "Requests beyond a limit, by the limit";
        to.register("refused", help, values.refused.clone());
        let help = "Duration of calls, in seconds";
        to.register("call_seconds", help, self.seconds.clone());
        let help = "Duration of calls without the time of their servers, in seconds";
        to.register("overhead_seconds", help, self.overhead_seconds.clone());
        to.register("in_flight", "Calls in flight", values.in_flight.clone());
        to.register("calls_waiting", "Calls that wait for a server", values.waiting.clone());
        to.register("run_sessions", "Open runs with at least one call", values.sessions.clone());
        let counters = [
            ("turns", "Recorded turns", &values.turns),
            ("calls_deduplicated", "Client retries that got a saved response", &values.retries),
            ("completions_aborted", "Recorded completions that ended early", &values.aborted),
            ("calls_replaced", "Calls replaced by a client retry", &values.replaced),
            ("calls_without_tokens", "Aborted calls without any token", &values.aborted_empty),
            ("saved_responses_dropped", "Saved responses dropped for room", &values.dropped),
            ("turns_empty", "Turns without a token", &values.empty),
            ("turns_continued", "Turns that continue an earlier one", &values.continued),
            ("turns_drifted", "Turns that continue only a part of an earlier one", &values.drift),
            ("turns_branched", "Turns that branch off within an experience", &values.branches),
            ("recording_failures", "Responses not recorded", &values.recording_failures),
            ("calls_beyond_budget", "Calls beyond the run's budget", &values.budgets_exhausted),
            ("calls_rerouted", "Calls sent to another server", &values.resent),
            ("streams_broken", "Incomplete responses of servers", &values.broken),
            ("upstream_aborted", "Requests aborted in their servers", &values.given_up),
        ];
        for (name, help, counter) in counters {
            to.register(name, help, counter.clone());
        }
    }

    /// Counts a request with its status.
    pub(super) fn count_request(&self, endpoint: &'static str, status: StatusCode) {
        let request = RequestLabels { endpoint, status: status.as_u16() };
        self.values.requests.get_or_create(&request).inc();
    }

    pub(super) fn count_refusal(&self, reason: RefusalReason) {
        self.values.refused.get_or_create(&[("reason", reason.name())]).inc();
    }

    pub(super) fn count_exact_prompt(&self, outcome: ExactOutcome) {
        self.values.exact_prompts.get_or_create(&[("outcome", outcome.name())]).inc();
    }

    pub(super) fn call(app: &Arc<GatewayState>, api: &dyn ClientApi) -> CallTimer {
        let endpoint = api.name();
        app.metrics.values.in_flight.inc();
        let app = Arc::clone(app);
        let (began, upstream) = (Instant::now(), Duration::ZERO);
        CallTimer { app, endpoint, began, upstream, observed: ObservedCall::default() }
    }

    pub(super) fn wait(&self) -> impl Drop + '_ {
        self.values.waiting.inc();
        Waiting(&self.values.waiting)
    }

    pub(super) fn answered(&self, answer: &ModelResponse) {
        if let Some(prompt) = &answer.prompt {
            let count = u64::try_from(prompt.len()).unwrap_or(u64::MAX);
            self.values.tokens.get_or_create(&[("kind", "prompt")]).inc_by(count);
        }
        let completions = answer.choices.iter().filter_map(|choice| choice.tokens.as_ref());
        let count = u64::try_from(completions.map(Vec::len).sum::<usize>()).unwrap_or(u64::MAX);
        self.values.tokens.get_or_create(&[("kind", "completion")]).inc_by(count);
        self.values.aborted.inc_by(u64::from(answer.end == ResponseEnd::Aborted));
    }

    pub(crate) fn token_counts(&self) -> TokenCounts {
        let count = |kind| self.values.tokens.get_or_create(&[("kind", kind)]).get();
        TokenCounts { prompt: count("prompt"), answer: count("completion") }
    }

    pub(super) fn recorded(&self, counted: RecordDelta) {
        let RecordDelta { before, after } = counted;
        let counts = [
            (&self.values.turns, before.turns, after.turns),
            (&self.values.replaced, before.replaced, after.replaced),
            (&self.values.aborted_empty, before.aborted_empty, after.aborted_empty),
            (&self.values.dropped, before.dropped, after.dropped),
            (&self.values.empty, before.merged.empty, after.merged.empty),
            (&self.values.continued, before.merged.continued, after.merged.continued),
            (&self.values.drift, before.merged.drift, after.merged.drift),
            (&self.values.branches, before.merged.branches, after.merged.branches),
        ];
        for (counter, before, after) in counts {
            counter.inc_by(after.saturating_sub(before));
        }
    }
}

/// Returns the metrics as OpenMetrics, without the final line.
pub(super) fn text(app: &GatewayState) -> Result<String, fmt::Error> {
    app.metrics.values.sessions.set(i64::try_from(app.runs.sessions()).unwrap_or(i64::MAX));
    let held = [
        ("requests", app.requests.used()),
        ("responses", app.responses.used()),
        ("recordings", app.recorded.bytes()),
    ];
    for (kind, bytes) in held {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        app.metrics.values.held_bytes.get_or_create(&[("kind", kind)]).set(bytes);
    }
    let mut text = String::new();
    encode_registry(&mut text, &app.metrics.registry)?;
    Ok(text)
}

/// `GET /metrics`.
pub(super) async fn show(State(app): State<Arc<GatewayState>>) -> Response {
    let Ok(mut text) = text(&app) else {
        let message = "the metrics cannot be written";
        return responses::error(&CallError::new(ErrorKind::Unavailable, message));
    };
    if let Some(further) = app.further.get() {
        text.push_str(&further.metrics().await);
    }
    // Writing to a string cannot fail.
    let _ = encode_eof(&mut text);
    let mut response = responses::json(StatusCode::OK, text);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Measures a call in flight.
#[derive(Debug)]
pub(super) struct CallTimer {
    app: Arc<GatewayState>,
    endpoint: &'static str,
    pub(super) began: Instant,
    /// Time that the servers have taken.
    pub(super) upstream: Duration,
    pub(super) observed: ObservedCall,
}

impl Drop for CallTimer {
    fn drop(&mut self) {
        let metrics = &self.app.metrics;
        metrics.values.in_flight.dec();
        let endpoint = [("endpoint", self.endpoint)];
        let took = self.began.elapsed();
        metrics.seconds.get_or_create(&endpoint).observe(took.as_secs_f64());
        let added = took.saturating_sub(self.upstream);
        metrics.overhead_seconds.get_or_create(&endpoint).observe(added.as_secs_f64());
    }
}

struct Waiting<'a>(&'a Gauge);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Maps a path to one of a few labels.
pub(super) fn endpoint(path: &str) -> &'static str {
    if let Some(route) = client_api::at_path(path) {
        return route.endpoint();
    }
    match path {
        "/rollway/v1/run/experiences" => "experiences",
        "/rollway/v1/run/usage" => "usage",
        EMBEDDINGS => "embeddings",
        "/health" => "health",
        "/metrics" => "metrics",
        "/feedback" => "feedback",
        "/commit" => "commit",
        path if path.starts_with("/v1/models") => "models",
        path if path.starts_with("/rollway/v1/models") => "servers",
        _ => "other",
    }
}
