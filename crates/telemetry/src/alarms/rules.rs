//! Alarm rules: events with their times in, raised and cleared alarms out. They have no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rollway_config::{AlarmsConfig as Config, OnConsecutiveFailures};
use rollway_core::{RunFailure, RunnerId};
use rollway_engine::job_wait::JobWait;

use super::fairness::WorkflowFairness;
use super::messages;
use super::{BROKEN, DROPPED, FAILURES, NO_PROGRESS, QUARANTINE, STALENESS, STARVATION, WAITING};

/// Time without drops after which the alarm is cleared.
const CLEAR_AFTER: Duration = Duration::from_secs(60);

/// A raised or cleared alarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AlarmChange {
    pub(super) kind: &'static str,
    pub(super) message: String,
    pub(super) raised: bool,
    /// The alarm stops the job.
    pub(super) stops: bool,
}

/// Times count from a fixed origin.
#[derive(Debug)]
pub(super) struct AlarmRules {
    no_progress: Option<Duration>,
    failures: Option<u32>,
    stops: bool,
    staleness: Option<f64>,
    idle: bool,
    /// Last end of a run, or start of the work.
    last_progress: Duration,
    consecutive: u32,
    fairness: WorkflowFairness,
    drops: BTreeMap<&'static str, u64>,
    last_drop: Duration,
    broken: BTreeMap<RunnerId, Arc<str>>,
    /// Begins of the current waits, by number.
    waits: BTreeMap<u64, (Duration, JobWait)>,
    /// Wait that raised the alarm.
    long_wait: Option<u64>,
    raised: BTreeSet<&'static str>,
    changes: Vec<AlarmChange>,
}

