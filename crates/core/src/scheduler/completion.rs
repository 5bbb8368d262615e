//! The end of runs and tasks: retries, failures, cancellation, and the tallies.

use std::sync::Arc;
use std::time::Duration;

use super::{CorePhase, EndedTask, PendingRetry, RunPhase, RunnerPhase, TaskPhase};
use crate::{
    Action, AttemptCancelReason, BatchKey, CancelReason, Core, CoreEvent, DeadlineReason,
    DropReason, FailedRun, FailureClass, FailureKind, GroupPolicy, LedgerRecord, OnExhausted,
    Payload, RunEnd, RunFailure, RunId, RunOutput, RunTally, RunnerId, RunnerReport, Status,
    TaskId, TaskTally, UnresponsivePolicy,
};

type TaskEndCount = fn(&mut TaskTally) -> &mut u64;

/// Moves one run between the counts of a tally.
fn move_run(tally: &mut RunTally, from: RunPhase, to: RunPhase) {
    match from {
        RunPhase::Pending => tally.pending -= 1,
        RunPhase::InFlight(_) => tally.running -= 1,
        RunPhase::Succeeded | RunPhase::Failed(_) | RunPhase::Cancelled(_) => {}
    }
    match to {
        RunPhase::Pending => tally.pending += 1,
        RunPhase::InFlight(_) => tally.running += 1,
        RunPhase::Succeeded => tally.succeeded += 1,
        RunPhase::Failed(kind) => tally.failed[kind] += 1,
        RunPhase::Cancelled(reason) => tally.cancelled[reason] += 1,
    }
}

impl Core {
    /// Ends an open run and records that; ended runs stay unchanged.
    pub(crate) fn end_run(
        &mut self,
        key: BatchKey,
        task: TaskId,
        run: RunId,
        ending: RunEnd<RunOutput>,
    ) {
        let record = self.recorded(key).then(|| ending.clone());
        if self.close_run(key, task, run, ending)
            && let Some(ending) = record
        {
            self.actions.push(Action::AppendRecord(LedgerRecord::RunEnded {
                batch: key,
                task,
                run,
                ending,
            }));
        }
    }

    /// Ends an open run in the tallies. Returns false if it had ended.
    pub(crate) fn close_run(
        &mut self,
        key: BatchKey,
        task: TaskId,
        run: RunId,
        ending: RunEnd<RunOutput>,
    ) -> bool {
        let Some(batch) = self.batches.get_mut(&key) else { return false };
        let Some(work) = batch.work_mut(task) else { return false };
        let record = &mut work.runs[run.0 as usize];
        let from = record.state;
        if !from.open() {
            return false;
        }
        let event_end = self.events.is_some().then(|| ending.without_output());
        let (mut held, mut failed) = (None, None);
        record.state = match ending {
            RunEnd::Succeeded(RunOutput { payload, metrics }) => {
                record.payload = payload;
                record.metrics = metrics;
                held = payload;
                RunPhase::Succeeded
            }
            RunEnd::Failed(RunFailure { kind, message }) => {
                failed = Some((kind, message));
                RunPhase::Failed(kind)
            }
            RunEnd::Cancelled(reason) => RunPhase::Cancelled(reason),
        };
        let to = record.state;
        work.unfinished -= 1;
        if let Some((kind, message)) = &failed
            && work.first_error.as_ref().is_none_or(|first| run < first.run)
        {
            let (kind, message) = (*kind, Arc::clone(message));
            work.first_error = Some(FailedRun { run, kind, message });
        }
        if let Some((kind, message)) = failed
            && self.config.failures.rule(kind).then == OnExhausted::FailBatch
            && batch.failed.is_none()
        {
            batch.failed = Some((kind, message));
            self.changed.insert(key);
        }
        if let Some(payload) = held {
            batch.held_bytes += payload.bytes;
            self.counters.payloads_held += 1;
            self.counters.payload_bytes_held += payload.bytes;
        }
        for tally in self.counters.tallies(batch) {
            move_run(tally, from, to);
        }
        self.progress.last = self.now;
        if let Some(end) = event_end {
            self.emit(|| CoreEvent::RunEnded { batch: key, task, run, end });
        }
        true
    }

