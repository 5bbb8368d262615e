//! Decides what is alarming: facts with their times in, alarms out. It has no clock of its own.
//!
//! Every alarm is raised once and cleared once; what has been said is kept until somebody takes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rollway_config::{AlarmsConfig as Config, OnConsecutiveFailures};
use rollway_core::{FailureKind, RunnerId};

use super::fairness::WorkflowFairness;
use super::messages;
use super::{BROKEN, DROPPED, FAILURES, NO_PROGRESS, STALENESS, STARVATION};

/// How long nothing may be dropped before that is no longer worth an alarm.
const CLEAR_AFTER: Duration = Duration::from_secs(60);

/// An alarm that is raised, or over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AlarmChange {
    pub(super) kind: &'static str,
    pub(super) words: String,
    pub(super) raised: bool,
}

/// Decides. Times count from any moment that stays the same.
#[derive(Debug)]
pub(super) struct AlarmRules {
    no_progress: Option<Duration>,
    failures: Option<u32>,
    stops: bool,
    staleness: Option<f64>,
    /// Whether there is work, and since when nothing has come of it.
    idle: bool,
    last: Duration,
    in_a_row: u32,
    classes: WorkflowFairness,
    drops: BTreeMap<&'static str, u64>,
    last_drop: Duration,
    broken: BTreeMap<RunnerId, Arc<str>>,
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
            last: Duration::ZERO,
            in_a_row: 0,
            classes: WorkflowFairness::new(config.starvation),
            drops: BTreeMap::new(),
            last_drop: Duration::ZERO,
            broken: BTreeMap::new(),
            raised: BTreeSet::new(),
            changes: Vec::new(),
        }
    }

    /// There is work now, or none.
    pub(super) fn work(&mut self, now: Duration, is_there: bool) {
        if is_there && self.idle {
            self.last = now;
        }
        self.idle = !is_there;
        if self.idle {
            self.clear(NO_PROGRESS, || "nothing is waited for any more".to_owned());
        }
    }

    /// A run ended, in whatever way.
    pub(super) fn progress(&mut self, now: Duration) {
        let stood = now.saturating_sub(self.last);
        self.last = now;
        self.clear(NO_PROGRESS, || format!("runs end again, after {}", messages::time(stood)));
    }

    /// A run went well.
    pub(super) fn record_success(&mut self) {
        let before = std::mem::take(&mut self.in_a_row);
        self.clear(FAILURES, || format!("a run went well again, after {before} failures in a row"));
    }

    /// A run failed.
    pub(super) fn badly(&mut self, kind: FailureKind, message: &str) {
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.failures.is_some_and(|most| self.in_a_row >= most) {
            let (count, stops) = (self.in_a_row, self.stops);
            self.raise(FAILURES, || messages::failures(count, kind, message, stops));
        }
    }

    /// A task of a class waited for so long until it was begun.
    pub(super) fn waited(&mut self, class: &Arc<str>, waited: Duration) {
        self.classes.waited(class, waited);
    }

    /// A task of a class ended: kept, or cut so that nothing is left of it.
    pub(super) fn task(&mut self, class: &Arc<str>, is_kept: bool) {
        self.classes.ended(class, is_kept);
        match self.classes.starved(self.raised.contains(STARVATION)) {
            Some(starved) => self.raise(STARVATION, || messages::starvation(&starved)),
            None => {
                let clear = || "no kind of task is served worse than others any more".to_owned();
                self.clear(STARVATION, clear);
            }
        }
    }

    /// By how many versions the experiences of a step lag behind.
    pub(super) fn stale(&mut self, step: u64, mean: f64) {
        let Some(most) = self.staleness else { return };
        if mean > most {
            self.raise(STALENESS, || messages::staleness(step, mean, most));
        } else {
            self.clear(STALENESS, || {
                format!("experiences of step {step} lag {mean:.1} versions behind, as they may")
            });
        }
    }

    /// Somebody who watches had to drop something.
    pub(super) fn dropped(&mut self, now: Duration, who: &'static str, count: u64) {
        *self.drops.entry(who).or_default() += count;
        self.last_drop = now;
        let drops = self.drops.clone();
        self.raise(DROPPED, || messages::dropped(&drops));
    }

    /// A runner does not start, again and again.
    pub(super) fn broken(&mut self, runner: RunnerId, message: Arc<str>) {
        self.broken.insert(runner, message);
        let broken = self.broken.clone();
        self.raise(BROKEN, || messages::broken(&broken));
    }

    /// A runner is there.
    pub(super) fn mended(&mut self, runner: RunnerId) {
        if self.broken.remove(&runner).is_some() && self.broken.is_empty() {
            self.clear(BROKEN, || "every runner starts again".to_owned());
        }
    }

    /// Returns when time alone changes something.
    pub(super) fn due(&self) -> Option<Duration> {
        let stands = self.no_progress.filter(|_| !self.idle && !self.raised.contains(NO_PROGRESS));
        let quiet = self.raised.contains(DROPPED).then(|| self.last_drop + CLEAR_AFTER);
        stands.map(|patience| self.last + patience).into_iter().chain(quiet).min()
    }

    /// Tells whether no run has ended for too long.
    pub(super) fn stands_still(&self, now: Duration) -> Option<Duration> {
        let patience = self.no_progress.filter(|_| !self.idle)?;
        let stood = now.saturating_sub(self.last);
        (stood >= patience && !self.raised.contains(NO_PROGRESS)).then_some(stood)
    }

    /// Says that no run has ended for too long, and what is under way.
    pub(super) fn stand_still(&mut self, now: Duration, under_way: &[String]) {
        if let Some(stood) = self.stands_still(now) {
            self.raise(NO_PROGRESS, || messages::no_progress(stood, under_way));
        }
    }

    /// Time has passed.
    pub(super) fn pass(&mut self, now: Duration) {
        if self.raised.contains(DROPPED) && now >= self.last_drop + CLEAR_AFTER {
            self.drops.clear();
            self.clear(DROPPED, || "nothing was dropped for a minute".to_owned());
        }
    }

    /// Tells whether there is anything to take.
    pub(super) const fn has_news(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Returns what has changed since the last time.
    pub(super) fn take(&mut self) -> Vec<AlarmChange> {
        std::mem::take(&mut self.changes)
    }

    fn raise(&mut self, kind: &'static str, words: impl FnOnce() -> String) {
        if self.raised.insert(kind) {
            self.changes.push(AlarmChange { kind, words: words(), raised: true });
        }
    }

    fn clear(&mut self, kind: &'static str, words: impl FnOnce() -> String) {
        if self.raised.remove(kind) {
            self.changes.push(AlarmChange { kind, words: words(), raised: false });
        }
    }
}
