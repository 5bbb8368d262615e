//! What becomes of runs: from being given to a runner to the record that is written.

use std::sync::Arc;

use rollway_core::{
    AttemptId, BatchKey, CancelReason, DropReason, FailureKind, Incarnation, RunEnd, RunFailure,
    RunId, RunRange, RunnerId, Status, TaskId,
};
use rollway_engine::events::{CallEvent, CallEventKind};

use super::record::{AttemptRecord, CallRecord, Outcome, Record, RunRecord, StoredRunEnd};
use super::row::{
    End, LiveAttempt, LiveRun, NONE, RecordPosition, Row, answers, finite, known, small,
};
use super::state::{Ended, State};
use super::trajectory;
use crate::view::RunState;

/// How many attempts of a run are kept in detail.
const ATTEMPTS: usize = 64;

/// How many calls of an attempt are kept in detail.
const CALLS: usize = 256;

impl State {
    pub(super) fn given(
        &mut self,
        at: f64,
        attempt: AttemptId,
        (key, task, runs): (BatchKey, TaskId, RunRange),
        (runner, life): (RunnerId, Incarnation),
    ) {
        let Some(batch) = self.keys.get(&key).copied() else { return };
        let Some(first) = self.row_of(batch, task.0, runs.first) else { return };
        let node = self.places.get(&runner).filter(|(is, _)| *is == life).map(|(_, at)| at);
        let node = node.cloned();
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
            if live.attempts.len() == ATTEMPTS {
                // The first and the last ones tell the most.
                live.attempts.remove(ATTEMPTS / 2);
                live.left_out += 1;
            }
            live.attempts.push(AttemptRecord {
                attempt: attempt.0,
                runner: runner.0,
                life: life.0,
                node: node.clone(),
                given: at,
                began: None,
                ended: None,
                outcome: Outcome::Running,
                message: None,
                calls: Vec::new(),
            });
        }
        let under_way = LiveAttempt {
            runs,
            first,
            given: at,
            began: None,
            mark: at,
            calls: 0,
            useful: 0,
            shares: Vec::new(),
        };
        self.attempts.insert(attempt, under_way);
    }

    pub(super) fn began(&mut self, at: f64, id: AttemptId) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        (attempt.began, attempt.mark) = (Some(at), at);
        for number in attempt.first..attempt.first + u64::from(attempt.runs.count) {
            if let Some(one) = self.live.get_mut(&number).and_then(|live| live.attempt(id.0)) {
                one.began = Some(at);
            }
        }
    }

    pub(super) fn run_ended(&mut self, at: f64, id: AttemptId, run: u32, end: Ended) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let Some(place) = run.checked_sub(attempt.runs.first) else { return };
        let took = at - std::mem::replace(&mut attempt.mark, at);
        let Some(live) = self.live.get_mut(&(attempt.first + u64::from(place))) else { return };
        match end {
            Ended::Well { reward, seconds, payload } => {
                let (reward, seconds) = (finite(reward), finite(seconds).or(Some(took)));
                live.end = Some(End { reward, seconds, payload: payload.map(|payload| *payload) });
            }
            Ended::Badly { message } => {
                live.end = Some(End { reward: None, seconds: Some(took), payload: None });
                live.settle(at, Outcome::Failed, Some(&message));
            }
        }
    }

    /// Calls are seen by others than those who see attempts, and may come a little before or after.
    pub(super) fn call(&mut self, at: f64, call: CallEvent) {
        if let CallEventKind::Ended { prompt_tokens, answer_tokens, .. } = &call.moment {
            self.totals.prompt_tokens += prompt_tokens.unwrap_or(0);
            self.totals.answer_tokens += answer_tokens.unwrap_or(0);
        }
        let Some(attempt) = self.attempts.get_mut(&call.attempt) else { return };
        let Some(place) = call.run.0.checked_sub(attempt.runs.first) else { return };
        let Some(live) = self.live.get_mut(&(attempt.first + u64::from(place))) else { return };
        let Some(one) = live.attempt(call.attempt.0) else { return };
        let calls = &mut one.calls;
        if let CallEventKind::Began { model } = call.moment {
            attempt.calls += 1;
            if calls.len() == CALLS {
                calls.remove(CALLS / 2);
                live.left_out += 1;
                // It is looked up again, since the count is beside it.
                let Some(one) = live.attempt(call.attempt.0) else { return };
                return one.calls.push(begun(at, call.call, model));
            }
            return calls.push(begun(at, call.call, model));
        }
        let Some(known) = calls.iter_mut().rev().find(|known| known.call == call.call) else {
            return;
        };
        match call.moment {
            CallEventKind::Began { .. } => {}
            CallEventKind::Sent { server } => {
                known.sent = known.sent.or(Some(at));
                known.server = Some(server);
            }
            CallEventKind::Ended { status, prompt_tokens, answer_tokens, version } => {
                known.ended = Some(at);
                known.status = Some(status);
                known.prompt_tokens = prompt_tokens;
                known.answer_tokens = answer_tokens;
                known.version = version;
            }
        }
    }

    pub(super) fn retried(
        &mut self,
        at: f64,
        (key, task, run): (BatchKey, TaskId, RunId),
        kind: FailureKind,
        message: &Arc<str>,
    ) {
        *self.totals.retried.entry(kind.name().to_owned()).or_default() += 1;
        let batch = self.keys.get(&key).copied();
        let Some(number) = batch.and_then(|batch| self.row_of(batch, task.0, run.0)) else {
            return;
        };
        let words = self.messages.number(message);
        if let Some(live) = self.live.get_mut(&number) {
            live.end = None;
            let attempt = live.settle(at, Outcome::Failed, Some(message));
            let attempt = attempt.and_then(|id| self.attempts.get_mut(&AttemptId(id)));
            attempt.into_iter().for_each(|attempt| attempt.share(Some(kind.name())));
        }
        if let Some(row) = self.row_mut(number) {
            row.message = words;
        }
        self.put_back(number);
    }

    /// A run waits for a runner again.
    fn put_back(&mut self, number: u64) {
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

    pub(super) fn over(
        &mut self,
        at: f64,
        (key, task, run): (BatchKey, TaskId, RunId),
        how: &RunEnd,
    ) {
        let Some(batch) = self.keys.get(&key).copied() else { return };
        let Some(number) = self.row_of(batch, task.0, run.0) else { return };
        let (how, message) = match how {
            RunEnd::Succeeded(()) => (StoredRunEnd::Succeeded, None),
            RunEnd::Failed(RunFailure { kind, message }) => {
                (StoredRunEnd::Failed(*kind), Some(Arc::clone(message)))
            }
            RunEnd::Cancelled(reason) => {
                (StoredRunEnd::Cancelled(*reason), Some(format!("cancelled: {reason}").into()))
            }
        };
        self.finish(at, number, how, message);
    }

    /// Ends a run for good, and has that written.
    fn finish(&mut self, at: f64, number: u64, how: StoredRunEnd, message: Option<Arc<str>>) {
        let Some(row) = self.row(number).copied().filter(|row| !row.is_over()) else { return };
        let mut live = self.live.remove(&number).unwrap_or_default();
        let (outcome, why) = match how {
            StoredRunEnd::Succeeded => (Outcome::Succeeded, None),
            StoredRunEnd::Failed(kind) => (Outcome::Failed, Some(kind.name())),
            StoredRunEnd::Cancelled(reason) => (Outcome::Cancelled, Some(reason.name())),
        };
        if row.state == RunState::Running {
            let attempt = live.settle(at, outcome, message.as_ref());
            let attempt = attempt.and_then(|id| self.attempts.get_mut(&AttemptId(id)));
            attempt.into_iter().for_each(|attempt| attempt.share(why));
        }
        let record = self.record(at, &row, how, message, live);
        let mut place = RecordPosition::default();
        if self.out.is_kept() {
            place = self.out.place();
            record.put(&mut self.out.runs);
            self.out.wrote(place.segment);
        }
        self.take_record(number, &record, place);
    }

    /// Puts together what is written of a run.
    fn record(
        &mut self,
        at: f64,
        row: &Row,
        how: StoredRunEnd,
        message: Option<Arc<str>>,
        live: LiveRun,
    ) -> RunRecord {
        let LiveRun { attempts, left_out, end } = live;
        // What was last wrong with it is worth knowing even if it ended well.
        let message = message.or_else(|| self.messages.text(row.message).cloned());
        let last = attempts.last();
        let took = last.and_then(|last| Some(last.ended? - last.began.unwrap_or(last.given)));
        let (mut tokens, mut turns, mut version) =
            last.map_or((None, None, None), |last| answers(&last.calls));
        let End { mut reward, seconds, payload } =
            end.unwrap_or(End { reward: None, seconds: None, payload: None });
        let payload =
            payload.filter(|payload| !payload.is_empty() && how == StoredRunEnd::Succeeded);
        if let Some(payload) = &payload
            && (tokens.is_none() || reward.is_none())
        {
            if self.looks >= 1.0 {
                self.looks -= 1.0;
                let lengths = trajectory::lengths(payload);
                tokens = tokens.or(lengths.tokens);
                turns = turns.or(lengths.turns);
                version = version.or(lengths.version);
                reward = reward.or(lengths.reward);
            } else {
                self.dropped("lengths", 1);
            }
        }
        RunRecord {
            batch: row.batch,
            task: row.task,
            run: row.run,
            how,
            begin: finite(row.begin),
            end: at,
            runner: known(row.runner),
            tries: row.attempts.into(),
            seconds: seconds.or(took),
            reward,
            tokens,
            turns,
            version,
            message,
            trajectory: payload.and_then(|payload| self.out.trajectory(payload)),
            attempts,
            left_out,
        }
    }

    /// Takes in a run that is over, be it now or in what was read.
    pub(super) fn take_record(&mut self, number: u64, record: &RunRecord, place: RecordPosition) {
        let message = record.message.as_deref().map_or(0, |words| self.messages.number(words));
        self.reopen_run(number);
        let Some(row) = self.row_mut(number).filter(|row| !row.is_over()) else { return };
        let was_running = row.state == RunState::Running;
        row.is_stopped = record.how == StoredRunEnd::Cancelled(CancelReason::Stopped);
        row.state = record.how.state();
        row.attempts = u16::try_from(record.tries).unwrap_or(u16::MAX);
        row.runner = record.runner.unwrap_or(NONE);
        row.begin = record.begin.unwrap_or(f64::NAN);
        row.end = record.end;
        row.seconds = record.seconds.unwrap_or(f64::NAN);
        row.reward = record.reward.unwrap_or(f64::NAN);
        row.tokens = small(record.tokens);
        row.turns = small(record.turns);
        row.version = small(record.version);
        row.message = message;
        row.place = place;
        let (reward, succeeded) = (row.reward, row.state == RunState::Succeeded);
        if let Some(batch) = self.batches.get_mut(&record.batch) {
            batch.counts.running -= u64::from(was_running);
            batch.counts.over(record.how);
            if succeeded {
                batch.rewarded(reward);
            }
        }
    }

    /// A run that was cancelled because its process ended goes on; tells whether it was.
    pub(super) fn reopen_run(&mut self, number: u64) -> bool {
        let Some(row) = self.row_mut(number).filter(|row| row.is_stopped) else { return false };
        let (batch, segment) = (row.batch, row.place.segment);
        *row = Row { attempts: row.attempts, ..Row::new(row.batch, row.task, row.run) };
        self.out.forgot(segment);
        if let Some(batch) = self.batches.get_mut(&batch) {
            batch.counts.cancelled[CancelReason::Stopped] -= 1;
        }
        true
    }

    pub(super) fn attempt_ended(&mut self, at: f64, id: AttemptId, lost: Option<&Arc<str>>) {
        let Some(attempt) = self.attempts.remove(&id) else { return };
        let all = attempt.runs.count.max(1);
        let took = (at - attempt.began.unwrap_or(attempt.given)).max(0.0);
        let mut left = all.saturating_sub(attempt.useful);
        self.totals.seconds_useful += took * f64::from(attempt.useful) / f64::from(all);
        for (why, count) in &attempt.shares {
            left = left.saturating_sub(*count);
            self.spent(why, took * f64::from(*count) / f64::from(all));
        }
        if left > 0 {
            let why = if lost.is_some() { "runner_lost" } else { "put_back" };
            self.spent(why, took * f64::from(left) / f64::from(all));
        }
        for number in attempt.first..attempt.first + u64::from(attempt.runs.count) {
            let Some(live) = self.live.get_mut(&number) else { continue };
            if live.last().is_some_and(|last| last.attempt == id.0) {
                let outcome = if lost.is_some() { Outcome::Lost } else { Outcome::Cancelled };
                live.settle(at, outcome, lost);
                self.put_back(number);
            }
        }
    }

    fn spent(&mut self, why: &str, seconds: f64) {
        *self.totals.seconds_lost.entry(why.to_owned()).or_default() += seconds;
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
            let is_kept = self.out.is_kept();
            if is_kept {
                Record::put_dropped(&mut self.out.runs, number, task.0, reason);
            }
            // What it took was spent in vain after all.
            let good = rows.filter_map(|row| self.row(row));
            let good = good.filter(|row| row.state == RunState::Succeeded);
            let seconds: f64 = good.filter_map(|row| finite(row.seconds)).sum();
            self.totals.seconds_useful = (self.totals.seconds_useful - seconds).max(0.0);
            self.spent(reason.name(), seconds);
        }
        self.close_task(number, task.0, dropped);
    }

    pub(super) fn rows_of(&self, batch: u32, task: u32) -> Option<std::ops::Range<u64>> {
        let task = self.batches.get(&batch)?.tasks.get(task as usize)?;
        Some(task.first..task.first + u64::from(task.runs))
    }

    /// Ends runs of a task whose end was not seen: they ended before this process began, and what
    /// was known of it is lost. The task's status says how many ended in which way.
    fn finish_unseen(&mut self, at: f64, rows: std::ops::Range<u64>, status: &Status) {
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
            let how = match (good, kind, reason) {
                (1.., _, _) => StoredRunEnd::Succeeded,
                (_, Some(kind), _) => StoredRunEnd::Failed(kind),
                (_, None, reason) => {
                    StoredRunEnd::Cancelled(reason.unwrap_or(CancelReason::Stopped))
                }
            };
            good = good.saturating_sub(1);
            let message = "it ended before the job was started again; nothing else is known of it";
            self.finish(at, number, how, Some(message.into()));
        }
    }

    /// A task is over: it is counted by how its runs ended.
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

fn begun(at: f64, call: u64, model: Arc<str>) -> CallRecord {
    CallRecord {
        call,
        model,
        server: None,
        began: at,
        sent: None,
        ended: None,
        status: None,
        prompt_tokens: None,
        answer_tokens: None,
        version: None,
    }
}
