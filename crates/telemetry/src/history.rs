//! Run history: every run of a job, in memory while it runs and in its folder for later.
//!
//! ```text
//! run and job events ─► queue ─► state (rows, batches, open attempts) ─► files in <job>/history
//!                                  ▲
//!                                  └── queries; they empty the queue first
//! ```
//!
//! Observers only append to the queue. A thread empties it a few times a second and writes one
//! frame. Everything has a limit; dropped items are counted by kind. `docs/history.md` describes
//! the files.

mod codec;
mod detail;
mod failures;
mod files;
mod interner;
mod job_events;
mod job_log;
mod job_view;
mod load;
mod query;
mod record;
mod row;
mod runs;
mod series;
mod servers;
mod state;
mod tasks;
mod text_search;
mod totals;
mod trajectory;
mod write_queue;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rollway_config::{Config, Mode};
use rollway_core::RunnerState;
use rollway_engine::RolloutCoordinator;
use rollway_engine::events::{self, RunEvent, RunObserver};
use rollway_engine::job_event::{JobEvent, JobObserver};
use rollway_engine::live_stats::{self, LiveStats};
use rollway_gateway::models::ModelView;

use self::files::{Files, Unwritten};
pub use self::job_view::{live_view, recorded_view};
use self::record::JobNote;
use self::state::{Event, Item, State, seconds};
use self::text_search::TextSearches;
use crate::dropped::DropCounters;
use crate::redact;
use crate::view::{ConfigReport, JobState, RunnerCounts, StatsSample, WaitRow};

/// Time in which events are gathered for one write.
const BATCH_DELAY: Duration = Duration::from_millis(200);

/// Name of this observer in the counts of dropped items.
const OBSERVER: &str = "history";

/// Maximum number of queued events.
const QUEUE_CAPACITY: usize = 1 << 20;

/// Number of events that are written without further delay; they fit into a processor cache.
const BATCH_SIZE: usize = 1 << 14;

/// Maximum bytes of queued experiences.
const MAX_QUEUED_BYTES: u64 = 64 << 20;

/// Payloads per second that are decoded to measure completions.
const MAX_DECODES_PER_SECOND: f64 = 2_000.0;

#[derive(Clone, Debug, PartialEq)]
pub struct HistoryOptions {
    /// Folder of the history.
    pub dir: PathBuf,
    pub name: String,
    pub project: String,
    pub mode: String,
    pub job_dir: PathBuf,
    /// Maximum number of runs; older ones are dropped.
    pub max_runs: u64,
    /// Maximum bytes of experiences; older ones are dropped.
    pub max_trajectory_bytes: u64,
    /// Configuration without secrets.
    pub config: ConfigReport,
}

impl HistoryOptions {
    /// Returns the options of a configuration. `None`: no history is kept.
    pub fn of(config: &Config) -> Option<Self> {
        let dashboard = &config.dashboard;
        dashboard.history.then(|| Self {
            dir: folder(config),
            name: config.name.clone(),
            project: config.project.clone(),
            mode: format!("{:?}", config.mode).to_lowercase(),
            job_dir: config.job_dir(),
            max_runs: dashboard.max_runs,
            max_trajectory_bytes: dashboard.max_trajectory_bytes,
            config: redact::report(config),
        })
    }
}

/// Returns the folder of a process's history; processes that share a job's folder have one each.
fn folder(config: &Config) -> PathBuf {
    let own = match (config.mode, config.explorer.name.as_str()) {
        (Mode::Bench, _) => "bench_history".to_owned(),
        (Mode::Train, _) => format!("{}_history", config.trainer.name),
        (_, "explorer") => "history".to_owned(),
        (_, name) => format!("{name}_history"),
    };
    config.job_dir().join(own)
}

/// History of a running job. Dropping it writes the queued events.
#[derive(Debug)]
pub struct RunHistory {
    shared: Arc<Shared>,
    searches: TextSearches,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Lock order: `files`, `state`, `queue`.
    files: Mutex<Option<Files>>,
    state: Mutex<State>,
    stats: Mutex<Option<LiveStats>>,
    coordinator: Mutex<Option<RolloutCoordinator>>,
    runners: Mutex<RunnerCounts>,
    wait: Mutex<Option<WaitRow>>,
    refilled: Mutex<Instant>,
    drops: DropCounters,
}

#[derive(Debug, Default)]
struct Queue {
    items: Vec<Item>,
    spare: Vec<Item>,
    payload_bytes: u64,
    dropped_items: u64,
    dropped_payloads: u64,
    /// A query applied items that are not written yet.
    unwritten: bool,
    closing: bool,
}

