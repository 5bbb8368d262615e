//! What is under way, and the spans that are made of it when it is over.
//!
//! ```text
//! trace of a step:  step ─► batch     eval ─► batch     sync
//! trace of a task:  task ─► run ─► attempt ─► call       (linked to its batch)
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rollway_core::{
    AttemptCancelReason, AttemptId, BatchId, BatchKey, BatchState, BatchStep, BatchType,
    FailureKind, RunEnd, RunFailure, RunId, RunnerId, TaskId,
};

use super::call_spans::CallSpans;
use super::event::{AttemptStart, SpanEnd, Tasks, TraceEvent, TraceEventKind};
use super::ids::{SpanId, SpanNamer, TraceId};
use super::outcome::{SpanOutcome, unfinished};
use super::span::{AttributeValue, Nanos, Span, SpanStatus};
use rollway_telemetry::TaskWorkflows;

/// How many evaluations are remembered until they are told to be over.
const EVALS: usize = 1_000;

/// What is under way.
#[derive(Debug)]
pub(super) struct SpanBuilder {
    names: SpanNamer,
    /// Whether a runner executes the runs of an attempt one after the other.
    in_turn: bool,
    batches: BTreeMap<BatchKey, BatchSpan>,
    attempts: HashMap<AttemptId, AttemptSpan>,
    /// What each runner was given last: whatever it was given before is over.
    runners: HashMap<RunnerId, AttemptId>,
    calls: CallSpans,
    steps: BTreeMap<u64, (Nanos, u64, u64)>,
    /// When the batches of evaluations began.
    evals: BTreeMap<BatchId, Nanos>,
    spans: Vec<Span>,
    last: Nanos,
}

#[derive(Debug)]
struct BatchSpan {
    id: BatchId,
    name: Arc<str>,
    kind: BatchType,
    began: Nanos,
    workflows: TaskWorkflows,
    tasks: BTreeMap<TaskId, BTreeMap<RunId, RunSpan>>,
}

/// A run, over all its attempts.
#[derive(Clone, Debug)]
struct RunSpan {
    begin: Nanos,
    end: Nanos,
    attempts: u32,
    outcome: SpanOutcome,
    is_told: bool,
}

#[derive(Debug)]
struct AttemptSpan {
    given: AttemptStart,
    trace: TraceId,
    batch: Arc<str>,
    begin: Nanos,
    began: Option<Nanos>,
    cancelled: Option<AttemptCancelReason>,
    left: Vec<RunId>,
    /// When runs called a model for the first time. That is seen by others than that the run
    /// before has ended, and may be seen first.
    called: BTreeMap<RunId, Nanos>,
}

impl SpanBuilder {
    pub(super) fn new(names: SpanNamer, in_turn: bool) -> Self {
        Self {
            calls: CallSpans::new(names.clone()),
            names,
            in_turn,
            batches: BTreeMap::new(),
            attempts: HashMap::new(),
            runners: HashMap::new(),
            steps: BTreeMap::new(),
            evals: BTreeMap::new(),
            spans: Vec::new(),
            last: 0,
        }
    }

    /// Returns the spans of what is over, and has not been returned before.
    pub(super) fn over(&mut self) -> Vec<Span> {
        std::mem::take(&mut self.spans)
    }

    /// Notes what happened.
    pub(super) fn note(&mut self, mark: &TraceEvent) {
        let at = mark.at;
        self.last = self.last.max(at);
        match &mark.fact {
            TraceEventKind::BatchBegan { batch, key, kind, tasks } => {
                self.batch_began(at, batch, *key, *kind, tasks);
            }
            TraceEventKind::BatchIs {
                key,
                state: state @ (BatchState::Finalized | BatchState::Aborted),
            } => {
                self.batch_ended(at, *key, Some(*state));
            }
            TraceEventKind::Given(given) => self.given(at, *given),
            TraceEventKind::Began { attempt } => {
                if let Some(attempt) = self.attempts.get_mut(attempt) {
                    attempt.began = Some(at);
                }
            }
            TraceEventKind::RunEnded { attempt, run, end } => {
                let outcome = match end {
                    SpanEnd::Succeeded { reward } => SpanOutcome::Succeeded { reward: *reward },
                    SpanEnd::Failed { kind, message } => SpanOutcome::Failed {
                        kind: kind.map_or("failed", FailureKind::name),
                        message: Arc::clone(message),
                    },
                };
                self.run_ended(at, *attempt, *run, &outcome);
            }
            TraceEventKind::Cancelled { attempt, reason } => {
                if let Some(attempt) = self.attempts.get_mut(attempt) {
                    attempt.cancelled = Some(*reason);
                }
            }
            TraceEventKind::AttemptEnded { attempt, lost } => {
                self.attempt_ended(at, *attempt, lost.as_ref())
            }
            TraceEventKind::RunOver { key, task, run, how } => {
                self.run_over(at, (*key, *task, *run), how);
            }
            TraceEventKind::TaskEnded { key, task, status } => {
                let message = status.message().map(Arc::from);
                self.task_ended(at, *key, *task, message);
            }
            TraceEventKind::Call(call) => {
                let attempt = self.attempts.get_mut(&call.attempt);
                let trace = attempt.map(|attempt| {
                    attempt.called.entry(call.run).or_insert(at);
                    attempt.trace
                });
                self.spans.extend(self.calls.note(at, call, trace));
            }
            TraceEventKind::StepBegun { step, tasks, runs } => {
                self.steps.insert(*step, (at, *tasks, *runs));
            }
            TraceEventKind::StepDone { step, reward } => self.step_done(at, *step, *reward),
            TraceEventKind::Evaluated { step, version, set, score } => {
                self.evaluated(at, *step, *version, set, *score);
            }
            TraceEventKind::Synced { step, version, waited, loading } => {
                self.synced(at, *step, *version, (*waited, *loading));
            }
            TraceEventKind::BatchIs { .. }
            | TraceEventKind::Trained { .. }
            | TraceEventKind::Noted(_)
            | TraceEventKind::Beat { .. } => {}
        }
    }

