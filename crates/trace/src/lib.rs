//! Traces of a job for OpenTelemetry collectors and as a file for Perfetto.
//!
//! Owns span building, sampling and both exporters. Knows nothing of pages, explorers and jobs.
//!
//! ```text
//! RunEvent ─► sampling ─┐                                  ┌─► otlp ─► collector
//! JobEvent ─────────────┴─► queue ─► thread: span_builder ─┴─► perfetto ─► trace.json
//! ```
//!
//! `sampling.rs` decides in the caller's thread which tasks are traced. `docs/tracing.md` describes
//! the output.

mod dropped;
mod event;
mod exporters;
mod from_history;
mod ids;
mod otlp;
mod perfetto;
mod queue;
mod sampling;
mod span;
mod span_builder;

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rollway_config::{ConcurrentMode, Config};
use rollway_core::{AttemptId, RunId};
use rollway_engine::events::{RunEvent, RunObserver};
use rollway_engine::job_event::{JobEvent, JobObserver};
use rollway_engine::live_stats::LiveStats;
use rollway_telemetry::DropCounters;

use self::dropped::Losses;
pub use self::dropped::UntracedCounts;
use self::event::{TraceEvent, TraceEventKind, nanos};
use self::exporters::SpanExporters;
pub use self::from_history::write_trace;
pub use self::ids::{SpanId, SpanNamer, TraceId, traceparent};
use self::otlp::{Exporter, Target};
use self::perfetto::PerfettoWriter;
use self::queue::TraceQueue;
use self::sampling::TraceSampler;
use self::span_builder::SpanBuilder;

/// Interval of the counters of runs and runners.
const STATS_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time that the end of a job waits for the collector and the disk.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(12);

/// Returns the path of a job's trace file.
pub fn file(config: &Config) -> PathBuf {
    config.job_dir().join("trace.json")
}

/// Returns whether a job is traced.
pub fn is_wanted(config: &Config) -> bool {
    // `Tracer::open` reports an invalid target.
    config.trace.file || matches!(target(config), Ok(Some(_)))
}

fn target(config: &Config) -> Result<Option<Target>, String> {
    Target::of(config, &SpanNamer::of(config), |name| std::env::var(name).ok())
}

/// Traces a job. Closing or dropping it writes and sends the remaining spans.
#[derive(Debug)]
pub struct Tracer {
    shared: Arc<TracerShared>,
    thread_end: Mutex<Receiver<()>>,
}

#[derive(Debug)]
struct TracerShared {
    sampler: Mutex<TraceSampler>,
    queue: TraceQueue,
    losses: Arc<Losses>,
}

impl Tracer {
    /// Opens the exporters of a configuration. `None`: it wants no traces. Lost events and spans
    /// are counted as `trace`.
    ///
    /// # Errors
    /// If the file cannot be written, or the collector's address or headers are invalid.
    pub fn open(config: &Config, drops: &DropCounters) -> io::Result<Option<Arc<Self>>> {
        let losses = Arc::new(Losses::new(drops));
        let target = target(config).map_err(io::Error::other)?;
        let otlp = target.map(|target| Exporter::start(target, &losses)).transpose()?;
        let mut exporters = SpanExporters { file: None, ended: otlp.is_some().then(Vec::new) };
        if config.trace.file {
            let (path, max_bytes) = (file(config), config.trace.max_file_bytes);
            let now = nanos(SystemTime::now());
            exporters.file = Some(PerfettoWriter::open(&path, max_bytes, now, &losses)?);
        }
        if otlp.is_none() && exporters.file.is_none() {
            return Ok(None);
        }
        let in_turn = config.explorer.concurrent_mode == ConcurrentMode::Sequential;
        let names = SpanNamer::of(config);
        let builder = SpanBuilder::new(names.clone(), in_turn, exporters);
        let (end, thread_end) = channel();
        let sampler = Mutex::new(TraceSampler::new(names, config.trace.sample));
        let shared = Arc::new(TracerShared { sampler, queue: TraceQueue::default(), losses });
        let owned = Arc::clone(&shared);
        let work = move || {
            export(builder, otlp, &owned.queue);
            let _ = end.send(());
        };
        thread::Builder::new().name("trace".to_owned()).spawn(work)?;
        Ok(Some(Arc::new(Self { shared, thread_end: thread_end.into() })))
    }