impl RunHistory {
    /// Opens the history in a folder and continues an earlier one.
    ///
    /// # Errors
    /// If the folder cannot be read or written, or another process writes to it.
    pub fn open(options: &HistoryOptions) -> io::Result<Arc<Self>> {
        Self::open_counted(options, &DropCounters::default())
    }

    /// Opens the history, and counts the items that it drops as `history`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_counted(options: &HistoryOptions, drops: &DropCounters) -> io::Result<Arc<Self>> {
        drops.expect(OBSERVER);
        let files = Files::open(&options.dir)?;
        let mut state = State::load(&options.dir, options.max_runs)?;
        state.out.resume_after(options.max_trajectory_bytes);
        state.decodes = MAX_DECODES_PER_SECOND;
        let shared = Arc::new(Shared {
            dir: options.dir.clone(),
            queue: Mutex::default(),
            wake: Condvar::new(),
            files: Mutex::new(Some(files)),
            state: Mutex::new(state),
            stats: Mutex::default(),
            coordinator: Mutex::default(),
            runners: Mutex::default(),
            wait: Mutex::default(),
            refilled: Mutex::new(Instant::now()),
            drops: drops.clone(),
        });
        shared.note(JobNote::Opened {
            name: options.name.clone(),
            project: options.project.clone(),
            mode: options.mode.clone(),
            job_dir: options.job_dir.display().to_string(),
        });
        shared.note(JobNote::Config { report: options.config.clone() });
        let writer = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("rollway-history".into());
        let thread = thread.spawn(move || writer.run())?;
        let (thread, searches) = (Mutex::new(Some(thread)), TextSearches::default());
        Ok(Arc::new(Self { shared, searches, thread }))
    }

    /// Opens the history of a job if its configuration wants one. A failure is a warning, since the
    /// job does not need it.
    pub fn of(config: &Config, drops: &DropCounters) -> Option<Arc<Self>> {
        let options = HistoryOptions::of(config)?;
        let warn = |error: &io::Error| {
            let folder = options.dir.display();
            tracing::warn!(%error, %folder, "run history disabled");
        };
        Self::open_counted(&options, drops).inspect_err(warn).ok()
    }

    /// Writes everything and the end of the job. Later events are not kept; queries still work.
    pub fn close(&self, outcome: JobState, error: Option<String>) {
        // The coordinator holds its observers: this breaks the cycle.
        drop(self.shared.coordinator.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            self.shared.note(JobNote::Closed { outcome, error });
            self.shared.queue.lock().closing = true;
            self.shared.wake.notify_all();
            let _ = thread.join();
        }
    }

    /// Uses this coordinator for actions and runner states until the history is closed. That of an
    /// explorer is known from its events.
    pub fn follow(&self, coordinator: &RolloutCoordinator) {
        *self.shared.coordinator.lock() = Some(coordinator.clone());
    }

    fn coordinator(&self) -> Option<RolloutCoordinator> {
        let followed = self.shared.coordinator.lock().clone();
        followed.or_else(|| self.shared.stats.lock().as_ref()?.coordinator())
    }

    /// Runs a query on the state with all events until now.
    fn query<T>(&self, query: impl FnOnce(&State, f64) -> T) -> T {
        let mut state = self.shared.state.lock();
        self.shared.catch_up(&mut state);
        query(&state, seconds(events::now()))
    }
}

impl Drop for RunHistory {
    fn drop(&mut self) {
        self.close(JobState::Unknown, None);
    }
}

impl RunObserver for RunHistory {
    fn observe(&self, events: &[RunEvent]) {
        self.shared.push(events.iter().filter_map(Item::of));
    }
}

impl JobObserver for RunHistory {
    fn on_event(&self, event: &JobEvent) {
        if let JobEvent::Ready(stats) = event {
            *self.shared.stats.lock() = Some(stats.clone());
            job_events::sample_stats(&self.shared, stats);
        }
        let notes = [job_events::note(event), job_events::metrics(event)];
        notes.into_iter().flatten().for_each(|note| self.shared.note(note));
    }
}

impl Shared {
    fn note(&self, note: JobNote) {
        let at = seconds(events::now());
        self.push(std::iter::once(Item { at, event: Event::Note(Box::new(note)) }));
    }

