//! The numbers of a job for Prometheus: those of the engine and of its gateway, in one scrape.
//!
//! ```text
//! events::Seen ─► track ─► durations ────┐
//! Event ─► steps, weights, experiences ───┼─► Snapshot ─► one text
//! the core, at the moment of the scrape ──┘     ▲
//! the gateway's own registry ───────────────────┘
//! ```
//!
//! What must add up (runs, tasks, payloads) is looked at in one moment between two turns of the
//! driver, so that it adds up in every scrape. `docs/metrics.md` lists every metric; a test keeps
//! it so.

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
use rollway_engine::events::{Observer, Seen, now};
use rollway_engine::job_event::{Event, Watcher};
use rollway_engine::live_stats::{Pulse, Whole};
use rollway_gateway::gateway::FurtherMetrics;

use self::durations::{Names, Spans};
use self::families::{Ages, Job, Snapshot};
use self::job_metrics::Told;
pub use self::server::{Listen, ListenError};
use crate::dropped::Drops;
use crate::in_flight::{Passed, Track, since};

/// What every name begins with.
const PREFIX: &str = "rollway";

/// The line that ends a text.
const END: &str = "# EOF\n";

/// How a scrape is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// OpenMetrics 1.0.
    #[default]
    OpenMetrics,
    /// The older text format.
    Text,
}

impl Form {
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
pub struct Meters {
    job: Job,
    drops: Drops,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    track: Track,
    names: Names,
    attempts: Spans,
    tasks: Spans,
    waits: Spans,
    told: Told,
    pulse: Option<Pulse>,
}

impl Meters {
    /// Returns numbers that nothing was counted in. `drops` are what others could not keep up with.
    pub fn new(config: &Config, drops: Drops) -> Arc<Self> {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mode = serde_json::to_value(config.mode).unwrap_or_default();
        let job = Job {
            project: config.project.clone(),
            name: config.name.clone(),
            mode: mode.as_str().unwrap_or_default().to_owned(),
            started: started.as_secs_f64(),
        };
        let inner = Inner {
            track: Track::default(),
            names: Names::default(),
            attempts: Spans::default(),
            tasks: Spans::default(),
            waits: Spans::default(),
            told: Told::new(),
            pulse: None,
        };
        Arc::new(Self { job, drops, inner: Mutex::new(inner) })
    }

    /// Returns everything there is to say now, of the engine and of its gateway.
    pub async fn render(&self, form: Form) -> String {
        let whole = self.whole().await;
        let mut text = self.engine(Arc::clone(&whole)).unwrap_or_default();
        text.push_str(&whole.gateway);
        match form {
            Form::OpenMetrics => text + END,
            Form::Text => text_format::classic(&text),
        }
    }

    /// Looks at the core. Nothing is locked meanwhile.
    async fn whole(&self) -> Arc<Whole> {
        let pulse = self.lock().pulse.clone();
        match pulse {
            Some(pulse) => pulse.whole().await,
            None => Arc::default(),
        }
    }

    /// Writes the part of the engine.
    fn engine(&self, whole: Arc<Whole>) -> Result<String, fmt::Error> {
        let inner = self.lock();
        let snapshot = Snapshot {
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

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

impl Inner {
    fn saw(&mut self, seen: &Seen) {
        let Self { track, names, attempts, tasks, waits, .. } = self;
        track.see(seen, |passed| match passed {
            Passed::Given { class, kind, waited } => waits.add((names.of(class), kind), waited),
            Passed::Attempt { class, kind, took } => {
                attempts.add((names.of(class), kind), took);
            }
            Passed::Task { class, kind, took: Some(took), .. } => {
                tasks.add((names.of(class), kind), took);
            }
            Passed::Task { took: None, .. } | Passed::Run { .. } => {}
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

impl Observer for Meters {
    fn observe(&self, seen: &[Seen]) {
        let mut inner = self.lock();
        seen.iter().for_each(|seen| inner.saw(seen));
    }
}

impl Watcher for Meters {
    fn saw(&self, event: &Event) {
        let mut inner = self.lock();
        if let Event::Pulse(pulse) = event {
            inner.pulse = Some(pulse.clone());
        }
        inner.told.saw(event);
    }
}

/// What mode `serve` shows below the numbers of its gateway.
impl FurtherMetrics for Meters {
    fn metrics(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async { self.engine(self.whole().await).unwrap_or_default() })
    }
}
