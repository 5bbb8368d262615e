//! The sole owner of a core: applies inputs in batches and performs the actions that result.
//!
//! Decides nothing and never blocks: slow work (sinks, runners) is spawned or queued.

mod event_collector;
mod inbox;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant as Moment;

use bytes::Bytes;
use rollway_core::metrics::Metrics;
use rollway_core::{
    Action, BatchId, BatchKey, BatchResult, BatchType, Core, DeliveryOutcome, IgnoreReason,
    Incarnation, Input, LeaseId, LedgerRecord, Payload, PayloadId, Request, RequestId, Response,
    RunnerId, Suspicion, TaskId, TaskResult, TaskSpec, Time, WorkflowId,
};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use self::event_collector::EventCollector;
pub(crate) use self::inbox::ReturnQueue;
use self::inbox::WeakInbox;
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

/// Maximum number of messages per turn.
const BATCH: usize = 1024;

type ReplySender = oneshot::Sender<Result<DriverResponse>>;

/// Outcome of syncing the ledger, or its error message.
type Synced = std::result::Result<(), Arc<str>>;

/// Messages to the driver task.
pub(crate) enum DriverMessage {
    /// `tasks`: those of a request that adds work.
    Request {
        at: Moment,
        id: RequestId,
        request: Request,
        tasks: Vec<Arc<Task>>,
        reply: ReplySender,
    },
    Runner(RunnerMessage),
    /// Runs a read-only closure on the core between two turns.
    Inspect(Box<dyn FnOnce(&Core) + Send>),
    /// Runs a read-only closure on the core, the tasks and the payloads between two turns.
    InspectTasks(Box<dyn FnOnce(DriverTasks<'_>) + Send>),
    AddObservers(RunObservers),
    SetModelVersion {
        version: u64,
        reply: oneshot::Sender<Result<()>>,
    },
}

/// Tasks and payloads by the ids of the core.
#[derive(Clone, Copy)]
pub(crate) struct DriverTasks<'a> {
    pub(crate) core: &'a Core,
    pub(crate) tasks: &'a BTreeMap<BatchKey, (BatchId, BatchType, Vec<Arc<Task>>)>,
    pub(crate) payloads: &'a HashMap<PayloadId, Bytes>,
}

/// A response of the core, with the bytes that belong to it.
#[derive(Debug)]
pub(crate) struct DriverResponse {
    pub(crate) response: Response,
    /// Payloads of collected results, in order.
    pub(crate) payloads: Vec<Vec<Bytes>>,
    pub(crate) lease: Option<LeaseGuard>,
}

/// Lease of collected results. Dropped without [`take`](Self::take), they can be collected again.
#[derive(Debug)]
pub(crate) struct LeaseGuard {
    lease: Option<LeaseId>,
    returns: Arc<ReturnQueue>,
}

impl LeaseGuard {
    /// Acknowledges the results.
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
            let message = "the collecting request was dropped".into();
            self.returns.delivered(lease, DeliveryOutcome::Failed { message });
        }
    }
}

pub(crate) struct Driver<W> {
    core: Core,
    workers: W,
    sink: Option<Arc<dyn Sink>>,
    ledger: Option<LedgerBridge>,
    /// A stop has closed the ledger.
    ledger_closed: bool,
    /// Record of an accepted batch, written with its tasks when the response is sent.
    submitted: Option<LedgerRecord>,
    inbox: mpsc::Receiver<DriverMessage>,
    reports: Arc<dyn RunnerInbox>,
    returns: Arc<ReturnQueue>,
    origin: Instant,
    actions: Vec<Action>,
    replies: HashMap<RequestId, ReplySender>,
    arriving: HashMap<RequestId, Vec<Arc<Task>>>,
    tasks: BTreeMap<BatchKey, (BatchId, BatchType, Vec<Arc<Task>>)>,
    payloads: PayloadStore,
    workflows: HashMap<Arc<str>, WorkflowId>,
    runners: HashMap<RunnerId, Incarnation>,
    events: Option<Box<EventCollector>>,
    lag: LoopLagMeter,
    /// Arrival times of the messages of this turn.
    arrived: Vec<Moment>,
}

