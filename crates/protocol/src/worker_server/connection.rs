//! The engine's handles of a worker: a pending handshake, then a connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message as _;
use rollway_core::{Incarnation, RunnerId};
use rollway_net::Peer;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{DisconnectReason, WorkerServerShared};
use crate::byte_budget::ByteBudget;
use crate::codec::{FrameBody, OutgoingFrame};
use crate::message::{DefinitionId, EngineMessage, Hello, Welcome, WorkflowDefinition};
use crate::peer::ConnectionSocket;
use crate::proto::{self, engine_message::Kind};
use crate::refusal::{ConnectRefusal, RefusalCode};

/// Number of a connection; never reused by a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.0)
    }
}

/// A worker that waits for the engine's decision. Dropping it refuses the worker.
#[derive(Debug)]
pub struct PendingHandshake {
    pub(super) link: Arc<ConnectionShared>,
    pub(super) hello: Hello,
    pub(super) protocol: u32,
    /// `None` once it was sent.
    pub(super) reply: Option<HandshakeReply>,
}

#[derive(Debug)]
pub(super) struct HandshakeReply {
    pub(super) outgoing: mpsc::Sender<OutgoingFrame<proto::EngineMessage>>,
    pub(super) welcomed: oneshot::Sender<()>,
}

impl PendingHandshake {
    pub fn conn(&self) -> ConnId {
        self.link.id
    }

    pub fn peer(&self) -> Peer {
        self.link.socket.peer()
    }

    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Accepts the worker with at most as many runners as it offered.
    pub fn welcome(
        self,
        runners: &[(RunnerId, Incarnation)],
        heartbeat: Duration,
    ) -> WorkerConnection {
        self.accept(runners, heartbeat, BTreeMap::new())
    }

    /// Same as [`welcome`](Self::welcome), with the environment for a manual worker.
    pub fn accept(
        mut self,
        runners: &[(RunnerId, Incarnation)],
        heartbeat_interval: Duration,
        env: BTreeMap<String, String>,
    ) -> WorkerConnection {
        let limits = &self.link.shared.limits;
        let welcome = Welcome {
            protocol: self.protocol,
            runners: runners.to_vec(),
            heartbeat_interval,
            max_message_bytes: limits.message_bytes as u64,
            max_definitions: u32::try_from(limits.definitions).unwrap_or(u32::MAX),
            env,
        };
        let Some(HandshakeReply { outgoing, welcomed }) = self.reply.take() else {
            unreachable!("a reply consumes the handshake")
        };
        for (runner, incarnation) in runners {
            self.link.grant(*runner, *incarnation);
        }
        // The session must be ready before the worker sends. If either is gone, the engine gets a
        // normal `Left` event.
        let _ = welcomed.send(());
        let _ = outgoing.try_send(proto::EngineMessage::from(welcome).into());
        let room = ByteBudget::new(limits.outgoing_bytes);
        let link = Arc::clone(&self.link);
        let outbox = Mutex::new(ConnectionOutbox { outgoing, room, defined: Defined::default() });
        WorkerConnection(Arc::new(ConnectionHandle { link, outbox }))
    }

    pub fn refuse(mut self, refusal: ConnectRefusal) {
        self.link.end(DisconnectReason::Refused(refusal));
        self.reply = None;
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        if self.reply.is_some() {
            let refusal =
                ConnectRefusal::new(RefusalCode::NotWanted, "the engine does not need this worker");
            self.link.end(DisconnectReason::Refused(refusal));
        }
    }
}

/// A connected worker. Cheap to clone; dropping the last clone disconnects it after everything that
/// was sent has been read.
#[derive(Clone, Debug)]
pub struct WorkerConnection(Arc<ConnectionHandle>);

#[derive(Debug)]
struct ConnectionHandle {
    link: Arc<ConnectionShared>,
    outbox: Mutex<ConnectionOutbox>,
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        self.link.end(DisconnectReason::Dropped);
    }
}

/// Locked during a whole send, so that a definition precedes its use.
#[derive(Debug)]
struct ConnectionOutbox {
    outgoing: mpsc::Sender<OutgoingFrame<proto::EngineMessage>>,
    room: ByteBudget,
    defined: Defined,
}

/// Definitions that the worker caches, oldest first.
#[derive(Debug, Default)]
struct Defined {
    ids: BTreeSet<DefinitionId>,
    order: VecDeque<DefinitionId>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionSendError {
    /// The worker has disconnected or is about to; [`Left`](super::WorkerServerEvent::Left) has the
    /// reason.
    #[error("the worker has disconnected")]
    Gone,
    /// The message exceeds the limit; the worker stays connected.
    #[error("the message has {bytes} bytes, the limit is {limit}")]
    TooLarge { bytes: usize, limit: usize },
}

impl WorkerConnection {
    pub fn conn(&self) -> ConnId {
        self.0.link.id
    }

    pub fn peer(&self) -> Peer {
        self.0.link.socket.peer()
    }

    /// Queues a message, in the order of calls, preceded by its workflow definition if the worker
    /// does not have it. Never waits: a worker whose queue is full is disconnected.
    pub fn send(&self, message: EngineMessage) -> Result<(), ConnectionSendError> {
        let mut outbox = self.0.outbox.lock();
        match &message {
            EngineMessage::StartAttempt(start) => self.define(&mut outbox, &start.definition)?,
            EngineMessage::StartRunner { runner, incarnation } => {
                self.0.link.grant(*runner, *incarnation)
            }
            EngineMessage::CancelAttempt { .. }
            | EngineMessage::StopRunner { .. }
            | EngineMessage::Shutdown { .. } => {}
        }
        self.push(&outbox, FrameBody::Message(message.into()))
    }

