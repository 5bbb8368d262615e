//! Traces of a job for OpenTelemetry collectors and as a file for Perfetto.
//!
//! Owns span building, sampling and both exporters. Knows nothing of pages, explorers and jobs.
//!
//! ```text
//! RunEvent ─► sampling ─┐                                  ┌─► span_builder ─► otlp ─► collector
//! JobEvent ─────────────┴─► queue ─► thread ─► TraceEvent ─┴─► perfetto ─► trace.json
//! ```
//!
//! `sampling.rs` decides in the caller's thread which tasks are traced, `span_builder.rs` makes
//! spans, `ids.rs` names them. `docs/tracing.md` describes the output.

mod call_spans;
mod dropped;
mod event;
mod from_history;
mod ids;
mod otlp;
mod outcome;
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

use self::dropped::Losses;
pub use self::dropped::UntracedCounts;
use self::event::{TraceEvent, TraceEventKind, nanos};
pub use self::from_history::write_trace;
pub use self::ids::{SpanId, SpanNamer, TraceId, traceparent};
use self::otlp::{Exporter, Target};
use self::perfetto::PerfettoWriter;
use self::queue::TraceQueue;
use self::sampling::TraceSampler;
use self::span_builder::SpanBuilder;

/// How often the numbers of runs in flight are put down.
const BEAT: Duration = Duration::from_secs(1);

/// How long the end of a job waits for its trace: the collector's farewell, and a disk.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(12);

/// Returns where the trace file of a job is.
pub fn file(config: &Config) -> PathBuf {
    config.job_dir().join("trace.json")
}

/// Tells whether a job is traced.
pub fn is_wanted(config: &Config) -> bool {
    let variable = |name: &str| std::env::var(name).ok();
    // What cannot be understood is told when it is opened.
    config.trace.file
        || Target::of(config, &SpanNamer::of(config), variable).is_ok_and(|target| target.is_some())
}

/// Traces a job. Closed, or dropped, it writes and sends what it has.
#[derive(Debug)]
pub struct Tracer {
    shared: Arc<TracerShared>,
    over: Mutex<Receiver<()>>,
}

#[derive(Debug)]
struct TracerShared {
    filter: Mutex<TraceSampler>,
    queue: TraceQueue,
    losses: Arc<Losses>,
}

impl Tracer {
    /// Opens what a configuration wants; none if it wants no traces.
    ///
    /// # Errors
    /// If the file cannot be written, or the collector's address or headers make no sense.
    pub fn open(config: &Config) -> io::Result<Option<Arc<Self>>> {
        let names = SpanNamer::of(config);
        let losses = Arc::new(Losses::default());
        let variable = |name: &str| std::env::var(name).ok();
        let target = Target::of(config, &names, variable).map_err(io::Error::other)?;
        let in_turn = config.explorer.concurrent_mode == ConcurrentMode::Sequential;
        let mut outlets = Outlets { book: None, chrome: None };
        if let Some(target) = target {
            let exporter = Exporter::start(target, &losses)?;
            outlets.book = Some((SpanBuilder::new(names.clone(), in_turn), exporter));
        }
        if config.trace.file {
            let (path, most) = (file(config), config.trace.max_file_bytes);
            let now = nanos(SystemTime::now());
            outlets.chrome = Some(PerfettoWriter::open(&path, most, now, in_turn, &losses)?);
        }
        if outlets.book.is_none() && outlets.chrome.is_none() {
            return Ok(None);
        }
        let filter = TraceSampler::new(names, config.trace.sample);
        Self::start(filter, outlets, losses).map(|tracer| Some(Arc::new(tracer)))
    }

