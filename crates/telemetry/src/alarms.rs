//! Alarms: conditions that need attention, raised and cleared once each.
//!
//! ```text
//! RunEvent (runs, runners) ───┐
//! JobEvent (steps, weights) ──┼─► AlarmRules (decides, without a clock) ─► JobEvent::Alarm
//! DropCounters ───────────────┘
//! ```
//!
//! [`AlarmObserver`] feeds the rules and sleeps until an event or a deadline of the rules.
//! `docs/alarms.md` lists the alarms.

mod fairness;
mod messages;
mod rules;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rollway_config::{AlarmsConfig as Config, OnConsecutiveFailures};
use rollway_engine::RunnerStatus;
use rollway_engine::events::{self, RunEvent, RunEventKind, RunObserver};
use rollway_engine::job_event::{Alarm, JobEvent, JobObserver, JobObservers};
use rollway_engine::live_stats::LiveStats;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::rules::{AlarmChange, AlarmRules};
use crate::dropped::DropCounters;
use crate::in_flight::{DurationEvent, InFlight, Ran};
use crate::staleness::Staleness;

const NO_PROGRESS: &str = "no_progress";
const FAILURES: &str = "consecutive_failures";
const STALENESS: &str = "staleness";
const STARVATION: &str = "starvation";
const DROPPED: &str = "dropped";
const BROKEN: &str = "runners_broken";

/// All kinds of alarms, as they are called in events, in `summary.json` and in the metric
/// `rollway_alarm`.
pub const KINDS: [&str; 6] = [NO_PROGRESS, FAILURES, STALENESS, STARVATION, DROPPED, BROKEN];

/// How many of those that are under way an alarm names.
const MAX_NAMED_RUNS: usize = 3;

/// Watches over a job until it is dropped.
#[derive(Debug)]
pub struct AlarmObserver {
    shared: Arc<AlarmShared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct AlarmShared {
    origin: Instant,
    inner: Mutex<AlarmState>,
    news: Notify,
    /// Who is told.
    watchers: JobObservers,
    /// Whether too many failures in a row end the job.
    ends: bool,
    /// Cancelled to end the job.
    stop: CancellationToken,
    tripped: OnceLock<String>,
}

#[derive(Debug)]
struct AlarmState {
    track: InFlight,
    dog: AlarmRules,
    /// When the task wakes by itself.
    armed: Option<Duration>,
    pulse: Option<LiveStats>,
    /// The newest weights that anybody has told of.
    newest: u64,
}

impl AlarmObserver {
    /// Begins to watch over a job. Alarms are told to `watchers`; one that ends the job cancels
    /// `stop`. Must be called in a tokio runtime, which it lives in.
    pub fn start(
        config: &Config,
        watchers: JobObservers,
        drops: &DropCounters,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let inner = AlarmState {
            track: InFlight::default(),
            dog: AlarmRules::new(config),
            armed: None,
            pulse: None,
            newest: 0,
        };
        let shared = Arc::new(AlarmShared {
            origin: Instant::now(),
            inner: Mutex::new(inner),
            news: Notify::new(),
            watchers,
            ends: config.on_consecutive_failures == OnConsecutiveFailures::Stop,
            stop,
            tripped: OnceLock::new(),
        });
        let weak = Arc::downgrade(&shared);
        drops.listen(move |who, count| {
            if let Some(shared) = Weak::upgrade(&weak) {
                shared.change(|inner, now| inner.dog.dropped(now, who, count));
            }
        });
        let task = tokio::spawn(Arc::clone(&shared).watch());
        Arc::new(Self { shared, task: Mutex::new(Some(task)) })
    }

    /// Ends its task, and waits until that has let go of whoever it tells.
    pub async fn end(&self) {
        let task = self.task.lock().take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
    }

