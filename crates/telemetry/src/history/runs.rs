//! Runs from their first attempt to the record of their end.

use std::sync::Arc;

use rollway_core::{
    AttemptId, BatchKey, CancelReason, DropReason, FailureKind, Incarnation, RunEnd, RunFailure,
    RunId, RunRange, RunnerId, Status, TaskId,
};
use rollway_engine::events::{CallEvent, CallEventKind};

use super::record::{AttemptRecord, CallRecord, Record, RunRecord};
use super::row::{
    LiveAttempt, LiveRun, NONE, RecordPosition, Row, completions, finite, nonzero, small,
};
use super::state::{ReportedOutput, State, add};
use super::trajectory;
use crate::view::RunState;

/// Maximum number of attempts of a run.
const MAX_ATTEMPTS: usize = 64;

/// Maximum number of calls of an attempt.
const MAX_CALLS: usize = 256;

impl State {
    pub(super) fn attempt_sent(
        &mut self,
        at: f64,
        attempt: AttemptId,
        (key, task, runs): (BatchKey, TaskId, RunRange),
        (runner, incarnation): (RunnerId, Incarnation),
    ) {
        let Some(batch) = self.keys.get(&key).copied() else { return };
        let Some(first) = self.row_of(batch, task.0, runs.first) else { return };
        let known = self.locations.get(&runner).filter(|(known, _)| *known == incarnation);
        let location = known.map(|(_, location)| Arc::clone(location));
        for number in first..first + u64::from(runs.count) {
            let Some(row) = self.row_mut(number) else { continue };
            row.attempts = row.attempts.saturating_add(1);
            row.runner = runner.0;
            if row.begin.is_nan() {
                row.begin = at;
            }
            if row.is_over() {
                continue;
            }
            let is_new = std::mem::replace(&mut row.state, RunState::Running) == RunState::Pending;
            if let Some(batch) = self.batches.get_mut(&batch) {
                batch.counts.running += u64::from(is_new);
            }
            let live = self.live.entry(number).or_default();
            if live.attempts.len() == MAX_ATTEMPTS {
                // The first and the last attempts are kept.
                live.attempts.remove(MAX_ATTEMPTS / 2);
                live.left_out += 1;
            }
            live.attempts.push(AttemptRecord {
                attempt: attempt.0,
                runner: runner.0,
                incarnation: incarnation.0,
                location: location.clone(),
                sent_at: at,
                began: None,
                ended: None,
                state: RunState::Running,
                is_lost: false,
                message: None,
                calls: Vec::new(),
            });
        }
        let open = LiveAttempt {
            runs,
            first,
            sent_at: at,
            began: None,
            mark: at,
            calls: 0,
            useful: 0,
            wasted: Vec::new(),
        };
        self.attempts.insert(attempt, open);
    }

