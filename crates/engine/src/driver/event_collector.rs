//! What the driver tells those who observe. Collected while a turn lasts, told once at its end, and
//! in the order in which the core decided it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use rollway_core::{
    Action, Answer, AttemptId, BatchId, BatchKey, BatchKind, BatchState, Core, Input, Notice,
    PayloadId, Report, Request, RequestId, RunOutcome, RunnerId, RunnerState, TaskId,
};

use crate::events::{self, Observers, Seen, What};
use crate::run_outcome::RunEnd;
use crate::task::Task;

/// How many things are remembered room for between two turns.
const ROOM: usize = 8 * 1024;

/// Collects what is seen, for others.
#[derive(Debug)]
pub(super) struct Watch {
    observers: Observers,
    seen: Vec<Seen>,
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
pub(super) struct Before {
    /// How many things were seen, and disbelieved, before what is seen only if it is believed.
    told: Option<(usize, u64)>,
    /// A runner that may have another state.
    runner: Option<RunnerId>,
    lost: Option<Arc<str>>,
    brings: Option<RequestId>,
}

impl Watch {
    pub(super) fn new(observers: Observers) -> Self {
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
        self.observers.tell(&self.seen);
        self.seen.clear();
        // Nothing large stays behind after an unusual turn.
        self.seen.shrink_to(ROOM);
    }

    fn saw(&mut self, what: What) {
        self.seen.push(Seen { at: self.at, what });
    }

    /// Tasks were taken in.
    pub(super) fn began(
        &mut self,
        batch: BatchId,
        key: BatchKey,
        kind: BatchKind,
        first: TaskId,
        tasks: &[Arc<Task>],
    ) {
        let tasks = tasks.iter().map(|task| (Arc::clone(&task.workflow), task.repeat_times));
        self.saw(What::BatchBegan { batch, key, kind, first, tasks: tasks.collect() });
    }

    /// Looks at an input before the core takes it in.
    pub(super) fn before(
        &mut self,
        core: &Core,
        input: &Input,
        payloads: &HashMap<PayloadId, Bytes>,
    ) -> Before {
        let mut before = Before::default();
        match input {
            Input::Reported { runner, report, .. } => {
                let told = || Some((self.seen.len(), core.counters().disbelieved.total()));
                match report {
                    // These leave a runner with what it was given.
                    Report::Alive | Report::Waits { .. } => {}
                    Report::AttemptBegan { attempt } => {
                        before.told = told();
                        self.saw(What::AttemptBegan { attempt: *attempt });
                    }
                    Report::RunFinished { attempt, run, outcome } => {
                        before.told = told();
                        let end = end_of(outcome, payloads);
                        self.saw(What::RunEnded { attempt: *attempt, run: *run, end });
                    }
                    Report::Lost { message, .. } => {
                        before.runner = Some(*runner);
                        before.lost = Some(Arc::clone(message));
                    }
                    Report::Ready { .. }
                    | Report::StartFailed { .. }
                    | Report::AttemptEnded { .. } => before.runner = Some(*runner),
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
        before: Before,
        core: &mut Core,
        actions: &[Action],
        arriving: &HashMap<RequestId, Vec<Arc<Task>>>,
    ) {
        let Before { told, runner, lost, brings } = before;
        if let Some((seen, disbelieved)) = told
            && core.counters().disbelieved.total() != disbelieved
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
        seen.extend(core.noticed().map(|notice| Seen { at, what: noticed(notice) }));
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
            Action::Answer { request: asked, answer } if *asked == request => Some(answer),
            _ => None,
        });
        let (key, first) = match answer {
            Some(Answer::Scheduled { batch: Some(key), first }) => {
                self.collected.insert(*key);
                (*key, *first)
            }
            Some(Answer::Submitted { batch }) => (*batch, TaskId(0)),
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
                self.saw(What::AttemptGiven {
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
                self.saw(What::AttemptCancelled { attempt: *attempt, reason: *reason });
            }
            Action::StopRunner { runner, .. } => self.settle(*runner, core, None),
            Action::DropPayload { payload, reason } => {
                self.saw(What::PayloadDropped { bytes: payload.bytes, reason: *reason });
            }
            Action::ForgetTasks { batch } => {
                if self.collected.remove(batch) {
                    self.saw(What::BatchIs { key: *batch, state: BatchState::Finalized });
                }
            }
            Action::StartRunner { .. }
            | Action::Deliver { .. }
            | Action::Answer { .. }
            | Action::Record(_) => {}
        }
    }

    /// Tells whether a runner has begun to rest because it does not start, or is there again.
    fn mend(&mut self, runner: RunnerId, core: &Core) {
        match core.runner_state(runner) {
            Some(RunnerState::Broken) if self.broken.insert(runner) => {
                let message = core.runner(runner).and_then(|view| view.message);
                let message = message.unwrap_or_else(|| "no message".into());
                self.saw(What::RunnerBroken { runner, message });
            }
            Some(RunnerState::Idle) if !self.broken.is_empty() && self.broken.remove(&runner) => {
                self.saw(What::RunnerReady { runner });
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
        self.saw(What::AttemptEnded { attempt, lost });
    }
}

fn end_of(outcome: &RunOutcome, payloads: &HashMap<PayloadId, Bytes>) -> RunEnd {
    match outcome {
        RunOutcome::Succeeded { payload, metrics } => {
            let payload = payload.and_then(|payload| payloads.get(&payload.id).cloned());
            RunEnd::Succeeded { payload, metrics: metrics.clone() }
        }
        RunOutcome::Failed { kind, message } => {
            RunEnd::Failed { kind: *kind, message: Arc::clone(message) }
        }
    }
}

fn noticed(notice: Notice) -> What {
    match notice {
        Notice::Retried { batch, task, run, kind, message } => {
            What::RunRetried { key: batch, task, run, kind, message }
        }
        Notice::Over { batch, task, run, how } => What::RunOver { key: batch, task, run, how },
        Notice::Ended { batch, task, status, dropped } => {
            What::TaskEnded { key: batch, task, status, dropped }
        }
        Notice::Batch { batch, state } => What::BatchIs { key: batch, state },
    }
}
