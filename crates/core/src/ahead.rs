//! Attempts given ahead.
//!
//! What takes no time at work takes longer on the way. A runner that has just been quick gets its
//! next attempt before it has asked for it, and begins it when the one before is over. The attempt
//! is in flight like any other; nobody waits behind work that turns out to be long:
//!
//! ```text
//!  no runner is idle, plenty waits ──► to a quick runner, ahead
//!      ├─ the one before ends ───────────────────────────────────► its attempt
//!      ├─ that takes long, or is cancelled; the runner is to go; a stop
//!      │      ──► recalled ──► given back unbegun ───────────────► goes out again, uncharged
//!      └─ the runner is lost ────────────────────────────────────► goes out again, uncharged
//! ```

use crate::Core;
use crate::action::{Action, Cancel};
use crate::ids::{AttemptId, RunnerId};
use crate::input::{Report, Unresponsive};
use crate::runner::{Attempt, Phase};
use crate::view::Wake;

/// How many times what is quick the attempt before may take until the next one is recalled.
const PATIENCE: u32 = 4;

impl Core {
    /// Gives attempts to runners that will be done in no time. What was tried before goes first,
    /// and to runners that are idle; and while there is less to do than there are runners, whoever
    /// is idle first has it.
    pub(crate) fn give_ahead(&mut self, actions: &mut Vec<Action>) {
        while self.retrying.is_empty() && self.slices > u64::from(self.alive) {
            let Some(runner) = self.eager.first().copied() else { return };
            let slot = &mut self.runners[runner.0 as usize];
            if slot.since.after(self.config.quick) <= self.now {
                // It is not quick this time.
                slot.quick = None;
                self.fit_eager(runner);
                continue;
            }
            let Some(rank) = self.first_fresh() else { return };
            if let Some(found) = self.take_fresh(rank, runner) {
                self.start_attempt(found, actions);
            }
        }
    }

    /// Puts an attempt behind the one that a runner has.
    pub(crate) fn line_up(&mut self, runner: RunnerId, attempt: Attempt) {
        let patience = self.patience();
        let slot = &mut self.runners[runner.0 as usize];
        let due = slot.since.after(patience);
        slot.next = Some((attempt, None));
        self.counters.attempts_ahead += 1;
        self.ahead.insert(runner);
        self.fit_eager(runner);
        let due = self.ahead_timer.map_or(due, |sooner| sooner.min(due));
        self.timers.set(Wake::Ahead, &mut self.ahead_timer, Some(due));
    }

    /// Notes whether a runner may be given an attempt ahead.
    pub(crate) fn fit_eager(&mut self, runner: RunnerId) {
        if self.runners[runner.0 as usize].eager() {
            self.eager.insert(runner);
        } else {
            self.eager.remove(&runner);
        }
    }

    /// Notes whether a runner was quick at an attempt that has ended by itself.
    pub(crate) fn note_quick(&mut self, runner: RunnerId, attempt: &Attempt) {
        // With the way there and back: whoever is far away would only be given what comes too late.
        let took = self.now.since(attempt.sent);
        let slot = &mut self.runners[runner.0 as usize];
        let is_quick = slot.takes_ahead && took < self.config.quick;
        slot.quick = is_quick.then_some((attempt.workflow, attempt.runs.count));
    }

    /// A runner can be given attempts ahead.
    pub(crate) fn takes_ahead(&mut self, runner: RunnerId) {
        self.runners[runner.0 as usize].takes_ahead = true;
    }

    /// Has a runner give back what it was given ahead, unless it was told to already. Nothing more
    /// is given to it ahead until it has been quick again.
    pub(crate) fn recall(
        &mut self,
        runner: RunnerId,
        cancel: Cancel,
        unresponsive: Unresponsive,
        actions: &mut Vec<Action>,
    ) {
        let slot = &mut self.runners[runner.0 as usize];
        let Some((attempt, recalled @ None)) = &mut slot.next else { return };
        *recalled = Some((cancel, unresponsive));
        slot.quick = None;
        let (life, attempt) = (slot.life, attempt.id);
        actions.push(Action::CancelAttempt { runner, life, attempt, reason: cancel });
        self.counters.attempts_recalled += 1;
        self.ahead.remove(&runner);
    }

