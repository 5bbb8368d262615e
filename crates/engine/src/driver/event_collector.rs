//! Events of the driver: collected during a turn and emitted at its end, in the core's order.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use rollway_core::{
    Action, AttemptId, BatchId, BatchKey, BatchState, BatchType, Core, CoreEvent, Input, PayloadId,
    Request, RequestId, Response, RunnerId, RunnerReport, RunnerState, TaskId,
};

use crate::events::{self, RunEvent, RunEventKind, RunObservers};
use crate::run::{RunFailure, RunOutcome, RunOutput};
use crate::task::Task;

/// Capacity that is kept between two turns.
const EVENT_CAPACITY: usize = 8 * 1024;

#[derive(Debug)]
pub(super) struct EventCollector {
    observers: RunObservers,
    pending: Vec<RunEvent>,
    at: SystemTime,
    /// Current attempt of each runner, by the runner's number.
    working: Vec<Option<AttemptId>>,
    /// Batches of the scheduler, which have no states.
    collected: HashSet<BatchKey>,
    broken: HashSet<RunnerId>,
}

/// Observations before an input is applied, to be completed afterwards.
#[derive(Debug, Default)]
pub(super) struct PreApply {
    /// Numbers of pending events and ignored reports: the event of an ignored report is removed.
    tentative: Option<(usize, u64)>,
    /// Runner whose state may change.
    runner: Option<RunnerId>,
    lost: Option<Arc<str>>,
    /// Request that may add tasks.
    request: Option<RequestId>,
}

impl EventCollector {
    pub(super) fn new(observers: RunObservers) -> Self {
        Self {
            observers,
            pending: Vec::new(),
            at: events::now(),
            working: Vec::new(),
            collected: HashSet::new(),
            broken: HashSet::new(),
        }
    }

    pub(super) fn begin_turn(&mut self) {
        self.at = events::now();
    }

    /// Passes the pending events to the observers.
    pub(super) fn emit(&mut self) {
        self.observers.emit(&self.pending);
        self.pending.clear();
        self.pending.shrink_to(EVENT_CAPACITY);
    }

    fn push(&mut self, what: RunEventKind) {
        self.pending.push(RunEvent { at: self.at, what });
    }

    pub(super) fn batch_began(
        &mut self,
        batch: BatchId,
        key: BatchKey,
        kind: BatchType,
        first: TaskId,
        tasks: &[Arc<Task>],
    ) {
        let tasks = tasks.iter().map(|task| (Arc::clone(&task.workflow), task.repeat_times));
        self.push(RunEventKind::BatchBegan { batch, key, kind, first, tasks: tasks.collect() });
    }

    /// Inspects an input before it is applied.
    pub(super) fn before(
        &mut self,
        core: &Core,
        input: &Input,
        payloads: &HashMap<PayloadId, Bytes>,
    ) -> PreApply {
        let mut before = PreApply::default();
        match input {
            Input::Report { runner, report, .. } => {
                let tentative =
                    || Some((self.pending.len(), core.counters().ignored_reports.total()));
                match report {
                    RunnerReport::Heartbeat | RunnerReport::StartBlocked { .. } => {}
                    RunnerReport::AttemptBegan { attempt } => {
                        before.tentative = tentative();
                        self.push(RunEventKind::AttemptBegan { attempt: *attempt });
                    }
                    RunnerReport::RunFinished { attempt, run, outcome } => {
                        before.tentative = tentative();
                        let end = with_bytes(outcome, payloads);
                        self.push(RunEventKind::RunReported { attempt: *attempt, run: *run, end });
                    }
                    RunnerReport::Lost { message, .. } => {
                        before.runner = Some(*runner);
                        before.lost = Some(Arc::clone(message));
                    }
                    RunnerReport::Ready { .. }
                    | RunnerReport::StartFailed { .. }
                    | RunnerReport::AttemptEnded { .. } => before.runner = Some(*runner),
                }
            }
            Input::Requested {
                request,
                what: Request::Schedule { .. } | Request::Submit { .. },
            } => {
                before.request = Some(*request);
            }
            _ => {}
        }
        before
    }

    /// Collects the effects of an applied input.
    pub(super) fn after(
        &mut self,
        before: PreApply,
        core: &mut Core,
        actions: &[Action],
        arriving: &HashMap<RequestId, Vec<Arc<Task>>>,
    ) {
        let PreApply { tentative, runner, lost, request } = before;
        if let Some((count, ignored)) = tentative
            && core.counters().ignored_reports.total() != ignored
        {
            self.pending.truncate(count);
        }
        if let Some(request) = request {
            self.tasks_added(request, core, actions, arriving);
        }
        self.drain_core(core);
        if let Some(runner) = runner {
            self.check_attempt(runner, core, lost);
            self.check_runner(runner, core);
        }
        for action in actions {
            self.on_action(action, core);
        }
    }

    /// Collects the events of the core.
    pub(super) fn drain_core(&mut self, core: &mut Core) {
        let events = core.drain_events().map(|event| RunEvent { at: self.at, what: kind(event) });
        self.pending.extend(events);
    }