    /// Charges runs of one task with a failure; each is retried if its rule allows it.
    pub(crate) fn fail_runs(
        &mut self,
        key: BatchKey,
        id: TaskId,
        runs: &[RunId],
        kind: FailureKind,
        message: Arc<str>,
        runner: RunnerId,
    ) {
        if runs.is_empty() {
            return;
        }
        let message = self.clip(message);
        let rule = *self.config.failures.rule(kind);
        for run in runs {
            let Some(failures) = self.charge(key, id, *run, kind) else { continue };
            if failures > rule.retries || self.poisoned(key, id, kind) {
                let ending = RunEnd::Failed(RunFailure { kind, message: Arc::clone(&message) });
                self.end_run(key, id, *run, ending);
            } else {
                self.counters.retries[kind] += 1;
                if let Some(batch) = self.batches.get_mut(&key) {
                    let message = Arc::clone(&message);
                    batch.last_retried = Some(RunFailure { kind, message });
                }
                self.emit(|| {
                    let message = Arc::clone(&message);
                    CoreEvent::Retried { batch: key, task: id, run: *run, kind, message }
                });
                self.requeue(key, id, &[*run], rule.wait(failures), runner);
            }
        }
        if self.poisoned(key, id, kind) {
            self.fail_unsent(key, id, kind, &message);
        }
        self.end_task_if_done(key, id);
    }

    /// Counts a failure of a run in flight. Returns its number of failures of the same class: its
    /// own or the infrastructure's.
    fn charge(&mut self, key: BatchKey, id: TaskId, run: RunId, kind: FailureKind) -> Option<u32> {
        let run = &mut self.batches.get_mut(&key)?.work_mut(id)?.runs[run.0 as usize];
        if !matches!(run.state, RunPhase::InFlight(_)) {
            return None;
        }
        // A run that was reported did not end its process.
        run.suspect &= kind == FailureKind::RunnerLost;
        let failures = match kind.class() {
            FailureClass::Task => &mut run.own_failures,
            FailureClass::Infrastructure => &mut run.infrastructure_failures,
        };
        *failures += 1;
        Some(*failures)
    }

    fn poisoned(&self, key: BatchKey, id: TaskId, kind: FailureKind) -> bool {
        let work = self.batches.get(&key).and_then(|batch| batch.work(id));
        let suspected_losses = work.map_or(0, |work| work.suspected_losses);
        kind == FailureKind::RunnerLost
            && suspected_losses >= self.config.failures.poison_limit.max(1)
    }

    /// Fails the waiting runs of a poison task.
    fn fail_unsent(&mut self, key: BatchKey, id: TaskId, kind: FailureKind, message: &Arc<str>) {
        self.unqueue_retries(key, id, None);
        let Some(batch) = self.batches.get(&key) else { return };
        let Some(work) = batch.work(id) else { return };
        let waiting = |run: &u32| work.runs[*run as usize].state == RunPhase::Pending;
        let runs: Vec<u32> = (0..work.runs.len() as u32).filter(waiting).collect();
        for run in runs {
            let ending = RunEnd::Failed(RunFailure { kind, message: Arc::clone(message) });
            self.end_run(key, id, RunId(run), ending);
        }
    }

    /// Retries runs that were in flight after a backoff, on another runner if possible.
    pub(crate) fn requeue(
        &mut self,
        key: BatchKey,
        task: TaskId,
        runs: &[RunId],
        pause: Duration,
        runner: RunnerId,
    ) {
        let due = self.now.after(pause);
        let until = due.after(self.config.supervision.other_runner_wait);
        for run in runs {
            if self.phase != CorePhase::Running {
                let ending = RunEnd::Cancelled(CancelReason::Stopped);
                self.end_run(key, task, *run, ending);
                continue;
            }
            let Some(batch) = self.batches.get_mut(&key) else { return };
            let Some(work) = batch.work_mut(task) else { return };
            work.runs[run.0 as usize].state = RunPhase::Pending;
            for tally in self.counters.tallies(batch) {
                tally.running -= 1;
                tally.pending += 1;
            }
            self.progress.last = self.now;
            let retry = PendingRetry { task, run: *run, due, avoid: (runner, until) };
            if pause.is_zero() {
                self.queue_retry(key, retry);
                continue;
            }
            let serial = self.serial();
            let mut timer = None;
            self.timers.set(DeadlineReason::Retry(serial), &mut timer, Some(due));
            self.queues.paused.insert(serial, (key, retry));
        }
    }

    /// Queues a retry whose backoff is over.
    pub(crate) fn retry_due(&mut self, serial: u64) {
        let Some((key, retry)) = self.queues.paused.remove(&serial) else { return };
        let work = self.batches.get(&key).and_then(|batch| batch.work(retry.task));
        let Some(work) = work else { return };
        // Runs that were cancelled meanwhile are not retried.
        if work.runs[retry.run.0 as usize].state == RunPhase::Pending {
            self.queue_retry(key, retry);
        }
    }

    pub(crate) fn end_task_if_done(&mut self, key: BatchKey, id: TaskId) {
        let work = self.batches.get(&key).and_then(|batch| batch.work(id));
        if work.is_some_and(|work| work.unfinished == 0) {
            self.end_task(key, id, true, DropReason::PartialTask);
        }
    }

