//! A worker that keeps to the protocol, and, on request, does not.
//!
//! It executes the kit's three workflows and no others. Read it as an example of a worker; its
//! flaws show that every check of the kit can fail.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollway_core::metrics::Metrics;
use rollway_core::{
    AttemptId, BatchType, FailureKind, Incarnation, RunFailure, RunId, RunOutcome, RunOutput,
    RunnerId,
};
use rollway_protocol::worker_client::{
    self, ConnectedWorker, EngineReceiver, EngineSender, StreamEnd, WorkerConnectError,
    WorkerSendError,
};
use rollway_protocol::{DefinitionId, EngineMessage, Hello, StartAttempt, StopCause, WorkerReport};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{FAIL, SUCCEED, TargetEnv, WAIT};

/// Something that a worker must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Says hello with another token.
    WrongToken,
    /// Tries again for ever when it is refused.
    IgnoresRefusal,
    /// Reports only its first runner ready.
    ForgetsRunner,
    /// Reports a runner ready that is not.
    ReadyWhileBusy,
    /// Never says that an attempt began.
    NeverBegins,
    /// Reports the first run twice.
    RepeatsRun,
    /// Says nothing about the last run.
    DropsRun,
    /// Reports a run after the end of the attempt.
    ResultAfterEnd,
    /// Delivers no experiences.
    NoPayload,
    /// Knows a workflow only the first time.
    ForgetsDefinitions,
    /// Reports runs that raised as good.
    HidesFailure,
    /// Delivers experiences in eval.
    PayloadInEval,
    /// Sends no heartbeats.
    NoHeartbeat,
    /// Goes on when an attempt is cancelled.
    IgnoresCancel,
    /// Reports a run after it has acknowledged a cancel.
    ResultAfterCancel,
    /// Dies when an attempt is cancelled that is over.
    DiesOfLateCancel,
    /// Executes one attempt at a time.
    OneAtATime,
    /// Does not stop a runner.
    IgnoresStop,
    /// Dies of a message that it does not know.
    DiesOfUnknown,
    /// Leaves without a goodbye.
    NoGoodbye,
    /// Stays when the engine is gone.
    OutlivesEngine,
}

/// The worker.
#[derive(Clone, Debug)]
pub struct ReferenceWorker {
    /// How many runners it offers.
    pub runners: u32,
    /// What is wrong with it.
    pub flaw: Option<Flaw>,
}

impl ReferenceWorker {
    /// Joins an engine and does what it is told, until it is told to leave.
    pub async fn run(self, invitation: TargetEnv) -> Result<(), String> {
        let TargetEnv { address, secret, token } = invitation;
        let token = if self.flaw == Some(Flaw::WrongToken) { "mine".to_owned() } else { token };
        let hello = Hello::new(secret, token, self.runners);
        let heartbeats = self.flaw != Some(Flaw::NoHeartbeat);
        let options = worker_client::WorkerClientOptions {
            heartbeats,
            ..worker_client::WorkerClientOptions::default()
        };
        let connected = loop {
            match worker_client::connect(&address, hello.clone(), options.clone()).await {
                Ok(connected) => break connected,
                Err(WorkerConnectError::Refused(_)) if self.flaw == Some(Flaw::IgnoresRefusal) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error.to_string()),
            }
        };
        let ConnectedWorker { welcome, sender, mut receiver } = connected;
        let turns = if self.flaw == Some(Flaw::OneAtATime) { 1 } else { self.runners as usize };
        let mut host = Host {
            flaw: self.flaw,
            sender,
            turns: Arc::new(Semaphore::new(turns)),
            busy: BTreeMap::new(),
            defined: Vec::new(),
        };
        let forgets = self.flaw == Some(Flaw::ForgetsRunner);
        let most = if forgets { 1 } else { usize::MAX };
        for (runner, life) in welcome.runners.into_iter().take(most) {
            let ready = WorkerReport::Ready { after: None };
            host.sender.report(runner, life, ready).await.map_err(|error| error.to_string())?;
        }
        host.obey(&mut receiver).await
    }
}

