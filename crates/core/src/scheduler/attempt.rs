//! Reports about attempts: their validity (fencing), and the end of an attempt.

use std::sync::Arc;

use super::{RunPhase, RunnerPhase, SlotAttempt};
use crate::{
    Action, AttemptCancelReason, AttemptId, BatchType, Core, DeadlineReason, DropReason,
    FailureKind, IgnoreReason, Payload, RunEnd, RunFailure, RunId, RunOutcome, RunOutput, RunnerId,
    Time, UnresponsivePolicy,
};

impl Core {
    fn check_current(&self, runner: RunnerId, attempt: AttemptId) -> Result<(), IgnoreReason> {
        let slot = &self.pool[runner];
        if slot.attempt().is_none_or(|current| current.id != attempt) {
            return Err(IgnoreReason::NotCurrent);
        }
        let cancelling = matches!(slot.phase, RunnerPhase::Cancelling(..));
        if cancelling { Err(IgnoreReason::Cancelling) } else { Ok(()) }
    }

    pub(crate) fn attempt_began(&mut self, runner: RunnerId, attempt: AttemptId) {
        if let Err(reason) = self.check_current(runner, attempt) {
            return self.ignore_report(reason);
        }
        let slot = &mut self.pool[runner];
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
    ) {
        if let Ok(RunOutput { payload: Some(_), .. }) = &outcome {
            self.counters.payloads_received += 1;
        }
        let ignored = match self.check_current(runner, attempt) {
            Ok(()) if self.outstanding(runner, attempt, run) => None,
            Ok(()) => Some((IgnoreReason::RunNotOpen, DropReason::Duplicate)),
            Err(reason) => Some((reason, DropReason::Late)),
        };
        match (ignored, outcome) {
            (Some((ignored, dropped)), Ok(RunOutput { payload, .. })) => {
                self.ignore_report(ignored);
                let current = self.pool[runner].attempt();
                let batch = current.filter(|current| current.id == attempt).map(|it| it.batch);
                self.drop_unheld_payload(batch, payload, dropped);
            }
            (Some((ignored, _)), Err(_)) => self.ignore_report(ignored),
            (None, Ok(RunOutput { payload, metrics })) => {
                self.count_down(runner);
                self.run_succeeded(runner, run, payload, metrics);
            }
            (None, Err(RunFailure { kind, message })) => {
                self.count_down(runner);
                let RunnerPhase::Busy(attempt) = &self.pool[runner].phase else {
                    return;
                };
                let (batch, task) = (attempt.batch, attempt.task);
                self.fail_runs(batch, task, &[run], kind, message, runner);
            }
        }
    }