    /// Ends a task: its result becomes available, or is dropped if the task was truncated.
    fn end_task(&mut self, key: BatchKey, id: TaskId, keep: bool, reason: DropReason) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let task = &mut batch.tasks[id.0 as usize];
        let TaskPhase::Working(work) = std::mem::replace(&mut task.body, TaskPhase::Gone) else {
            return;
        };
        let mut ended = work.into_ended(task.total);
        let status = &ended.status;
        // A run that was cancelled on request does not make its task truncated.
        let is_truncated =
            status.cancelled_runs.total() > status.cancelled_runs[CancelReason::Requested];
        let mut dropped = None;
        let count: TaskEndCount = if status.ok() {
            |tally| &mut tally.ok
        } else if is_truncated && (status.completed_runs == 0 || !keep) {
            dropped = Some(reason);
            |tally| &mut tally.cancelled
        } else if status.completed_runs > 0 {
            dropped = (self.config.failures.groups == GroupPolicy::Whole)
                .then_some(DropReason::IncompleteGroup);
            |tally| &mut tally.partial
        } else {
            |tally| &mut tally.failed
        };
        let payloads = dropped.map(|_| std::mem::take(&mut ended.payloads));
        self.emit(|| {
            let status = Arc::clone(&ended.status);
            CoreEvent::TaskEnded { batch: key, task: id, status, dropped }
        });
        if dropped != Some(reason) {
            self.keep_ended(key, id, ended);
        }
        for payload in payloads.into_iter().flatten() {
            self.drop_payload(key, payload, dropped.unwrap_or(reason));
        }
        self.close_task(key, count);
    }

    fn keep_ended(&mut self, key: BatchKey, id: TaskId, ended: EndedTask) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        batch.tasks[id.0 as usize].body = TaskPhase::Ended(Box::new(ended));
        batch.results.push(id);
    }

    fn close_task(&mut self, key: BatchKey, count: TaskEndCount) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        batch.open -= 1;
        let tasks = &mut self.counters.of_mut(batch.kind).tasks;
        tasks.open -= 1;
        for tally in [&mut batch.ended, &mut tasks.ended] {
            *count(tally) += 1;
        }
        if batch.open == 0 {
            // The remaining queue consists of runs that ended before their dispatch.
            self.clear_queue(key);
        }
        self.queues.open_tasks -= 1;
        self.progress.last_task_end = self.now;
        self.progress.last = self.now;
        self.changed.insert(key);
    }

    /// Cancels all open runs of a batch and the attempts that execute them.
    pub(crate) fn truncate(
        &mut self,
        key: BatchKey,
        reason: CancelReason,
        keep: bool,
        unresponsive: UnresponsivePolicy,
    ) {
        let Some(batch) = self.batches.get(&key) else { return };
        if batch.open == 0 {
            return;
        }
        if batch.attempts > 0 {
            for at in 0..self.pool.runners.len() {
                let theirs = matches!(
                    &self.pool.runners[at].phase,
                    // An attempt with all runs reported ends by itself.
                    RunnerPhase::Busy(attempt) if attempt.batch == key && attempt.left > 0
                );
                if theirs {
                    let runner = RunnerId(at as u32);
                    self.cancel_attempt(runner, AttemptCancelReason::Runs(reason), unresponsive);
                }
            }
        }
        self.record(key, || LedgerRecord::Truncated { batch: key, reason, keep });
        self.truncate_tasks(key, reason, keep);
    }

    /// Cancels all open tasks of a batch that no runner executes.
    pub(crate) fn truncate_tasks(&mut self, key: BatchKey, reason: CancelReason, keep: bool) {
        let dropped = match reason {
            CancelReason::Aborted => DropReason::Aborted,
            CancelReason::Stopped => DropReason::Stopped,
            CancelReason::OverRollout
            | CancelReason::TimedOut
            | CancelReason::BatchFailed
            | CancelReason::NoRoom
            | CancelReason::Requested => DropReason::PartialTask,
        };
        for at in 0..self.batches[&key].tasks.len() {
            self.truncate_task(key, TaskId(at as u32), reason, (keep, dropped));
        }
        self.clear_queue(key);
    }

    fn truncate_task(
        &mut self,
        key: BatchKey,
        id: TaskId,
        reason: CancelReason,
        (keep, dropped): (bool, DropReason),
    ) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let task = &mut batch.tasks[id.0 as usize];
        let total = task.total;
        match task.body {
            TaskPhase::Fresh => self.cancel_fresh(key, id, reason),
            TaskPhase::Working(_) => {
                for run in 0..total {
                    // Recorded as one truncation.
                    self.close_run(key, id, RunId(run), RunEnd::Cancelled(reason));
                }
                self.end_task(key, id, keep, dropped);
            }
            TaskPhase::Ended(_) | TaskPhase::Gone => {}
        }
    }

    /// Cancels a task none of whose runs was dispatched.
    fn cancel_fresh(&mut self, key: BatchKey, id: TaskId, reason: CancelReason) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let task = &mut batch.tasks[id.0 as usize];
        task.body = TaskPhase::Gone;
        let total = u64::from(task.total);
        for tally in self.counters.tallies(batch) {
            tally.pending -= total;
            tally.cancelled[reason] += total;
        }
        if self.events.is_some() {
            self.emit_fresh_truncated(key, id, reason, total as u32);
        }
        self.close_task(key, |tally| &mut tally.cancelled);
    }

    fn emit_fresh_truncated(
        &mut self,
        batch: BatchKey,
        task: TaskId,
        reason: CancelReason,
        runs: u32,
    ) {
        for run in (0..runs).map(RunId) {
            let end = RunEnd::Cancelled(reason);
            self.emit(|| CoreEvent::RunEnded { batch, task, run, end });
        }
        let mut status = Status { total_runs: runs, ..Status::default() };
        status.cancelled_runs[reason] += u64::from(runs);
        let status = Arc::new(status);
        self.emit(|| CoreEvent::TaskEnded { batch, task, status, dropped: None });
    }

    /// Cancels the waiting runs of a batch; running ones continue.
    pub(crate) fn cancel_unsent(&mut self, key: BatchKey, reason: CancelReason) {
        let Some(batch) = self.batches.get(&key) else { return };
        if batch.runs.pending == 0 {
            return;
        }
        for at in 0..batch.tasks.len() {
            let id = TaskId(at as u32);
            let task = &self.batches[&key].tasks[at];
            match &task.body {
                TaskPhase::Fresh => {
                    for run in (0..task.total).map(RunId) {
                        let ending = RunEnd::Cancelled(reason);
                        self.record(key, || LedgerRecord::RunEnded {
                            batch: key,
                            task: id,
                            run,
                            ending,
                        });
                    }
                    self.cancel_fresh(key, id, reason);
                }
                TaskPhase::Working(work) => {
                    let pending: Vec<RunId> = (0..task.total)
                        .filter(|run| work.runs[*run as usize].state == RunPhase::Pending)
                        .map(RunId)
                        .collect();
                    for run in pending {
                        self.end_run(key, id, run, RunEnd::Cancelled(reason));
                    }
                    self.end_task_if_done(key, id);
                }
                TaskPhase::Ended(_) | TaskPhase::Gone => {}
            }
        }
        self.clear_queue(key);
    }

    pub(crate) fn clear_queue(&mut self, key: BatchKey) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        self.queues.slices -= batch.slices;
        batch.clear_queue();
        self.queues.fresh.remove(&batch.rank());
        self.queues.retrying.remove(&batch.rank());
        self.queues.suspects.remove(&batch.rank());
    }

    pub(crate) fn drop_payload(&mut self, key: BatchKey, payload: Payload, reason: DropReason) {
        if let Some(batch) = self.batches.get_mut(&key) {
            batch.held_bytes -= payload.bytes;
            batch.dropped[reason] += 1;
            if batch.offered {
                batch.uncertain += 1;
            }
        }
        self.counters.payloads_held -= 1;
        self.counters.payload_bytes_held -= payload.bytes;
        self.counters.payloads_dropped[reason] += 1;
        self.actions.push(Action::DropPayload { payload, reason });
    }

    /// Drops a payload that was never held; `key` is its batch, if known.
    pub(crate) fn drop_unheld_payload(
        &mut self,
        key: Option<BatchKey>,
        payload: Option<Payload>,
        reason: DropReason,
    ) {
        let Some(payload) = payload else { return };
        if let Some(batch) = key.and_then(|key| self.batches.get_mut(&key)) {
            batch.dropped[reason] += 1;
        }
        self.counters.payloads_dropped[reason] += 1;
        self.actions.push(Action::DropPayload { payload, reason });
    }

    pub(crate) fn drop_ignored_payload(&mut self, report: RunnerReport) {
        if let RunnerReport::RunFinished { outcome: Ok(RunOutput { payload, .. }), .. } = report {
            self.counters.payloads_received += u64::from(payload.is_some());
            self.drop_unheld_payload(None, payload, DropReason::Late);
        }
    }

    /// Truncates a message to its limit, at a character boundary.
    pub(crate) fn clip(&mut self, message: Arc<str>) -> Arc<str> {
        let max = self.config.limits.message_bytes as usize;
        if message.len() <= max {
            return message;
        }
        self.counters.messages_truncated += 1;
        message[..message.floor_char_boundary(max)].into()
    }
}
