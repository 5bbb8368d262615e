//! The pool of runners: start, supervision, replacement and retirement.

use std::sync::Arc;

use super::{CorePhase, RunnerPhase, RunnerSlot, SlotAttempt};
use crate::{
    Action, AttemptCancelReason, AttemptId, Core, DeadlineReason, FailureKind, IgnoreReason,
    Incarnation, RunnerId, RunnerReport, Suspicion, UnresponsivePolicy,
};

impl Core {
    pub(crate) fn report(
        &mut self,
        runner: RunnerId,
        incarnation: Incarnation,
        report: RunnerReport,
    ) {
        let Some(slot) = self.pool.runners.get_mut(runner.0 as usize) else {
            self.ignore_report(IgnoreReason::UnknownRunner);
            self.drop_ignored_payload(report);
            return;
        };
        if slot.incarnation != incarnation || !slot.is_alive() {
            self.ignore_report(IgnoreReason::EarlierLife);
            self.drop_ignored_payload(report);
            return;
        }
        slot.last_report = self.now;
        match report {
            RunnerReport::Heartbeat => {}
            RunnerReport::Ready { after } => self.runner_ready(runner, after),
            RunnerReport::StartBlocked { reason } => self.start_blocked(runner, reason),
            RunnerReport::StartFailed { message } => self.start_failed(runner, message),
            RunnerReport::Lost { message, suspicion } => {
                self.runner_lost(runner, message, suspicion)
            }
            RunnerReport::AttemptBegan { attempt } => self.attempt_began(runner, attempt),
            RunnerReport::RunFinished { attempt, run, outcome } => {
                self.run_finished(runner, attempt, run, outcome);
            }
            RunnerReport::AttemptEnded { attempt } => self.attempt_ended(runner, attempt),
        }
    }

    fn runner_ready(&mut self, runner: RunnerId, after: Option<AttemptId>) {
        let slot = &mut self.pool[runner];
        match (&slot.phase, after) {
            (RunnerPhase::Starting, None) => {
                slot.settled = true;
                slot.start_failures = 0;
                self.enter_idle_or_retire(runner);
            }
            // The report of the attempt's end was lost.
            (RunnerPhase::Busy(attempt) | RunnerPhase::Cancelling(attempt, _), Some(after))
                if attempt.id == after =>
            {
                self.runner_free(runner);
            }
            (RunnerPhase::Idle, _) => self.ignore_report(IgnoreReason::Repeated),
            _ => self.ignore_report(IgnoreReason::NotCurrent),
        }
    }

    /// Moves a slot into a phase, and updates the idle set, the counts and the timers.
    pub(crate) fn set_phase(&mut self, runner: RunnerId, phase: RunnerPhase) {
        let serial = self.serial();
        let supervision = self.config.supervision;
        let slot = &mut self.pool.runners[runner.0 as usize];
        let (was_alive, was_working) = (slot.is_alive(), slot.attempt().is_some());
        if matches!(slot.phase, RunnerPhase::Idle) {
            self.pool.idle.remove(&(slot.idle_since, runner));
        }
        if matches!(slot.phase, RunnerPhase::Retired) {
            self.pool.retired_slots.remove(&runner);
        }
        slot.phase = phase;
        slot.waits = false;
        if !slot.is_alive() {
            self.pool.isolated.remove(&runner);
        }
        slot.since = self.now;
        let timer = match &slot.phase {
            RunnerPhase::Starting => Some(self.now.after(supervision.start_timeout)),
            RunnerPhase::Busy(_) => Some(self.now.after(supervision.begin_timeout)),
            RunnerPhase::Broken => Some(self.now.after(supervision.broken_retry_delay)),
            RunnerPhase::AwaitingRestart => Some(self.now.after(slot.restart_delay(&supervision))),
            RunnerPhase::Cancelling(..) => slot.timer,
            RunnerPhase::Idle => {
                slot.idle_since = serial;
                self.pool.idle.insert((serial, runner));
                None
            }
            RunnerPhase::Retired => {
                self.pool.retired_slots.insert(runner);
                None
            }
        };
        self.timers.set(DeadlineReason::Runner(runner), &mut slot.timer, timer);
        let watched = slot.is_alive() && !matches!(slot.phase, RunnerPhase::Starting);
        let deadline =
            match (supervision.heartbeat_timeout.filter(|_| watched), slot.heartbeat_deadline) {
                // Set for an earlier time: it checks and sets itself again.
                (Some(_), Some(at)) => Some(at),
                (Some(timeout), None) => Some(slot.last_report.after(timeout)),
                (None, _) => None,
            };
        self.timers.set(
            DeadlineReason::HeartbeatTimeout(runner),
            &mut slot.heartbeat_deadline,
            deadline,
        );
        let slot = &self.pool.runners[runner.0 as usize];
        self.pool.alive = self.pool.alive + u32::from(slot.is_alive()) - u32::from(was_alive);
        let works = slot.attempt().is_some();
        self.pool.working = self.pool.working + u32::from(works) - u32::from(was_working);
    }

