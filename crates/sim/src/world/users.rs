//! Users of the core: their requests, and their reactions to responses.

mod coordinator;
mod operator;
mod scheduler;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rollway_core::{
    BatchId, BatchKey, BatchType, Input, Refusal, Request, RequestId, Response, RunId, TaskId,
    TaskSpec, UnresponsivePolicy, WorkflowId,
};

use crate::faults::Fault;
use crate::reference_model::{AttemptState, ModelBatch};
use crate::world::{SimWorld, WorldEvent};

#[derive(Debug, Default)]
pub(crate) struct Users {
    list: Vec<User>,
    /// User of each request. `None`: the world itself.
    asked: BTreeMap<RequestId, Option<usize>>,
    /// Every id that was ever used.
    names: Vec<BatchId>,
    /// Batches that cannot be finalized, known to the world itself.
    pub(crate) unfinalizable: BTreeSet<BatchKey>,
    /// Requests of users without a response.
    unanswered: BTreeMap<RequestId, (usize, Request)>,
    /// Requests that were sent anew after a crash.
    resubmitted: BTreeSet<RequestId>,
    next_request: u64,
    next_step: i64,
}

#[derive(Debug)]
pub(crate) struct User {
    role: Role,
    /// Remaining requests.
    left: u32,
    own: Vec<OwnBatch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Coordinator,
    Scheduler,
    /// Sends requests about any batch.
    Meddler,
    /// Stops, starts and waits.
    Operator,
}

/// A batch that a user expects to own.
#[derive(Clone, Debug)]
struct OwnBatch {
    id: BatchId,
    kind: BatchType,
    tries: u32,
}

enum NextUserAction {
    Ask(Request),
    Think,
}

impl SimWorld {
    pub(crate) fn open_users(&mut self) {
        let shape = self.shape.clone();
        let roles = [
            (Role::Coordinator, shape.coordinators),
            (Role::Scheduler, shape.schedulers),
            (Role::Meddler, shape.meddlers),
            (Role::Operator, shape.operators),
        ];
        for (role, count) in roles {
            for _ in 0..count {
                let user = self.users.list.len();
                let left = self.rng.small(1, shape.requests);
                self.users.list.push(User { role, left, own: Vec::new() });
                let wait = self.rng.spread(Duration::from_millis(1), shape.think);
                self.plan(wait, WorldEvent::Wake(user));
            }
        }
        if !self.rng.percent(10) {
            self.send_world_request(Request::Start);
        }
    }

    /// Lets a user act.
    pub(crate) fn wake_user(&mut self, user: usize) {
        if self.faults_ended {
            return;
        }
        if self.users.list[user].left == 0 {
            if self.users_done() {
                self.end_faults();
            }
            return;
        }
        self.users.list[user].left -= 1;
        let next = match self.users.list[user].role {
            Role::Coordinator => self.coordinate(user),
            Role::Scheduler => self.schedule(user),
            Role::Meddler => self.disturb_other_user(),
            Role::Operator => self.operate(),
        };
        match next {
            NextUserAction::Ask(what) => self.send_request(Some(user), what),
            NextUserAction::Think => self.plan_next_request(user),
        }
    }

    fn plan_next_request(&mut self, user: usize) {
        let wait = self.rng.heavy(self.shape.think);
        self.plan(wait, WorldEvent::Wake(user));
    }

    /// Sends a request of the world itself.
    pub(crate) fn send_world_request(&mut self, what: Request) {
        self.send_request(None, what);
    }

    pub(crate) fn send_request(&mut self, user: Option<usize>, what: Request) {
        let request = RequestId(self.users.next_request);
        self.users.next_request += 1;
        self.users.asked.insert(request, user);
        if let Some(user) = user {
            self.users.unanswered.insert(request, (user, what.clone()));
        }
        if let Some(batch) = name(&what)
            && !self.users.names.contains(batch)
        {
            self.users.names.push(batch.clone());
        }
        if user.is_some() && self.strikes(Fault::Withdrawal) {
            let wait = self.rng.heavy(self.shape.run);
            self.plan(wait, WorldEvent::Withdraw(request));
        }
        if self.strikes(Fault::AskedTwice) {
            let wait = self.rng.spread(self.shape.latency, self.shape.run);
            self.plan(wait, WorldEvent::AskAgain(request));
        }
        self.step(Input::Requested { request, what });
    }

    /// Withdraws a request; its user continues with another one.
    pub(crate) fn withdraw(&mut self, request: RequestId) {
        let open = self.model.open.contains_key(&request);
        self.step(Input::RequestAbandoned { request });
        if let Some(Some(user)) = self.users.asked.get(&request).copied()
            && open
        {
            self.users.unanswered.remove(&request);
            self.plan_next_request(user);
        }
    }

    /// Sends open requests anew to the restarted coordinator.
    pub(crate) fn users_begin_anew(&mut self) {
        for (user, what) in std::mem::take(&mut self.users.unanswered).into_values() {
            let wait = self.rng.spread(self.shape.latency, self.shape.think);
            self.plan(wait, WorldEvent::AskAnew(user, what));
        }
    }

    pub(crate) fn resubmit(&mut self, user: usize, what: Request) {
        if !self.faults_ended {
            // Its id is known before the response, which may come at once.
            self.users.resubmitted.insert(RequestId(self.users.next_request));
            self.send_request(Some(user), what);
        }
    }

    pub(crate) fn repeat_request(&mut self, request: RequestId) {
        if self.model.open.contains_key(&request)
            && let Some(asked) = self.model.requests.get(&request)
        {
            let what = asked.what.clone();
            self.step(Input::Requested { request, what });
        }
    }

