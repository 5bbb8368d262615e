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

use parking_lot::Mutex;
use rollway_config::Config;
use rollway_core::RunEnd;
use rollway_engine::events::{self, RunEvent, RunEventKind, RunObserver};
use rollway_engine::job_event::{Alarm, JobEvent, JobObserver, JobObservers};
use rollway_engine::live_stats::LiveStats;
use rollway_engine::{QUARANTINED, RunnerStatus};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::rules::{AlarmChange, AlarmRules};
use crate::dropped::DropCounters;
use crate::in_flight::{DurationEvent, InFlight};
use crate::staleness::Staleness;

const NO_PROGRESS: &str = "no_progress";
const FAILURES: &str = "consecutive_failures";
const STALENESS: &str = "staleness";
const STARVATION: &str = "starvation";
const DROPPED: &str = "dropped";
const BROKEN: &str = "runners_broken";
const WAITING: &str = "waiting";
const QUARANTINE: &str = "quarantine";

/// All kinds of alarms: names in events, `summary.json` and the metric `rollway_alarm`.
pub const KINDS: [&str; 8] =
    [NO_PROGRESS, FAILURES, STALENESS, STARVATION, DROPPED, BROKEN, WAITING, QUARANTINE];

/// Maximum number of runners in a message.
const MAX_NAMED_RUNS: usize = 3;

/// Raises alarms of a job until it is dropped.
#[derive(Debug)]
pub struct AlarmObserver {
    shared: Arc<AlarmShared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct AlarmShared {
    origin: Instant,
    state: Mutex<AlarmState>,
    changed: Notify,
    observers: JobObservers,
    /// Cancelled to stop the job.
    stop: CancellationToken,
    stop_reason: OnceLock<String>,
}

#[derive(Debug)]
struct AlarmState {
    in_flight: InFlight,
    rules: AlarmRules,
    /// Deadline of the task.
    deadline: Option<Duration>,
    stats: Option<LiveStats>,
    newest_version: u64,
}

impl AlarmObserver {
    /// Starts the task, which sends alarms to `observers`. An alarm that stops the job cancels
    /// `stop`. Must be called in a tokio runtime.
    pub fn start(
        config: &Config,
        observers: JobObservers,
        drops: &DropCounters,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let state = AlarmState {
            in_flight: InFlight::default(),
            rules: AlarmRules::new(&config.alarms),
            deadline: None,
            stats: None,
            newest_version: 0,
        };
        let shared = Arc::new(AlarmShared {
            origin: Instant::now(),
            state: Mutex::new(state),
            changed: Notify::new(),
            observers,
            stop,
            stop_reason: OnceLock::new(),
        });
        let weak = Arc::downgrade(&shared);
        drops.listen(move |observer, count| {
            if let Some(shared) = Weak::upgrade(&weak) {
                shared.change(|state, now| state.rules.dropped(now, observer, count));
            }
        });
        let task = tokio::spawn(Arc::clone(&shared).run());
        Arc::new(Self { shared, task: Mutex::new(Some(task)) })
    }

    /// Stops the task and waits until it has released its observers.
    pub async fn end(&self) {
        let task = self.task.lock().take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
    }

