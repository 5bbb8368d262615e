//! Turns trace events into spans.
//!
//! ```text
//! trace of a step:  step ─► batch     eval ─► batch     sync
//! trace of a task:  task ─► run ─► attempt ─► call       (linked to its batch)
//! trace file only:  slice (all runs of an attempt on a runner) ─► attempt ─► call
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rollway_core::{
    AttemptCancelReason, AttemptId, BatchId, BatchKey, BatchState, BatchStep, BatchType,
    FailureKind, Incarnation, RunEnd, RunFailure, RunId, RunRange, RunnerId, TaskId,
};
use rollway_engine::events::{CallEvent, CallEventKind, RunEventKind};
use rollway_telemetry::TaskWorkflows;

use super::event::{REWARD, TraceEvent, TraceEventKind};
use super::exporters::SpanExporters;
use super::ids::{SpanNamer, TraceId};
use super::perfetto::{SlicePosition, TrackGroup};
use super::span::{AttributeValue, Nanos, Span, SpanKind, SpanStatus};

/// Maximum number of open evaluations.
const MAX_EVALS: usize = 1_000;

/// Lowest HTTP status of a failed call.
const FAILED: u16 = 400;

/// End of a run with its reward. `None`: it had not ended when the job did.
type AttemptEnd = Option<RunEnd<Option<f64>>>;

/// Open spans of a job.
#[derive(Debug)]
pub(super) struct SpanBuilder {
    names: SpanNamer,
    /// Runners execute the runs of an attempt one after the other.
    in_turn: bool,
    /// Failures have a kind; those of a history have none.
    has_failure_kinds: bool,
    batches: BTreeMap<BatchKey, OpenBatch>,
    attempts: HashMap<AttemptId, OpenAttempt>,
    /// Last attempt of each runner, which ends when the runner gets another.
    runners: HashMap<RunnerId, AttemptId>,
    calls: HashMap<u64, Span>,
    steps: BTreeMap<u64, Span>,
    evals: BTreeMap<BatchId, Span>,
    pub(super) exporters: SpanExporters,
    last: Nanos,
}

#[derive(Debug)]
struct OpenBatch {
    id: BatchId,
    name: Arc<str>,
    kind: BatchType,
    span: Span,
    workflows: TaskWorkflows,
    tasks: BTreeMap<TaskId, BTreeMap<RunId, RunProgress>>,
}

/// A run over all its attempts.
#[derive(Debug)]
struct RunProgress {
    begin: Nanos,
    end: Nanos,
    attempts: u32,
    outcome: AttemptEnd,
    is_exported: bool,
}

#[derive(Clone, Copy, Debug)]
struct AttemptStart {
    attempt: AttemptId,
    key: BatchKey,
    task: TaskId,
    runs: RunRange,
    runner: RunnerId,
    incarnation: Incarnation,
}

#[derive(Debug)]
struct OpenAttempt {
    start: AttemptStart,
    trace: TraceId,
    batch: Arc<str>,
    slice: Span,
    /// Begin of the next run: the start of the attempt or the end of the previous run.
    begin: Nanos,
    cancelled: Option<AttemptCancelReason>,
    left: Vec<RunId>,
    open: BTreeMap<RunId, Span>,
}

impl SpanBuilder {
    pub(super) fn new(names: SpanNamer, in_turn: bool, exporters: SpanExporters) -> Self {
        Self {
            names,
            in_turn,
            has_failure_kinds: true,
            batches: BTreeMap::new(),
            attempts: HashMap::new(),
            runners: HashMap::new(),
            calls: HashMap::new(),
            steps: BTreeMap::new(),
            evals: BTreeMap::new(),
            exporters,
            last: 0,
        }
    }

    /// Omits kinds of failures, which a history does not have.
    pub(super) fn without_failure_kinds(mut self) -> Self {
        self.has_failure_kinds = false;
        self
    }

