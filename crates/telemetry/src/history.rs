//! What happened to every run of a job: in memory while it runs, and in its folder for later.
//!
//! ```text
//! observe, saw ──► queue ──► state (rows, batches, what is under way) ──► files in <job>/history
//!                              ▲
//!                              └── pages ask here, and first have the queue emptied
//! ```
//!
//! Those who tell only put things into the queue. A thread takes them out a few times a second,
//! and writes one frame for all of it. Everything has a limit, and what does not fit is counted
//! under `dropped`. `docs/history.md` says it for people.

mod codec;
mod files;
mod interner;
mod job_events;
mod job_log;
mod load;
mod query;
mod record;
mod recorded;
mod row;
mod runs;
mod state;
mod totals;
mod trajectory;
mod write_queue;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rollway_config::{Config, Mode};
use rollway_core::RunnerState;
use rollway_engine::RolloutCoordinator;
use rollway_engine::events::{self, RunEvent, RunObserver};
use rollway_engine::job_event::JobObserver;
use rollway_engine::live_stats::LiveStats;

use self::files::{Files, Unwritten};
use self::record::JobNote;
pub use self::recorded::RecordedHistory;
use self::state::{Event, Item, State, seconds};
use crate::view::{JobState, RunDetail, RunKey, RunnerCounts, StatsSample};

/// How long things may wait in the queue, so that many are written at once.
const LINGER: Duration = Duration::from_millis(200);

/// How many things may wait in the queue.
const QUEUE: usize = 1 << 20;

/// From how many on they do not wait any longer: as many as a processor has near at hand.
const MANY: usize = 1 << 14;

/// How many bytes of experiences may wait in the queue.
const QUEUE_BYTES: u64 = 64 << 20;

/// Into how many payloads a second it is looked, to know how long an answer was.
const MAX_QUERIES_PER_SECOND: f64 = 2_000.0;

/// How a history is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryOptions {
    /// Its folder.
    pub dir: PathBuf,
    /// The job.
    pub name: String,
    /// The project that the job belongs to.
    pub project: String,
    /// What the job does.
    pub mode: String,
    /// The folder of the job.
    pub job_dir: PathBuf,
    /// How many runs it has; older ones are dropped.
    pub max_runs: u64,
    /// Bytes of experiences that it has; older ones are dropped.
    pub max_trajectory_bytes: u64,
}

impl HistoryOptions {
    /// Returns what a configuration says; none: no history is kept.
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
        })
    }
}

/// Where the history of a process is: several that share a job's folder have one each.
fn folder(config: &Config) -> PathBuf {
    let own = match (config.mode, config.explorer.name.as_str()) {
        (Mode::Bench, _) => "bench_history".to_owned(),
        (Mode::Train, _) => format!("{}_history", config.trainer.name),
        (_, "explorer") => "history".to_owned(),
        (_, name) => format!("{name}_history"),
    };
    config.job_dir().join(own)
}

/// The history of a job that runs. Dropped, it writes what is left.
#[derive(Debug)]
pub struct RunHistory {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Taken before `state`, and `state` before `queue`.
    files: Mutex<Option<Files>>,
    state: Mutex<State>,
    pulse: Mutex<Option<LiveStats>>,
    coordinator: Mutex<Option<RolloutCoordinator>>,
    runners: Mutex<RunnerCounts>,
    refilled: Mutex<Instant>,
}

