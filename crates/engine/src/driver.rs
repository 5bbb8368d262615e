//! The one owner of the core: takes in what happens, in batches, and performs what is ordered.
//!
//! Requests come from cheap handles. The driver decides nothing and waits for nothing: what takes
//! time (sinks, runners) is spawned or queued.

mod event_collector;
mod inbox;
mod returns;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant as Moment;

use bytes::Bytes;
use rollway_core::metrics::Metrics;
use rollway_core::{
    Action, AttemptId, BatchId, BatchKey, BatchResult, BatchType, Core, DeliveryOutcome,
    IgnoreReason, Incarnation, Input, LeaseId, LedgerRecord, Payload, PayloadId, Request,
    RequestId, Response, RunId, RunnerId, TaskId, TaskResult, TaskSpec, Time, WorkflowId,
};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use self::event_collector::EventCollector;
use self::inbox::WeakInbox;
pub(crate) use self::returns::ReturnQueue;
use crate::error::{Error, Result};
use crate::events::RunObservers;
use crate::ledger_bridge::{LedgerBridge, RestoredCoreBatch};
use crate::loop_lag::LoopLagMeter;
use crate::run::{RunFailure, RunnerReport};
use crate::sink::{BatchDelivery, Sink, TaskPayloads};
use crate::task::Task;
use crate::workers::{
    AttemptSpec, Reporter, RunnerBackend, RunnerCommand, RunnerInbox, RunnerMessage,
};

/// How many messages are taken in before the orders they led to are performed.
const BATCH: usize = 1024;

/// What the driver is told.
pub(crate) enum DriverMessage {
    /// Somebody asks; `tasks` belong to a request that brings work.
    Request {
        at: Moment,
        request: RequestId,
        what: Request,
        tasks: Vec<Arc<Task>>,
        reply: oneshot::Sender<Result<DriverResponse>>,
    },
    /// Reports of a runner.
    Runner(RunnerMessage),
    /// Somebody wants to look.
    Inspect(Box<dyn FnOnce(&Core) + Send>),
    /// Somebody wants to see everything from now on.
    AddObservers(RunObservers),
    /// The model has another version.
    SetModelVersion { version: u64, reply: oneshot::Sender<Result<()>> },
}

/// An answer, with the bytes that belong to it.
#[derive(Debug)]
pub(crate) struct DriverResponse {
    pub(crate) answer: Response,
    /// For results that were collected: the payloads, in order. Returned unless it is taken.
    pub(crate) payloads: Vec<Vec<Bytes>>,
    pub(crate) lease: Option<LeaseGuard>,
}

/// Collected results that somebody is about to receive. Dropped without being taken, they can be
/// collected again.
#[derive(Debug)]
pub(crate) struct LeaseGuard {
    lease: Option<LeaseId>,
    returns: Arc<ReturnQueue>,
}

impl LeaseGuard {
    /// The results have arrived.
    pub(crate) fn take(mut self) {
        if let Some(lease) = self.lease.take() {
            self.returns
                .delivered(lease, DeliveryOutcome::Acknowledged { metrics: Metrics::new() });
        }
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            let message = "whoever collected was gone".into();
            self.returns.delivered(lease, DeliveryOutcome::Failed { message });
        }
    }
}

pub(crate) struct Driver<W> {
    core: Core,
    workers: W,
    sink: Option<Arc<dyn Sink>>,
    durable: Option<LedgerBridge>,
    /// Whether there was a ledger that has been closed.
    over: bool,
    /// A batch that the core has just taken in: its answer has the tasks.
    submitted: Option<LedgerRecord>,
    inbox: mpsc::Receiver<DriverMessage>,
    reports: Arc<dyn RunnerInbox>,
    returns: Arc<ReturnQueue>,
    origin: Instant,
    actions: Vec<Action>,
    replies: HashMap<RequestId, oneshot::Sender<Result<DriverResponse>>>,
    arriving: HashMap<RequestId, Vec<Arc<Task>>>,
    tasks: BTreeMap<BatchKey, (BatchId, BatchType, Vec<Arc<Task>>)>,
    payloads: HashMap<PayloadId, Bytes>,
    next_payload: u64,
    workflows: HashMap<Arc<str>, WorkflowId>,
    runners: HashMap<RunnerId, Incarnation>,
    /// None: nobody observes.
    watch: Option<Box<EventCollector>>,
    lag: LoopLagMeter,
    /// When what is applied in this turn arrived.
    arrived: Vec<Moment>,
}