    pub(super) fn apply(&mut self, event: &TraceEvent) {
        let at = event.at;
        self.last = self.last.max(at);
        match &event.kind {
            TraceEventKind::Run(event) => self.run_event(at, event),
            TraceEventKind::StepBegun { step, tasks, runs } => {
                let attributes = vec![
                    ("rollway.step", (*step).into()),
                    ("rollway.tasks", (*tasks).into()),
                    ("rollway.runs", (*runs).into()),
                ];
                let ids = (self.names.step_trace(step), self.names.step(*step), None);
                let span = Span::new(SpanKind::Step, ids, at, attributes);
                let position = SlicePosition::Group(TrackGroup::Steps);
                self.exporters.begin(at, &span, position, || format!("step {step}"));
                self.steps.insert(*step, span);
            }
            TraceEventKind::StepDone { step, reward } => {
                let Some(mut span) = self.steps.remove(step) else { return };
                span.push_known("rollway.reward", *reward);
                span.status = SpanStatus::Ok;
                self.exporters.end(at, span);
            }
            TraceEventKind::Evaluated { step, version, set, score } => {
                let batch = BatchId::from(format!("{step}/{set}").as_str());
                let open = self.evals.remove(&batch);
                let mut span = open.unwrap_or_else(|| self.eval_span(at, &batch));
                span.trace = self.names.step_trace(step);
                span.push("rollway.step", *step);
                span.push("rollway.eval.set", set);
                span.push_known("rollway.model.version", *version);
                span.push_known("rollway.eval.score", *score);
                span.status = SpanStatus::Ok;
                self.exporters.end(at, span);
            }
            TraceEventKind::Synced { step, version, waited, loading } => {
                let seconds = |nanos: &Nanos| AttributeValue::from(*nanos as f64 / 1e9);
                let attributes = vec![
                    ("rollway.step", (*step).into()),
                    ("rollway.sync.waited", seconds(waited)),
                    ("rollway.sync.loading", seconds(loading)),
                ];
                let begin = at.saturating_sub(waited.saturating_add(*loading));
                let ids = (self.names.step_trace(step), self.names.sync(*step, at), None);
                let mut span = Span::new(SpanKind::Sync, ids, begin, attributes);
                span.push_known("rollway.model.version", *version);
                span.status = SpanStatus::Ok;
                let position = SlicePosition::Group(TrackGroup::Weights);
                let title = || format!("weights after step {step}");
                self.exporters.begin(begin, &span, position, title);
                self.exporters.end(at, span);
            }
            TraceEventKind::Trained { step } => self.note(at, &format!("trained step {step}")),
            TraceEventKind::Info(message) => self.note(at, message),
            TraceEventKind::Stats { pending, running, busy } => {
                if let Some(file) = &mut self.exporters.file {
                    file.stats(at, *pending, *running, *busy);
                }
            }
        }
    }

    fn note(&mut self, at: Nanos, message: &str) {
        if let Some(file) = &mut self.exporters.file {
            file.note(at, message);
        }
    }

    fn run_event(&mut self, at: Nanos, event: &RunEventKind) {
        match event {
            RunEventKind::BatchBegan { batch, key, kind, first, tasks } => {
                self.batch_began(at, batch, *key, *kind);
                if let Some(batch) = self.batches.get_mut(key) {
                    batch.workflows.add(*first, tasks);
                }
            }
            RunEventKind::BatchStateChanged {
                key,
                state: state @ (BatchState::Finalized | BatchState::Aborted),
            } => self.batch_ended(at, *key, Some(*state)),
            RunEventKind::AttemptSent { attempt, key, task, runs, runner, incarnation, .. } => {
                self.attempt_sent(
                    at,
                    AttemptStart {
                        attempt: *attempt,
                        key: *key,
                        task: *task,
                        runs: *runs,
                        runner: *runner,
                        incarnation: *incarnation,
                    },
                );
            }
            RunEventKind::AttemptBegan { attempt } => self.attempt_began(at, *attempt),
            RunEventKind::RunReported { attempt, run, end } => {
                let end = match end {
                    Ok(output) => RunEnd::Succeeded(output.metrics.get(REWARD)),
                    Err(failure) => RunEnd::Failed(failure.clone()),
                };
                self.begin_run(at, *attempt, *run);
                self.end_run(at, *attempt, *run, &Some(end));
                self.begin_next_run(at, *attempt);
            }
            RunEventKind::AttemptCancelled { attempt, reason } => {
                if let Some(attempt) = self.attempts.get_mut(attempt) {
                    attempt.cancelled = Some(*reason);
                    if let Some(file) = &mut self.exporters.file {
                        let reason = [("reason", format!("{reason:?}").into())];
                        file.instant(at, attempt.slice.id, "cancelled", &reason);
                    }
                }
            }
            RunEventKind::AttemptEnded { attempt, lost } => {
                self.attempt_ended(at, *attempt, lost.as_ref());
            }
            RunEventKind::RunEnded { key, task, run, how } => {
                self.run_ended(at, *key, *task, *run, how);
            }
            RunEventKind::TaskEnded { key, task, status, .. } => {
                self.task_ended(at, *key, *task, status.message().map(Arc::from));
            }
            RunEventKind::Call(call) => self.call(at, call),
            RunEventKind::BatchStateChanged { .. }
            | RunEventKind::RunRetried { .. }
            | RunEventKind::PayloadDropped { .. }
            | RunEventKind::RunnerLocated { .. }
            | RunEventKind::RunnerBroken { .. }
            | RunEventKind::RunnerReady { .. } => {}
        }
    }

