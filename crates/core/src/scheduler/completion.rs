//! How runs and tasks end: the one place where a run leaves the books as pending or running.

use std::sync::Arc;
use std::time::Duration;

use crate::Core;
use crate::failure::{CancelReason, FailureKind, GroupPolicy, OnExhausted};
use crate::ids::{BatchKey, RunId, RunnerId, TaskId};
use crate::run::Payload;
use crate::run::{RunEnd, RunFailure, RunOutput, RunnerReport};
use crate::scheduler::action::{Action, AttemptCancelReason};
use crate::scheduler::batch::PendingRetry;
use crate::scheduler::counters::RunTally;
use crate::scheduler::event::CoreEvent;
use crate::scheduler::input::UnresponsivePolicy;
use crate::scheduler::ledger_record::LedgerRecord;
use crate::scheduler::lifecycle::CorePhase;
use crate::scheduler::runner_slot::RunnerPhase;
use crate::scheduler::status::{DropReason, Status, TaskTally};
use crate::scheduler::task::{EndedTask, RunPhase, TaskPhase};
use crate::scheduler::view::DeadlineReason;

/// What becomes of the finished runs of a task that is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartialPolicy {
    Keep,
    Drop,
}

/// Under which of its names a task that ended is counted.
type How = fn(&mut TaskTally) -> &mut u64;