    pub(super) fn attempt_began(&mut self, at: f64, id: AttemptId) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        (attempt.began, attempt.mark) = (Some(at), at);
        for number in attempt.first..attempt.first + u64::from(attempt.runs.count) {
            if let Some(one) = self.live.get_mut(&number).and_then(|live| live.attempt(id.0)) {
                one.began = Some(at);
            }
        }
    }

    pub(super) fn reported(
        &mut self,
        at: f64,
        id: AttemptId,
        run: u32,
        outcome: Result<ReportedOutput, Arc<str>>,
    ) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let Some(index) = run.checked_sub(attempt.runs.first) else { return };
        let took = at - std::mem::replace(&mut attempt.mark, at);
        let Some(live) = self.live.get_mut(&(attempt.first + u64::from(index))) else { return };
        live.output = Some(match outcome {
            Ok(output) => {
                ReportedOutput { seconds: finite(output.seconds).unwrap_or(took), ..output }
            }
            Err(message) => {
                live.end_attempt(at, RunState::Failed, false, Some(&message));
                ReportedOutput { reward: f64::NAN, seconds: took, payload: None }
            }
        });
    }

    /// Applies a call event of the gateway, which may come before or after those of the attempt.
    pub(super) fn call(&mut self, at: f64, call: CallEvent) {
        if let CallEventKind::Ended { prompt_tokens, answer_tokens, .. } = &call.kind {
            self.totals.prompt_tokens += prompt_tokens.unwrap_or(0);
            self.totals.answer_tokens += answer_tokens.unwrap_or(0);
        }
        let Some(attempt) = self.attempts.get_mut(&call.attempt) else { return };
        let Some(index) = call.run.0.checked_sub(attempt.runs.first) else { return };
        let Some(live) = self.live.get_mut(&(attempt.first + u64::from(index))) else { return };
        let LiveRun { attempts, left_out, .. } = live;
        let mut attempts = attempts.iter_mut().rev();
        let Some(one) = attempts.find(|one| one.attempt == call.attempt.0) else { return };
        let calls = &mut one.calls;
        let known = calls.iter_mut().rev().find(|known| known.call == call.call);
        match (call.kind, known) {
            (CallEventKind::Began { model }, _) => {
                attempt.calls += 1;
                if calls.len() == MAX_CALLS {
                    calls.remove(MAX_CALLS / 2);
                    *left_out += 1;
                }
                calls.push(CallRecord {
                    call: call.call,
                    model,
                    began: at,
                    ..CallRecord::default()
                });
            }
            (CallEventKind::Sent { server }, Some(known)) => {
                known.sent = known.sent.or(Some(at));
                known.server = Some(server);
            }
            (
                CallEventKind::Ended { status, prompt_tokens, answer_tokens, version },
                Some(known),
            ) => {
                if let Some(server) = &known.server {
                    self.servers.count(server, answer_tokens.unwrap_or(0));
                }
                known.ended = Some(at);
                known.status = Some(status);
                known.prompt_tokens = prompt_tokens;
                known.answer_tokens = answer_tokens;
                known.version = version;
            }
            (_, None) => {}
        }
    }

    pub(super) fn retried(
        &mut self,
        at: f64,
        (key, task, run): (BatchKey, TaskId, RunId),
        kind: FailureKind,
        message: &Arc<str>,
    ) {
        add(&mut self.totals.retried, kind.name(), 1);
        let batch = self.keys.get(&key).copied();
        let Some(number) = batch.and_then(|batch| self.row_of(batch, task.0, run.0)) else {
            return;
        };
        let message_number = self.messages.number(message);
        if let Some(live) = self.live.get_mut(&number) {
            live.output = None;
            let attempt = live.end_attempt(at, RunState::Failed, false, Some(message));
            let attempt = attempt.and_then(|id| self.attempts.get_mut(&AttemptId(id)));
            attempt.into_iter().for_each(|attempt| attempt.count(Some(kind.name())));
        }
        if let Some(row) = self.row_mut(number) {
            row.message = message_number;
        }
        self.requeue(number);
    }

    /// Makes a running run pending again.
    fn requeue(&mut self, number: u64) {
        let Some(row) = self.row_mut(number) else { return };
        if row.state != RunState::Running {
            return;
        }
        row.state = RunState::Pending;
        let batch = row.batch;
        if let Some(batch) = self.batches.get_mut(&batch) {
            batch.counts.running -= 1;
        }
    }

    pub(super) fn run_ended(
        &mut self,
        at: f64,
        (key, task, run): (BatchKey, TaskId, RunId),
        end: RunEnd,
    ) {
        let Some(batch) = self.keys.get(&key).copied() else { return };
        let Some(number) = self.row_of(batch, task.0, run.0) else { return };
        let message = match &end {
            RunEnd::Succeeded(()) => None,
            RunEnd::Failed(failure) => Some(Arc::clone(&failure.message)),
            RunEnd::Cancelled(reason) => Some(format!("cancelled: {reason}").into()),
        };
        self.finish(at, number, end, message);
    }

    /// Ends a run and writes its record.
    fn finish(&mut self, at: f64, number: u64, end: RunEnd, message: Option<Arc<str>>) {
        let Some(row) = self.row(number).copied().filter(|row| !row.is_over()) else { return };
        let mut live = self.live.remove(&number).unwrap_or_default();
        if row.state == RunState::Running {
            let reason = match &end {
                RunEnd::Succeeded(()) => None,
                RunEnd::Failed(failure) => Some(failure.kind.name()),
                RunEnd::Cancelled(reason) => Some(reason.name()),
            };
            let attempt = live.end_attempt(at, end.state(), false, message.as_ref());
            let attempt = attempt.and_then(|id| self.attempts.get_mut(&AttemptId(id)));
            attempt.into_iter().for_each(|attempt| attempt.count(reason));
        }
        let record = self.record(at, &row, end, message, live);
        let mut position = RecordPosition::default();
        if self.out.is_kept() {
            position = self.out.next_position();
            record.put(&mut self.out.runs);
            self.out.add_run(position.segment);
        }
        self.apply_record(number, &record, position);
    }

    fn record(
        &mut self,
        at: f64,
        row: &Row,
        end_state: RunEnd,
        message: Option<Arc<str>>,
        live: LiveRun,
    ) -> RunRecord {
        let LiveRun { attempts, left_out, output } = live;
        // A run that succeeded keeps the message of its last failure.
        let message = message.or_else(|| self.messages.text(row.message).cloned());
        let last = attempts.last();
        let took = last.and_then(|last| Some(last.ended? - last.began.unwrap_or(last.sent_at)));
        let (mut tokens, mut turns, mut version) =
            last.map_or((None, None, None), |last| completions(&last.calls));
        let (mut reward, seconds, payload) = match output {
            Some(output) => (finite(output.reward), finite(output.seconds), output.payload),
            None => (None, None, None),
        };
        let is_success = end_state.state() == RunState::Succeeded;
        let payload = payload.filter(|payload| !payload.is_empty() && is_success);
        if let Some(payload) = &payload
            && (tokens.is_none() || reward.is_none())
        {
            if self.decodes >= 1.0 {
                self.decodes -= 1.0;
                let lengths = trajectory::lengths(payload);
                tokens = tokens.or(lengths.tokens);
                turns = turns.or(lengths.turns);
                version = version.or(lengths.version);
                reward = reward.or(lengths.reward);
            } else {
                self.count_dropped("lengths", 1);
            }
        }
        RunRecord {
            batch: row.batch,
            task: row.task,
            run: row.run,
            end_state,
            begin: finite(row.begin),
            end: at,
            runner: nonzero(row.runner),
            attempt_count: row.attempts.into(),
            seconds: seconds.or(took),
            reward,
            tokens,
            turns,
            version,
            message,
            trajectory: payload.and_then(|payload| self.out.add_trajectory(*payload)),
            attempts,
            left_out,
        }
    }

    /// Applies the record of an ended run, made now or read from a file.
    pub(super) fn apply_record(
        &mut self,
        number: u64,
        record: &RunRecord,
        position: RecordPosition,
    ) {
        let message = record.message.as_deref().map_or(0, |message| self.messages.number(message));
        self.reopen_run(number);
        let Some(row) = self.row_mut(number).filter(|row| !row.is_over()) else { return };
        let was_running = row.state == RunState::Running;
        row.is_stopped = record.end_state == RunEnd::Cancelled(CancelReason::Stopped);
        row.state = record.end_state.state();
        row.attempts = u16::try_from(record.attempt_count).unwrap_or(u16::MAX);
        row.runner = record.runner.unwrap_or(NONE);
        row.begin = record.begin.unwrap_or(f64::NAN);
        row.end = record.end;
        row.seconds = record.seconds.unwrap_or(f64::NAN);
        row.reward = record.reward.unwrap_or(f64::NAN);
        row.tokens = small(record.tokens);
        row.turns = small(record.turns);
        row.version = small(record.version);
        row.message = message;
        row.position = position;
        let (reward, succeeded) = (row.reward, row.state == RunState::Succeeded);
        if let RunEnd::Failed(failure) = &record.end_state {
            self.failures.add(record.end, number, failure.kind, &failure.message);
        }
        if let Some(batch) = self.batches.get_mut(&record.batch) {
            batch.counts.running -= u64::from(was_running);
            batch.counts.count(&record.end_state);
            if succeeded {
                batch.add_reward(reward);
            }
        }
    }

    /// Continues a run that was cancelled because its process stopped; returns whether it was.
    pub(super) fn reopen_run(&mut self, number: u64) -> bool {
        let Some(row) = self.row_mut(number).filter(|row| row.is_stopped) else { return false };
        let (batch, segment) = (row.batch, row.position.segment);
        *row = Row { attempts: row.attempts, ..Row::new(row.batch, row.task, row.run) };
        self.out.remove_run(segment);
        if let Some(batch) = self.batches.get_mut(&batch) {
            batch.counts.cancelled[CancelReason::Stopped] -= 1;
        }
        true
    }

    pub(super) fn attempt_ended(&mut self, at: f64, id: AttemptId, lost: Option<&Arc<str>>) {
        let Some(attempt) = self.attempts.remove(&id) else { return };
        let all = attempt.runs.count.max(1);
        let took = (at - attempt.began.unwrap_or(attempt.sent_at)).max(0.0);
        let mut left = all.saturating_sub(attempt.useful);
        self.totals.seconds_useful += took * f64::from(attempt.useful) / f64::from(all);
        for (reason, count) in &attempt.wasted {
            left = left.saturating_sub(*count);
            self.add_wasted(reason, took * f64::from(*count) / f64::from(all));
        }
        if left > 0 {
            let reason = if lost.is_some() { "runner_lost" } else { "slice_cancelled" };
            self.add_wasted(reason, took * f64::from(left) / f64::from(all));
        }
        for number in attempt.first..attempt.first + u64::from(attempt.runs.count) {
            let Some(live) = self.live.get_mut(&number) else { continue };
            if live.attempts.last().is_some_and(|last| last.attempt == id.0) {
                let is_lost = lost.is_some();
                let state = if is_lost { RunState::Failed } else { RunState::Cancelled };
                live.end_attempt(at, state, is_lost, lost);
                self.requeue(number);
            }
        }
    }

    fn add_wasted(&mut self, reason: &str, seconds: f64) {
        *self.totals.seconds_lost.entry(reason.to_owned()).or_default() += seconds;
    }

    pub(super) fn task_ended(
        &mut self,
        at: f64,
        key: BatchKey,
        task: TaskId,
        status: &Status,
        dropped: Option<DropReason>,
    ) {
        let Some(number) = self.keys.get(&key).copied() else { return };
        let Some(rows) = self.rows_of(number, task.0) else { return };
        self.finish_unseen(at, rows.clone(), status);
        if let Some(reason) = dropped {
            if self.out.is_kept() {
                Record::put_dropped(&mut self.out.runs, number, task.0, reason);
            }
            // The time of its runs was wasted after all.
            let good = rows.filter_map(|row| self.row(row));
            let good = good.filter(|row| row.state == RunState::Succeeded);
            let seconds: f64 = good.filter_map(|row| finite(row.seconds)).sum();
            self.totals.seconds_useful = (self.totals.seconds_useful - seconds).max(0.0);
            self.add_wasted(reason.name(), seconds);
        }
        self.close_task(number, task.0, dropped);
    }

    pub(super) fn rows_of(&self, batch: u32, task: u32) -> Option<std::ops::Range<u64>> {
        let task = self.batches.get(&batch)?.tasks.get(task as usize)?;
        Some(task.first..task.first + u64::from(task.runs))
    }

    /// Ends runs of a task that ended before this process began and have no record. The status of
    /// the task has their number by outcome.
    fn finish_unseen(&mut self, at: f64, rows: std::ops::Range<u64>, status: &Status) {
        const MESSAGE: &str = "ended before the job was restarted; its record was lost";
        let is_open = |number: &u64| self.row(*number).is_some_and(|row| !row.is_over());
        let open: Vec<u64> = rows.clone().filter(is_open).collect();
        if open.is_empty() {
            return;
        }
        let good =
            |number: &u64| self.row(*number).is_some_and(|row| row.state == RunState::Succeeded);
        let known = rows.filter(good).count() as u64;
        let mut good = u64::from(status.completed_runs).saturating_sub(known);
        let kind = status.failed_runs.nonzero().next().map(|(kind, _)| kind);
        let reason = status.cancelled_runs.nonzero().next().map(|(reason, _)| reason);
        for number in open {
            let end = match (good, kind) {
                (1.., _) => RunEnd::Succeeded(()),
                (_, Some(kind)) => RunEnd::Failed(RunFailure::new(kind, MESSAGE)),
                (_, None) => RunEnd::Cancelled(reason.unwrap_or(CancelReason::Stopped)),
            };
            good = good.saturating_sub(1);
            self.finish(at, number, end, Some(MESSAGE.into()));
        }
    }

    /// Counts an ended task by the outcome of its runs.
    pub(super) fn close_task(&mut self, number: u32, task: u32, dropped: Option<DropReason>) {
        let Some(rows) = self.rows_of(number, task) else { return };
        let count = |state: RunState| {
            rows.clone().filter(|row| self.row(*row).is_some_and(|row| row.state == state)).count()
        };
        let all = (rows.end - rows.start) as usize;
        let (good, cancelled) = (count(RunState::Succeeded), count(RunState::Cancelled));
        let Some(batch) = self.batches.get_mut(&number) else { return };
        let Some(row) = batch.tasks.get_mut(task as usize) else { return };
        row.dropped = row.dropped.or(dropped);
        if std::mem::replace(&mut row.is_over, true) {
            return;
        }
        let ended = &mut batch.counts.ended;
        match good {
            good if good == all => ended.ok += 1,
            1.. => ended.partial += 1,
            0 if cancelled > 0 => ended.cancelled += 1,
            0 => ended.failed += 1,
        }
    }
}
