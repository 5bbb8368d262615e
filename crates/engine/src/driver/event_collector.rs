//! What the driver tells those who observe. Collected while a turn lasts, told once at its end, and
//! in the order in which the core decided it.

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

/// How many things are remembered room for between two turns.
const EVENT_CAPACITY: usize = 8 * 1024;

/// Collects what is seen, for others.
#[derive(Debug)]
pub(super) struct EventCollector {
    observers: RunObservers,
    seen: Vec<RunEvent>,
    at: SystemTime,
    /// What each runner was given and has not ended, by the runner's number.
    working: Vec<Option<AttemptId>>,
    /// Batches that are collected, and have no states.
    collected: HashSet<BatchKey>,
    /// Runners that do not start.
    broken: HashSet<RunnerId>,
}

/// What to look at after the core has taken an input in.
#[derive(Debug, Default)]
pub(super) struct PreApply {
    /// How many things were seen, and disbelieved, before what is seen only if it is believed.
    told: Option<(usize, u64)>,
    /// A runner that may have another state.
    runner: Option<RunnerId>,
    lost: Option<Arc<str>>,
    brings: Option<RequestId>,
}

impl EventCollector {
    pub(super) fn new(observers: RunObservers) -> Self {
        Self {
            observers,
            seen: Vec::new(),
            at: events::now(),
            working: Vec::new(),
            collected: HashSet::new(),
            broken: HashSet::new(),
        }
    }

    /// A turn begins.
    pub(super) fn turn(&mut self) {
        self.at = events::now();
    }

    /// Tells what was seen in this turn.
    pub(super) fn tell(&mut self) {
        self.observers.emit(&self.seen);
        self.seen.clear();
        // Nothing large stays behind after an unusual turn.
        self.seen.shrink_to(EVENT_CAPACITY);
    }

    fn saw(&mut self, what: RunEventKind) {
        self.seen.push(RunEvent { at: self.at, what });
    }

    /// Tasks were taken in.
    pub(super) fn began(
        &mut self,
        batch: BatchId,
        key: BatchKey,
        kind: BatchType,
        first: TaskId,
        tasks: &[Arc<Task>],
    ) {
        let tasks = tasks.iter().map(|task| (Arc::clone(&task.workflow), task.repeat_times));
        self.saw(RunEventKind::BatchBegan { batch, key, kind, first, tasks: tasks.collect() });
    }