    /// Counts a reported run. With the last one the attempt's duration is known, although the
    /// runner may not be idle yet: the task may end now.
    fn count_down(&mut self, runner: RunnerId) {
        let RunnerPhase::Busy(attempt) = &mut self.pool[runner].phase else {
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

    /// Returns whether the run is part of the attempt and not reported yet.
    fn outstanding(&self, runner: RunnerId, attempt: AttemptId, run: RunId) -> bool {
        let Some(current) = self.pool[runner].attempt() else { return false };
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
    ) {
        let RunnerPhase::Busy(attempt) = &mut self.pool[runner].phase else {
            return;
        };
        let (key, id) = (attempt.batch, attempt.task);
        let limit = self.config.limits.payload_bytes_per_run;
        if let Some(large) = payload.filter(|payload| payload.bytes > limit) {
            let message = format!(
                "payload of {} bytes exceeds the limit of {limit} \
                 (explorer.limits.payload_bytes_per_run)",
                large.bytes
            );
            self.drop_unheld_payload(Some(key), payload, DropReason::TooLarge);
            let kind = FailureKind::InvalidOutput;
            self.fail_runs(key, id, &[run], kind, message.into(), runner);
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
                self.drop_unheld_payload(Some(key), payload, DropReason::Eval);
                None
            }
        };
        // A waiting finalizer may need exactly this run.
        if self.batches[&key].state().is_some() && !self.batches[&key].waiters.is_empty() {
            self.changed.insert(key);
        }
        let ending = RunEnd::Succeeded(RunOutput { payload: kept, metrics });
        self.end_run(key, id, run, ending);
        self.end_task_if_done(key, id);
    }

    pub(crate) fn attempt_ended(&mut self, runner: RunnerId, attempt: AttemptId) {
        match self.check_current(runner, attempt) {
            Ok(()) | Err(IgnoreReason::Cancelling) => self.runner_free(runner),
            Err(reason) => self.ignore_report(reason),
        }
    }

    /// Ends the attempt of a runner that reported to be idle.
    pub(crate) fn runner_free(&mut self, runner: RunnerId) {
        let slot = &mut self.pool[runner];
        let Some((attempt, cancel)) = slot.work() else { return };
        slot.has_finished = true;
        slot.failed_incarnations = 0;
        slot.message = None;
        self.enter_idle_or_retire(runner);
        if let Some(cancel) = cancel {
            return self.end_cancelled_attempt(&attempt, cancel, runner);
        }
        let message = "the attempt ended without a report about the run";
        self.end_failed_attempt(&attempt, FailureKind::RunnerLost, message.into(), runner);
    }

    /// Records the duration of an attempt whose runs all succeeded, for the dynamic timeout.
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

    /// Ends an attempt: its open runs fail with `kind`.
    pub(crate) fn end_failed_attempt(
        &mut self,
        attempt: &SlotAttempt,
        kind: FailureKind,
        message: Arc<str>,
        runner: RunnerId,
    ) {
        // With sequential execution only the first open run can be the cause.
        let max_charged = if self.config.runs_in_turn { 1 } else { usize::MAX };
        self.end_attempt(attempt, max_charged, Some((kind, message)), runner);
    }

    /// Ends the attempt of a runner that was lost because of another one: its open runs are retried
    /// uncharged.
    pub(crate) fn end_uncharged_attempt(&mut self, attempt: &SlotAttempt, runner: RunnerId) {
        self.end_attempt(attempt, 0, None, runner);
    }

    /// Ends an attempt: at most `max_charged` of its open runs fail with `failure`, the others are
    /// retried uncharged.
    fn end_attempt(
        &mut self,
        attempt: &SlotAttempt,
        max_charged: usize,
        failure: Option<(FailureKind, Arc<str>)>,
        runner: RunnerId,
    ) {
        self.counters.attempts_ended += 1;
        let open = self.open_runs(attempt);
        let Some(batch) = self.batches.get_mut(&attempt.batch) else { return };
        batch.attempts -= 1;
        if attempt.left > 0 {
            self.note_seconds(attempt);
        }
        let (charged, uncharged) = open.split_at(open.len().min(max_charged));
        let (key, task) = (attempt.batch, attempt.task);
        self.requeue(key, task, uncharged, std::time::Duration::ZERO, runner);
        if let Some((kind, message)) = failure {
            self.fail_runs(key, task, charged, kind, message, runner);
        }
        self.end_task_if_done(key, task);
    }

    /// Ends an attempt that was cancelled, now that no runner executes it.
    pub(crate) fn end_cancelled_attempt(
        &mut self,
        attempt: &SlotAttempt,
        cancel: AttemptCancelReason,
        runner: RunnerId,
    ) {
        let (kind, message) = match cancel {
            // The cancelled runs ended at the request; the others of the attempt are not charged.
            AttemptCancelReason::Runs(_) => {
                return self.end_attempt(attempt, 0, None, runner);
            }
            AttemptCancelReason::Timeout => {
                let seconds = attempt.timeout.as_secs_f64();
                (FailureKind::Timeout, format!("attempt lasted longer than {seconds} s"))
            }
            AttemptCancelReason::BeginTimeout => {
                (FailureKind::RunnerLost, format!("runner {runner} did not begin in time"))
            }
        };
        self.end_failed_attempt(attempt, kind, message.into(), runner);
    }

    /// Returns the runs of an attempt that it has not ended.
    pub(crate) fn open_runs(&self, attempt: &SlotAttempt) -> Vec<RunId> {
        let batch = self.batches.get(&attempt.batch);
        let Some(work) = batch.and_then(|batch| batch.work(attempt.task)) else {
            return Vec::new();
        };
        let open = RunPhase::InFlight(attempt.id);
        attempt.runs.iter().filter(|run| work.runs[run.0 as usize].state == open).collect()
    }

    /// Cancels the attempt of a runner. Its further reports about it are ignored.
    pub(crate) fn cancel_attempt(
        &mut self,
        runner: RunnerId,
        cancel: AttemptCancelReason,
        unresponsive: UnresponsivePolicy,
    ) {
        let slot = &self.pool[runner];
        let RunnerPhase::Busy(attempt) = &slot.phase else { return };
        let attempt = attempt.clone();
        self.actions.push(Action::CancelAttempt {
            runner,
            incarnation: slot.incarnation,
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
        self.set_phase(runner, RunnerPhase::Cancelling(attempt, cancel));
        let slot = &mut self.pool[runner];
        self.timers.set(DeadlineReason::Runner(runner), &mut slot.timer, Some(from.after(grace)));
    }
}