impl<W: RunnerBackend> Driver<W> {
    pub(crate) fn new(
        core: Core,
        workers: W,
        sink: Option<Arc<dyn Sink>>,
        ledger: Option<LedgerBridge>,
        (sender, inbox): (mpsc::WeakSender<DriverMessage>, mpsc::Receiver<DriverMessage>),
        returns: Arc<ReturnQueue>,
    ) -> Self {
        Self {
            core,
            workers,
            sink,
            ledger,
            ledger_closed: false,
            submitted: None,
            inbox,
            reports: Arc::new(WeakInbox(sender)),
            returns,
            origin: Instant::now(),
            actions: Vec::new(),
            replies: HashMap::new(),
            arriving: HashMap::new(),
            tasks: BTreeMap::new(),
            payloads: PayloadStore::default(),
            workflows: HashMap::new(),
            runners: HashMap::new(),
            events: None,
            lag: LoopLagMeter::default(),
            arrived: Vec::with_capacity(BATCH),
        }
    }

    /// Returns the instant of the core's time zero.
    pub(crate) const fn origin(&self) -> Instant {
        self.origin
    }

    pub(crate) fn lag(&self) -> LoopLagMeter {
        self.lag.clone()
    }

    /// Restores the records of a ledger into the core.
    ///
    /// # Errors
    /// If records contradict each other.
    pub(crate) fn restore(
        &mut self,
        batches: Vec<RestoredCoreBatch>,
        results: Vec<Arc<BatchResult>>,
    ) -> std::result::Result<(), String> {
        for result in results {
            self.apply(Time::ZERO, Input::Restore(LedgerRecord::Closed(result)));
        }
        for restored in batches {
            let (key, id) = (restored.batch.key, restored.batch.batch.clone());
            let (kind, tasks) = (restored.batch.kind, restored.tasks.clone());
            let specs = self.specs(&tasks);
            self.tasks.insert(key, (id, kind, tasks));
            let payloads = &mut self.payloads;
            let records: Vec<_> = restored.records(specs, |bytes| payloads.insert(bytes)).collect();
            for record in records {
                self.apply(Time::ZERO, Input::Restore(record));
            }
        }
        match self.core.counters().ignored_reports[IgnoreReason::Contradiction] {
            0 => Ok(()),
            count => Err(format!("{count} of its records contradict others")),
        }
    }