    /// Sends arbitrary bytes in place of a message, for tests of workers.
    pub fn send_raw(&self, bytes: bytes::Bytes) -> Result<(), ConnectionSendError> {
        self.push(&self.0.outbox.lock(), FrameBody::Raw(bytes))
    }

    fn define(
        &self,
        outbox: &mut ConnectionOutbox,
        definition: &WorkflowDefinition,
    ) -> Result<(), ConnectionSendError> {
        if outbox.defined.ids.contains(&definition.id) {
            return Ok(());
        }
        let most = self.0.link.shared.limits.definitions.max(1);
        while outbox.defined.order.len() >= most
            && let Some(id) = outbox.defined.order.pop_front()
        {
            outbox.defined.ids.remove(&id);
            let forget = Kind::ForgetWorkflows(proto::ForgetWorkflows { ids: vec![id.0] });
            let message = proto::EngineMessage { kind: Some(forget) };
            self.push(outbox, FrameBody::Message(message))?;
        }
        let kind = Some(Kind::DefineWorkflow(definition.into()));
        self.push(outbox, FrameBody::Message(proto::EngineMessage { kind }))?;
        outbox.defined.ids.insert(definition.id);
        outbox.defined.order.push_back(definition.id);
        Ok(())
    }

    fn push(
        &self,
        outbox: &ConnectionOutbox,
        body: FrameBody<proto::EngineMessage>,
    ) -> Result<(), ConnectionSendError> {
        let limit = self.0.link.shared.limits.message_bytes;
        let bytes = match &body {
            FrameBody::Message(message) => message.encoded_len(),
            FrameBody::Raw(bytes) => bytes.len(),
            FrameBody::Parts(parts) => parts.iter().map(bytes::Bytes::len).sum(),
        };
        if bytes > limit {
            return Err(ConnectionSendError::TooLarge { bytes, limit });
        }
        let room = outbox.room.try_take(bytes).map_err(|_| self.too_slow("bytes"))?;
        outbox.outgoing.try_send(OutgoingFrame { body, room }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => self.too_slow("messages"),
            mpsc::error::TrySendError::Closed(_) => ConnectionSendError::Gone,
        })
    }

    fn too_slow(&self, unit: &str) -> ConnectionSendError {
        let message = format!("too many {unit} wait to be read");
        let refusal = ConnectRefusal::new(RefusalCode::SlowReader, message);
        self.0.link.end(DisconnectReason::Refused(refusal));
        ConnectionSendError::Gone
    }
}

/// State shared by a session, its outgoing stream and the engine's handles.
#[derive(Debug)]
pub(super) struct ConnectionShared {
    pub(super) id: ConnId,
    pub(super) socket: Arc<ConnectionSocket>,
    pub(super) shared: Arc<WorkerServerShared>,
    /// Newest incarnation of every runner that the worker has hosted.
    lives: Mutex<BTreeMap<RunnerId, Incarnation>>,
    reason: OnceLock<DisconnectReason>,
    ended: CancellationToken,
    /// Ends the outgoing stream, with a refusal or without.
    last_message: Mutex<Option<oneshot::Sender<Option<ConnectRefusal>>>>,
}

impl ConnectionShared {
    pub(super) fn new(
        id: ConnId,
        socket: Arc<ConnectionSocket>,
        shared: Arc<WorkerServerShared>,
        last_message: oneshot::Sender<Option<ConnectRefusal>>,
    ) -> Self {
        Self {
            id,
            socket,
            shared,
            lives: Mutex::default(),
            reason: OnceLock::new(),
            ended: CancellationToken::new(),
            last_message: Mutex::new(Some(last_message)),
        }
    }

    /// Ends the connection. Only the first reason counts.
    pub(super) fn end(&self, reason: DisconnectReason) {
        if self.reason.set(reason.clone()).is_err() {
            return;
        }
        let last_message = match reason {
            // Queued messages are still delivered.
            DisconnectReason::Dropped => None,
            DisconnectReason::Goodbye | DisconnectReason::Lost { .. } => Some(None),
            DisconnectReason::Refused(refusal) => {
                self.shared.counters.count(refusal.code, &self.socket);
                tracing::debug!(conn = %self.id, peer = %self.socket.peer(), %refusal, "refused");
                if refusal.code == RefusalCode::SlowReader {
                    // It would not read the refusal either.
                    self.socket.cut();
                }
                Some(Some(refusal))
            }
        };
        if let Some(last_message) = last_message
            && let Some(stream) = self.last_message.lock().take()
        {
            let _ = stream.send(last_message);
        }
        self.ended.cancel();
    }

    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    pub(super) fn reason(&self) -> DisconnectReason {
        self.reason.get().cloned().unwrap_or(DisconnectReason::Dropped)
    }

    fn grant(&self, runner: RunnerId, incarnation: Incarnation) {
        let mut lives = self.lives.lock();
        let newest = lives.entry(runner).or_insert(incarnation);
        *newest = incarnation.max(*newest);
    }

    /// Tells whether the worker may report about an incarnation. Earlier ones are allowed: messages
    /// of both sides may cross.
    pub(super) fn granted(&self, runner: RunnerId, incarnation: Incarnation) -> bool {
        self.lives.lock().get(&runner).is_some_and(|newest| incarnation <= *newest)
    }
}