impl<W: RunnerBackend> Driver<W> {
    pub(crate) fn new(
        core: Core,
        workers: W,
        sink: Option<Arc<dyn Sink>>,
        durable: Option<LedgerBridge>,
        (sender, inbox): (mpsc::WeakSender<DriverMessage>, mpsc::Receiver<DriverMessage>),
        returns: Arc<ReturnQueue>,
    ) -> Self {
        Self {
            core,
            workers,
            sink,
            durable,
            over: false,
            submitted: None,
            inbox,
            reports: Arc::new(WeakInbox(sender)),
            returns,
            origin: Instant::now(),
            actions: Vec::new(),
            replies: HashMap::new(),
            arriving: HashMap::new(),
            tasks: BTreeMap::new(),
            payloads: HashMap::new(),
            next_payload: 0,
            workflows: HashMap::new(),
            runners: HashMap::new(),
            watch: None,
            lag: LoopLagMeter::default(),
            arrived: Vec::with_capacity(BATCH),
        }
    }

    /// Returns the instant that the core calls zero.
    pub(crate) const fn origin(&self) -> Instant {
        self.origin
    }

    /// Returns how late this driver is, for as long as it lasts.
    pub(crate) fn lag(&self) -> LoopLagMeter {
        self.lag.clone()
    }

    /// Takes up what a ledger holds.
    ///
    /// # Errors
    /// If the core finds that it contradicts itself.
    pub(crate) fn restore(
        &mut self,
        survivors: Vec<RestoredCoreBatch>,
        results: Vec<Arc<BatchResult>>,
    ) -> std::result::Result<(), String> {
        for result in results {
            self.apply(Time::ZERO, Input::Restore(LedgerRecord::Closed(result)));
        }
        for survivor in survivors {
            let (key, id) = (survivor.batch.key, survivor.batch.batch.clone());
            let (kind, tasks) = (survivor.batch.kind, survivor.tasks.clone());
            let specs = self.specs(&tasks);
            self.tasks.insert(key, (id, kind, tasks));
            let (mut payloads, mut next) = (std::mem::take(&mut self.payloads), self.next_payload);
            let mut facts = Vec::new();
            facts.extend(survivor.restore_inputs(specs, |bytes| {
                let payload = Payload { id: PayloadId(next), bytes: bytes.len() as u64 };
                next += 1;
                payloads.insert(payload.id, bytes);
                payload
            }));
            (self.payloads, self.next_payload) = (payloads, next);
            for fact in facts {
                self.apply(Time::ZERO, Input::Restore(fact));
            }
        }
        match self.core.counters().ignored_reports[IgnoreReason::Contradiction] {
            0 => Ok(()),
            count => Err(format!("{count} of its records contradict others")),
        }
    }