    /// Looks at an input before the core takes it in.
    pub(super) fn before(
        &mut self,
        core: &Core,
        input: &Input,
        payloads: &HashMap<PayloadId, Bytes>,
    ) -> PreApply {
        let mut before = PreApply::default();
        match input {
            Input::Report { runner, report, .. } => {
                let told = || Some((self.seen.len(), core.counters().ignored_reports.total()));
                match report {
                    // These leave a runner with what it was given.
                    RunnerReport::Heartbeat | RunnerReport::Waits { .. } => {}
                    RunnerReport::AttemptBegan { attempt } => {
                        before.told = told();
                        self.saw(RunEventKind::AttemptBegan { attempt: *attempt });
                    }
                    RunnerReport::RunFinished { attempt, run, outcome } => {
                        before.told = told();
                        let end = with_bytes(outcome, payloads);
                        self.saw(RunEventKind::RunReported { attempt: *attempt, run: *run, end });
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
                before.brings = Some(*request);
            }
            _ => {}
        }
        before
    }

    /// Looks at what the core made of it.
    pub(super) fn after(
        &mut self,
        before: PreApply,
        core: &mut Core,
        actions: &[Action],
        arriving: &HashMap<RequestId, Vec<Arc<Task>>>,
    ) {
        let PreApply { told, runner, lost, brings } = before;
        if let Some((seen, disbelieved)) = told
            && core.counters().ignored_reports.total() != disbelieved
        {
            self.seen.truncate(seen);
        }
        if let Some(request) = brings {
            self.brought(request, core, actions, arriving);
        }
        self.noticed(core);
        if let Some(runner) = runner {
            self.settle(runner, core, lost);
            self.mend(runner, core);
        }
        for action in actions {
            self.ordered(action, core);
        }
    }

    /// Tells what the core has noticed.
    pub(super) fn noticed(&mut self, core: &mut Core) {
        let (seen, at) = (&mut self.seen, self.at);
        seen.extend(core.drain_events().map(|notice| RunEvent { at, what: noticed(notice) }));
    }

    /// Tells of the tasks that a request brought, if they were taken in.
    fn brought(
        &mut self,
        request: RequestId,
        core: &Core,
        actions: &[Action],
        arriving: &HashMap<RequestId, Vec<Arc<Task>>>,
    ) {
        let answer = actions.iter().find_map(|action| match action {
            Action::Respond { request: asked, answer } if *asked == request => Some(answer),
            _ => None,
        });
        let (key, first) = match answer {
            Some(Response::Scheduled { batch: Some(key), first }) => {
                self.collected.insert(*key);
                (*key, *first)
            }
            Some(Response::Submitted { batch }) => (*batch, TaskId(0)),
            _ => return,
        };
        if let Some(view) = core.batch_by_key(key) {
            let tasks = arriving.get(&request).map_or(&[][..], Vec::as_slice);
            self.began(view.batch, key, view.kind, first, tasks);
        }
    }

    fn ordered(&mut self, action: &Action, core: &Core) {
        match action {
            Action::StartAttempt { runner, life, attempt, batch, task, runs, timeout, .. } => {
                let place = runner.0 as usize;
                if place >= self.working.len() {
                    self.working.resize(place + 1, None);
                }
                self.working[place] = Some(*attempt);
                self.saw(RunEventKind::AttemptSent {
                    attempt: *attempt,
                    key: *batch,
                    task: *task,
                    runs: *runs,
                    runner: *runner,
                    life: *life,
                    timeout: *timeout,
                });
                self.settle(*runner, core, None);
            }
            Action::CancelAttempt { attempt, reason, .. } => {
                self.saw(RunEventKind::AttemptCancelled { attempt: *attempt, reason: *reason });
            }
            Action::StopRunner { runner, .. } => self.settle(*runner, core, None),
            Action::DropPayload { payload, reason } => {
                self.saw(RunEventKind::PayloadDropped { bytes: payload.bytes, reason: *reason });
            }
            Action::DropTasks { batch } => {
                if self.collected.remove(batch) {
                    self.saw(RunEventKind::BatchStateChanged {
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

    /// Tells whether a runner has begun to rest because it does not start, or is there again.
    fn mend(&mut self, runner: RunnerId, core: &Core) {
        match core.runner_state(runner) {
            Some(RunnerState::Broken) if self.broken.insert(runner) => {
                let message = core.runner(runner).and_then(|view| view.message);
                let message = message.unwrap_or_else(|| "no message".into());
                self.saw(RunEventKind::RunnerBroken { runner, message });
            }
            Some(RunnerState::Idle) if !self.broken.is_empty() && self.broken.remove(&runner) => {
                self.saw(RunEventKind::RunnerReady { runner });
            }
            _ => {}
        }
    }

    /// Tells that what a runner was at is over, if it is.
    fn settle(&mut self, runner: RunnerId, core: &Core, lost: Option<Arc<str>>) {
        let place = runner.0 as usize;
        let Some(attempt) = self.working.get(place).copied().flatten() else { return };
        let current = match core.runner_state(runner) {
            Some(RunnerState::Busy(current) | RunnerState::Cancelling(current)) => Some(current),
            _ => None,
        };
        if current == Some(attempt) {
            return;
        }
        self.working[place] = None;
        let is_there = current.is_some() || core.runner_state(runner) == Some(RunnerState::Idle);
        let words = || core.runner(runner).and_then(|view| view.message);
        let lost = lost.or_else(|| if is_there { None } else { words() });
        self.saw(RunEventKind::AttemptEnded { attempt, lost });
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

fn noticed(notice: CoreEvent) -> RunEventKind {
    match notice {
        CoreEvent::Retried { batch, task, run, kind, message } => {
            RunEventKind::RunRetried { key: batch, task, run, kind, message }
        }
        CoreEvent::Over { batch, task, run, how } => {
            RunEventKind::RunEnded { key: batch, task, run, how }
        }
        CoreEvent::Ended { batch, task, status, dropped } => {
            RunEventKind::TaskEnded { key: batch, task, status, dropped }
        }
        CoreEvent::Batch { batch, state } => RunEventKind::BatchStateChanged { key: batch, state },
    }
}