    /// Collects the tasks that a request added, if it was accepted.
    fn tasks_added(
        &mut self,
        request: RequestId,
        core: &Core,
        actions: &[Action],
        arriving: &HashMap<RequestId, Vec<Arc<Task>>>,
    ) {
        let response = actions.iter().find_map(|action| match action {
            Action::Respond { request: id, answer } if *id == request => Some(answer),
            _ => None,
        });
        let (key, first) = match response {
            Some(Response::Scheduled { batch: Some(key), first }) => {
                self.collected.insert(*key);
                (*key, *first)
            }
            Some(Response::Submitted { batch }) => (*batch, TaskId(0)),
            _ => return,
        };
        if let Some(view) = core.batch_by_key(key) {
            let tasks = arriving.get(&request).map_or(&[][..], Vec::as_slice);
            self.batch_began(view.batch, key, view.kind, first, tasks);
        }
    }

    fn on_action(&mut self, action: &Action, core: &Core) {
        match action {
            Action::StartAttempt {
                runner,
                incarnation,
                attempt,
                batch,
                task,
                runs,
                timeout,
                ..
            } => {
                let index = runner.0 as usize;
                if index >= self.working.len() {
                    self.working.resize(index + 1, None);
                }
                self.working[index] = Some(*attempt);
                self.push(RunEventKind::AttemptSent {
                    attempt: *attempt,
                    key: *batch,
                    task: *task,
                    runs: *runs,
                    runner: *runner,
                    incarnation: *incarnation,
                    timeout: *timeout,
                });
                self.check_attempt(*runner, core, None);
            }
            Action::CancelAttempt { attempt, reason, .. } => {
                self.push(RunEventKind::AttemptCancelled { attempt: *attempt, reason: *reason });
            }
            Action::StopRunner { runner, .. } => self.check_attempt(*runner, core, None),
            Action::DropPayload { payload, reason } => {
                self.push(RunEventKind::PayloadDropped { bytes: payload.bytes, reason: *reason });
            }
            Action::DropTasks { batch } => {
                if self.collected.remove(batch) {
                    self.push(RunEventKind::BatchStateChanged {
                        key: *batch,
                        state: BatchState::Finalized,
                    });
                }
            }
            Action::ReleasePayloads(_)
            | Action::StartRunner { .. }
            | Action::Deliver { .. }
            | Action::Respond { .. }
            | Action::AppendRecord(_) => {}
        }
    }

    /// Collects a change of a runner to broken or back to ready.
    fn check_runner(&mut self, runner: RunnerId, core: &Core) {
        match core.runner_state(runner) {
            Some(RunnerState::Broken) if self.broken.insert(runner) => {
                let message = core.runner(runner).and_then(|view| view.message);
                let message = message.unwrap_or_else(|| "no message".into());
                self.push(RunEventKind::RunnerBroken { runner, message });
            }
            Some(RunnerState::Idle) if !self.broken.is_empty() && self.broken.remove(&runner) => {
                self.push(RunEventKind::RunnerReady { runner });
            }
            _ => {}
        }
    }

    /// Collects the end of a runner's attempt, if it ended.
    fn check_attempt(&mut self, runner: RunnerId, core: &Core, lost: Option<Arc<str>>) {
        let index = runner.0 as usize;
        let Some(attempt) = self.working.get(index).copied().flatten() else { return };
        let current = match core.runner_state(runner) {
            Some(RunnerState::Busy(current) | RunnerState::Cancelling(current)) => Some(current),
            _ => None,
        };
        if current == Some(attempt) {
            return;
        }
        self.working[index] = None;
        let is_there = current.is_some() || core.runner_state(runner) == Some(RunnerState::Idle);
        let message = || core.runner(runner).and_then(|view| view.message);
        let lost = lost.or_else(|| if is_there { None } else { message() });
        self.push(RunEventKind::AttemptEnded { attempt, lost });
    }
}

/// Returns an outcome with its payload; without it if the payload is no longer held.
fn with_bytes(
    outcome: &rollway_core::RunOutcome,
    payloads: &HashMap<PayloadId, Bytes>,
) -> RunOutcome {
    let rollway_core::RunOutput { payload, metrics } =
        outcome.as_ref().map_err(RunFailure::clone)?;
    let payload = payload.and_then(|payload| payloads.get(&payload.id).cloned());
    Ok(RunOutput { payload, metrics: metrics.clone() })
}

fn kind(event: CoreEvent) -> RunEventKind {
    match event {
        CoreEvent::Retried { batch, task, run, kind, message } => {
            RunEventKind::RunRetried { key: batch, task, run, kind, message }
        }
        CoreEvent::RunEnded { batch, task, run, end } => {
            RunEventKind::RunEnded { key: batch, task, run, how: end }
        }
        CoreEvent::TaskEnded { batch, task, status, dropped } => {
            RunEventKind::TaskEnded { key: batch, task, status, dropped }
        }
        CoreEvent::Batch { batch, state } => RunEventKind::BatchStateChanged { key: batch, state },
    }
}