impl AlarmRules {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            no_progress: config.no_progress.map(Duration::from),
            failures: config.consecutive_failures,
            stops: config.on_consecutive_failures == OnConsecutiveFailures::Stop,
            staleness: config.staleness,
            idle: true,
            last_progress: Duration::ZERO,
            consecutive: 0,
            fairness: WorkflowFairness::new(config.starvation),
            drops: BTreeMap::new(),
            last_drop: Duration::ZERO,
            broken: BTreeMap::new(),
            waits: BTreeMap::new(),
            long_wait: None,
            raised: BTreeSet::new(),
            changes: Vec::new(),
        }
    }

    pub(super) fn set_work(&mut self, now: Duration, has_work: bool) {
        if has_work && self.idle {
            self.last_progress = now;
        }
        self.idle = !has_work;
        if self.idle {
            self.clear(NO_PROGRESS, || "no open tasks".to_owned());
        }
    }

    /// Records the end of a run.
    pub(super) fn progress(&mut self, now: Duration) {
        let stalled = now.saturating_sub(self.last_progress);
        self.last_progress = now;
        self.clear(NO_PROGRESS, || format!("runs end again, after {}", messages::time(stalled)));
    }

    pub(super) fn record_success(&mut self) {
        let before = std::mem::take(&mut self.consecutive);
        self.clear(FAILURES, || format!("a run succeeded after {before} failures in a row"));
    }

    pub(super) fn record_failure(&mut self, failure: &RunFailure) {
        self.consecutive = self.consecutive.saturating_add(1);
        if self.failures.is_some_and(|max| self.consecutive >= max) {
            let (count, stops) = (self.consecutive, self.stops);
            self.raise_or_stop(FAILURES, stops, || messages::failures(count, failure, stops));
        }
    }

    /// Records the wait of a task for its first attempt.
    pub(super) fn waited(&mut self, workflow: &Arc<str>, waited: Duration) {
        self.fairness.waited(workflow, waited);
    }

    /// Records the end of a task: kept, or cancelled without a result.
    pub(super) fn task_ended(&mut self, workflow: &Arc<str>, is_kept: bool) {
        self.fairness.ended(workflow, is_kept);
        match self.fairness.starved(self.raised.contains(STARVATION)) {
            Some(starved) => self.raise(STARVATION, || messages::starvation(&starved)),
            None => {
                self.clear(STARVATION, || "no workflow is starved".to_owned());
            }
        }
    }

    /// Records the mean staleness of a step, in versions.
    pub(super) fn stale(&mut self, step: u64, mean: f64) {
        let Some(max) = self.staleness else { return };
        if mean > max {
            self.raise(STALENESS, || messages::staleness(step, mean, max));
        } else {
            self.clear(STALENESS, || {
                format!("experiences of step {step} are {mean:.1} versions old: below the limit")
            });
        }
    }

    /// Records runs of a step that were put into the quarantine. The alarm stays: the operator has
    /// to decide.
    pub(super) fn quarantined(&mut self, step: u64, runs: u64) {
        self.raise(QUARANTINE, || messages::quarantined(step, runs));
    }

    /// Records items that an observer dropped.
    pub(super) fn dropped(&mut self, now: Duration, observer: &'static str, count: u64) {
        *self.drops.entry(observer).or_default() += count;
        self.last_drop = now;
        let drops = self.drops.clone();
        self.raise(DROPPED, || messages::dropped(&drops));
    }

    pub(super) fn runner_broken(&mut self, runner: RunnerId, message: Arc<str>) {
        self.broken.insert(runner, message);
        let broken = self.broken.clone();
        self.raise(BROKEN, || messages::broken(&broken));
    }

    pub(super) fn runner_ready(&mut self, runner: RunnerId) {
        if self.broken.remove(&runner).is_some() && self.broken.is_empty() {
            self.clear(BROKEN, || "all runners start again".to_owned());
        }
    }

    /// Records a wait. One for runs counts from the end of the last run: until then, missing
    /// progress is another alarm.
    pub(super) fn wait_begun(&mut self, now: Duration, wait: JobWait) {
        self.waits.insert(wait.id, (now, wait));
    }

    pub(super) fn wait_ended(&mut self, id: u64) {
        self.waits.remove(&id);
        if self.long_wait.take_if(|long| *long == id).is_some() {
            self.clear(WAITING, || "the wait has ended".to_owned());
        }
    }

    /// Returns the waits and the times from which they count.
    fn timed_waits(&self) -> impl Iterator<Item = (Duration, &JobWait)> {
        let has_runs = !self.idle;
        self.waits.values().filter_map(move |(since, wait)| match wait.reason.is_work() {
            true if has_runs => None,
            true => Some(((*since).max(self.last_progress), wait)),
            false => Some((*since, wait)),
        })
    }

    /// Returns the wait for a batch whose runs have ended, if it is too long and no alarm is
    /// raised.
    pub(super) fn long_delivery(&self, now: Duration) -> Option<u64> {
        let timeout = self.no_progress.filter(|_| !self.raised.contains(WAITING))?;
        let is_long =
            |(since, wait): &(Duration, &JobWait)| wait.reason.is_work() && now >= *since + timeout;
        self.timed_waits().find(is_long).map(|(_, wait)| wait.id)
    }

    /// Raises an alarm for such a wait. `current` is its reason now; none if it has ended or runs
    /// are in progress, which restarts the time.
    pub(super) fn check_delivery(&mut self, now: Duration, id: u64, current: Option<&JobWait>) {
        let Some((since, _)) = self.waits.get_mut(&id) else { return };
        match current.filter(|wait| wait.id == id && !wait.reason.is_work()) {
            None => *since = now,
            Some(wait) => {
                let waited = now.saturating_sub((*since).max(self.last_progress));
                self.long_wait = Some(id);
                self.raise(WAITING, || messages::waiting(waited, wait));
            }
        }
    }

    /// Returns the next deadline.
    pub(super) fn due(&self) -> Option<Duration> {
        let stalled = self.no_progress.filter(|_| !self.idle && !self.raised.contains(NO_PROGRESS));
        let quiet = self.raised.contains(DROPPED).then(|| self.last_drop + CLEAR_AFTER);
        let waits = self.timed_waits().map(|(since, _)| since).min();
        let waits = waits.filter(|_| !self.raised.contains(WAITING)).zip(self.no_progress);
        let waits = waits.map(|(since, timeout)| since + timeout);
        let stalled = stalled.map(|timeout| self.last_progress + timeout);
        stalled.into_iter().chain(quiet).chain(waits).min()
    }

    /// Returns the time without progress, if it is too long and no alarm is raised.
    pub(super) fn stalled_for(&self, now: Duration) -> Option<Duration> {
        let timeout = self.no_progress.filter(|_| !self.idle)?;
        let stalled = now.saturating_sub(self.last_progress);
        (stalled >= timeout && !self.raised.contains(NO_PROGRESS)).then_some(stalled)
    }

    /// Raises an alarm without progress; `busy` describes the longest busy runners, `wait` the
    /// current wait of the job.
    pub(super) fn check_progress(
        &mut self,
        now: Duration,
        busy: &[String],
        wait: Option<&JobWait>,
    ) {
        if let Some(stalled) = self.stalled_for(now) {
            self.raise(NO_PROGRESS, || messages::no_progress(stalled, busy, wait));
        }
    }

    /// Raises and clears alarms whose time is up.
    pub(super) fn advance(&mut self, now: Duration) {
        let long = self.no_progress.and_then(|timeout| {
            let is_long = |(since, wait): &&(Duration, JobWait)| {
                !wait.reason.is_work() && now >= *since + timeout
            };
            self.waits.values().find(is_long).cloned()
        });
        if let Some((since, wait)) = long.filter(|_| !self.raised.contains(WAITING)) {
            self.long_wait = Some(wait.id);
            self.raise(WAITING, || messages::waiting(now.saturating_sub(since), &wait));
        }
        if self.raised.contains(DROPPED) && now >= self.last_drop + CLEAR_AFTER {
            self.drops.clear();
            self.clear(DROPPED, || "no drops for a minute".to_owned());
        }
    }

    pub(super) const fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Takes the changes since the last call.
    pub(super) fn take(&mut self) -> Vec<AlarmChange> {
        std::mem::take(&mut self.changes)
    }

    fn raise(&mut self, kind: &'static str, message: impl FnOnce() -> String) {
        self.raise_or_stop(kind, false, message);
    }

    /// Raises an alarm, which also stops the job if `stops`.
    fn raise_or_stop(&mut self, kind: &'static str, stops: bool, message: impl FnOnce() -> String) {
        if self.raised.insert(kind) {
            self.changes.push(AlarmChange { kind, message: message(), raised: true, stops });
        }
    }

    fn clear(&mut self, kind: &'static str, message: impl FnOnce() -> String) {
        if self.raised.remove(kind) {
            self.changes.push(AlarmChange {
                kind,
                message: message(),
                raised: false,
                stops: false,
            });
        }
    }
}