    /// Drives the core until every handle is gone; then no runner is left behind.
    pub(crate) async fn run(mut self) {
        let mut messages = Vec::with_capacity(BATCH);
        loop {
            let deadline = self.core.next_deadline().map(|deadline| deadline.at);
            let deadline = deadline.map(|at| self.origin + at.since(Time::ZERO));
            let due = async {
                match deadline {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                count = self.inbox.recv_many(&mut messages, BATCH) => {
                    if count == 0 {
                        break;
                    }
                }
                () = self.returns.wait() => {}
                () = due => {}
            }
            let began = Moment::now();
            self.lag.begin(began);
            let now = Time::ZERO.after(self.origin.elapsed());
            self.watch.iter_mut().for_each(|watch| watch.turn());
            self.take_returns(now);
            for message in messages.drain(..) {
                self.take(now, message);
            }
            // Facts come before time: a result that has arrived is not beaten by its deadline.
            if self.core.next_deadline().is_some_and(|deadline| deadline.at <= now) {
                self.apply(now, Input::TimePassed);
            }
            // Before anybody can act on it: who sees a call has seen its attempt.
            self.watch.iter_mut().for_each(|watch| watch.tell());
            self.perform(now);
            self.watch.iter_mut().for_each(|watch| watch.tell());
            self.lag.end(began, Moment::now(), &mut self.arrived);
        }
        for (runner, life) in std::mem::take(&mut self.runners) {
            self.workers.stop(runner, life);
        }
    }

    fn apply(&mut self, now: Time, input: Input) {
        let Some(watch) = &mut self.watch else {
            return self.core.apply(now, input, &mut self.actions);
        };
        let from = self.actions.len();
        let before = watch.before(&self.core, &input, &self.payloads);
        self.core.apply(now, input, &mut self.actions);
        watch.after(before, &mut self.core, &self.actions[from..], &self.arriving);
    }

    /// Has everything told from now on, beginning with what there is.
    fn observe(&mut self, observers: RunObservers) {
        if observers.is_empty() {
            return;
        }
        self.core.enable_events();
        let watch = self.watch.insert(Box::new(EventCollector::new(observers)));
        for (key, (id, kind, tasks)) in &self.tasks {
            watch.began(id.clone(), *key, *kind, TaskId(0), tasks);
        }
        watch.noticed(&mut self.core);
    }

    fn take_returns(&mut self, now: Time) {
        for input in self.returns.take() {
            if let Input::RequestAbandoned { request } = &input {
                self.replies.remove(request);
            }
            self.apply(now, input);
        }
    }

    fn take(&mut self, now: Time, message: DriverMessage) {
        match message {
            DriverMessage::Request { at, request, mut what, tasks, reply } => {
                self.arrived.push(at);
                if let (Some(durable), Request::Submit { batch, .. }) = (&self.durable, &what)
                    && let Err(error) = durable.admits(batch, &tasks)
                {
                    let _ = reply.send(Err(Error::Ledger(error.to_string())));
                    return;
                }
                if let (Some(durable), Request::Stop { .. }) = (&mut self.durable, &what) {
                    durable.stop();
                }
                if self.over && matches!(what, Request::Start | Request::Submit { .. }) {
                    let message = "it was closed by a shutdown; make another coordinator";
                    let _ = reply.send(Err(Error::Ledger(message.into())));
                    return;
                }
                self.fill_tasks(&mut what, &tasks);
                if !tasks.is_empty() {
                    self.arriving.insert(request, tasks);
                }
                self.replies.insert(request, reply);
                self.apply(now, Input::Requested { request, what });
            }
            DriverMessage::Runner(RunnerMessage { at, runner, life, reports }) => {
                self.arrived.push(at);
                for said in reports {
                    if let RunnerReport::RunFinished {
                        attempt: AttemptId(attempt),
                        run: RunId(run),
                        outcome: end,
                    } = &said
                        && let Err(RunFailure { kind, message }) = end
                    {
                        let (runner, failure) = (runner.0, kind.name());
                        tracing::debug!(attempt, run, runner, failure, "a run failed: {message}");
                    }
                    self.workers.on_report(runner, life, &said);
                    let report = self.store_payload(said);
                    self.apply(now, Input::Report { runner, life, report });
                }
            }
            DriverMessage::Inspect(look) => look(&self.core),
            DriverMessage::AddObservers(observers) => self.observe(observers),
            DriverMessage::SetModelVersion { version, reply } => match &self.durable {
                Some(durable) => durable.version(version, reply),
                None => drop(reply.send(Ok(()))),
            },
        }
    }

    /// Tells the core what it needs to know of the tasks that come with a request.
    fn fill_tasks(&mut self, what: &mut Request, tasks: &[Arc<Task>]) {
        if let Request::Schedule { tasks: specs, .. } | Request::Submit { tasks: specs, .. } = what
        {
            *specs = self.specs(tasks);
        }
    }

    fn specs(&mut self, tasks: &[Arc<Task>]) -> Vec<TaskSpec> {
        let specs = tasks.iter().map(|task| {
            let next = WorkflowId(self.workflows.len() as u32);
            let workflow = match self.workflows.get(&task.workflow) {
                Some(known) => *known,
                None => *self.workflows.entry(Arc::clone(&task.workflow)).or_insert(next),
            };
            TaskSpec { repeat_times: task.repeat_times, workflow }
        });
        specs.collect()
    }

    /// Stores the payload of a report and returns the report with the payload's id.
    fn store_payload(&mut self, report: RunnerReport) -> rollway_core::RunnerReport {
        report.map_payload(|bytes| {
            let id = PayloadId(self.next_payload);
            self.next_payload += 1;
            let payload = Payload { id, bytes: bytes.len() as u64 };
            self.payloads.insert(id, bytes);
            payload
        })
    }

    /// Performs what was ordered, in order. That a runner cannot be told is reported to the core,
    /// which may order more.
    fn perform(&mut self, now: Time) {
        while !self.actions.is_empty() {
            let mut broken = Vec::new();
            for action in std::mem::take(&mut self.actions) {
                if let Some(lost) = self.perform_one(action) {
                    broken.push(lost);
                }
            }
            for (runner, life) in broken {
                let message = "does not take commands".into();
                let report = rollway_core::RunnerReport::Lost { message, suspect: false };
                self.apply(now, Input::Report { runner, life, report });
            }
        }
    }

    /// Returns the runner that could not be told, if there is one.
    fn perform_one(&mut self, action: Action) -> Option<(RunnerId, Incarnation)> {
        match action {
            Action::StartRunner { runner, life } => self.start_runner(runner, life),
            Action::StopRunner { runner, life } => {
                self.runners.remove(&runner);
                self.workers.stop(runner, life);
            }
            Action::StartAttempt {
                runner,
                life,
                attempt,
                batch,
                task,
                runs,
                timeout,
                suspected_losses: kills,
            } => {
                let (id, kind, tasks) = self.tasks.get(&batch)?;
                tracing::debug!(
                    batch = %id, task = task.0, run = runs.first, runs = runs.count,
                    attempt = attempt.0, runner = runner.0, "an attempt is given to a runner"
                );
                let attempt = AttemptSpec {
                    id: attempt,
                    batch: id.clone(),
                    kind: *kind,
                    task_id: task,
                    task: Arc::clone(&tasks[task.0 as usize]),
                    runs,
                    timeout,
                    kills,
                    models: None,
                };
                return self.command(runner, life, RunnerCommand::Start(Box::new(attempt)));
            }
            Action::CancelAttempt { runner, life, attempt, reason } => {
                return self.command(runner, life, RunnerCommand::Cancel { attempt, reason });
            }
            Action::DropPayload { payload, reason } => {
                tracing::trace!(payload = payload.id.0, %reason, "payload dropped");
                self.payloads.remove(&payload.id);
            }
            Action::ReleasePayloads(payloads) => {
                for payload in payloads {
                    self.payloads.remove(&payload);
                }
            }
            Action::Deliver { lease, batch, results } => self.deliver(lease, batch, results),
            Action::Respond { request, answer } => self.answer(request, answer),
            // No ledger is kept here, and the core is not asked for records.
            Action::AppendRecord(record @ LedgerRecord::Submitted { .. }) => {
                self.submitted = Some(record)
            }
            Action::AppendRecord(record) => {
                if let Some(durable) = &self.durable {
                    durable.append_record(record, &self.payloads);
                }
            }
            Action::DropTasks { batch } => {
                self.tasks.remove(&batch);
            }
        }
        None
    }

    fn start_runner(&mut self, runner: RunnerId, life: Incarnation) {
        tracing::debug!(%runner, %life, "runner starts");
        self.runners.insert(runner, life);
        self.workers.start(Reporter::new(runner, life, Arc::clone(&self.reports)));
    }

    fn command(
        &mut self,
        runner: RunnerId,
        life: Incarnation,
        command: RunnerCommand,
    ) -> Option<(RunnerId, Incarnation)> {
        let heard = self.workers.send(runner, life, command);
        (!heard).then_some((runner, life))
    }

    fn answer(&mut self, request: RequestId, answer: Response) {
        let tasks = self.arriving.remove(&request);
        let mut lease = None;
        let mut payloads = Vec::new();
        match &answer {
            Response::Scheduled { batch: Some(key), .. } | Response::Submitted { batch: key } => {
                if let (Some(tasks), Some(view)) = (tasks, self.core.batch_by_key(*key)) {
                    let entry = self.tasks.entry(*key);
                    let fresh = || (view.batch, view.kind, Vec::new());
                    entry.or_insert_with(fresh).2.extend(tasks);
                }
            }
            Response::Collected(collected) => {
                payloads = collected.results.iter().map(|result| self.bytes_of(result)).collect();
                let returns = Arc::clone(&self.returns);
                lease = collected.lease.map(|lease| LeaseGuard { lease: Some(lease), returns });
            }
            _ => {}
        }
        if let Some(submitted) = self.submitted.take()
            && let Some(durable) = &self.durable
        {
            let tasks = self.tasks.get(&submitted.batch()).map_or(&[][..], |(_, _, tasks)| tasks);
            durable.submitted(&submitted, tasks);
        }
        // Whoever asked may be gone: then the guard gives results back.
        if let Some(reply) = self.replies.remove(&request) {
            let words = DriverResponse { answer, payloads, lease };
            if let Response::Stopped(_) = words.answer {
                return self.stopped(reply, words);
            }
            self.once_safe(move |safe| {
                let _ = reply.send(safe.map(|()| words).map_err(unsafe_yet));
            });
        }
    }

    /// Answers a stop: when the ledger is closed, and workers that came by themselves are gone.
    fn stopped(&mut self, reply: oneshot::Sender<Result<DriverResponse>>, words: DriverResponse) {
        let (farewell, runtime) = (self.workers.shut_down_workers(), Handle::current());
        let tell = move |safe: std::result::Result<(), Arc<str>>| {
            let answer = safe.map(|()| words).map_err(unsafe_yet);
            match farewell {
                Some(farewell) => drop(runtime.spawn(async move {
                    farewell.await;
                    let _ = reply.send(answer);
                })),
                None => drop(reply.send(answer)),
            }
        };
        match self.durable.take() {
            Some(durable) => {
                self.over = true;
                durable.close(tell);
            }
            None => tell(Ok(())),
        }
    }

    /// Does what others will rely on: not before it is safe in the ledger, if there is one.
    fn once_safe(&self, then: impl FnOnce(std::result::Result<(), Arc<str>>) + Send + 'static) {
        match &self.durable {
            Some(durable) => durable.when_durable(then),
            None => then(Ok(())),
        }
    }

    fn bytes_of(&self, result: &TaskResult) -> Vec<Bytes> {
        result
            .payloads
            .iter()
            .filter_map(|payload| self.payloads.get(&payload.id).cloned())
            .collect()
    }

    fn deliver(&mut self, lease: LeaseId, key: BatchKey, results: Vec<TaskResult>) {
        let returns = Arc::clone(&self.returns);
        let Some(sink) = self.sink.clone() else {
            let message = "there is no sink".into();
            return returns.delivered(lease, DeliveryOutcome::Failed { message });
        };
        let batch = self.core.batch_by_key(key).map_or_else(|| "".into(), |view| view.batch);
        let results = results.iter().map(|result| TaskPayloads {
            task_id: result.task,
            status: Arc::clone(&result.status),
            payloads: self.bytes_of(result),
        });
        let parcel = BatchDelivery { batch, key, results: results.collect() };
        let runtime = Handle::current();
        self.once_safe(move |safe| {
            if let Err(message) = safe {
                return returns.delivered(lease, DeliveryOutcome::Failed { message });
            }
            runtime.spawn(async move {
                // A sink that panics has not acknowledged anything.
                let stored = tokio::spawn(async move { sink.deliver(parcel).await }).await;
                let delivery = match stored {
                    Ok(Ok(metrics)) => DeliveryOutcome::Acknowledged { metrics },
                    Ok(Err(message)) => DeliveryOutcome::Failed { message: message.into() },
                    Err(error) => DeliveryOutcome::Failed { message: error.to_string().into() },
                };
                returns.delivered(lease, delivery);
            });
        });
    }
}

fn unsafe_yet(message: Arc<str>) -> Error {
    Error::Ledger(format!("{message}; nothing is lost, ask again"))
}