    /// Has all runners give back what they were given ahead.
    pub(crate) fn recall_all(&mut self, actions: &mut Vec<Action>) {
        while let Some(runner) = self.ahead.first().copied() {
            self.call_back(runner, actions);
        }
    }

    /// Has a runner give back what it was given ahead, because it would have to wait.
    pub(crate) fn call_back(&mut self, runner: RunnerId, actions: &mut Vec<Action>) {
        self.recall(runner, Cancel::Recalled, Unresponsive::Replace, actions);
    }

    /// Counts the runs that were given ahead.
    pub(crate) fn runs_ahead(&self) -> u64 {
        let next = self.runners.iter().filter_map(|slot| slot.next.as_ref());
        next.map(|(attempt, _)| self.left_behind(attempt).len() as u64).sum()
    }

    /// What was given ahead may have waited long enough behind something that is not quick at all.
    pub(crate) fn ahead_due(&mut self, actions: &mut Vec<Action>) {
        self.ahead_timer = None;
        let patience = self.patience();
        let mut next = None;
        for runner in self.ahead.iter().copied().collect::<Vec<_>>() {
            let due = self.runners[runner.0 as usize].since.after(patience);
            if due <= self.now {
                self.call_back(runner, actions);
            } else {
                next = Some(next.map_or(due, |sooner| due.min(sooner)));
            }
        }
        self.timers.set(Wake::Ahead, &mut self.ahead_timer, next);
    }

    /// Takes in what a runner says about an attempt that it was given ahead. Whoever is at it, or
    /// done with it, is done with the one before, whatever became of the word of that.
    pub(crate) fn overtake(
        &mut self,
        runner: RunnerId,
        report: &Report,
        actions: &mut Vec<Action>,
    ) {
        let Some(named) = report.attempt() else { return };
        let Some((next, recalled)) = &self.runners[runner.0 as usize].next else { return };
        let unbegun = recalled.is_some() && matches!(report, Report::AttemptEnded { .. });
        if next.id == named && !unbegun {
            self.runner_free(runner, actions);
        }
    }

    /// Tells whether a runner was given an attempt ahead and told to give it back.
    pub(crate) fn recalled(&self, runner: RunnerId, attempt: AttemptId) -> bool {
        let next = self.runners[runner.0 as usize].next.as_ref();
        next.is_some_and(|(next, recalled)| next.id == attempt && recalled.is_some())
    }

    /// An attempt that was given ahead comes back: its runs go out again.
    pub(crate) fn take_back(&mut self, runner: RunnerId, actions: &mut Vec<Action>) {
        let Some((attempt, _)) = self.runners[runner.0 as usize].next.take() else { return };
        self.ahead.remove(&runner);
        self.fit_eager(runner);
        // It has taken no time.
        self.put_back_runs(&Attempt { left: 0, ..attempt }, runner, actions);
    }

    /// The attempt before is over: a runner goes on with what it was given ahead. Tells whether
    /// there is such an attempt.
    pub(crate) fn go_on(&mut self, runner: RunnerId) -> bool {
        let slot = &mut self.runners[runner.0 as usize];
        let Some((attempt, recalled)) = slot.next.take() else { return false };
        self.ahead.remove(&runner);
        self.enter(runner, Phase::Busy(Attempt { sent: self.now, ..attempt }));
        if let Some((cancel, unresponsive)) = recalled {
            // The word crossed on the way; it is acknowledged like any other.
            self.await_cancel(runner, cancel, unresponsive);
        }
        true
    }

    fn patience(&self) -> std::time::Duration {
        self.config.quick * PATIENCE
    }
}
