//! A reference worker that follows the protocol, except for a chosen flaw.
//!
//! It executes the kit's three workflows only, and is an example for authors of workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollway_core::metrics::Metrics;
use rollway_core::{
    AttemptId, BatchType, FailureKind, RunFailure, RunId, RunOutcome, RunOutput, RunnerId,
};
use rollway_protocol::worker_client::{
    ConnectedWorker, EngineReceiver, EngineSender, StreamEnd, WorkerClientOptions,
    WorkerConnectError, WorkerSendError, connect,
};
use rollway_protocol::{DefinitionId, EngineMessage, Hello, StartAttempt, StopCause, WorkerReport};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{FAIL, SUCCEED, TargetEnv, WAIT};

/// A violation of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    WrongToken,
    IgnoresRefusal,
    ForgetsRunner,
    ReadyWhileBusy,
    NeverBegins,
    RepeatsRun,
    DropsRun,
    ResultAfterEnd,
    NoPayload,
    ForgetsDefinitions,
    HidesFailure,
    PayloadInEval,
    NoHeartbeat,
    IgnoresCancel,
    ResultAfterCancel,
    DiesOfLateCancel,
    OneAtATime,
    IgnoresStop,
    DiesOfUnknown,
    NoGoodbye,
    OutlivesEngine,
}

#[derive(Clone, Debug)]
pub struct ReferenceWorker {
    pub runners: u32,
    pub flaw: Option<Flaw>,
}

impl ReferenceWorker {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Connects to an engine and executes its commands until shutdown.
    pub async fn run(self, parameters: TargetEnv) -> Result<(), String> {
        let TargetEnv { address, secret, token } = parameters;
        let token = if self.has(Flaw::WrongToken) { "mine".to_owned() } else { token };
        let hello = Hello::new(token, self.runners);
        let heartbeats = !self.has(Flaw::NoHeartbeat);
        let options = WorkerClientOptions { heartbeats, ..WorkerClientOptions::default() };
        let connected = loop {
            match connect(&address, &secret, hello.clone(), options.clone()).await {
                Ok(connected) => break connected,
                Err(WorkerConnectError::Refused(_) | WorkerConnectError::NotTheEngine { .. })
                    if self.has(Flaw::IgnoresRefusal) =>
                {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error.to_string()),
            }
        };
        let ConnectedWorker { welcome, sender, mut receiver } = connected;
        let permits = if self.has(Flaw::OneAtATime) { 1 } else { self.runners as usize };
        let mut worker = Connected {
            flaw: self.flaw,
            sender,
            permits: Arc::new(Semaphore::new(permits)),
            busy: BTreeMap::new(),
            defined: Vec::new(),
        };
        let limit = if self.has(Flaw::ForgetsRunner) { 1 } else { usize::MAX };
        for (runner, incarnation) in welcome.runners.into_iter().take(limit) {
            worker.perform(EngineMessage::StartRunner { runner, incarnation }).await?;
        }
        worker.run(&mut receiver).await
    }
}

/// State of the connected worker.
struct Connected {
    flaw: Option<Flaw>,
    sender: EngineSender,
    permits: Arc<Semaphore>,
    busy: BTreeMap<RunnerId, ReferenceTask>,
    defined: Vec<DefinitionId>,
}

/// A started attempt.
struct ReferenceTask {
    attempt: AttemptId,
    cancel: CancellationToken,
    handle: JoinHandle<()>,
}

impl Connected {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    async fn run(&mut self, receiver: &mut EngineReceiver) -> Result<(), String> {
        let mut messages = Vec::new();
        loop {
            match receiver.recv_many(&mut messages, 64).await {
                Ok(_) => {}
                Err(_) if self.has(Flaw::OutlivesEngine) => std::future::pending().await,
                Err(ended) => return Err(ended.to_string()),
            }
            if self.has(Flaw::DiesOfUnknown) && receiver.unknown_messages() > 0 {
                return Err("unknown message".to_owned());
            }
            for message in messages.drain(..) {
                if let EngineMessage::Shutdown { .. } = message {
                    return self.leave(receiver).await;
                }
                self.perform(message).await?;
            }
        }
    }

    async fn perform(&mut self, message: EngineMessage) -> Result<(), String> {
        let text = |error: WorkerSendError| error.to_string();
        match message {
            EngineMessage::StartAttempt(start) => self.start(start),
            EngineMessage::CancelAttempt { runner, attempt, .. } => {
                let task = self.busy.get(&runner).filter(|task| task.attempt == attempt);
                if let Some(task) = task {
                    if self.has(Flaw::DiesOfLateCancel) && task.handle.is_finished() {
                        return Err("unknown attempt".to_owned());
                    }
                    task.cancel.cancel();
                }
            }
            EngineMessage::StopRunner { runner, incarnation } => {
                if self.has(Flaw::IgnoresStop) {
                    return Ok(());
                }
                self.stop(runner).await;
                let stopped = WorkerReport::Stopped(StopCause::Requested);
                self.sender.report(runner, incarnation, stopped).await.map_err(text)?;
            }
            EngineMessage::StartRunner { runner, incarnation } => {
                let ready = WorkerReport::Ready { after: None };
                self.sender.report(runner, incarnation, ready).await.map_err(text)?;
            }
            // Handled in `run`.
            EngineMessage::Shutdown { .. } => {}
        }
        Ok(())
    }

