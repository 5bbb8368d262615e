//! One stream of the worker under test, from its start to its end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollway_base::Address;
use rollway_base::Secret;
use rollway_core::{
    AttemptCancelReason, AttemptId, BatchId, BatchType, CancelReason, Incarnation, RunRange,
    RunnerId, TaskId,
};
use rollway_protocol::worker_server::{
    self, DisconnectReason, PendingHandshake, WorkerConnection, WorkerServer, WorkerServerEvent,
    WorkerServerLimits,
};
use rollway_protocol::{
    DefinitionId, EngineMessage, StartAttempt, VersionRange, WorkflowDefinition,
};

use super::message_log::MessageLog;
use super::target::{ConformanceTarget, RunningTarget, TargetEnv};
use super::{Check, ConformanceOptions, FAIL, SUCCEED, WAIT};

/// The kit keeps fewer definitions alive than it uses, so that some are forgotten and sent again.
const DEFINITIONS: usize = 2;

/// The runs of an attempt, in the middle of a task.
const RUNS: RunRange = RunRange { first: 2, count: 3 };

/// A server, and the worker that was started for it.
pub(super) struct Stage {
    pub(super) server: WorkerServer,
    pub(super) running: RunningTarget,
    token: String,
    patience: Duration,
}

/// How a stage differs from the usual.
#[derive(Default)]
pub(super) struct Twist {
    pub(super) versions: Option<VersionRange>,
    pub(super) wrong_secret: bool,
}

impl Stage {
    pub(super) async fn set(
        target: &ConformanceTarget,
        options: &ConformanceOptions,
        number: u32,
        twist: Twist,
    ) -> Result<Self, String> {
        let secret = Secret::random().map_err(|error| error.to_string())?;
        let limits = WorkerServerLimits {
            definitions: DEFINITIONS,
            linger: options.grace,
            ..WorkerServerLimits::default()
        };
        let server = worker_server::WorkerServerOptions {
            address: numbered(&options.address, number),
            secret: secret.clone(),
            versions: twist.versions.unwrap_or(VersionRange::SUPPORTED),
            limits,
        };
        let server = WorkerServer::bind(server).await.map_err(|error| error.to_string())?;
        let invited = match twist.wrong_secret {
            true => Secret::random().map_err(|error| error.to_string())?,
            false => secret,
        };
        let token = format!("conformance-{number}");
        let invitation =
            TargetEnv { address: server.address().clone(), secret: invited, token: token.clone() };
        let running = target
            .start(invitation)
            .map_err(|error| format!("the worker cannot be started: {error}"))?;
        Ok(Self { server, running, token, patience: options.patience })
    }

    /// Waits for a hello and checks it.
    pub(super) async fn greeting(&mut self) -> Result<PendingHandshake, String> {
        let deadline = self.patience;
        let event = tokio::time::timeout(deadline, self.server.recv()).await;
        let Ok(WorkerServerEvent::Hello(greeting)) = event else {
            let refused = self.server.refused();
            let refused = refused.iter().map(|(code, count)| format!(", refused {code}: {count}"));
            let refused: String = refused.collect();
            return Err(format!("no valid hello within {deadline:?}{refused}"));
        };
        let hello = greeting.hello();
        if hello.token != self.token {
            return Err(format!("its token is `{}` and not `{}`", hello.token, self.token));
        }
        Ok(greeting)
    }
}

fn numbered(address: &Address, number: u32) -> Address {
    match address {
        Address::Unix(path) => {
            let mut path = path.as_os_str().to_owned();
            path.push(format!(".{number}"));
            Address::Unix(PathBuf::from(path))
        }
        Address::Tcp(_) => address.clone(),
    }
}

/// A worker that was taken in.
pub(super) struct ConformanceSession {
    pub(super) stage: Stage,
    pub(super) connection: WorkerConnection,
    pub(super) watch: MessageLog,
    pub(super) runners: Vec<(RunnerId, Incarnation)>,
    grace: Duration,
    next: u64,
}