/// What the worker is doing.
struct Host {
    flaw: Option<Flaw>,
    sender: EngineSender,
    turns: Arc<Semaphore>,
    busy: BTreeMap<RunnerId, ReferenceTask>,
    defined: Vec<DefinitionId>,
}

/// An attempt under way, or over.
struct ReferenceTask {
    attempt: AttemptId,
    cancel: CancellationToken,
    handle: JoinHandle<()>,
}

impl Host {
    async fn obey(&mut self, receiver: &mut EngineReceiver) -> Result<(), String> {
        let mut orders = Vec::new();
        loop {
            match receiver.recv_many(&mut orders, 64).await {
                Ok(_) => {}
                Err(_) if self.flaw == Some(Flaw::OutlivesEngine) => std::future::pending().await,
                Err(ended) => return Err(ended.to_string()),
            }
            if self.flaw == Some(Flaw::DiesOfUnknown) && receiver.unknown_messages() > 0 {
                return Err("what was that?".to_owned());
            }
            for order in orders.drain(..) {
                if let EngineMessage::Shutdown { .. } = order {
                    return self.leave(receiver).await;
                }
                self.perform(order).await?;
            }
        }
    }

    async fn perform(&mut self, order: EngineMessage) -> Result<(), String> {
        let words = |error: WorkerSendError| error.to_string();
        match order {
            EngineMessage::StartAttempt(start) => self.start(start),
            EngineMessage::CancelAttempt { runner, attempt, .. } => {
                let task = self.busy.get(&runner).filter(|task| task.attempt == attempt);
                if let Some(task) = task {
                    if self.flaw == Some(Flaw::DiesOfLateCancel) && task.handle.is_finished() {
                        return Err("no such attempt".to_owned());
                    }
                    task.cancel.cancel();
                }
            }
            EngineMessage::StopRunner { runner, life } => {
                if self.flaw == Some(Flaw::IgnoresStop) {
                    return Ok(());
                }
                self.stop(runner).await;
                let stopped = WorkerReport::Stopped(StopCause::Requested);
                self.sender.report(runner, life, stopped).await.map_err(words)?;
            }
            EngineMessage::StartRunner { runner, life } => {
                let ready = WorkerReport::Ready { after: None };
                self.sender.report(runner, life, ready).await.map_err(words)?;
            }
            // It ends the worker, in `obey`.
            EngineMessage::Shutdown { .. } => {}
        }
        Ok(())
    }

    fn start(&mut self, start: StartAttempt) {
        let id = start.definition.id;
        let forgotten = self.flaw == Some(Flaw::ForgetsDefinitions) && self.defined.contains(&id);
        self.defined.push(id);
        let (runner, attempt) = (start.runner, start.attempt);
        let cancel = CancellationToken::new();
        let execution = Execution {
            flaw: self.flaw,
            sender: self.sender.clone(),
            cancel: cancel.clone(),
            turns: Arc::clone(&self.turns),
            forgotten,
            start,
        };
        let handle = tokio::spawn(async move {
            // A worker that cannot say anything is about to end.
            let _ = execution.run().await;
        });
        self.busy.insert(runner, ReferenceTask { attempt, cancel, handle });
    }

    /// Makes sure that a runner does nothing more.
    async fn stop(&mut self, runner: RunnerId) {
        if let Some(task) = self.busy.remove(&runner) {
            task.handle.abort();
            // It was cancelled or had ended: either is what is wanted.
            let _ = task.handle.await;
        }
    }