    /// Returns the alarm that stopped the job.
    pub fn tripped(&self) -> Option<&str> {
        self.shared.stop_reason.get().map(String::as_str)
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
    fn observe(&self, events: &[RunEvent]) {
        self.shared.change(|state, now| events.iter().for_each(|event| state.apply(event, now)));
    }
}

impl JobObserver for AlarmObserver {
    fn on_event(&self, event: &JobEvent) {
        self.shared.change(|state, now| match event {
            JobEvent::Ready(stats) => state.stats = Some(stats.clone()),
            JobEvent::Synced { version: newest, .. } | JobEvent::Trained { step: newest, .. } => {
                state.newest_version = state.newest_version.max(*newest);
            }
            JobEvent::StepDone { step, metrics, .. } => {
                if let Some(staleness) = Staleness::of(metrics, state.newest_version) {
                    state.rules.stale(*step, staleness.mean);
                }
                if let Some(runs) = metrics.get(QUARANTINED).filter(|runs| *runs > 0.0) {
                    state.rules.quarantined(*step, runs as u64);
                }
            }
            JobEvent::WaitBegun(wait) => state.rules.wait_begun(now, wait.clone()),
            JobEvent::WaitEnded(wait) => state.rules.wait_ended(wait.id),
            JobEvent::Began { .. }
            | JobEvent::StepBegun { .. }
            | JobEvent::Evaluated { .. }
            | JobEvent::Info(_)
            | JobEvent::Alarm(_) => {}
        });
    }
}

impl AlarmState {
    fn apply(&mut self, event: &RunEvent, now: Duration) {
        let Self { in_flight, rules, .. } = self;
        match &event.what {
            RunEventKind::RunnerBroken { runner, message } => {
                rules.runner_broken(*runner, Arc::clone(message))
            }
            RunEventKind::RunnerReady { runner } => rules.runner_ready(*runner),
            _ => {}
        }
        in_flight.apply(event, |duration| match duration {
            DurationEvent::Started { class, waited, .. } => rules.waited(class, waited),
            DurationEvent::Run(end) => {
                rules.progress(now);
                match end {
                    RunEnd::Succeeded(()) => rules.record_success(),
                    RunEnd::Failed(failure) => rules.record_failure(failure),
                    RunEnd::Cancelled(_) => {}
                }
            }
            DurationEvent::Task { class, status, .. } => {
                let is_kept = status.completed_runs > 0 || status.cancelled_runs.total() == 0;
                rules.task_ended(class, is_kept);
            }
            DurationEvent::Attempt { .. } => {}
        });
        rules.set_work(now, in_flight.open_tasks() > 0);
    }
}

impl AlarmShared {
    /// Changes the state, and wakes the task if needed.
    fn change(&self, change: impl FnOnce(&mut AlarmState, Duration)) {
        let mut state = self.state.lock();
        change(&mut state, self.origin.elapsed());
        let due = state.rules.due();
        let is_earlier = due.is_some_and(|due| state.deadline.is_none_or(|known| due < known));
        if state.rules.has_changes() || is_earlier {
            state.deadline = state.deadline.min(due).or(due);
            self.changed.notify_one();
        }
    }

    /// Emits alarms, and sleeps until a change or a deadline.
    async fn run(self: Arc<Self>) {
        loop {
            self.emit();
            let due = {
                let mut state = self.state.lock();
                state.deadline = state.rules.due();
                state.deadline
            };
            match due {
                Some(due) => {
                    tokio::select! {
                        () = self.changed.notified() => {}
                        () = sleep_until(self.origin + due) => self.on_deadline().await,
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    async fn on_deadline(&self) {
        let now = self.origin.elapsed();
        let (is_stalled, delivery, stats) = {
            let mut state = self.state.lock();
            state.rules.advance(now);
            let is_stalled = state.rules.stalled_for(now).is_some();
            (is_stalled, state.rules.long_delivery(now), state.stats.clone())
        };
        if !is_stalled && delivery.is_none() {
            return;
        }
        let wait = match &stats {
            Some(stats) => stats.wait().await,
            None => None,
        };
        if let Some(id) = delivery {
            self.state.lock().rules.check_delivery(now, id, wait.as_ref());
        }
        if is_stalled {
            let (has_work, busy) = match &stats {
                Some(stats) => busy_runners(stats).await,
                None => (true, Vec::new()),
            };
            let mut state = self.state.lock();
            // Tasks that a crash restored may have ended before.
            state.rules.set_work(now, has_work);
            state.rules.check_progress(now, &busy, wait.as_ref());
        }
    }

    fn emit(&self) {
        let changes = self.state.lock().rules.take();
        for AlarmChange { kind, message, raised, stops } in changes {
            let alarm = Alarm { at: events::now(), kind, message: message.clone(), raised };
            self.observers.emit(&JobEvent::Alarm(alarm));
            if stops {
                let _ = self.stop_reason.set(message);
                self.stop.cancel();
            }
        }
    }
}

/// Returns whether there are open runs, and the longest busy runners.
async fn busy_runners(stats: &LiveStats) -> (bool, Vec<String>) {
    let sample = stats.sample().await;
    let runners = stats.runners().await;
    let busy = runners.iter().filter(|runner| runner.attempt.is_some());
    (sample.pending + sample.running > 0, busy.take(MAX_NAMED_RUNS).map(describe).collect())
}

fn describe(runner: &RunnerStatus) -> String {
    let mut text = format!("runner {}", runner.runner);
    if let (Some(task), Some(batch)) = (runner.task, &runner.batch) {
        text += &format!(" with task {task} of batch {batch}");
    }
    text += &format!(" for {}", messages::time(runner.age));
    if let Some(stage) = &runner.stage {
        text += &format!(", {stage}");
        if let Some(at) = runner.stage_for {
            text += &format!(" for {}", messages::time(at));
        }
    }
    if let Some(location) = &runner.code_location {
        text += &format!(" at {location}");
    }
    text
}