#[derive(Debug, Default)]
struct Queue {
    items: Vec<Item>,
    spare: Vec<Item>,
    payload_bytes: u64,
    /// Things, and experiences, that there was no room for.
    dropped: (u64, u64),
    /// Whether something that was taken in, by whoever asked, is still to be written.
    unwritten: bool,
    closing: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RunHistory {
    /// Opens the history in a folder, and goes on with what is there.
    ///
    /// # Errors
    /// If the folder cannot be read or written, or another process writes to it.
    pub fn open(options: &HistoryOptions) -> io::Result<Arc<Self>> {
        let files = Files::open(&options.dir)?;
        let mut state = State::load(&options.dir, options.max_runs)?;
        state.out.keep(options.max_trajectory_bytes);
        state.looks = MAX_QUERIES_PER_SECOND;
        let shared = Arc::new(Shared {
            dir: options.dir.clone(),
            queue: Mutex::default(),
            wake: Condvar::new(),
            files: Mutex::new(Some(files)),
            state: Mutex::new(state),
            pulse: Mutex::default(),
            coordinator: Mutex::default(),
            runners: Mutex::default(),
            refilled: Mutex::new(Instant::now()),
        });
        shared.note(JobNote::Opened {
            name: options.name.clone(),
            project: options.project.clone(),
            mode: options.mode.clone(),
            job_dir: options.job_dir.display().to_string(),
        });
        let writer = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("rollway-history".into());
        let thread = thread.spawn(move || writer.run())?;
        Ok(Arc::new(Self { shared, thread: Mutex::new(Some(thread)) }))
    }

    /// Opens the history of a job, if its configuration wants one. A job goes on without: it only
    /// tells what was.
    pub fn of(config: &Config) -> Option<Arc<Self>> {
        let options = HistoryOptions::of(config)?;
        let opened = Self::open(&options);
        let complain = |error: &io::Error| {
            let folder = options.dir.display();
            tracing::warn!(%error, %folder, "no history of runs is kept");
        };
        opened.inspect_err(complain).ok()
    }

    /// Writes everything, and how the job ended. What is told afterwards is not kept; it can still
    /// be asked.
    pub fn close(&self, outcome: JobState, error: Option<String>) {
        // Whoever is observed keeps who observes: it is let go of first.
        drop(lock(&self.shared.coordinator).take());
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            self.shared.note(JobNote::Closed { outcome, error });
            lock(&self.shared.queue).closing = true;
            self.shared.wake.notify_all();
            let _ = thread.join();
        }
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// Has actions and questions about runners go to this coordinator, until the history is
    /// closed. That of an explorer is known without a word.
    pub fn follow(&self, coordinator: &RolloutCoordinator) {
        *lock(&self.shared.coordinator) = Some(coordinator.clone());
    }

    /// Who can be asked about runners, and told to cancel runs.
    pub(crate) fn coordinator(&self) -> Option<RolloutCoordinator> {
        let followed = lock(&self.shared.coordinator).clone();
        followed.or_else(|| lock(&self.shared.pulse).as_ref()?.coordinator())
    }

    /// The runners, by what they are at, as they last were.
    fn runner_counts(&self) -> RunnerCounts {
        *lock(&self.shared.runners)
    }

    pub(crate) fn runners_are(&self, counts: RunnerCounts) {
        *lock(&self.shared.runners) = counts;
    }

    /// Asks about everything that was told until now.
    fn ask<T>(&self, question: impl FnOnce(&State, f64) -> T) -> T {
        let mut state = lock(&self.shared.state);
        self.shared.catch_up(&mut state);
        question(&state, seconds(events::now()))
    }

    /// Returns one run in detail.
    pub(crate) fn run(&self, key: &RunKey) -> Option<RunDetail> {
        // What is asked for may not be on the disk yet.
        self.shared.write();
        self.ask(|state, now| state.detail(&self.shared.dir, key, now))
    }
}

impl Drop for RunHistory {
    fn drop(&mut self) {
        self.close(JobState::Unknown, None);
    }
}

impl RunObserver for RunHistory {
    fn observe(&self, seen: &[RunEvent]) {
        self.shared.push(seen.iter().filter_map(Item::of));
    }
}

impl JobObserver for RunHistory {
    fn on_event(&self, event: &rollway_engine::job_event::JobEvent) {
        if let rollway_engine::job_event::JobEvent::Ready(pulse) = event {
            *lock(&self.shared.pulse) = Some(pulse.clone());
            job_events::keep_beating(&self.shared, pulse);
        }
        job_events::notes(event).into_iter().for_each(|note| self.shared.note(note));
    }
}

impl Shared {
    fn note(&self, note: JobNote) {
        let at = seconds(events::now());
        self.push(std::iter::once(Item { at, what: Event::Note(Box::new(note)) }));
    }

