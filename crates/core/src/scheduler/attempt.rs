//! What runners say about attempts, and what becomes of the runs in them.

use std::sync::Arc;

use crate::Core;
use crate::failure::FailureKind;
use crate::ids::{AttemptId, RunId, RunnerId};
use crate::run::Payload;
use crate::run::{RunEnd, RunFailure, RunOutcome, RunOutput};
use crate::scheduler::action::{Action, AttemptCancelReason};
use crate::scheduler::counters::IgnoreReason;
use crate::scheduler::input::UnresponsivePolicy;
use crate::scheduler::runner_slot::{RunnerPhase, SlotAttempt};
use crate::scheduler::status::{BatchType, DropReason};
use crate::scheduler::task::RunPhase;
use crate::scheduler::view::DeadlineReason;
use crate::time::Time;

/// What a report has to say about an attempt, measured by what the core knows.
enum ReportValidity {
    Current,
    Cancelling,
    NotCurrent,
}

impl Core {
    fn standing(&self, runner: RunnerId, attempt: AttemptId) -> ReportValidity {
        match &self.pool.runners[runner.0 as usize].phase {
            RunnerPhase::Busy(current) if current.id == attempt => ReportValidity::Current,
            RunnerPhase::Cancelling(current, _) if current.id == attempt => {
                ReportValidity::Cancelling
            }
            RunnerPhase::Busy(_)
            | RunnerPhase::Cancelling(..)
            | RunnerPhase::Starting
            | RunnerPhase::Idle
            | RunnerPhase::Broken
            | RunnerPhase::Resting
            | RunnerPhase::Retired => ReportValidity::NotCurrent,
        }
    }

    pub(crate) fn attempt_began(&mut self, runner: RunnerId, attempt: AttemptId) {
        match self.standing(runner, attempt) {
            ReportValidity::Current => {}
            ReportValidity::Cancelling => return self.ignore_report(IgnoreReason::Cancelling),
            ReportValidity::NotCurrent => return self.ignore_report(IgnoreReason::NotCurrent),
        }
        let slot = &mut self.pool.runners[runner.0 as usize];
        let RunnerPhase::Busy(attempt) = &mut slot.phase else { return };
        if attempt.began.is_some() {
            return self.ignore_report(IgnoreReason::Repeated);
        }
        attempt.began = Some(self.now);
        let deadline = self.now.after(attempt.timeout);
        self.timers.set(DeadlineReason::Runner(runner), &mut slot.timer, Some(deadline));
        self.progress.last = self.now;
    }

    pub(crate) fn run_finished(
        &mut self,
        runner: RunnerId,
        attempt: AttemptId,
        run: RunId,
        outcome: RunOutcome,
        actions: &mut Vec<Action>,
    ) {
        if let Ok(RunOutput { payload: Some(_), .. }) = &outcome {
            self.counters.payloads_received += 1;
        }
        let disbelief = match self.standing(runner, attempt) {
            ReportValidity::Current if self.outstanding(runner, attempt, run) => None,
            ReportValidity::Current => Some((IgnoreReason::RunNotOpen, DropReason::Duplicate)),
            ReportValidity::Cancelling => Some((IgnoreReason::Cancelling, DropReason::Late)),
            ReportValidity::NotCurrent => Some((IgnoreReason::NotCurrent, DropReason::Late)),
        };
        match (disbelief, outcome) {
            (Some((why, reason)), Ok(RunOutput { payload, .. })) => {
                self.ignore_report(why);
                let about = self.pool.runners[runner.0 as usize].attempt();
                let batch = about.filter(|about| about.id == attempt).map(|about| about.batch);
                self.drop_unheld_payload(batch, payload, reason, actions);
            }
            (Some((why, _)), Err(_)) => self.ignore_report(why),
            (None, Ok(RunOutput { payload, metrics })) => {
                self.count_down(runner);
                self.run_succeeded(runner, run, payload, metrics, actions);
            }
            (None, Err(RunFailure { kind, message })) => {
                self.count_down(runner);
                let RunnerPhase::Busy(attempt) = &self.pool.runners[runner.0 as usize].phase else {
                    return;
                };
                let (batch, task) = (attempt.batch, attempt.task);
                self.fail_runs(batch, task, &[run], kind, message, runner, actions);
            }
        }
    }