    /// Stops tracing and exports the remaining spans, within a deadline.
    pub fn close(&self) {
        if !self.shared.queue.close() {
            return;
        }
        let end = self.thread_end.lock().recv_timeout(SHUTDOWN_TIMEOUT);
        if end == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("trace not completely written: timeout of {SHUTDOWN_TIMEOUT:?}");
        }
        self.shared.losses.log();
    }

    /// Returns the counts of what was not traced so far.
    pub fn untraced(&self) -> UntracedCounts {
        self.shared.losses.count()
    }
}

/// Builds and exports spans until the queue is closed.
fn export(mut builder: SpanBuilder, otlp: Option<Exporter>, queue: &TraceQueue) {
    let send = |builder: &mut SpanBuilder| {
        if let Some(otlp) = &otlp {
            otlp.send(builder.exporters.take_ended());
        }
    };
    let mut events = Vec::new();
    while queue.take(&mut events) {
        events.iter().for_each(|event| builder.apply(event));
        if let Some(file) = &mut builder.exporters.file {
            file.flush();
        }
        send(&mut builder);
    }
    builder.close();
    send(&mut builder);
    if let Some(file) = builder.exporters.file {
        file.close();
    }
}

impl TracerShared {
    fn push(&self, events: Vec<TraceEvent>) {
        let dropped = self.queue.push(events);
        if dropped > 0 {
            self.losses.events_lost(dropped);
        }
    }

    fn push_now(&self, kind: TraceEventKind) {
        self.push(vec![TraceEvent { at: nanos(SystemTime::now()), kind }]);
    }
}

impl RunObserver for Tracer {
    fn observe(&self, events: &[RunEvent]) {
        let shared = &self.shared;
        let has_room = shared.queue.has_room();
        let mut sampled = Vec::new();
        let ignored = {
            let mut sampler = shared.sampler.lock();
            sampler.sample(events, has_room, &mut sampled);
            std::mem::take(&mut sampler.ignored)
        };
        shared.losses.tasks(ignored);
        if !sampled.is_empty() {
            shared.push(sampled);
        }
    }

    fn traceparent(&self, attempt: AttemptId, run: RunId, call: u64) -> Option<String> {
        let (trace, span) = self.shared.sampler.lock().call(attempt, run, call)?;
        Some(traceparent(trace, span))
    }
}

impl JobObserver for Tracer {
    fn on_event(&self, event: &JobEvent) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let kind = match event {
            JobEvent::Ready(stats) => return sample_stats(stats.clone(), &self.shared),
            JobEvent::StepBegun { step, tasks, runs } => {
                TraceEventKind::StepBegun { step: *step, tasks: *tasks, runs: *runs }
            }
            JobEvent::StepDone { step, metrics, .. } => {
                TraceEventKind::StepDone { step: *step, reward: metrics.get("rollout/reward/mean") }
            }
            JobEvent::Evaluated { step, version, set, score, .. } => {
                let (step, version, set) = (*step, Some(*version), Arc::clone(set));
                TraceEventKind::Evaluated { step, version, set, score: *score }
            }
            JobEvent::Synced { step, version, waited, loading } => {
                let (waited, loading) = (nanos(*waited), nanos(*loading));
                TraceEventKind::Synced { step: *step, version: Some(*version), waited, loading }
            }
            JobEvent::Trained { step, .. } => TraceEventKind::Trained { step: *step },
            JobEvent::Info(message) => TraceEventKind::Info(message.as_str().into()),
            JobEvent::Began { .. }
            | JobEvent::Alarm(_)
            | JobEvent::WaitBegun(_)
            | JobEvent::WaitEnded(_) => return,
        };
        self.shared.push_now(kind);
    }
}

/// Records the numbers of runs and busy runners until the tracer is closed.
fn sample_stats(stats: LiveStats, shared: &Arc<TracerShared>) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let shared: Weak<TracerShared> = Arc::downgrade(shared);
    runtime.spawn(async move {
        loop {
            let sample = stats.sample().await;
            let Some(shared) = shared.upgrade() else { return };
            if shared.queue.is_closed() {
                return;
            }
            let (pending, running, busy) = (sample.pending, sample.running, sample.busy);
            shared.push_now(TraceEventKind::Stats { pending, running, busy });
            drop(shared);
            tokio::time::sleep(STATS_INTERVAL).await;
        }
    });
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
