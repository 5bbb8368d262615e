//! One connection of the worker under test.

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

/// Definitions kept by the server: fewer than are used, so that some are sent again.
const DEFINITIONS: usize = 2;

/// Runs of an attempt, in the middle of a task.
const RUNS: RunRange = RunRange { first: 2, count: 3 };

/// A server and the worker started for it.
pub(super) struct Stage {
    pub(super) server: WorkerServer,
    pub(super) running: RunningTarget,
    token: String,
    timeout: Duration,
}

/// Deviations of a stage.
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
            close_delay: options.grace,
            ..WorkerServerLimits::default()
        };
        let address = numbered(&options.address, number);
        let server = worker_server::WorkerServerOptions {
            versions: twist.versions.unwrap_or(VersionRange::SUPPORTED),
            limits,
            ..worker_server::WorkerServerOptions::new(address, secret.clone())
        };
        let server = WorkerServer::bind(server).await.map_err(|error| error.to_string())?;
        let sent_secret = match twist.wrong_secret {
            true => Secret::random().map_err(|error| error.to_string())?,
            false => secret,
        };
        let token = format!("conformance-{number}");
        let parameters = TargetEnv {
            address: server.address().clone(),
            secret: sent_secret,
            token: token.clone(),
        };
        let running = target
            .start(parameters)
            .map_err(|error| format!("the worker cannot be started: {error}"))?;
        Ok(Self { server, running, token, timeout: options.timeout })
    }

    /// Waits for the handshake and checks it.
    pub(super) async fn handshake(&mut self) -> Result<PendingHandshake, String> {
        let deadline = self.timeout;
        let event = tokio::time::timeout(deadline, self.server.recv()).await;
        let Ok(WorkerServerEvent::Hello(handshake)) = event else {
            let refused = self.server.refused();
            let refused = refused.iter().map(|(code, count)| format!(", refused {code}: {count}"));
            let refused: String = refused.collect();
            return Err(format!("no valid `Hello` within {deadline:?}{refused}"));
        };
        let hello = handshake.hello();
        if hello.token != self.token {
            return Err(format!("its token is `{}` and not `{}`", hello.token, self.token));
        }
        Ok(handshake)
    }
}

fn numbered(address: &Address, number: u32) -> Address {
    match address {
        Address::Unix(path) => {
            let mut path = path.as_os_str().to_owned();
            path.push(format!(".{number}"));
            Address::Unix(PathBuf::from(path))
        }
        Address::Tcp(_) | Address::Tls { .. } => address.clone(),
    }
}

/// A connected worker.
pub(super) struct ConformanceSession {
    pub(super) stage: Stage,
    pub(super) connection: WorkerConnection,
    pub(super) log: MessageLog,
    pub(super) runners: Vec<(RunnerId, Incarnation)>,
    grace: Duration,
    next: u64,
}

impl ConformanceSession {
    /// Accepts a worker, with two runners if it offers them.
    pub(super) async fn open(
        mut stage: Stage,
        options: &ConformanceOptions,
    ) -> Result<Self, (Check, String)> {
        let handshake = stage.handshake().await.map_err(|reason| (Check::Hello, reason))?;
        // Ids that a worker cannot guess by counting.
        let offered = handshake.hello().runners.min(2);
        let runners: Vec<_> = (0..offered).map(|n| (RunnerId(40 + n), Incarnation(7))).collect();
        // An unknown variable must be ignored.
        let env = [("ROLLWAY_CONFORMANCE".to_owned(), "unused".to_owned())];
        let env = BTreeMap::from(env);
        let connection = handshake.accept(&runners, options.heartbeat_interval, env);
        let log = MessageLog::default();
        let grace = options.grace;
        let mut session =
            Self { stage, connection, log, runners: runners.clone(), grace, next: 100 };
        session
            .wait_for("every runner is ready", |log| {
                runners.iter().all(|(runner, incarnation)| log.is_ready(*runner, *incarnation))
            })
            .await
            .map_err(|reason| (Check::Ready, reason))?;
        Ok(session)
    }

    /// Waits for a condition.
    pub(super) async fn wait_for(
        &mut self,
        condition: &str,
        done: impl Fn(&MessageLog) -> bool,
    ) -> Result<(), String> {
        self.with_timeout(self.stage.timeout, condition, done).await
    }

    /// Waits for a condition within the grace time.
    pub(super) async fn in_grace(
        &mut self,
        condition: &str,
        done: impl Fn(&MessageLog) -> bool,
    ) -> Result<(), String> {
        self.with_timeout(self.grace, condition, done).await
    }

    async fn with_timeout(
        &mut self,
        time: Duration,
        condition: &str,
        done: impl Fn(&MessageLog) -> bool,
    ) -> Result<(), String> {
        let waiting = async {
            while !done(&self.log) {
                if let Some(reason) = &self.log.left {
                    return Err(format!(
                        "the worker left before {condition}: {}",
                        disconnect_message(reason)
                    ));
                }
                match self.stage.server.recv().await {
                    WorkerServerEvent::Message { message, .. } => self.log.observe(message),
                    WorkerServerEvent::Left { reason, .. } => self.log.left = Some(reason),
                    WorkerServerEvent::Hello(_) => {
                        return Err("it connected a second time".to_owned());
                    }
                }
            }
            Ok(())
        };
        let waited = tokio::time::timeout(time, waiting).await;
        waited.unwrap_or_else(|_| Err(format!("not within {time:?}: {condition}")))
    }

    /// Prepares an attempt on a runner and records it.
    pub(super) fn prepare(&mut self, at: usize, workflow: &str, kind: BatchType) -> StartAttempt {
        self.next += 1;
        let attempt = AttemptId(self.next);
        let (runner, incarnation) = self.runners[at];
        self.log.started(attempt, runner, incarnation, RUNS);
        StartAttempt {
            runner,
            incarnation,
            attempt,
            batch: BatchId::from("4/conformance"),
            kind,
            task_id: TaskId(11),
            runs: RUNS,
            task: Bytes::from_static(b"{}"),
            definition: definition(workflow),
            timeout: Duration::from_secs(3600),
            suspected_losses: 0,
            // Workers without model calls ignore them.
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
        let (runner, incarnation) = self.runners[at];
        self.log.cancelled(attempt);
        let reason = AttemptCancelReason::Runs(CancelReason::OverRollout);
        self.send(EngineMessage::CancelAttempt { runner, incarnation, attempt, reason })
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
