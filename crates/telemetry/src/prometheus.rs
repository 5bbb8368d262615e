//! Metrics of a job for Prometheus: those of the engine and of its gateway, in one scrape.
//!
//! ```text
//! RunEvent ─► in_flight ─► durations ───────┐
//! JobEvent ─► steps, weights, experiences ──┼─► MetricsView ─► one text
//! the core, at the moment of the scrape ────┘      ▲
//! the gateway's own registry ──────────────────────┘
//! ```
//!
//! Counts that must add up (runs, tasks, payloads) are read in one moment between two turns of the
//! driver. `docs/metrics.md` lists every metric; a test compares.

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

use parking_lot::{Mutex, MutexGuard};
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

/// What every name begins with.
const PREFIX: &str = "rollway";

/// The line that ends a text.
const END: &str = "# EOF\n";

/// How a scrape is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpositionFormat {
    /// OpenMetrics 1.0.
    #[default]
    OpenMetrics,
    /// The older text format.
    Text,
}

impl ExpositionFormat {
    /// Returns the form that fits the `Accept` header of a request.
    pub fn accepted(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Text,
        }
    }

    /// Returns the content type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The numbers of a job. It observes runs and watches the job.
#[derive(Debug)]
pub struct PrometheusExporter {
    job: JobFamilies,
    drops: DropCounters,
    inner: Mutex<ExporterState>,
}

#[derive(Debug)]
struct ExporterState {
    track: InFlight,
    names: DurationNames,
    attempts: Spans,
    tasks: Spans,
    waits: Spans,
    told: JobMetrics,
    pulse: Option<LiveStats>,
}

impl PrometheusExporter {
    /// Returns numbers that nothing was counted in. `drops` are what others could not keep up with.
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
            track: InFlight::default(),
            names: DurationNames::default(),
            attempts: Spans::default(),
            tasks: Spans::default(),
            waits: Spans::default(),
            told: JobMetrics::new(),
            pulse: None,
        };
        Arc::new(Self { job, drops, inner: Mutex::new(inner) })
    }

    /// Returns everything there is to say now, of the engine and of its gateway.
    pub async fn render(&self, form: ExpositionFormat) -> String {
        let whole = self.whole().await;
        let mut text = self.engine(Arc::clone(&whole)).unwrap_or_default();
        text.push_str(&whole.gateway);
        match form {
            ExpositionFormat::OpenMetrics => text + END,
            ExpositionFormat::Text => text_format::classic(&text),
        }
    }

    /// Looks at the core. Nothing is locked meanwhile.
    async fn whole(&self) -> Arc<MetricsSnapshot> {
        let pulse = self.lock().pulse.clone();
        match pulse {
            Some(pulse) => pulse.metrics().await,
            None => Arc::default(),
        }
    }

    /// Writes the part of the engine.
    fn engine(&self, whole: Arc<MetricsSnapshot>) -> Result<String, fmt::Error> {
        let inner = self.lock();
        let snapshot = MetricsView {
            job: self.job.clone(),
            ages: inner.ages(&whole.glance.batches),
            told: inner.told.clone(),
            attempts: inner.attempts.clone(),
            tasks: inner.tasks.clone(),
            waits: inner.waits.clone(),
            names: inner.names.clone(),
            drops: self.drops.read(),
            whole,
        };
        drop(inner);
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(snapshot));
        let mut text = String::new();
        encode_registry(&mut text, &registry)?;
        Ok(text)
    }

    fn lock(&self) -> MutexGuard<'_, ExporterState> {
        self.inner.lock()
    }
}

impl ExporterState {
    fn saw(&mut self, seen: &RunEvent) {
        let Self { track, names, attempts, tasks, waits, .. } = self;
        track.see(seen, |passed| match passed {
            DurationEvent::Given { class, kind, waited } => {
                waits.add((names.of(class), kind), waited)
            }
            DurationEvent::Attempt { class, kind, took } => {
                attempts.add((names.of(class), kind), took);
            }
            DurationEvent::Task { class, kind, took: Some(took), .. } => {
                tasks.add((names.of(class), kind), took);
            }
            DurationEvent::Task { took: None, .. } | DurationEvent::Run { .. } => {}
        });
    }

    fn ages(&self, batches: &[BatchView]) -> Ages {
        let now = now();
        let age = |batch: &BatchView| Some(since(now, self.track.began(batch.key)?));
        let pending = batches.iter().filter(|batch| batch.runs.pending > 0);
        let oldest = self.track.oldest_attempts().next();
        Ages {
            pending: pending.filter_map(age).max(),
            attempt: oldest.map(|attempt| since(now, attempt.given)),
            batch: batches.iter().filter_map(age).max(),
        }
    }
}

impl RunObserver for PrometheusExporter {
    fn observe(&self, seen: &[RunEvent]) {
        let mut inner = self.lock();
        seen.iter().for_each(|seen| inner.saw(seen));
    }
}

impl JobObserver for PrometheusExporter {
    fn on_event(&self, event: &JobEvent) {
        let mut inner = self.lock();
        if let JobEvent::Ready(pulse) = event {
            inner.pulse = Some(pulse.clone());
        }
        inner.told.saw(event);
    }
}

/// What mode `serve` shows below the numbers of its gateway.
impl ExtraMetrics for PrometheusExporter {
    fn metrics(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async { self.engine(self.whole().await).unwrap_or_default() })
    }
}