    /// Makes a runner idle, or retires it if it is surplus.
    pub(crate) fn enter_idle_or_retire(&mut self, runner: RunnerId) {
        if self.pool[runner].retiring {
            self.retire(runner);
        } else {
            self.set_phase(runner, RunnerPhase::Idle);
        }
    }

    /// Replaces a runner without an attempt by its next incarnation.
    pub(crate) fn restart_runner(&mut self, runner: RunnerId) {
        self.order_stop(runner);
        self.start_runner(runner);
    }

    /// Starts the next incarnation, isolated if suspects wait for it.
    pub(crate) fn start_runner(&mut self, runner: RunnerId) {
        self.pool.isolated.remove(&runner);
        let isolated = self.isolates_next();
        if isolated {
            self.pool.isolated.insert(runner);
        }
        let slot = &mut self.pool[runner];
        slot.incarnation = Incarnation(slot.incarnation.0.wrapping_add(1));
        slot.has_finished = false;
        slot.last_report = self.now;
        let incarnation = slot.incarnation;
        self.set_phase(runner, RunnerPhase::Starting);
        self.counters.runners_started += 1;
        self.actions.push(Action::StartRunner { runner, incarnation, isolated });
    }

    fn order_stop(&mut self, runner: RunnerId) {
        let incarnation = self.pool[runner].incarnation;
        self.counters.runners_stopped += 1;
        self.actions.push(Action::StopRunner { runner, incarnation });
    }

    /// Removes a runner for good.
    pub(crate) fn retire(&mut self, runner: RunnerId) {
        if self.pool[runner].is_alive() {
            self.order_stop(runner);
        }
        let slot = &mut self.pool[runner];
        slot.retiring = false;
        slot.settled = true;
        self.set_phase(runner, RunnerPhase::Retired);
    }

    /// Handles a start that waits for an external condition (`reason`), or no longer does.
    fn start_blocked(&mut self, runner: RunnerId, reason: Option<Arc<str>>) {
        let reason = reason.map(|reason| self.clip(reason));
        let slot = &mut self.pool.runners[runner.0 as usize];
        if !matches!(slot.phase, RunnerPhase::Starting) {
            return self.ignore_report(IgnoreReason::NotCurrent);
        }
        slot.waits = reason.is_some();
        slot.settled = slot.waits;
        if !slot.settled {
            // Start requests wait for this runner again.
            self.pool.settled = self.pool.settled.min(runner.0 as usize);
        }
        slot.message = reason;
        let due = self.now.after(self.config.supervision.start_timeout);
        let timer = (!slot.waits).then_some(due);
        self.timers.set(DeadlineReason::Runner(runner), &mut slot.timer, timer);
    }

    fn start_failed(&mut self, runner: RunnerId, message: Arc<str>) {
        let message = self.clip(message);
        let slot = &mut self.pool[runner];
        if !matches!(slot.phase, RunnerPhase::Starting) {
            return self.ignore_report(IgnoreReason::NotCurrent);
        }
        slot.message = Some(message);
        slot.settled = true;
        slot.start_failures += 1;
        slot.failed_incarnations += 1;
        let broken = slot.start_failures >= self.config.supervision.max_start_failures;
        if slot.retiring {
            return self.retire(runner);
        }
        self.order_stop(runner);
        self.set_phase(
            runner,
            if broken { RunnerPhase::Broken } else { RunnerPhase::AwaitingRestart },
        );
    }

    /// Handles a lost runner: its attempt ends, and the next incarnation starts unless the runner
    /// was about to retire.
    pub(crate) fn runner_lost(
        &mut self,
        runner: RunnerId,
        message: Arc<str>,
        suspicion: Suspicion,
    ) {
        let message = self.clip(message);
        let restarts = !self.pool[runner].retiring && self.phase == CorePhase::Running;
        let slot = &mut self.pool[runner];
        // A loss that an attempt caused says nothing about the start of runners.
        let caused = suspicion != Suspicion::None;
        if matches!(slot.phase, RunnerPhase::Starting) {
            if caused && restarts {
                slot.message = Some(message);
                return self.restart_runner(runner);
            }
            return self.start_failed(runner, message);
        }
        self.counters.runners_lost += 1;
        slot.message = Some(message.clone());
        if !slot.has_finished && !caused {
            slot.failed_incarnations += 1;
        }
        let stays = !slot.retiring;
        let work = slot.work();
        if stays {
            self.order_stop(runner);
            self.set_phase(runner, RunnerPhase::AwaitingRestart);
        } else {
            self.retire(runner);
        }
        match work {
            Some((attempt, None)) => {
                self.suspect(&attempt, suspicion);
                if suspicion == Suspicion::Neighbour {
                    self.end_uncharged_attempt(&attempt, runner);
                } else {
                    self.end_failed_attempt(&attempt, FailureKind::RunnerLost, message, runner);
                }
            }
            Some((attempt, Some(cancel))) => {
                self.end_cancelled_attempt(&attempt, cancel, runner);
            }
            None => {}
        }
        if restarts && (caused || self.pool[runner].timer == Some(self.now)) {
            self.start_runner(runner);
        }
    }