    fn start(filter: TraceSampler, outlets: Outlets, losses: Arc<Losses>) -> io::Result<Self> {
        let (end, over) = channel();
        let filter = Mutex::new(filter);
        let shared = Arc::new(TracerShared { filter, queue: TraceQueue::default(), losses });
        let known = Arc::clone(&shared);
        let work = move || {
            outlets.work(&known.queue);
            // Nobody may be waiting.
            let _ = end.send(());
        };
        thread::Builder::new().name("trace".to_owned()).spawn(work)?;
        Ok(Self { shared, over: over.into() })
    }

    /// Writes and sends what there is, within a deadline; nothing is traced from now on.
    pub fn close(&self) {
        if !self.shared.queue.close() {
            return;
        }
        // A disk that hangs keeps nobody from ending.
        if self.over.lock().recv_timeout(SHUTDOWN_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the last of the trace is not written: its disk hangs");
        }
        self.shared.losses.tell();
    }

    /// Returns what was not traced so far.
    pub fn untraced(&self) -> UntracedCounts {
        self.shared.losses.count()
    }
}

impl TracerShared {
    fn tell(&self, marks: Vec<TraceEvent>) {
        let left = self.queue.push(marks);
        if left > 0 {
            self.losses.marks(left);
        }
    }

    fn now(&self, fact: TraceEventKind) {
        self.tell(vec![TraceEvent { at: nanos(SystemTime::now()), fact }]);
    }
}

impl RunObserver for Tracer {
    fn observe(&self, seen: &[RunEvent]) {
        let shared = &self.shared;
        let has_room = shared.queue.has_room();
        let mut marks = Vec::new();
        let ignored = {
            let mut filter = shared.filter.lock();
            filter.keep(seen, has_room, &mut marks);
            std::mem::take(&mut filter.ignored)
        };
        shared.losses.tasks(ignored);
        if !marks.is_empty() {
            shared.tell(marks);
        }
    }

    fn traceparent(&self, attempt: AttemptId, run: RunId, call: u64) -> Option<String> {
        let (trace, span) = self.shared.filter.lock().call(attempt, run, call)?;
        Some(traceparent(trace, span))
    }
}

impl JobObserver for Tracer {
    fn on_event(&self, event: &JobEvent) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let fact = match event {
            JobEvent::Ready(pulse) => return count(pulse.clone(), &self.shared),
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
            JobEvent::Info(words) => TraceEventKind::Noted(words.as_str().into()),
            _ => return,
        };
        self.shared.now(fact);
    }
}

/// Puts down how many runs are in flight, as long as somebody traces.
fn count(pulse: LiveStats, shared: &Arc<TracerShared>) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let shared: Weak<TracerShared> = Arc::downgrade(shared);
    runtime.spawn(async move {
        loop {
            let beat = pulse.sample().await;
            let Some(shared) = shared.upgrade() else { return };
            if shared.queue.is_closed() {
                return;
            }
            let (pending, running, busy) = (beat.pending, beat.running, beat.busy);
            shared.now(TraceEventKind::Beat { pending, running, busy });
            drop(shared);
            tokio::time::sleep(BEAT).await;
        }
    });
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.close();
    }
}

/// Where marks go.
struct Outlets {
    book: Option<(SpanBuilder, Exporter)>,
    chrome: Option<PerfettoWriter>,
}

impl Outlets {
    /// Takes marks until there are no more.
    fn work(mut self, queue: &TraceQueue) {
        let mut marks = Vec::new();
        while queue.take(&mut marks) {
            self.take(&marks);
        }
        if let Some((mut book, exporter)) = self.book {
            exporter.send(book.close());
        }
        if let Some(chrome) = self.chrome {
            chrome.close();
        }
    }

    fn take(&mut self, marks: &[TraceEvent]) {
        if let Some(chrome) = &mut self.chrome {
            marks.iter().for_each(|mark| chrome.note(mark));
            chrome.flush();
        }
        if let Some((book, exporter)) = &mut self.book {
            marks.iter().for_each(|mark| book.note(mark));
            exporter.send(book.over());
        }
    }
}

#[cfg(test)]
mod tests;