    /// Notes that one more run of an attempt was reported. With the last one the attempt has taken
    /// its time, whenever its runner is done tidying up: the task may end right now.
    fn count_down(&mut self, runner: RunnerId) {
        let RunnerPhase::Busy(attempt) = &mut self.pool.runners[runner.0 as usize].phase else {
            return;
        };
        attempt.left -= 1;
        if attempt.left == 0 {
            let attempt = attempt.clone();
            self.note_seconds(&attempt);
        }
    }

    fn note_seconds(&mut self, attempt: &SlotAttempt) {
        let batch = self.batches.get_mut(&attempt.batch);
        if let Some(work) = batch.and_then(|batch| batch.work_mut(attempt.task)) {
            let took = self.now.since(attempt.began.unwrap_or(attempt.sent));
            work.attempts.push((attempt.runs.first, attempt.id, took.as_secs_f64()));
        }
    }

    /// Tells whether the run is part of the attempt and has not been reported.
    fn outstanding(&self, runner: RunnerId, attempt: AttemptId, run: RunId) -> bool {
        let Some(current) = self.pool.runners[runner.0 as usize].attempt() else { return false };
        let batch = self.batches.get(&current.batch);
        let run = batch.and_then(|batch| batch.work(current.task)?.runs.get(run.0 as usize));
        run.is_some_and(|run| run.state == RunPhase::InFlight(attempt))
    }

    fn run_succeeded(
        &mut self,
        runner: RunnerId,
        run: RunId,
        payload: Option<Payload>,
        mut metrics: crate::metrics::Metrics,
        actions: &mut Vec<Action>,
    ) {
        let RunnerPhase::Busy(attempt) = &mut self.pool.runners[runner.0 as usize].phase else {
            return;
        };
        let (key, id) = (attempt.batch, attempt.task);
        let most = self.config.limits.payload_bytes_per_run;
        if let Some(large) = payload.filter(|payload| payload.bytes > most) {
            let message = format!("payload of {} bytes exceeds the limit of {most}", large.bytes);
            self.drop_unheld_payload(Some(key), payload, DropReason::TooLarge, actions);
            let kind = FailureKind::InvalidOutput;
            self.fail_runs(key, id, &[run], kind, message.into(), runner, actions);
            return;
        }
        attempt.succeeded += 1;
        if attempt.succeeded == attempt.runs.count {
            let attempt = attempt.clone();
            self.learn(&attempt);
        }
        let dropped = metrics.truncate(self.config.limits.metrics_per_run as usize);
        self.counters.metrics_dropped += dropped as u64;
        let kept = match self.batches[&key].kind {
            BatchType::Train => payload,
            BatchType::Eval => {
                self.drop_unheld_payload(Some(key), payload, DropReason::Eval, actions);
                None
            }
        };
        // A finalizer may have hoped for just this run.
        if self.batches[&key].state().is_some() && !self.batches[&key].waiters.is_empty() {
            self.changed.insert(key);
        }
        let ending = RunEnd::Succeeded(RunOutput { payload: kept, metrics });
        self.end_run(key, id, run, ending, actions);
        self.end_task_if_done(key, id, actions);
    }

    pub(crate) fn attempt_ended(
        &mut self,
        runner: RunnerId,
        attempt: AttemptId,
        actions: &mut Vec<Action>,
    ) {
        match self.standing(runner, attempt) {
            ReportValidity::Current | ReportValidity::Cancelling => {
                self.runner_free(runner, actions)
            }
            ReportValidity::NotCurrent => self.ignore_report(IgnoreReason::NotCurrent),
        }
    }

    /// A runner with an attempt said that it is idle: the attempt is over.
    pub(crate) fn runner_free(&mut self, runner: RunnerId, actions: &mut Vec<Action>) {
        let slot = &mut self.pool.runners[runner.0 as usize];
        let Some((attempt, cancel)) = slot.work() else { return };
        slot.fruitful = true;
        slot.fruitless = 0;
        slot.message = None;
        self.enter_idle_or_retire(runner, actions);
        if let Some(cancel) = cancel {
            return self.settle_cancelled(&attempt, cancel, runner, actions);
        }
        let message = "the attempt ended without a word about the run";
        self.settle(&attempt, FailureKind::RunnerLost, message.into(), runner, actions);
    }

    /// Lets the dynamic timeout learn from an attempt all of whose runs have succeeded.
    fn learn(&mut self, attempt: &SlotAttempt) {
        let Some(batch) = self.batches.get(&attempt.batch) else { return };
        let Some(task) = batch.tasks.get(attempt.task.0 as usize) else { return };
        let Some(began) = attempt.began.filter(|_| batch.kind == BatchType::Train) else {
            return;
        };
        let work = (task.workflow, attempt.runs.count);
        let took = self.now.since(began);
        let kinds_max = self.config.limits.workflows;
        if !self.durations.observe(work, took, &self.config.dynamic_timeout, kinds_max) {
            self.counters.durations_dropped += 1;
        }
    }