    async fn leave(&mut self, receiver: &mut EngineReceiver) -> Result<(), String> {
        let busy: Vec<RunnerId> = self.busy.keys().copied().collect();
        for runner in busy {
            self.stop(runner).await;
        }
        if self.flaw == Some(Flaw::NoGoodbye) {
            return Ok(());
        }
        self.sender.goodbye("as told").await.map_err(|error| error.to_string())?;
        let mut ignored = Vec::new();
        loop {
            match receiver.recv_many(&mut ignored, 64).await {
                Ok(_) => ignored.clear(),
                Err(StreamEnd::Closed) => return Ok(()),
                Err(ended) => return Err(ended.to_string()),
            }
        }
    }
}

/// The execution of one attempt.
struct Execution {
    flaw: Option<Flaw>,
    sender: EngineSender,
    cancel: CancellationToken,
    turns: Arc<Semaphore>,
    forgotten: bool,
    start: StartAttempt,
}

impl Execution {
    async fn run(self) -> Result<(), WorkerSendError> {
        let attempt = self.start.attempt;
        let _turn = self.turns.acquire().await;
        if self.flaw != Some(Flaw::NeverBegins) {
            self.say(WorkerReport::AttemptBegan { attempt }).await?;
        }
        if self.flaw == Some(Flaw::ReadyWhileBusy) {
            self.say(WorkerReport::Ready { after: Some(attempt) }).await?;
        }
        let last = self.start.runs.iter().last();
        for run in self.start.runs.iter() {
            let Some(outcome) = self.outcome().await else { break };
            if self.flaw == Some(Flaw::DropsRun) && Some(run) == last {
                break;
            }
            self.finished(run, outcome.clone()).await?;
            if self.flaw == Some(Flaw::RepeatsRun) && run.0 == self.start.runs.first {
                self.finished(run, outcome).await?;
            }
        }
        self.say(WorkerReport::AttemptEnded { attempt }).await?;
        let cancelled = self.cancel.is_cancelled();
        let late = self.flaw == Some(Flaw::ResultAfterEnd) && !cancelled
            || self.flaw == Some(Flaw::ResultAfterCancel) && cancelled;
        if late {
            let outcome = Ok(RunOutput { payload: None, metrics: Metrics::new() });
            self.finished(RunId(self.start.runs.first), outcome).await?;
        }
        Ok(())
    }

    /// Returns how a run ended; none: it was given up.
    async fn outcome(&self) -> Option<RunOutcome<Bytes>> {
        let failed = |message: &str| {
            Some(Err(RunFailure { kind: FailureKind::Workflow, message: message.into() }))
        };
        if self.forgotten {
            return failed("the workflow is not known");
        }
        match &*self.start.definition.name {
            SUCCEED => Some(self.success()),
            FAIL if self.flaw == Some(Flaw::HidesFailure) => Some(self.success()),
            FAIL => failed("it raised, as it should"),
            WAIT if self.flaw == Some(Flaw::IgnoresCancel) => std::future::pending().await,
            WAIT => {
                self.cancel.cancelled().await;
                None
            }
            other => failed(&format!("there is no workflow `{other}`")),
        }
    }

    fn success(&self) -> RunOutcome<Bytes> {
        let wanted = match self.start.kind {
            BatchType::Train => self.flaw != Some(Flaw::NoPayload),
            BatchType::Eval => self.flaw == Some(Flaw::PayloadInEval),
        };
        let payload = wanted.then(|| Bytes::from_static(b"an experience"));
        Ok(RunOutput { payload, metrics: [("reward", 1.0)].into_iter().collect() })
    }

    async fn finished(
        &self,
        run: RunId,
        outcome: RunOutcome<Bytes>,
    ) -> Result<(), WorkerSendError> {
        let attempt = self.start.attempt;
        self.say(WorkerReport::RunFinished { attempt, run, outcome }).await
    }

    async fn say(&self, report: WorkerReport) -> Result<(), WorkerSendError> {
        let (runner, life): (RunnerId, Incarnation) = (self.start.runner, self.start.life);
        self.sender.report(runner, life, report).await
    }
}