    /// Ends all open spans as unfinished.
    pub(super) fn close(&mut self) {
        let at = self.last;
        let calls = std::mem::take(&mut self.calls).into_values();
        calls.for_each(|call| self.end_unfinished(at, call));
        for id in self.attempts.keys().copied().collect::<Vec<_>>() {
            let left = self.attempts.get(&id).map(|attempt| attempt.left.clone());
            for run in left.unwrap_or_default() {
                self.end_run(at, id, run, &None);
            }
            if let Some(attempt) = self.attempts.remove(&id) {
                self.exporters.end(at, attempt.slice);
            }
        }
        for key in self.batches.keys().copied().collect::<Vec<_>>() {
            self.batch_ended(at, key, None);
        }
        let steps = std::mem::take(&mut self.steps).into_values();
        let evals = std::mem::take(&mut self.evals).into_values();
        steps.chain(evals).for_each(|span| self.end_unfinished(at, span));
    }

    fn end_unfinished(&mut self, at: Nanos, mut span: Span) {
        span.set_unfinished();
        self.exporters.end(at, span);
    }

    fn eval_span(&self, at: Nanos, batch: &BatchId) -> Span {
        let ids = (self.names.batch_trace(batch), self.names.eval(batch), None);
        Span::new(SpanKind::Eval, ids, at, Vec::new())
    }

    fn batch_began(&mut self, at: Nanos, id: &BatchId, key: BatchKey, kind: BatchType) {
        if self.batches.contains_key(&key) {
            return;
        }
        if kind == BatchType::Eval && !self.evals.contains_key(id) {
            let span = self.eval_span(at, id);
            let position = SlicePosition::Group(TrackGroup::Evals);
            self.exporters.begin(at, &span, position, || format!("eval {id}"));
            self.evals.insert(id.clone(), span);
            if self.evals.len() > MAX_EVALS
                && let Some((_, oldest)) = self.evals.pop_first()
            {
                self.end_unfinished(at, oldest);
            }
        }
        let parent = match (kind, id.priority().step) {
            (BatchType::Eval, _) => Some(self.names.eval(id)),
            (BatchType::Train, BatchStep::At(step)) => {
                u64::try_from(step).ok().map(|step| self.names.step(step))
            }
            (BatchType::Train, BatchStep::Last) => None,
        };
        let name: Arc<str> = id.to_string().into();
        let attributes = vec![
            ("rollway.batch", AttributeValue::from(&name)),
            ("rollway.batch.kind", kind.to_string().into()),
        ];
        let ids = (self.names.batch_trace(id), self.names.batch(key), parent);
        let span = Span::new(SpanKind::Batch, ids, at, attributes);
        let position = SlicePosition::Group(TrackGroup::Batches);
        self.exporters.begin(at, &span, position, || format!("batch {name}"));
        let (workflows, tasks) = (TaskWorkflows::default(), BTreeMap::new());
        let batch = OpenBatch { id: id.clone(), name, kind, span, workflows, tasks };
        self.batches.insert(key, batch);
    }