    /// Drives the core until every handle is dropped, then stops all runners.
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
            self.events.iter_mut().for_each(|events| events.begin_turn());
            self.take_returns(now);
            for message in messages.drain(..) {
                self.take(now, message);
            }
            // After the messages: a result that has arrived wins over its deadline.
            if self.core.next_deadline().is_some_and(|deadline| deadline.at <= now) {
                self.apply(now, Input::TimePassed);
            }
            // Emitted before the actions: observers see an attempt before its model calls.
            self.events.iter_mut().for_each(|events| events.emit());
            self.perform(now);
            self.events.iter_mut().for_each(|events| events.emit());
            self.lag.end(began, Moment::now(), &mut self.arrived);
        }
        for (runner, incarnation) in std::mem::take(&mut self.runners) {
            self.workers.stop(runner, incarnation);
        }
    }

    fn apply(&mut self, now: Time, input: Input) {
        let Some(events) = &mut self.events else {
            return self.core.apply(now, input, &mut self.actions);
        };
        let from = self.actions.len();
        let before = events.before(&self.core, &input, &self.payloads.bytes);
        self.core.apply(now, input, &mut self.actions);
        events.after(before, &mut self.core, &self.actions[from..], &self.arriving);
    }

    /// Starts collecting events, beginning with the current batches.
    fn observe(&mut self, observers: RunObservers) {
        if observers.is_empty() {
            return;
        }
        self.core.enable_events();
        let events = self.events.insert(Box::new(EventCollector::new(observers)));
        for (key, (id, kind, tasks)) in &self.tasks {
            events.batch_began(id.clone(), *key, *kind, TaskId(0), tasks);
        }
        events.drain_core(&mut self.core);
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
            DriverMessage::Request { at, id, request, tasks, reply } => {
                self.arrived.push(at);
                if let Err(error) = self.check_ledger(&request, &tasks) {
                    let _ = reply.send(Err(Error::Ledger(error)));
                    return;
                }
                let what = self.with_specs(request, &tasks);
                if !tasks.is_empty() {
                    self.arriving.insert(id, tasks);
                }
                self.replies.insert(id, reply);
                self.apply(now, Input::Requested { request: id, what });
            }
            DriverMessage::Runner(RunnerMessage { at, runner, incarnation, reports }) => {
                self.arrived.push(at);
                for report in reports {
                    if let RunnerReport::RunFinished { attempt, run, outcome: Err(failure) } =
                        &report
                    {
                        let (RunFailure { kind, message }, runner) = (failure, runner.0);
                        let (attempt, run, failure) = (attempt.0, run.0, kind.name());
                        tracing::debug!(attempt, run, runner, failure, "run failed: {message}");
                    }
                    self.workers.on_report(runner, incarnation, &report);
                    let report = report.map_payload(|bytes| self.payloads.insert(bytes));
                    self.apply(now, Input::Report { runner, incarnation, report });
                }
            }
            DriverMessage::Inspect(inspect) => inspect(&self.core),
            DriverMessage::InspectTasks(inspect) => inspect(DriverTasks {
                core: &self.core,
                tasks: &self.tasks,
                payloads: &self.payloads.bytes,
            }),
            DriverMessage::AddObservers(observers) => self.observe(observers),
            DriverMessage::SetModelVersion { version, reply } => match &self.ledger {
                Some(ledger) => ledger.version(version, reply),
                None => drop(reply.send(Ok(()))),
            },
        }
    }

    /// Checks that the ledger can take a request, and prepares it for a stop.
    fn check_ledger(
        &mut self,
        request: &Request,
        tasks: &[Arc<Task>],
    ) -> std::result::Result<(), String> {
        match (request, &mut self.ledger) {
            (Request::Start | Request::Submit { .. }, _) if self.ledger_closed => {
                Err("it was closed by a shutdown; create a new coordinator".to_owned())
            }
            (Request::Submit { batch, .. }, Some(ledger)) => {
                ledger.admits(batch, tasks).map_err(|error| error.to_string())
            }
            (Request::Stop { .. }, Some(ledger)) => {
                ledger.stop();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Adds the specifications of the tasks that come with a request.
    fn with_specs(&mut self, mut request: Request, tasks: &[Arc<Task>]) -> Request {
        if let Request::Schedule { tasks: specs, .. } | Request::Submit { tasks: specs, .. } =
            &mut request
        {
            *specs = self.specs(tasks);
        }
        request
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

    /// Performs actions in order. A runner that takes no commands is reported to the core as lost,
    /// which may add actions.
    fn perform(&mut self, now: Time) {
        while !self.actions.is_empty() {
            let mut broken = Vec::new();
            for action in std::mem::take(&mut self.actions) {
                if let Some(lost) = self.perform_one(action) {
                    broken.push(lost);
                }
            }
            for (runner, incarnation) in broken {
                let message = "does not take commands".into();
                let report =
                    rollway_core::RunnerReport::Lost { message, suspicion: Suspicion::None };
                self.apply(now, Input::Report { runner, incarnation, report });
            }
        }
    }

    /// Returns the runner that did not take a command, if there is one.
    fn perform_one(&mut self, action: Action) -> Option<(RunnerId, Incarnation)> {
        match action {
            Action::StartRunner { runner, incarnation, isolated } => {
                self.start_runner(runner, incarnation, isolated);
            }
            Action::StopRunner { runner, incarnation } => {
                self.runners.remove(&runner);
                self.workers.stop(runner, incarnation);
            }
            Action::StartAttempt {
                runner,
                incarnation,
                attempt,
                batch,
                task,
                runs,
                timeout,
                suspected_losses,
            } => {
                let (id, kind, tasks) = self.tasks.get(&batch)?;
                tracing::debug!(
                    batch = %id, task = task.0, run = runs.first, runs = runs.count,
                    attempt = attempt.0, runner = runner.0, "attempt sent to a runner"
                );
                let attempt = AttemptSpec {
                    id: attempt,
                    batch: id.clone(),
                    kind: *kind,
                    task_id: task,
                    task: Arc::clone(&tasks[task.0 as usize]),
                    runs,
                    timeout,
                    suspected_losses,
                    models: None,
                };
                return self.command(runner, incarnation, RunnerCommand::Start(Box::new(attempt)));
            }
            Action::CancelAttempt { runner, incarnation, attempt, reason } => {
                return self.command(
                    runner,
                    incarnation,
                    RunnerCommand::Cancel { attempt, reason },
                );
            }
            Action::DropPayload { payload, reason } => {
                tracing::trace!(payload = payload.id.0, %reason, "payload dropped");
                self.payloads.bytes.remove(&payload.id);
            }
            Action::ReleasePayloads(payloads) => {
                for payload in payloads {
                    self.payloads.bytes.remove(&payload);
                }
            }
            Action::Deliver { lease, batch, results } => self.deliver(lease, batch, results),
            Action::Respond { request, answer } => self.respond(request, answer),
            Action::AppendRecord(record @ LedgerRecord::Submitted { .. }) => {
                self.submitted = Some(record)
            }
            Action::AppendRecord(record) => {
                if let Some(ledger) = &self.ledger {
                    ledger.append_record(record, &self.payloads.bytes);
                }
            }
            Action::DropTasks { batch } => {
                self.tasks.remove(&batch);
            }
        }
        None
    }

    fn start_runner(&mut self, runner: RunnerId, incarnation: Incarnation, isolated: bool) {
        tracing::debug!(%runner, %incarnation, isolated, "runner starts");
        self.runners.insert(runner, incarnation);
        let inbox = Arc::clone(&self.reports);
        self.workers.start(Reporter::new(runner, incarnation, isolated, inbox));
    }

    fn command(
        &mut self,
        runner: RunnerId,
        incarnation: Incarnation,
        command: RunnerCommand,
    ) -> Option<(RunnerId, Incarnation)> {
        let sent = self.workers.send(runner, incarnation, command);
        (!sent).then_some((runner, incarnation))
    }

    fn respond(&mut self, request: RequestId, response: Response) {
        let tasks = self.arriving.remove(&request);
        let mut lease = None;
        let mut payloads = Vec::new();
        match &response {
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
            && let Some(ledger) = &self.ledger
        {
            let tasks = self.tasks.get(&submitted.batch()).map_or(&[][..], |(_, _, tasks)| tasks);
            ledger.submitted(&submitted, tasks);
        }
        // If the request was dropped, the guard returns the results.
        if let Some(reply) = self.replies.remove(&request) {
            let response = DriverResponse { response, payloads, lease };
            if let Response::Stopped(_) = response.response {
                return self.stopped(reply, response);
            }
            self.once_synced(move |synced| {
                let _ = reply.send(synced.map(|()| response).map_err(not_synced));
            });
        }
    }

    /// Responds to a stop once the ledger is closed and manual workers have disconnected.
    fn stopped(&mut self, reply: ReplySender, response: DriverResponse) {
        let (workers_gone, runtime) = (self.workers.shut_down_workers(), Handle::current());
        let respond = move |synced: Synced| {
            let response = synced.map(|()| response).map_err(not_synced);
            match workers_gone {
                Some(workers_gone) => drop(runtime.spawn(async move {
                    workers_gone.await;
                    let _ = reply.send(response);
                })),
                None => drop(reply.send(response)),
            }
        };
        match self.ledger.take() {
            Some(ledger) => {
                self.ledger_closed = true;
                ledger.close(respond);
            }
            None => respond(Ok(())),
        }
    }

    /// Calls `then` once every earlier record is synced; immediately without a ledger.
    fn once_synced(&self, then: impl FnOnce(Synced) + Send + 'static) {
        match &self.ledger {
            Some(ledger) => ledger.when_durable(then),
            None => then(Ok(())),
        }
    }

    fn bytes_of(&self, result: &TaskResult) -> Vec<Bytes> {
        let payloads = result.payloads.iter();
        payloads.filter_map(|payload| self.payloads.bytes.get(&payload.id).cloned()).collect()
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
        let delivery = BatchDelivery { batch, key, results: results.collect() };
        let runtime = Handle::current();
        self.once_synced(move |synced| {
            if let Err(message) = synced {
                return returns.delivered(lease, DeliveryOutcome::Failed { message });
            }
            runtime.spawn(async move {
                // In a task of its own: a panic of the sink is a failed delivery.
                let stored = tokio::spawn(async move { sink.deliver(delivery).await }).await;
                let outcome = match stored {
                    Ok(Ok(metrics)) => DeliveryOutcome::Acknowledged { metrics },
                    Ok(Err(message)) => DeliveryOutcome::Failed { message: message.into() },
                    Err(error) => DeliveryOutcome::Failed { message: error.to_string().into() },
                };
                returns.delivered(lease, outcome);
            });
        });
    }
}

/// Payloads that the core knows by number.
#[derive(Default)]
struct PayloadStore {
    bytes: HashMap<PayloadId, Bytes>,
    next: u64,
}

impl PayloadStore {
    fn insert(&mut self, bytes: Bytes) -> Payload {
        let payload = Payload { id: PayloadId(self.next), bytes: bytes.len() as u64 };
        self.next += 1;
        self.bytes.insert(payload.id, bytes);
        payload
    }
}

fn not_synced(message: Arc<str>) -> Error {
    Error::Ledger(format!("{message}; nothing is lost, repeat the request"))
}