    pub(crate) fn on_response(&mut self, request: RequestId, answer: &Response) {
        self.users.unanswered.remove(&request);
        let Some(asked) = self.model.requests.get(&request) else { return };
        let what = asked.what.clone();
        let Some(Some(user)) = self.users.asked.get(&request).copied() else {
            return self.note_unfinalizable(&what, answer);
        };
        match self.users.list[user].role {
            Role::Coordinator => {
                let resubmitted = self.users.resubmitted.contains(&request);
                self.users.list[user].apply_coordinator_response(&what, answer, resubmitted);
            }
            Role::Scheduler => self.users.list[user].apply_scheduler_response(&what, answer),
            Role::Meddler | Role::Operator => {}
        }
        self.plan_next_request(user);
    }

    /// Remembers batches that cannot be finalized.
    fn note_unfinalizable(&mut self, what: &Request, answer: &Response) {
        let Request::Finalize { batch, .. } = what else { return };
        let Response::Refused(refusal) = answer else { return };
        let is_retryable = matches!(
            refusal,
            Refusal::TimedOut { .. } | Refusal::SinkFailed { .. } | Refusal::Limit { .. }
        );
        if let Some(key) = self.model.active.get(batch)
            && !is_retryable
        {
            self.users.unfinalizable.insert(*key);
        }
    }

    /// Returns whether no user has further requests.
    fn users_done(&self) -> bool {
        let answered = self.model.open.is_empty() && self.users.unanswered.is_empty();
        answered && self.users.list.iter().all(|user| user.left == 0)
    }

    fn tasks(&mut self) -> Vec<TaskSpec> {
        let count = if self.rng.percent(4) { 0 } else { self.rng.small(1, self.shape.tasks) };
        let mut tasks = Vec::new();
        for _ in 0..count {
            let fewest = u32::from(!self.rng.percent(1));
            let repeat_times = self.rng.small(fewest, self.shape.repeats);
            tasks.push(TaskSpec { repeat_times, workflow: WorkflowId(self.rng.small(0, 2)) });
        }
        tasks
    }

    fn kind(&mut self) -> BatchType {
        if self.rng.percent(75) { BatchType::Train } else { BatchType::Eval }
    }

    /// Returns an id for a batch: usually the next one, sometimes a used one.
    fn new_name(&mut self, kind: BatchType) -> BatchId {
        if self.rng.percent(10) && !self.users.names.is_empty() {
            return self.rng.pick(&self.users.names).clone();
        }
        let step = self.users.next_step;
        match (kind, self.rng.below(10)) {
            (_, 0) => BatchId::from(format!("side-{step}").as_str()),
            (BatchType::Eval, _) => BatchId::from(format!("{step}/eval").as_str()),
            (BatchType::Train, 1) => BatchId::from(format!("{step}").as_str()),
            (BatchType::Train, _) => {
                self.users.next_step += 1;
                BatchId::from(step)
            }
        }
    }

    fn wait_timeout(&mut self) -> Option<Duration> {
        match self.rng.below(10) {
            0..5 => None,
            5 => Some(Duration::ZERO),
            _ => Some(self.rng.spread(self.shape.run, self.model.config.max_timeout * 3)),
        }
    }

    fn some_of(&mut self, most: u32) -> Option<u32> {
        self.rng.percent(40).then(|| self.rng.small(0, most + 1))
    }

    /// Cancels a run: usually one in execution, otherwise any.
    fn cancel_one(&mut self) -> Request {
        let model = &self.model;
        let under_way = model.attempts.values().filter_map(|attempt| {
            let batch = model.batches.get(&attempt.batch)?;
            let given = attempt.state != AttemptState::Over && !batch.forgotten;
            given.then(|| (batch.id.clone(), attempt.task, attempt.outstanding.clone()))
        });
        let mut aims: Vec<_> = under_way.filter(|(.., runs)| !runs.is_empty()).collect();
        if aims.is_empty() || self.rng.percent(30) {
            let tasks = |batch: &ModelBatch| (0..batch.tasks.len() as u32).map(TaskId);
            let runs = |task: TaskId, batch: &ModelBatch| {
                (0..batch.tasks[task.0 as usize].runs.len() as u32).collect::<Vec<_>>()
            };
            aims = (self.model.active.values())
                .filter_map(|key| self.model.batches.get(key))
                .flat_map(|batch| {
                    tasks(batch).map(move |task| (batch.id.clone(), task, runs(task, batch)))
                })
                .collect();
        }
        if aims.is_empty() {
            return Request::CancelRun { batch: "unknown".into(), task: TaskId(0), run: RunId(0) };
        }
        let (batch, task, runs) = self.rng.pick(&aims).clone();
        let run = if runs.is_empty() { 0 } else { *self.rng.pick(&runs) };
        Request::CancelRun { batch, task, run: RunId(run) }
    }

    fn abort(&mut self, batch: BatchId) -> Request {
        let unresponsive = *self.rng.pick(&[UnresponsivePolicy::Replace, UnresponsivePolicy::Wait]);
        Request::Abort {
            batch,
            reason: self.message("changed my mind"),
            keep_partial_results: self.rng.percent(50),
            unresponsive,
        }
    }
}

fn name(what: &Request) -> Option<&BatchId> {
    match what {
        Request::Schedule { batch, .. } | Request::Submit { batch, .. } => Some(batch),
        _ => None,
    }
}