    fn batch_ended(&mut self, at: Nanos, key: BatchKey, state: Option<BatchState>) {
        let Some(batch) = self.batches.get(&key) else { return };
        // Tasks without an end event.
        for task in batch.tasks.keys().copied().collect::<Vec<_>>() {
            self.task_ended(at, key, task, None);
        }
        let Some(OpenBatch { mut span, workflows, .. }) = self.batches.remove(&key) else { return };
        span.push("rollway.tasks", workflows.task_count());
        match state {
            Some(state) => span.push("rollway.outcome", state.to_string()),
            None => span.set_unfinished(),
        }
        if state == Some(BatchState::Finalized) {
            span.status = SpanStatus::Ok;
        }
        self.exporters.end(at, span);
    }

    fn attempt_sent(&mut self, at: Nanos, start: AttemptStart) {
        let AttemptStart { attempt: id, key, task, runs, runner, incarnation } = start;
        // A runner executes one attempt at a time.
        if let Some(earlier) = self.runners.insert(runner, id) {
            self.attempt_ended(at, earlier, None);
        }
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let trace = self.names.task_trace(&batch.id, task);
        let progress = batch.tasks.entry(task).or_default();
        for run in runs.iter() {
            let fresh =
                RunProgress { begin: at, end: at, attempts: 0, outcome: None, is_exported: false };
            progress.entry(run).or_insert(fresh).attempts += 1;
        }
        let (first, last) = (runs.first, runs.first + runs.count.max(1) - 1);
        let attributes = vec![
            ("rollway.batch", AttributeValue::from(&batch.name)),
            ("rollway.task", task.0.into()),
            ("rollway.runs", format!("{first}-{last}").into()),
            ("rollway.attempt", id.0.into()),
            ("rollway.runner.incarnation", incarnation.0.into()),
        ];
        let ids = (trace, self.names.slice(id), Some(batch.span.id));
        let slice = Span::new(SpanKind::Slice, ids, at, attributes);
        let position = SlicePosition::Lane { runner, lane: 0, container: None };
        self.exporters.begin(at, &slice, position, || match batch.workflows.of(task) {
            Some(workflow) => format!("{workflow} {}/{}", batch.name, task.0),
            None => format!("{}/{}", batch.name, task.0),
        });
        let attempt = OpenAttempt {
            start,
            trace,
            batch: Arc::clone(&batch.name),
            slice,
            begin: at,
            cancelled: None,
            left: runs.iter().collect(),
            open: BTreeMap::new(),
        };
        self.attempts.insert(id, attempt);
    }