    /// Puts things aside. Never waits for more than others who do the same.
    fn push(&self, items: impl Iterator<Item = Item>) {
        let mut queue = lock(&self.queue);
        let before = queue.items.len();
        for mut item in items {
            if queue.closing || queue.items.len() >= QUEUE {
                queue.dropped.0 += 1;
                continue;
            }
            let bytes = item.payload_bytes();
            if bytes > 0 && queue.payload_bytes + bytes > QUEUE_BYTES {
                item.drop_payload();
                queue.dropped.1 += 1;
            } else {
                queue.payload_bytes += bytes;
            }
            queue.items.push(item);
        }
        let after = queue.items.len();
        drop(queue);
        if (before == 0 && after > 0) || (before < MANY && after >= MANY) {
            self.wake.notify_one();
        }
    }

    /// Takes in what is in the queue.
    fn catch_up(&self, state: &mut State) {
        let mut queue = lock(&self.queue);
        let spare = std::mem::take(&mut queue.spare);
        let mut items = std::mem::replace(&mut queue.items, spare);
        queue.payload_bytes = 0;
        queue.unwritten |= !items.is_empty();
        let (things, payloads) = std::mem::take(&mut queue.dropped);
        drop(queue);
        state.dropped("events", things);
        state.dropped("trajectories", payloads);
        items.drain(..).for_each(|item| state.apply(item));
        items.shrink_to(MANY);
        lock(&self.queue).spare = items;
    }

    /// Takes in what is in the queue, and writes it.
    fn write(&self) {
        let mut files = lock(&self.files);
        let Some(files) = &mut *files else { return };
        let mut state = lock(&self.state);
        self.catch_up(&mut state);
        let past = std::mem::replace(&mut *lock(&self.refilled), Instant::now()).elapsed();
        state.looks =
            (state.looks + past.as_secs_f64() * MAX_QUERIES_PER_SECOND).min(MAX_QUERIES_PER_SECOND);
        let taken = state.out.take();
        lock(&self.queue).unwritten = false;
        drop(state);
        let Unwritten { events, records, trajectories } = files.write(taken);
        if events + records + trajectories > 0 {
            let mut state = lock(&self.state);
            state.dropped("events", events);
            state.dropped("records", records);
            state.dropped("trajectories", trajectories);
            if records + trajectories > 0 {
                state.out.renew();
            }
        }
    }

    fn run(&self) {
        loop {
            let queue = lock(&self.queue);
            let idle =
                |queue: &mut Queue| queue.items.is_empty() && !queue.unwritten && !queue.closing;
            let queue = self.wake.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
            // More is sure to come.
            let few = |queue: &mut Queue| queue.items.len() < MANY && !queue.closing;
            let waited = self.wake.wait_timeout_while(queue, LINGER, few);
            let is_last = waited.unwrap_or_else(PoisonError::into_inner).0.closing;
            if is_last {
                let totals = {
                    let mut state = lock(&self.state);
                    self.catch_up(&mut state);
                    state.totals_now()
                };
                let at = seconds(events::now());
                lock(&self.state).out.note(at, JobNote::Totals { totals });
            }
            self.write();
            if is_last {
                // Another process may write from now on.
                *lock(&self.files) = None;
                break;
            }
        }
    }

    /// Takes the numbers of a moment in.
    fn beat(&self, beat: rollway_engine::live_stats::StatsSample, states: &[RunnerState]) {
        *lock(&self.runners) = RunnerCounts::of(states.iter().copied());
        let mut state = lock(&self.state);
        self.catch_up(&mut state);
        let counts = state.counts(true);
        let beat = StatsSample {
            at: seconds(events::now()),
            done: counts.succeeded,
            failed: counts.failed.total(),
            cancelled: counts.cancelled.total(),
            running: counts.running,
            pending: counts.pending(),
            busy: beat.busy.into(),
            runners: beat.runners.into(),
            prompt_tokens: state.totals.prompt_tokens,
            answer_tokens: state.totals.answer_tokens,
        };
        if state.notes.beat(beat) {
            let totals = state.totals_now();
            state.out.note(beat.at, JobNote::Beat { beat });
            state.out.note(beat.at, JobNote::Totals { totals });
        }
    }
}