    /// Returns what is under way, as spans that nobody has ended.
    pub(super) fn close(&mut self) -> Vec<Span> {
        let at = self.last;
        self.spans.extend(self.calls.close(at));
        let attempts: Vec<AttemptId> = self.attempts.keys().copied().collect();
        for attempt in attempts {
            let Some(left) = self.attempts.get(&attempt).map(|known| known.left.clone()) else {
                continue;
            };
            for run in left {
                self.run_ended(at, attempt, run, &SpanOutcome::Unfinished);
            }
        }
        let batches: Vec<BatchKey> = self.batches.keys().copied().collect();
        batches.into_iter().for_each(|key| self.batch_ended(at, key, None));
        let steps: Vec<u64> = self.steps.keys().copied().collect();
        for step in steps {
            self.step_over(at, step, SpanStatus::Open, vec![unfinished()]);
        }
        std::mem::take(&mut self.spans)
    }

    fn batch_began(
        &mut self,
        at: Nanos,
        id: &BatchId,
        key: BatchKey,
        kind: BatchType,
        tasks: &Tasks,
    ) {
        if kind == BatchType::Eval {
            self.evals.entry(id.clone()).or_insert(at);
            if self.evals.len() > EVALS {
                self.evals.pop_first();
            }
        }
        if let Some(batch) = self.batches.get_mut(&key) {
            return batch.workflows.add(tasks.first, &tasks.tasks);
        }
        let name = id.to_string().into();
        let mut workflows = TaskWorkflows::default();
        workflows.add(tasks.first, &tasks.tasks);
        let tasks = BTreeMap::new();
        self.batches
            .insert(key, BatchSpan { id: id.clone(), name, kind, began: at, workflows, tasks });
    }

    fn batch_ended(&mut self, at: Nanos, key: BatchKey, state: Option<BatchState>) {
        let Some(batch) = self.batches.get(&key) else { return };
        // Tasks whose end nobody told.
        let tasks: Vec<TaskId> = batch.tasks.keys().copied().collect();
        tasks.into_iter().for_each(|task| self.task_ended(at, key, task, None));
        let Some(batch) = self.batches.remove(&key) else { return };
        let mut attributes = vec![
            ("rollway.batch", AttributeValue::from(&batch.name)),
            ("rollway.batch.kind", batch.kind.to_string().into()),
            ("rollway.tasks", batch.workflows.task_count().into()),
        ];
        attributes.push(match state {
            Some(state) => ("rollway.outcome", state.to_string().into()),
            None => unfinished(),
        });
        let status =
            if state == Some(BatchState::Finalized) { SpanStatus::Well } else { SpanStatus::Open };
        let parent = match (batch.kind, batch.id.priority().step) {
            (BatchType::Eval, _) => Some(self.names.eval(&batch.id)),
            (BatchType::Train, BatchStep::At(step)) => {
                u64::try_from(step).ok().map(|step| self.names.step(step))
            }
            (BatchType::Train, BatchStep::Last) => None,
        };
        let (trace, id) = (self.names.batch_trace(&batch.id), self.names.batch(key));
        let ids = Ids { trace, id, parent };
        self.span("batch", ids, (batch.began, at), status, attributes);
    }