    fn attempt_began(&mut self, at: Nanos, id: AttemptId) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        if let Some(file) = &mut self.exporters.file {
            file.instant(at, attempt.slice.id, "began", &[]);
        }
        if self.in_turn {
            self.begin_next_run(at, id);
        } else {
            for run in attempt.left.clone() {
                self.begin_run(at, id, run);
            }
        }
        if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.open.values_mut().for_each(|span| span.events.push((at, "began")));
        }
    }

    /// Begins the next run of an attempt whose runs are executed in turn.
    fn begin_next_run(&mut self, at: Nanos, id: AttemptId) {
        if self.in_turn
            && let Some(attempt) = self.attempts.get(&id)
            && attempt.open.is_empty()
            && let Some(next) = attempt.left.first().copied()
        {
            self.begin_run(at, id, next);
        }
    }

    fn begin_run(&mut self, at: Nanos, id: AttemptId, run: RunId) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        if !attempt.left.contains(&run) || attempt.open.contains_key(&run) {
            return;
        }
        let AttemptStart { runs, runner, .. } = attempt.start;
        // A call of the next run may be seen before the end of the previous one.
        let begin = if self.in_turn && !attempt.open.is_empty() { at } else { attempt.begin };
        let span = attempt.span(&self.names, begin, run);
        let is_alone = runs.count == 1 || self.in_turn;
        let lane = if is_alone { 0 } else { run.0 - runs.first + 1 };
        let position = SlicePosition::Lane { runner, lane, container: Some(attempt.slice.id) };
        self.exporters.begin(at, &span, position, || format!("run {}", run.0));
        attempt.open.insert(run, span);
    }

    fn end_run(&mut self, at: Nanos, id: AttemptId, run: RunId, end: &AttemptEnd) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let Some(index) = attempt.left.iter().position(|left| *left == run) else { return };
        attempt.left.remove(index);
        let open = attempt.open.remove(&run);
        let mut span = open.unwrap_or_else(|| attempt.span(&self.names, attempt.begin, run));
        if self.in_turn {
            attempt.begin = at;
        }
        let AttemptStart { key, task, .. } = attempt.start;
        set_outcome(&mut span, end.as_ref(), self.has_failure_kinds);
        self.exporters.end(at, span);
        if let Some(progress) = self.progress(key, task, run) {
            (progress.end, progress.outcome) = (at, end.clone());
        }
    }

    fn progress(&mut self, key: BatchKey, task: TaskId, run: RunId) -> Option<&mut RunProgress> {
        self.batches.get_mut(&key)?.tasks.get_mut(&task)?.get_mut(&run)
    }

    fn attempt_ended(&mut self, at: Nanos, id: AttemptId, lost: Option<&Arc<str>>) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        let failed = |kind, message: &str| RunEnd::Failed(RunFailure::new(kind, message));
        let end = match (attempt.cancelled, lost) {
            (Some(AttemptCancelReason::Runs(reason)), _) => RunEnd::Cancelled(reason),
            (Some(AttemptCancelReason::Timeout), _) => {
                failed(FailureKind::Timeout, "the attempt exceeded its timeout")
            }
            (Some(AttemptCancelReason::BeginTimeout), _) => {
                failed(FailureKind::RunnerLost, "the runner did not begin the attempt in time")
            }
            (None, Some(message)) => failed(FailureKind::RunnerLost, message),
            (None, None) => {
                failed(FailureKind::RunnerLost, "the runner reported no result of this run")
            }
        };
        for run in attempt.left.clone() {
            self.end_run(at, id, run, &Some(end.clone()));
        }
        let Some(mut attempt) = self.attempts.remove(&id) else { return };
        attempt.slice.push_known("rollway.lost", lost);
        self.exporters.end(at, attempt.slice);
        let runner = attempt.start.runner;
        if self.runners.get(&runner) == Some(&id) {
            self.runners.remove(&runner);
        }
    }

    /// Takes the final end of a run.
    fn run_ended(&mut self, at: Nanos, key: BatchKey, task: TaskId, run: RunId, end: &RunEnd) {
        let Some(progress) = self.progress(key, task, run) else { return };
        progress.end = at;
        match end {
            // The report of the attempt has the reward.
            RunEnd::Succeeded(()) => {}
            end => progress.outcome = Some(end.clone().map(|()| None)),
        }
        progress.is_exported = true;
        self.export_run(key, task, run);
    }

    fn export_run(&mut self, key: BatchKey, task: TaskId, run: RunId) {
        let Some(batch) = self.batches.get(&key) else { return };
        let Some(progress) = batch.tasks.get(&task).and_then(|runs| runs.get(&run)) else { return };
        let attributes = vec![
            ("rollway.batch", AttributeValue::from(&batch.name)),
            ("rollway.task", task.0.into()),
            ("rollway.run", run.0.into()),
            ("rollway.attempts", progress.attempts.into()),
        ];
        let parent = Some(self.names.task(key, task));
        let trace = self.names.task_trace(&batch.id, task);
        let ids = (trace, self.names.run(key, task, run), parent);
        let mut span = Span::new(SpanKind::Run, ids, progress.begin, attributes);
        set_outcome(&mut span, progress.outcome.as_ref(), self.has_failure_kinds);
        self.exporters.end(progress.end, span);
    }

    fn task_ended(&mut self, at: Nanos, key: BatchKey, task: TaskId, message: Option<Arc<str>>) {
        let Some(runs) = self.batches.get(&key).and_then(|batch| batch.tasks.get(&task)) else {
            return;
        };
        let unexported = runs.iter().filter(|(_, run)| !run.is_exported);
        for run in unexported.map(|(run, _)| *run).collect::<Vec<_>>() {
            self.export_run(key, task, run);
        }
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let runs = batch.tasks.remove(&task).unwrap_or_default();
        let is_success = |run: &&RunProgress| matches!(run.outcome, Some(RunEnd::Succeeded(_)));
        let succeeded = runs.values().filter(is_success).count();
        let attributes = vec![
            ("rollway.batch", AttributeValue::from(&batch.name)),
            ("rollway.batch.kind", batch.kind.to_string().into()),
            ("rollway.task", task.0.into()),
            ("rollway.runs", (runs.len() as u64).into()),
            ("rollway.runs.succeeded", (succeeded as u64).into()),
        ];
        let ids = (self.names.task_trace(&batch.id, task), self.names.task(key, task), None);
        let mut span = Span::new(SpanKind::Task, ids, batch.span.begin, attributes);
        span.push_known("rollway.workflow", batch.workflows.of(task));
        span.link = Some((batch.span.trace, batch.span.id));
        span.status = match message {
            Some(message) => SpanStatus::Error(message),
            None if succeeded == runs.len() => SpanStatus::Ok,
            None => SpanStatus::Unset,
        };
        self.exporters.end(at, span);
    }

    fn call(&mut self, at: Nanos, event: &CallEvent) {
        let CallEvent { attempt: id, run, call, kind } = event;
        match kind {
            CallEventKind::Began { model } => {
                self.begin_run(at, *id, *run);
                let Some(attempt) = self.attempts.get(id) else { return };
                let attributes = vec![
                    ("gen_ai.request.model", AttributeValue::from(model)),
                    ("rollway.run", run.0.into()),
                    ("rollway.attempt", id.0.into()),
                    ("rollway.call", (*call).into()),
                ];
                let container = self.names.attempt(*id, *run);
                let span_id = self.names.call(*id, *run, *call);
                let ids = (attempt.trace, span_id, Some(container));
                let span = Span::new(SpanKind::Call, ids, at, attributes);
                let AttemptStart { runner, runs, .. } = attempt.start;
                let position = SlicePosition::Call { runner, lane: runs.count + 1, container };
                self.exporters.begin(at, &span, position, || "call".to_owned());
                self.calls.insert(*call, span);
            }
            CallEventKind::Sent { server } => {
                let Some(span) = self.calls.get_mut(call) else { return };
                span.events.push((at, "sent"));
                span.attributes.retain(|(name, _)| *name != "server.address");
                span.push("server.address", server);
                if let Some(file) = &mut self.exporters.file {
                    file.instant(at, span.id, "sent", &[("server", server.into())]);
                }
            }
            CallEventKind::Ended { status, prompt_tokens, answer_tokens, version } => {
                let Some(mut span) = self.calls.remove(call) else { return };
                span.push("http.response.status_code", *status);
                span.push_known("gen_ai.usage.input_tokens", *prompt_tokens);
                span.push_known("gen_ai.usage.output_tokens", *answer_tokens);
                span.push_known("rollway.model.version", *version);
                span.status = SpanStatus::Ok;
                if *status >= FAILED {
                    span.push("error.type", status.to_string());
                    span.status = SpanStatus::Error(format!("HTTP status {status}").into());
                }
                self.exporters.end(at, span);
            }
        }
    }
}