/// Books the end of one run.
fn book(tally: &mut RunTally, from: RunPhase, to: RunPhase) {
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
    /// Ends a run that is pending or in flight, and records that; a run that has ended stays as it
    /// is.
    pub(crate) fn end_run(
        &mut self,
        key: BatchKey,
        task: TaskId,
        run: RunId,
        ending: RunEnd<RunOutput>,
        actions: &mut Vec<Action>,
    ) {
        let record = self.recorded(key).then(|| ending.clone());
        if self.close_run(key, task, run, ending)
            && let Some(ending) = record
        {
            actions.push(Action::AppendRecord(LedgerRecord::RunEnded {
                batch: key,
                task,
                run,
                ending,
            }));
        }
    }

    /// Takes a run that is pending or in flight out of the books; tells whether it was.
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
        let over = self.notices.is_some().then(|| ending.without_output());
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
            work.first_error = Some(crate::scheduler::status::FailedRun { run, kind, message });
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
        let [all, of_kind] = self.counters.books(batch.kind);
        for tally in [&mut batch.runs, all, of_kind] {
            book(tally, from, to);
        }
        self.progress.last = self.now;
        if let Some(how) = over {
            self.note(|| CoreEvent::Over { batch: key, task, run, how });
        }
        true
    }

    /// Runs of one task failed together: each is tried again if its rule allows it.
    #[expect(clippy::too_many_arguments, reason = "a failure has this many sides")]
    pub(crate) fn fail_runs(
        &mut self,
        key: BatchKey,
        id: TaskId,
        runs: &[RunId],
        kind: FailureKind,
        message: Arc<str>,
        runner: RunnerId,
        actions: &mut Vec<Action>,
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
                self.end_run(key, id, *run, ending, actions);
            } else {
                self.counters.retries[kind] += 1;
                self.note(|| {
                    let message = Arc::clone(&message);
                    CoreEvent::Retried { batch: key, task: id, run: *run, kind, message }
                });
                self.requeue(key, id, &[*run], rule.wait(failures), runner, actions);
            }
        }
        if self.poisoned(key, id, kind) {
            self.fail_unsent(key, id, kind, &message, actions);
        }
        self.end_task_if_done(key, id, actions);
    }

    /// Notes a failure of a run under way; returns how many it has had of this sort, its own or
    /// the machinery's.
    fn charge(&mut self, key: BatchKey, id: TaskId, run: RunId, kind: FailureKind) -> Option<u32> {
        let run = &mut self.batches.get_mut(&key)?.work_mut(id)?.runs[run.0 as usize];
        if !matches!(run.state, RunPhase::InFlight(_)) {
            return None;
        }
        let failures = match kind {
            FailureKind::Workflow | FailureKind::Timeout | FailureKind::InvalidOutput => {
                &mut run.own_failures
            }
            FailureKind::RunnerLost | FailureKind::ModelUnavailable => &mut run.machinery_failures,
        };
        *failures += 1;
        Some(*failures)
    }

    fn poisoned(&self, key: BatchKey, id: TaskId, kind: FailureKind) -> bool {
        let work = self.batches.get(&key).and_then(|batch| batch.work(id));
        let kills = work.map_or(0, |work| work.kills);
        kind == FailureKind::RunnerLost && kills >= self.config.failures.poison_limit.max(1)
    }

    /// Fails the runs of a task that wait for a runner: it has cost enough of them.
    fn fail_unsent(
        &mut self,
        key: BatchKey,
        id: TaskId,
        kind: FailureKind,
        message: &Arc<str>,
        actions: &mut Vec<Action>,
    ) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        batch.retries.retain(|retry| retry.task != id);
        let Some(work) = batch.work(id) else { return };
        let waiting = |run: &u32| work.runs[*run as usize].state == RunPhase::Pending;
        let runs: Vec<u32> = (0..work.runs.len() as u32).filter(waiting).collect();
        if batch.retries.is_empty() {
            self.queues.retrying.remove(&batch.rank());
        }
        for run in runs {
            let ending = RunEnd::Failed(RunFailure { kind, message: Arc::clone(message) });
            self.end_run(key, id, RunId(run), ending, actions);
        }
    }

    /// Lets runs that were in flight be tried again after a pause, elsewhere if possible.
    pub(crate) fn requeue(
        &mut self,
        key: BatchKey,
        task: TaskId,
        runs: &[RunId],
        pause: Duration,
        runner: RunnerId,
        actions: &mut Vec<Action>,
    ) {
        let until = self.now.after(pause).after(self.config.supervision.elsewhere_wait);
        for run in runs {
            if self.phase != CorePhase::Running {
                let ending = RunEnd::Cancelled(CancelReason::Stopped);
                self.end_run(key, task, *run, ending, actions);
                continue;
            }
            let Some(batch) = self.batches.get_mut(&key) else { return };
            let Some(work) = batch.work_mut(task) else { return };
            work.runs[run.0 as usize].state = RunPhase::Pending;
            let [all, of_kind] = self.counters.books(batch.kind);
            for tally in [&mut batch.runs, all, of_kind] {
                tally.running -= 1;
                tally.pending += 1;
            }
            self.progress.last = self.now;
            let retry = PendingRetry { task, run: *run, avoid: (runner, until) };
            if pause.is_zero() {
                batch.retries.push_back(retry);
                self.queues.retrying.insert(batch.rank());
                continue;
            }
            let serial = self.serial();
            let mut timer = None;
            self.timers.set(DeadlineReason::Retry(serial), &mut timer, Some(self.now.after(pause)));
            self.queues.paused.insert(serial, (key, retry));
        }
    }

    /// The pause of a retry is over.
    pub(crate) fn retry_due(&mut self, serial: u64) {
        let Some((key, retry)) = self.queues.paused.remove(&serial) else { return };
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let Some(work) = batch.work(retry.task) else { return };
        // What was cancelled meanwhile is not tried again.
        if work.runs[retry.run.0 as usize].state == RunPhase::Pending {
            batch.retries.push_back(retry);
            self.queues.retrying.insert(batch.rank());
        }
    }

    /// Ends a task all of whose runs have ended.
    pub(crate) fn end_task_if_done(
        &mut self,
        key: BatchKey,
        id: TaskId,
        actions: &mut Vec<Action>,
    ) {
        let work = self.batches.get(&key).and_then(|batch| batch.work(id));
        if work.is_some_and(|work| work.unfinished == 0) {
            self.end_task(key, id, PartialPolicy::Keep, DropReason::PartialTask, actions);
        }
    }

    /// Ends a task: its result waits to be taken, or it was cut and leaves nothing.
    fn end_task(
        &mut self,
        key: BatchKey,
        id: TaskId,
        partial: PartialPolicy,
        reason: DropReason,
        actions: &mut Vec<Action>,
    ) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let task = &mut batch.tasks[id.0 as usize];
        let TaskPhase::Working(work) = std::mem::replace(&mut task.body, TaskPhase::Gone) else {
            return;
        };
        let mut ended = work.into_ended(task.total);
        let status = &ended.status;
        // A run that somebody had cancelled ended for good: its task was not cut for that.
        let cut = status.cancelled_runs.total() > status.cancelled_runs[CancelReason::Requested];
        let mut dropped = None;
        let how: How = if status.ok() {
            |tally| &mut tally.ok
        } else if cut && (status.completed_runs == 0 || partial == PartialPolicy::Drop) {
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
        self.note(|| {
            let status = Arc::clone(&ended.status);
            CoreEvent::Ended { batch: key, task: id, status, dropped }
        });
        if dropped != Some(reason) {
            self.keep_ended(key, id, ended);
        }
        for payload in payloads.into_iter().flatten() {
            self.drop_payload(key, payload, dropped.unwrap_or(reason), actions);
        }
        self.close_task(key, how);
    }

    fn keep_ended(&mut self, key: BatchKey, id: TaskId, ended: EndedTask) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        batch.tasks[id.0 as usize].body = TaskPhase::Ended(Box::new(ended));
        batch.results.push(id);
    }

    fn close_task(&mut self, key: BatchKey, how: How) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        batch.open -= 1;
        let count = &mut self.counters.of_mut(batch.kind).tasks;
        count.open -= 1;
        for tally in [&mut batch.ended, &mut count.ended] {
            *how(tally) += 1;
        }
        if batch.open == 0 {
            // What is left in the queue has ended without being sent.
            self.clear_queue(key);
        }
        self.queues.open_tasks -= 1;
        self.progress.last_task_end = self.now;
        self.progress.last = self.now;
        self.changed.insert(key);
    }

    /// Cuts a batch: everything that has not ended is cancelled, at once. Runners that work on it
    /// are told, and what they say about it does not count any more.
    pub(crate) fn truncate(
        &mut self,
        key: BatchKey,
        why: CancelReason,
        partial: PartialPolicy,
        unresponsive: UnresponsivePolicy,
        actions: &mut Vec<Action>,
    ) {
        let Some(batch) = self.batches.get(&key) else { return };
        if batch.open == 0 {
            return;
        }
        if batch.attempts > 0 {
            for at in 0..self.pool.runners.len() {
                let theirs = matches!(
                    &self.pool.runners[at].phase,
                    // One that has reported all its runs is about to end by itself.
                    RunnerPhase::Busy(attempt) if attempt.batch == key && attempt.left > 0
                );
                if theirs {
                    let runner = RunnerId(at as u32);
                    self.cancel_attempt(
                        runner,
                        AttemptCancelReason::Runs(why),
                        unresponsive,
                        actions,
                    );
                }
            }
        }
        let keep = partial == PartialPolicy::Keep;
        self.record(key, actions, || LedgerRecord::Truncated { batch: key, reason: why, keep });
        self.cut_tasks(key, why, partial, actions);
    }

    /// Cancels everything of a batch that has not ended; nobody works on it any more.
    pub(crate) fn cut_tasks(
        &mut self,
        key: BatchKey,
        why: CancelReason,
        partial: PartialPolicy,
        actions: &mut Vec<Action>,
    ) {
        let reason = match why {
            CancelReason::Aborted => DropReason::Aborted,
            CancelReason::Stopped => DropReason::Stopped,
            CancelReason::OverRollout
            | CancelReason::TimedOut
            | CancelReason::BatchFailed
            | CancelReason::NoRoom
            | CancelReason::Requested => DropReason::PartialTask,
        };
        for at in 0..self.batches[&key].tasks.len() {
            self.cut_task(key, TaskId(at as u32), why, (partial, reason), actions);
        }
        self.clear_queue(key);
    }

    fn cut_task(
        &mut self,
        key: BatchKey,
        id: TaskId,
        why: CancelReason,
        (partial, reason): (PartialPolicy, DropReason),
        actions: &mut Vec<Action>,
    ) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let task = &mut batch.tasks[id.0 as usize];
        let total = task.total;
        match task.body {
            TaskPhase::Fresh => self.cancel_fresh(key, id, why),
            TaskPhase::Working(_) => {
                for run in 0..total {
                    // Recorded as one cut.
                    self.close_run(key, id, RunId(run), RunEnd::Cancelled(why));
                }
                self.end_task(key, id, partial, reason, actions);
            }
            TaskPhase::Ended(_) | TaskPhase::Gone => {}
        }
    }

    /// Cancels a task none of whose runs was dispatched.
    fn cancel_fresh(&mut self, key: BatchKey, id: TaskId, why: CancelReason) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let task = &mut batch.tasks[id.0 as usize];
        task.body = TaskPhase::Gone;
        let total = u64::from(task.total);
        let [all, of_kind] = self.counters.books(batch.kind);
        for tally in [&mut batch.runs, all, of_kind] {
            tally.pending -= total;
            tally.cancelled[why] += total;
        }
        if self.notices.is_some() {
            self.note_fresh_cut(key, id, why, total as u32);
        }
        self.close_task(key, |tally| &mut tally.cancelled);
    }

    fn note_fresh_cut(&mut self, batch: BatchKey, task: TaskId, reason: CancelReason, runs: u32) {
        for run in (0..runs).map(RunId) {
            let how = RunEnd::Cancelled(reason);
            self.note(|| CoreEvent::Over { batch, task, run, how });
        }
        let mut status = Status { total_runs: runs, ..Status::default() };
        status.cancelled_runs[reason] += u64::from(runs);
        let status = Arc::new(status);
        self.note(|| CoreEvent::Ended { batch, task, status, dropped: None });
    }

    /// Cancels the runs of a batch that wait for a runner; those that are running go on.
    pub(crate) fn cancel_unsent(
        &mut self,
        key: BatchKey,
        why: CancelReason,
        actions: &mut Vec<Action>,
    ) {
        let Some(batch) = self.batches.get(&key) else { return };
        if batch.runs.pending == 0 {
            return;
        }
        for at in 0..batch.tasks.len() {
            let id = TaskId(at as u32);
            let task = &self.batches[&key].tasks[at];
            match &task.body {
                TaskPhase::Fresh => {
                    let runs = if self.recorded(key) { task.total } else { 0 };
                    let ended = |run| {
                        let ending = RunEnd::Cancelled(why);
                        Action::AppendRecord(LedgerRecord::RunEnded {
                            batch: key,
                            task: id,
                            run,
                            ending,
                        })
                    };
                    actions.extend((0..runs).map(RunId).map(ended));
                    self.cancel_fresh(key, id, why);
                }
                TaskPhase::Working(work) => {
                    let pending: Vec<RunId> = (0..task.total)
                        .filter(|run| work.runs[*run as usize].state == RunPhase::Pending)
                        .map(RunId)
                        .collect();
                    for run in pending {
                        self.end_run(key, id, run, RunEnd::Cancelled(why), actions);
                    }
                    self.end_task_if_done(key, id, actions);
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
    }

    /// Drops a payload that a batch holds.
    pub(crate) fn drop_payload(
        &mut self,
        key: BatchKey,
        payload: Payload,
        reason: DropReason,
        actions: &mut Vec<Action>,
    ) {
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
        actions.push(Action::DropPayload { payload, reason });
    }

    /// Drops a payload that was never held; `key` is the batch it was meant for, if known.
    pub(crate) fn drop_unheld_payload(
        &mut self,
        key: Option<BatchKey>,
        payload: Option<Payload>,
        reason: DropReason,
        actions: &mut Vec<Action>,
    ) {
        let Some(payload) = payload else { return };
        if let Some(batch) = key.and_then(|key| self.batches.get_mut(&key)) {
            batch.dropped[reason] += 1;
        }
        self.counters.payloads_dropped[reason] += 1;
        actions.push(Action::DropPayload { payload, reason });
    }

    /// Drops what came with a report that is not even looked at.
    pub(crate) fn drop_ignored_payload(&mut self, report: RunnerReport, actions: &mut Vec<Action>) {
        if let RunnerReport::RunFinished { outcome: Ok(RunOutput { payload, .. }), .. } = report {
            self.counters.payloads_received += u64::from(payload.is_some());
            self.drop_unheld_payload(None, payload, DropReason::Late, actions);
        }
    }

    /// Cuts a message to its limit, at a character.
    pub(crate) fn clip(&mut self, message: Arc<str>) -> Arc<str> {
        let most = self.config.limits.message_bytes as usize;
        if message.len() <= most {
            return message;
        }
        self.counters.messages_truncated += 1;
        message[..message.floor_char_boundary(most)].into()
    }
}