    /// Returns why the job was ended, if an alarm has done that.
    pub fn tripped(&self) -> Option<&str> {
        self.shared.tripped.get().map(String::as_str)
    }
}

impl Drop for AlarmObserver {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl RunObserver for AlarmObserver {
    fn observe(&self, seen: &[RunEvent]) {
        self.shared.change(|inner, now| seen.iter().for_each(|seen| inner.saw(seen, now)));
    }
}

impl JobObserver for AlarmObserver {
    fn on_event(&self, event: &JobEvent) {
        self.shared.change(|inner, _| match event {
            JobEvent::Ready(pulse) => inner.pulse = Some(pulse.clone()),
            JobEvent::Synced { version, .. } => inner.newest = inner.newest.max(*version),
            JobEvent::Trained { step, .. } => inner.newest = inner.newest.max(*step),
            JobEvent::StepDone { step, metrics, .. } => {
                if let Some(staleness) = Staleness::of(metrics, inner.newest) {
                    inner.dog.stale(*step, staleness.mean);
                }
            }
            JobEvent::Began { .. }
            | JobEvent::StepBegun { .. }
            | JobEvent::Evaluated { .. }
            | JobEvent::Info(_)
            | JobEvent::Alarm(_) => {}
        });
    }
}

impl AlarmState {
    fn saw(&mut self, seen: &RunEvent, now: Duration) {
        let Self { track, dog, .. } = self;
        match &seen.what {
            RunEventKind::RunnerBroken { runner, message } => {
                dog.broken(*runner, Arc::clone(message))
            }
            RunEventKind::RunnerReady { runner } => dog.mended(*runner),
            _ => {}
        }
        track.see(seen, |passed| match passed {
            DurationEvent::Given { class, waited, .. } => dog.waited(class, waited),
            DurationEvent::Run { how } => {
                dog.progress(now);
                match how {
                    Ran::Well => dog.record_success(),
                    Ran::Badly { kind, message } => dog.badly(kind, message),
                    Ran::Cut => {}
                }
            }
            DurationEvent::Task { class, status, .. } => {
                let is_kept = status.completed_runs > 0 || status.cancelled_runs.total() == 0;
                dog.task(class, is_kept);
            }
            DurationEvent::Attempt { .. } => {}
        });
        dog.work(now, track.open_tasks() > 0);
    }

    fn pulse(&self) -> Option<LiveStats> {
        self.pulse.clone()
    }
}

impl AlarmShared {
    fn lock(&self) -> MutexGuard<'_, AlarmState> {
        self.inner.lock()
    }

    /// Takes something in, and wakes the task if that is needed.
    fn change(&self, change: impl FnOnce(&mut AlarmState, Duration)) {
        let mut inner = self.lock();
        change(&mut inner, self.origin.elapsed());
        let due = inner.dog.due();
        let is_earlier = due.is_some_and(|due| inner.armed.is_none_or(|armed| due < armed));
        if inner.dog.has_news() || is_earlier {
            inner.armed = inner.armed.min(due).or(due);
            self.news.notify_one();
        }
    }

    /// Sleeps until there is news, or until time alone changes something.
    async fn watch(self: Arc<Self>) {
        loop {
            self.tell();
            let due = {
                let mut inner = self.lock();
                inner.armed = inner.dog.due();
                inner.armed
            };
            match due {
                Some(due) => {
                    tokio::select! {
                        () = self.news.notified() => {}
                        () = sleep_until(self.origin + due) => self.pass().await,
                    }
                }
                None => self.news.notified().await,
            }
        }
    }

    /// Time has passed.
    async fn pass(&self) {
        let now = self.origin.elapsed();
        let (stands, pulse) = {
            let mut inner = self.lock();
            inner.dog.pass(now);
            (inner.dog.stands_still(now).is_some(), inner.pulse())
        };
        if !stands {
            return;
        }
        let (is_work, under_way) = match &pulse {
            Some(pulse) => under_way(pulse).await,
            None => (true, Vec::new()),
        };
        let mut inner = self.lock();
        // What was restored after a crash may have ended before.
        inner.dog.work(now, is_work);
        inner.dog.stand_still(now, &under_way);
    }

    /// Tells everybody what has changed.
    fn tell(&self) {
        let changes = self.lock().dog.take();
        for AlarmChange { kind, words, raised } in changes {
            let ends = raised && kind == FAILURES && self.ends;
            let alarm = Alarm { at: events::now(), kind, words: words.clone(), raised };
            self.watchers.emit(&JobEvent::Alarm(alarm));
            if ends {
                let _ = self.tripped.set(words);
                self.stop.cancel();
            }
        }
    }
}

/// Tells whether anything is waited for, and what has been under way for longest.
async fn under_way(pulse: &LiveStats) -> (bool, Vec<String>) {
    let beat = pulse.sample().await;
    let runners = pulse.runners().await;
    let busy = runners.iter().filter(|runner| runner.attempt.is_some());
    (beat.pending + beat.running > 0, busy.take(MAX_NAMED_RUNS).map(in_words).collect())
}

fn in_words(runner: &RunnerStatus) -> String {
    let mut words = format!("runner {}", runner.runner);
    if let (Some(task), Some(batch)) = (runner.task, &runner.batch) {
        words += &format!(" with task {task} of batch {batch}");
    }
    words += &format!(" for {}", messages::time(runner.age));
    if let Some(stage) = &runner.stage {
        words += &format!(", {stage}");
        if let Some(at) = runner.stage_for {
            words += &format!(" for {}", messages::time(at));
        }
    }
    if let Some(place) = &runner.code_location {
        words += &format!(" at {place}");
    }
    words
}