    fn suspect(&mut self, attempt: &SlotAttempt, suspicion: Suspicion) {
        if matches!(suspicion, Suspicion::None | Suspicion::Neighbour) {
            return;
        }
        // With sequential execution only the first open run can be the cause.
        let most = if self.config.runs_in_turn { 1 } else { usize::MAX };
        let open = self.open_runs(attempt);
        let batch = self.batches.get_mut(&attempt.batch);
        if let Some(work) = batch.and_then(|batch| batch.work_mut(attempt.task)) {
            work.suspected_losses += u32::from(suspicion == Suspicion::Sole);
            for run in open.into_iter().take(most) {
                work.runs[run.0 as usize].suspect = true;
            }
        }
    }

    /// Handles the timer of a runner: a phase took too long (a start, or a workflow that ignores
    /// its cancellation), or a delay is over.
    pub(crate) fn runner_due(&mut self, runner: RunnerId) {
        let slot = &mut self.pool[runner];
        slot.timer = None;
        match &slot.phase {
            RunnerPhase::Starting => {
                self.start_failed(runner, "did not become ready in time".into());
            }
            RunnerPhase::Busy(attempt) => {
                let late = attempt.began.is_some();
                // A timed-out attempt is progress: `wait_after_min` of a wait begins again.
                self.progress.last = self.now;
                let cancel = if late {
                    AttemptCancelReason::Timeout
                } else {
                    AttemptCancelReason::BeginTimeout
                };
                self.cancel_attempt(runner, cancel, UnresponsivePolicy::Replace);
            }
            RunnerPhase::Cancelling(..) => {
                let message = "did not acknowledge a cancel in time".into();
                self.runner_lost(runner, message, Suspicion::None);
            }
            // A stopping pool is not repaired.
            RunnerPhase::Broken | RunnerPhase::AwaitingRestart
                if self.phase == CorePhase::Running =>
            {
                self.start_runner(runner);
            }
            RunnerPhase::Broken
            | RunnerPhase::AwaitingRestart
            | RunnerPhase::Idle
            | RunnerPhase::Retired => {}
        }
    }

    /// Handles the heartbeat timer of a runner.
    pub(crate) fn heartbeat_due(&mut self, runner: RunnerId) {
        let slot = &mut self.pool[runner];
        slot.heartbeat_deadline = None;
        let Some(timeout) = self.config.supervision.heartbeat_timeout else { return };
        let at = slot.last_report.after(timeout);
        if at > self.now {
            self.timers.set(
                DeadlineReason::HeartbeatTimeout(runner),
                &mut slot.heartbeat_deadline,
                Some(at),
            );
            return;
        }
        let message = format!("no heartbeat or report for {} s", timeout.as_secs_f64());
        self.runner_lost(runner, message.into(), Suspicion::None);
    }

    /// Starts missing runners and retires surplus ones.
    pub(crate) fn resize_pool(&mut self) {
        self.pool.settled = 0;
        let mut counted = self.pool.runners.iter().filter(|slot| slot.counted()).count() as u32;
        for at in 0..self.pool.runners.len() {
            if counted < self.pool.target_runners && self.pool.runners[at].retiring {
                self.pool.runners[at].retiring = false;
                counted += 1;
            }
        }
        while counted < self.pool.target_runners {
            let runner = self.new_slot();
            self.start_runner(runner);
            counted += 1;
        }
        for at in (0..self.pool.runners.len()).rev() {
            if counted > self.pool.target_runners && self.pool.runners[at].counted() {
                let runner = RunnerId(at as u32);
                if self.pool.runners[at].attempt().is_some() {
                    self.pool.runners[at].retiring = true;
                } else {
                    self.retire(runner);
                }
                counted -= 1;
            }
        }
    }

    fn new_slot(&mut self) -> RunnerId {
        let fresh = RunnerSlot::new(self.config.epoch);
        if let Some(runner) = self.pool.retired_slots.first().copied() {
            let slot = &mut self.pool[runner];
            *slot = RunnerSlot { incarnation: slot.incarnation, ..fresh };
            return runner;
        }
        self.pool.runners.push(fresh);
        RunnerId(self.pool.runners.len() as u32 - 1)
    }
}