    /// Queues items. Waits only for other observers.
    fn push(&self, items: impl Iterator<Item = Item>) {
        let mut queue = self.queue.lock();
        let before = queue.items.len();
        let mut dropped = 0;
        for mut item in items {
            if queue.closing || queue.items.len() >= QUEUE_CAPACITY {
                queue.dropped_items += 1;
                // After the end of the job nothing is expected.
                dropped += u64::from(!queue.closing);
                continue;
            }
            let bytes = item.payload_bytes();
            if bytes > 0 && queue.payload_bytes + bytes > MAX_QUEUED_BYTES {
                item.drop_payload();
                queue.dropped_payloads += 1;
                dropped += 1;
            } else {
                queue.payload_bytes += bytes;
            }
            queue.items.push(item);
        }
        let after = queue.items.len();
        drop(queue);
        if dropped > 0 {
            self.drops.count(OBSERVER, dropped);
        }
        if (before == 0 && after > 0) || (before < BATCH_SIZE && after >= BATCH_SIZE) {
            self.wake.notify_one();
        }
    }

    /// Applies the queued items.
    fn catch_up(&self, state: &mut State) {
        let mut queue = self.queue.lock();
        let spare = std::mem::take(&mut queue.spare);
        let mut items = std::mem::replace(&mut queue.items, spare);
        queue.payload_bytes = 0;
        queue.unwritten |= !items.is_empty();
        state.count_dropped("events", std::mem::take(&mut queue.dropped_items));
        state.count_dropped("trajectories", std::mem::take(&mut queue.dropped_payloads));
        drop(queue);
        items.drain(..).for_each(|item| state.apply(item));
        items.shrink_to(BATCH_SIZE);
        self.queue.lock().spare = items;
    }

    /// Applies and writes the queued items.
    fn write(&self) {
        let mut files = self.files.lock();
        let Some(files) = &mut *files else { return };
        let mut state = self.state.lock();
        self.catch_up(&mut state);
        let elapsed = std::mem::replace(&mut *self.refilled.lock(), Instant::now()).elapsed();
        let decodes = state.decodes + elapsed.as_secs_f64() * MAX_DECODES_PER_SECOND;
        state.decodes = decodes.min(MAX_DECODES_PER_SECOND);
        let taken = state.out.take();
        self.queue.lock().unwritten = false;
        drop(state);
        let Unwritten { events, records, trajectories } = files.write(taken);
        if events + records + trajectories > 0 {
            let mut state = self.state.lock();
            state.count_dropped("events", events);
            state.count_dropped("records", records);
            state.count_dropped("trajectories", trajectories);
            if records + trajectories > 0 {
                state.out.renew();
            }
        }
    }

    fn run(&self) {
        loop {
            let mut queue = self.queue.lock();
            let idle =
                |queue: &mut Queue| queue.items.is_empty() && !queue.unwritten && !queue.closing;
            self.wake.wait_while(&mut queue, idle);
            let few = |queue: &mut Queue| queue.items.len() < BATCH_SIZE && !queue.closing;
            self.wake.wait_while_for(&mut queue, few, BATCH_DELAY);
            let is_last = queue.closing;
            drop(queue);
            if is_last {
                let mut state = self.state.lock();
                self.catch_up(&mut state);
                let totals = state.totals_now();
                let now = seconds(events::now());
                state.record_servers(now, true);
                state.out.note(now, JobNote::Totals { totals });
            }
            self.write();
            if is_last {
                // Releases the lock of the folder.
                *self.files.lock() = None;
                break;
            }
        }
    }

    fn add_sample(
        &self,
        sample: live_stats::StatsSample,
        states: &[RunnerState],
        models: Vec<ModelView>,
    ) {
        *self.runners.lock() = RunnerCounts::of(states.iter().copied());
        let mut state = self.state.lock();
        self.catch_up(&mut state);
        state.set_servers(seconds(events::now()), models);
        let counts = state.counts(true);
        let beat = StatsSample {
            at: seconds(events::now()),
            done: counts.succeeded,
            failed: counts.failed.total(),
            cancelled: counts.cancelled.total(),
            running: counts.running,
            pending: counts.pending(),
            busy: sample.busy.into(),
            runners: sample.runners.into(),
            prompt_tokens: state.totals.prompt_tokens,
            answer_tokens: state.totals.answer_tokens,
        };
        if state.notes.add_sample(beat) {
            let totals = state.totals_now();
            state.out.note(beat.at, JobNote::Beat { beat });
            state.out.note(beat.at, JobNote::Totals { totals });
        }
    }
}