impl OpenAttempt {
    /// Returns the span of one run.
    fn span(&self, names: &SpanNamer, begin: Nanos, run: RunId) -> Span {
        let AttemptStart { attempt, key, task, runner, incarnation, .. } = self.start;
        let attributes = vec![
            ("rollway.batch", AttributeValue::from(&self.batch)),
            ("rollway.task", task.0.into()),
            ("rollway.run", run.0.into()),
            ("rollway.attempt", attempt.0.into()),
            ("rollway.runner", runner.0.into()),
            ("rollway.runner.incarnation", incarnation.0.into()),
        ];
        let parent = Some(names.run(key, task, run));
        let ids = (self.trace, names.attempt(attempt, run), parent);
        Span::new(SpanKind::Attempt, ids, begin, attributes)
    }
}

fn set_outcome(span: &mut Span, end: Option<&RunEnd<Option<f64>>>, has_failure_kinds: bool) {
    let Some(end) = end else { return span.set_unfinished() };
    span.push("rollway.outcome", end.state().name());
    match end {
        RunEnd::Succeeded(reward) => {
            span.push_known("rollway.reward", *reward);
            span.status = SpanStatus::Ok;
        }
        RunEnd::Failed(RunFailure { kind, message }) => {
            span.push_known("error.type", has_failure_kinds.then(|| kind.name()));
            span.status = SpanStatus::Error(Arc::clone(message));
        }
        RunEnd::Cancelled(reason) => span.push("rollway.cancelled", reason.name()),
    }
}