    fn given(&mut self, at: Nanos, given: AttemptStart) {
        if let Some(earlier) = self.runners.insert(given.runner, given.attempt) {
            self.attempt_ended(at, earlier, None);
        }
        let Some(batch) = self.batches.get_mut(&given.key) else { return };
        let trace = self.names.task_trace(&batch.id, given.task);
        let runs = batch.tasks.entry(given.task).or_default();
        for run in given.runs.iter() {
            let fresh = RunSpan {
                begin: at,
                end: at,
                attempts: 0,
                outcome: SpanOutcome::Unfinished,
                is_told: false,
            };
            runs.entry(run).or_insert(fresh).attempts += 1;
        }
        let attempt = AttemptSpan {
            given,
            trace,
            batch: Arc::clone(&batch.name),
            begin: at,
            began: None,
            cancelled: None,
            left: given.runs.iter().collect(),
            called: BTreeMap::new(),
        };
        self.attempts.insert(given.attempt, attempt);
    }

    fn run_ended(&mut self, at: Nanos, id: AttemptId, run: RunId, outcome: &SpanOutcome) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let Some(place) = attempt.left.iter().position(|left| *left == run) else { return };
        attempt.left.remove(place);
        let AttemptStart { key, task, runner, life, .. } = attempt.given;
        let mut attributes = vec![
            ("rollway.batch", AttributeValue::from(&attempt.batch)),
            ("rollway.task", task.0.into()),
            ("rollway.run", run.0.into()),
            ("rollway.attempt", id.0.into()),
            ("rollway.runner", runner.0.into()),
            ("rollway.runner.life", life.0.into()),
        ];
        let status = outcome.tell(&mut attributes);
        let (trace, parent) = (attempt.trace, self.names.run(key, task, run));
        let ids = Ids { trace, id: self.names.attempt(id, run), parent: Some(parent) };
        let begin = attempt.called.remove(&run).map_or(attempt.begin, |at| at.min(attempt.begin));
        let began = attempt.began.filter(|began| (begin..=at).contains(began));
        let times = (begin, at);
        if self.in_turn {
            attempt.begin = at;
            attempt.began = None;
        }
        self.span("attempt", ids, times, status, attributes);
        if let (Some(began), Some(span)) = (began, self.spans.last_mut()) {
            span.moments.push((began, "began"));
        }
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let Some(known) = batch.tasks.get_mut(&task).and_then(|runs| runs.get_mut(&run)) else {
            return;
        };
        (known.end, known.outcome) = (at, outcome.clone());
    }

    /// A run ended for good.
    fn run_over(&mut self, at: Nanos, (key, task, run): (BatchKey, TaskId, RunId), how: &RunEnd) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let Some(known) = batch.tasks.get_mut(&task).and_then(|runs| runs.get_mut(&run)) else {
            return;
        };
        known.end = at;
        match how {
            // How it succeeded is known from its attempt.
            RunEnd::Succeeded(()) => {}
            RunEnd::Failed(RunFailure { kind, message }) => {
                let message = Arc::clone(message);
                known.outcome = SpanOutcome::Failed { kind: kind.name(), message };
            }
            RunEnd::Cancelled(reason) => {
                known.outcome = SpanOutcome::Cancelled { reason: reason.name().to_owned() };
            }
        }
        known.is_told = true;
        let known = known.clone();
        let trace = self.names.task_trace(&batch.id, task);
        self.run_span((key, task, run), trace, &known);
    }

    fn attempt_ended(&mut self, at: Nanos, id: AttemptId, lost: Option<&Arc<str>>) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        let outcome = match (lost, attempt.cancelled) {
            (_, Some(AttemptCancelReason::Runs(reason))) => {
                SpanOutcome::Cancelled { reason: reason.name().to_owned() }
            }
            (_, Some(AttemptCancelReason::Timeout)) => {
                SpanOutcome::Failed { kind: "timeout", message: "it lasted too long".into() }
            }
            (_, Some(AttemptCancelReason::BeginTimeout)) => {
                let message = "the runner never said that it had begun".into();
                SpanOutcome::Failed { kind: "runner_lost", message }
            }
            (Some(words), None) => {
                SpanOutcome::Failed { kind: "runner_lost", message: Arc::clone(words) }
            }
            (None, None) => {
                let message = "the runner said nothing about it".into();
                SpanOutcome::Failed { kind: "runner_lost", message }
            }
        };
        for run in attempt.left.clone() {
            self.run_ended(at, id, run, &outcome);
        }
        self.attempts.remove(&id);
    }

    fn run_span(
        &mut self,
        (key, task, run): (BatchKey, TaskId, RunId),
        trace: TraceId,
        it: &RunSpan,
    ) {
        let Some(batch) = self.batches.get(&key) else { return };
        let mut attributes = vec![
            ("rollway.batch", AttributeValue::from(&batch.name)),
            ("rollway.task", task.0.into()),
            ("rollway.run", run.0.into()),
            ("rollway.attempts", it.attempts.into()),
        ];
        let status = it.outcome.tell(&mut attributes);
        let parent = Some(self.names.task(key, task));
        let ids = Ids { trace, id: self.names.run(key, task, run), parent };
        self.span("run", ids, (it.begin, it.end), status, attributes);
    }

    fn task_ended(&mut self, at: Nanos, key: BatchKey, task: TaskId, message: Option<Arc<str>>) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let Some(runs) = batch.tasks.remove(&task) else { return };
        let trace = self.names.task_trace(&batch.id, task);
        let (id, name, kind, began) =
            (batch.id.clone(), Arc::clone(&batch.name), batch.kind, batch.began);
        let workflow = batch.workflows.of(task).cloned();
        let succeeded = runs
            .values()
            .filter(|run| matches!(run.outcome, SpanOutcome::Succeeded { .. }))
            .count();
        let total = runs.len();
        for (run, known) in runs {
            if !known.is_told {
                self.run_span((key, task, run), trace, &known);
            }
        }
        let mut attributes = vec![
            ("rollway.batch", AttributeValue::from(&name)),
            ("rollway.batch.kind", kind.to_string().into()),
            ("rollway.task", task.0.into()),
            ("rollway.runs", (total as u64).into()),
            ("rollway.runs.succeeded", (succeeded as u64).into()),
        ];
        if let Some(workflow) = &workflow {
            attributes.push(("rollway.workflow", workflow.into()));
        }
        let status = match message {
            Some(message) => SpanStatus::Badly(message),
            None if succeeded == total => SpanStatus::Well,
            None => SpanStatus::Open,
        };
        let ids = Ids { trace, id: self.names.task(key, task), parent: None };
        self.span("task", ids, (began, at), status, attributes);
        let link = (self.names.batch_trace(&id), self.names.batch(key));
        if let Some(span) = self.spans.last_mut() {
            span.link = Some(link);
        }
    }

    fn step_done(&mut self, at: Nanos, step: u64, reward: Option<f64>) {
        let reward = reward.map(|reward| ("rollway.reward", reward.into()));
        self.step_over(at, step, SpanStatus::Well, reward.into_iter().collect());
    }

    fn step_over(
        &mut self,
        at: Nanos,
        step: u64,
        status: SpanStatus,
        more: Vec<(&'static str, AttributeValue)>,
    ) {
        let Some((begin, tasks, runs)) = self.steps.remove(&step) else { return };
        let mut attributes = vec![
            ("rollway.step", step.into()),
            ("rollway.tasks", tasks.into()),
            ("rollway.runs", runs.into()),
        ];
        attributes.extend(more);
        let (trace, id) = (self.names.step_trace(step), self.names.step(step));
        self.span("step", Ids { trace, id, parent: None }, (begin, at), status, attributes);
    }

    fn evaluated(
        &mut self,
        at: Nanos,
        step: u64,
        version: Option<u64>,
        set: &Arc<str>,
        score: Option<f64>,
    ) {
        let batch = BatchId::from(format!("{step}/{set}").as_str());
        let begin = self.evals.remove(&batch).unwrap_or(at);
        let mut attributes = vec![("rollway.step", step.into()), ("rollway.eval.set", set.into())];
        attributes.extend(version.map(|version| ("rollway.model.version", version.into())));
        attributes.extend(score.map(|score| ("rollway.eval.score", score.into())));
        let (trace, id) = (self.names.step_trace(step), self.names.eval(&batch));
        let ids = Ids { trace, id, parent: None };
        self.span("eval", ids, (begin, at), SpanStatus::Well, attributes);
    }

    fn synced(
        &mut self,
        at: Nanos,
        step: u64,
        version: Option<u64>,
        (waited, loading): (Nanos, Nanos),
    ) {
        let seconds = |nanos: Nanos| AttributeValue::from(nanos as f64 / 1e9);
        let mut attributes = vec![
            ("rollway.step", step.into()),
            ("rollway.sync.waited", seconds(waited)),
            ("rollway.sync.loading", seconds(loading)),
        ];
        attributes.extend(version.map(|version| ("rollway.model.version", version.into())));
        let (trace, id) = (self.names.step_trace(step), self.names.sync(step, at));
        let begin = at.saturating_sub(waited.saturating_add(loading));
        let ids = Ids { trace, id, parent: None };
        self.span("sync", ids, (begin, at), SpanStatus::Well, attributes);
    }

    fn span(
        &mut self,
        name: &'static str,
        Ids { trace, id, parent }: Ids,
        (begin, end): (Nanos, Nanos),
        status: SpanStatus,
        attributes: Vec<(&'static str, AttributeValue)>,
    ) {
        self.spans.push(Span {
            trace,
            id,
            parent,
            link: None,
            name,
            is_request: false,
            begin,
            end: end.max(begin),
            status,
            attributes,
            moments: Vec::new(),
        });
    }
}

/// Where a span stands.
struct Ids {
    trace: TraceId,
    id: SpanId,
    parent: Option<SpanId>,
}