impl ConformanceSession {
    /// Takes a worker in, with two runners if it has them.
    pub(super) async fn open(
        mut stage: Stage,
        options: &ConformanceOptions,
    ) -> Result<Self, (Check, String)> {
        let greeting = stage.greeting().await.map_err(|why| (Check::Hello, why))?;
        // The ids are not what a worker could guess by counting.
        let offered = greeting.hello().runners.min(2);
        let runners: Vec<_> = (0..offered).map(|n| (RunnerId(40 + n), Incarnation(7))).collect();
        // What it does not know what to do with must not bother it.
        let env = [("ROLLWAY_CONFORMANCE".to_owned(), "of no use".to_owned())];
        let env = BTreeMap::from(env);
        let connection = greeting.accept(&runners, options.heartbeat_interval, env);
        let watch = MessageLog::default();
        let grace = options.grace;
        let mut session =
            Self { stage, connection, watch, runners: runners.clone(), grace, next: 100 };
        session
            .until("every runner is ready", |watch| {
                runners.iter().all(|(runner, life)| watch.is_ready(*runner, *life))
            })
            .await
            .map_err(|why| (Check::Ready, why))?;
        Ok(session)
    }

    /// Waits until something is so.
    pub(super) async fn until(
        &mut self,
        what: &str,
        done: impl Fn(&MessageLog) -> bool,
    ) -> Result<(), String> {
        self.within(self.stage.patience, what, done).await
    }

    /// Waits for the grace time until something is so.
    pub(super) async fn in_grace(
        &mut self,
        what: &str,
        done: impl Fn(&MessageLog) -> bool,
    ) -> Result<(), String> {
        self.within(self.grace, what, done).await
    }

    async fn within(
        &mut self,
        time: Duration,
        what: &str,
        done: impl Fn(&MessageLog) -> bool,
    ) -> Result<(), String> {
        let watching = async {
            while !done(&self.watch) {
                if let Some(reason) = &self.watch.left {
                    return Err(format!(
                        "the worker left before {what}: {}",
                        disconnect_message(reason)
                    ));
                }
                match self.stage.server.recv().await {
                    WorkerServerEvent::Message { message, .. } => self.watch.observe(message),
                    WorkerServerEvent::Left { reason, .. } => self.watch.left = Some(reason),
                    WorkerServerEvent::Hello(_) => {
                        return Err("it connected a second time".to_owned());
                    }
                }
            }
            Ok(())
        };
        let waited = tokio::time::timeout(time, watching).await;
        waited.unwrap_or_else(|_| Err(format!("not within {time:?}: {what}")))
    }

    /// Prepares an attempt on a runner and watches it.
    pub(super) fn prepare(&mut self, at: usize, workflow: &str, kind: BatchType) -> StartAttempt {
        self.next += 1;
        let attempt = AttemptId(self.next);
        let (runner, life) = self.runners[at];
        self.watch.started(attempt, runner, life, RUNS);
        StartAttempt {
            runner,
            life,
            attempt,
            batch: BatchId::from("4/conformance"),
            kind,
            task_id: TaskId(11),
            runs: RUNS,
            task: Bytes::from_static(b"{}"),
            definition: definition(workflow),
            timeout: Duration::from_secs(3600),
            kills: 0,
            // A worker that has no use for them takes no notice.
            model_keys: RUNS.iter().flat_map(|run| Secret::new(format!("key of {run}"))).collect(),
        }
    }

    pub(super) fn start(
        &mut self,
        at: usize,
        workflow: &str,
        kind: BatchType,
    ) -> Result<AttemptId, String> {
        let start = self.prepare(at, workflow, kind);
        let attempt = start.attempt;
        self.send(EngineMessage::StartAttempt(start))?;
        Ok(attempt)
    }

    pub(super) fn cancel(&mut self, at: usize, attempt: AttemptId) -> Result<(), String> {
        let (runner, life) = self.runners[at];
        self.watch.cancelled(attempt);
        let reason = AttemptCancelReason::Runs(CancelReason::OverRollout);
        self.send(EngineMessage::CancelAttempt { runner, life, attempt, reason })
    }

    pub(super) fn send(&self, message: EngineMessage) -> Result<(), String> {
        self.connection.send(message).map_err(|error| error.to_string())
    }
}

pub(super) fn disconnect_message(reason: &DisconnectReason) -> String {
    match reason {
        DisconnectReason::Goodbye => "goodbye".to_owned(),
        DisconnectReason::Lost { message } => format!("lost, {message}"),
        DisconnectReason::Refused(refusal) => format!("refused, {refusal}"),
        DisconnectReason::Dropped => "dropped".to_owned(),
    }
}

fn definition(workflow: &str) -> Arc<WorkflowDefinition> {
    let id = [SUCCEED, FAIL, WAIT].iter().position(|name| *name == workflow).unwrap_or(3);
    Arc::new(WorkflowDefinition {
        id: DefinitionId(500 + id as u64),
        name: workflow.into(),
        encoding: "name".into(),
        task_encoding: "json".into(),
        body: Bytes::new(),
    })
}
