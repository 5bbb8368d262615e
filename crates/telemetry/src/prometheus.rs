//! Prometheus exporter: metrics of the engine and its gateway in one scrape.
//!
//! ```text
//! RunEvent ─► in_flight ─► durations ───────┐
//! JobEvent ─► steps, weights, experiences ──┼─► MetricsView ─► one text
//! the core, at the time of the scrape ──────┘      ▲
//! the gateway's own registry ──────────────────────┘
//! ```
//!
//! Counts that must add up (runs, tasks, payloads) are read between two turns of the driver.
//! `docs/metrics.md` lists every metric; a test compares.

mod durations;
mod families;
mod job_metrics;
mod server;
mod text_format;
mod writer;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;
use rollway_config::Config;
use rollway_core::BatchView;
use rollway_engine::events::{RunEvent, RunObserver, now};
use rollway_engine::job_event::{JobEvent, JobObserver};
use rollway_engine::live_stats::{LiveStats, MetricsSnapshot};
use rollway_gateway::gateway::ExtraMetrics;

use self::durations::{DurationNames, Spans};
use self::families::{Ages, JobFamilies, MetricsView};
use self::job_metrics::JobMetrics;
pub use self::server::{MetricsServer, MetricsServerError};
use crate::dropped::DropCounters;
use crate::in_flight::{DurationEvent, InFlight, since};

/// Prefix of all names.
const PREFIX: &str = "rollway";

/// Last line of a response.
const END: &str = "# EOF\n";

/// Format of a scrape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpositionFormat {
    /// OpenMetrics 1.0.
    #[default]
    OpenMetrics,
    /// The older text format.
    Text,
}

impl ExpositionFormat {
    /// Returns the format for the `Accept` header of a request.
    pub fn accepted(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Text,
        }
    }

    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Collects the metrics of a job as an observer of runs and job events.
#[derive(Debug)]
pub struct PrometheusExporter {
    job: JobFamilies,
    drops: DropCounters,
    inner: Mutex<ExporterState>,
}

#[derive(Debug)]
struct ExporterState {
    in_flight: InFlight,
    names: DurationNames,
    attempts: Spans,
    tasks: Spans,
    waits: Spans,
    metrics: JobMetrics,
    stats: Option<LiveStats>,
}

impl PrometheusExporter {
    /// `drops` has the counts of other observers.
    pub fn new(config: &Config, drops: DropCounters) -> Arc<Self> {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mode = serde_json::to_value(config.mode).unwrap_or_default();
        let job = JobFamilies {
            project: config.project.clone(),
            name: config.name.clone(),
            mode: mode.as_str().unwrap_or_default().to_owned(),
            started: started.as_secs_f64(),
        };
        let inner = ExporterState {
            in_flight: InFlight::default(),
            names: DurationNames::default(),
            attempts: Spans::default(),
            tasks: Spans::default(),
            waits: Spans::default(),
            metrics: JobMetrics::new(),
            stats: None,
        };
        Arc::new(Self { job, drops, inner: Mutex::new(inner) })
    }

    /// Renders all metrics of the engine and its gateway.
    pub async fn render(&self, form: ExpositionFormat) -> String {
        let snapshot = self.snapshot().await;
        let mut text = self.render_engine(Arc::clone(&snapshot)).unwrap_or_default();
        text.push_str(&snapshot.gateway);
        match form {
            ExpositionFormat::OpenMetrics => text + END,
            ExpositionFormat::Text => text_format::classic(&text),
        }
    }

    /// Reads the core, without a lock.
    async fn snapshot(&self) -> Arc<MetricsSnapshot> {
        let stats = self.inner.lock().stats.clone();
        match stats {
            Some(stats) => stats.metrics().await,
            None => Arc::default(),
        }
    }

    fn render_engine(&self, snapshot: Arc<MetricsSnapshot>) -> Result<String, fmt::Error> {
        let inner = self.inner.lock();
        let view = MetricsView {
            job: self.job.clone(),
            ages: inner.batch_ages(&snapshot.core.batches),
            metrics: inner.metrics.clone(),
            attempts: inner.attempts.clone(),
            tasks: inner.tasks.clone(),
            waits: inner.waits.clone(),
            names: inner.names.clone(),
            drops: self.drops.read(),
            snapshot,
        };
        drop(inner);
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(view));
        let mut text = String::new();
        encode_registry(&mut text, &registry)?;
        Ok(text)
    }
}

impl ExporterState {
    fn apply(&mut self, event: &RunEvent) {
        let Self { in_flight, names, attempts, tasks, waits, .. } = self;
        in_flight.apply(event, |duration| match duration {
            DurationEvent::Started { class, kind, waited } => {
                waits.add((names.label_number(class), kind), waited)
            }
            DurationEvent::Attempt { class, kind, took } => {
                attempts.add((names.label_number(class), kind), took);
            }
            DurationEvent::Task { class, kind, took: Some(took), .. } => {
                tasks.add((names.label_number(class), kind), took);
            }
            DurationEvent::Task { took: None, .. } | DurationEvent::Run(_) => {}
        });
    }

    fn batch_ages(&self, batches: &[BatchView]) -> Ages {
        let now = now();
        let age = |batch: &BatchView| Some(since(now, self.in_flight.began(batch.key)?));
        let pending = batches.iter().filter(|batch| batch.runs.pending > 0);
        let oldest = self.in_flight.oldest_attempts().next();
        Ages {
            pending: pending.filter_map(age).max(),
            attempt: oldest.map(|attempt| since(now, attempt.sent_at)),
            batch: batches.iter().filter_map(age).max(),
        }
    }
}

impl RunObserver for PrometheusExporter {
    fn observe(&self, events: &[RunEvent]) {
        let mut inner = self.inner.lock();
        events.iter().for_each(|event| inner.apply(event));
    }
}

impl JobObserver for PrometheusExporter {
    fn on_event(&self, event: &JobEvent) {
        let mut inner = self.inner.lock();
        if let JobEvent::Ready(stats) = event {
            inner.stats = Some(stats.clone());
        }
        inner.metrics.apply(event);
    }
}

/// Mode `serve` appends these to the metrics of its gateway.
impl ExtraMetrics for PrometheusExporter {
    fn metrics(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async { self.render_engine(self.snapshot().await).unwrap_or_default() })
    }
}