    /// Ends an attempt: the runs that it leaves behind have failed in the given way.
    pub(crate) fn settle(
        &mut self,
        attempt: &SlotAttempt,
        kind: FailureKind,
        message: Arc<str>,
        runner: RunnerId,
        actions: &mut Vec<Action>,
    ) {
        // Of runs that are executed in turn only the first can be to blame: the others had not
        // begun.
        let most = if self.config.runs_in_turn { 1 } else { usize::MAX };
        self.end_attempt(attempt, most, Some((kind, message)), runner, actions);
    }

    /// Ends an attempt: of the runs that it leaves behind, at most so many have failed in the given
    /// way, and the others are tried again.
    fn end_attempt(
        &mut self,
        attempt: &SlotAttempt,
        most: usize,
        failure: Option<(FailureKind, Arc<str>)>,
        runner: RunnerId,
        actions: &mut Vec<Action>,
    ) {
        self.counters.attempts_ended += 1;
        let left = self.left_behind(attempt);
        let Some(batch) = self.batches.get_mut(&attempt.batch) else { return };
        batch.attempts -= 1;
        if attempt.left > 0 {
            self.note_seconds(attempt);
        }
        let (blamed, innocent) = left.split_at(left.len().min(most));
        let (key, task) = (attempt.batch, attempt.task);
        self.requeue(key, task, innocent, std::time::Duration::ZERO, runner, actions);
        if let Some((kind, message)) = failure {
            self.fail_runs(key, task, blamed, kind, message, runner, actions);
        }
        self.end_task_if_done(key, task, actions);
    }

    /// Ends an attempt that was cancelled, now that it is certain that nobody works on it.
    pub(crate) fn settle_cancelled(
        &mut self,
        attempt: &SlotAttempt,
        cancel: AttemptCancelReason,
        runner: RunnerId,
        actions: &mut Vec<Action>,
    ) {
        let (kind, message) = match cancel {
            // What was cancelled ended then. Whatever else was given with it is innocent.
            AttemptCancelReason::Runs(_) => {
                return self.end_attempt(attempt, 0, None, runner, actions);
            }
            AttemptCancelReason::Timeout => {
                let seconds = attempt.timeout.as_secs_f64();
                (FailureKind::Timeout, format!("attempt lasted longer than {seconds} s"))
            }
            AttemptCancelReason::BeginTimeout => {
                (FailureKind::RunnerLost, format!("runner {runner} did not begin in time"))
            }
        };
        self.settle(attempt, kind, message.into(), runner, actions);
    }

    pub(crate) fn left_behind(&self, attempt: &SlotAttempt) -> Vec<RunId> {
        let batch = self.batches.get(&attempt.batch);
        let Some(work) = batch.and_then(|batch| batch.work(attempt.task)) else {
            return Vec::new();
        };
        let theirs = RunPhase::InFlight(attempt.id);
        attempt.runs.iter().filter(|run| work.runs[run.0 as usize].state == theirs).collect()
    }

    /// Tells a runner to give its attempt up. Nothing that it reports about it counts any more.
    pub(crate) fn cancel_attempt(
        &mut self,
        runner: RunnerId,
        cancel: AttemptCancelReason,
        unresponsive: UnresponsivePolicy,
        actions: &mut Vec<Action>,
    ) {
        let slot = &self.pool.runners[runner.0 as usize];
        let RunnerPhase::Busy(attempt) = &slot.phase else { return };
        let attempt = attempt.clone();
        actions.push(Action::CancelAttempt {
            runner,
            life: slot.life,
            attempt: attempt.id,
            reason: cancel,
        });
        let grace = self.config.supervision.cancel_grace;
        let from: Time = match unresponsive {
            UnresponsivePolicy::Replace => self.now,
            UnresponsivePolicy::Wait => {
                self.now.max(attempt.began.unwrap_or(attempt.sent).after(attempt.timeout))
            }
        };
        self.enter(runner, RunnerPhase::Cancelling(attempt, cancel));
        let slot = &mut self.pool.runners[runner.0 as usize];
        self.timers.set(DeadlineReason::Runner(runner), &mut slot.timer, Some(from.after(grace)));
    }
}