    fn start(&mut self, start: StartAttempt) {
        let id = start.definition.id;
        let drops_definition = self.has(Flaw::ForgetsDefinitions) && self.defined.contains(&id);
        self.defined.push(id);
        let (runner, attempt) = (start.runner, start.attempt);
        let cancel = CancellationToken::new();
        let execution = Execution {
            flaw: self.flaw,
            sender: self.sender.clone(),
            cancel: cancel.clone(),
            permits: Arc::clone(&self.permits),
            drops_definition,
            start,
        };
        let handle = tokio::spawn(async move {
            // Fails only when the connection has ended.
            let _ = execution.run().await;
        });
        self.busy.insert(runner, ReferenceTask { attempt, cancel, handle });
    }

    /// Aborts the attempt of a runner.
    async fn stop(&mut self, runner: RunnerId) {
        if let Some(task) = self.busy.remove(&runner) {
            task.handle.abort();
            let _ = task.handle.await;
        }
    }

    async fn leave(&mut self, receiver: &mut EngineReceiver) -> Result<(), String> {
        while let Some((runner, _)) = self.busy.first_key_value() {
            self.stop(*runner).await;
        }
        if self.has(Flaw::NoGoodbye) {
            return Ok(());
        }
        self.sender.goodbye("shutdown").await.map_err(|error| error.to_string())?;
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

/// Execution of one attempt.
struct Execution {
    flaw: Option<Flaw>,
    sender: EngineSender,
    cancel: CancellationToken,
    permits: Arc<Semaphore>,
    drops_definition: bool,
    start: StartAttempt,
}

impl Execution {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    async fn run(self) -> Result<(), WorkerSendError> {
        let attempt = self.start.attempt;
        let _permit = self.permits.acquire().await;
        if !self.has(Flaw::NeverBegins) {
            self.report(WorkerReport::AttemptBegan { attempt }).await?;
        }
        if self.has(Flaw::ReadyWhileBusy) {
            self.report(WorkerReport::Ready { after: Some(attempt) }).await?;
        }
        let last = self.start.runs.iter().last();
        for run in self.start.runs.iter() {
            let Some(outcome) = self.outcome().await else { break };
            if self.has(Flaw::DropsRun) && Some(run) == last {
                break;
            }
            let finished = WorkerReport::RunFinished { attempt, run, outcome };
            self.report(finished.clone()).await?;
            if self.has(Flaw::RepeatsRun) && run.0 == self.start.runs.first {
                self.report(finished).await?;
            }
        }
        self.report(WorkerReport::AttemptEnded { attempt }).await?;
        let cancelled = self.cancel.is_cancelled();
        let late = self.has(Flaw::ResultAfterEnd) && !cancelled
            || self.has(Flaw::ResultAfterCancel) && cancelled;
        if late {
            let outcome = Ok(RunOutput { payload: None, metrics: Metrics::new() });
            let run = RunId(self.start.runs.first);
            self.report(WorkerReport::RunFinished { attempt, run, outcome }).await?;
        }
        Ok(())
    }

    /// Returns the outcome of a run. `None`: it was cancelled.
    async fn outcome(&self) -> Option<RunOutcome<Bytes>> {
        let failed = |message: &str| {
            Some(Err(RunFailure { kind: FailureKind::Workflow, message: message.into() }))
        };
        if self.drops_definition {
            return failed("unknown workflow definition");
        }
        match &*self.start.definition.name {
            SUCCEED => Some(self.success()),
            FAIL if self.has(Flaw::HidesFailure) => Some(self.success()),
            FAIL => failed("raised as requested"),
            WAIT if self.has(Flaw::IgnoresCancel) => std::future::pending().await,
            WAIT => {
                self.cancel.cancelled().await;
                None
            }
            other => failed(&format!("unknown workflow `{other}`")),
        }
    }

    fn success(&self) -> RunOutcome<Bytes> {
        let wanted = match self.start.kind {
            BatchType::Train => !self.has(Flaw::NoPayload),
            BatchType::Eval => self.has(Flaw::PayloadInEval),
        };
        let payload = wanted.then(|| Bytes::from_static(b"an experience"));
        Ok(RunOutput { payload, metrics: [("reward", 1.0)].into_iter().collect() })
    }

    async fn report(&self, report: WorkerReport) -> Result<(), WorkerSendError> {
        self.sender.report(self.start.runner, self.start.incarnation, report).await
    }
}
