//! What the engine holds of a worker: first a greeting to be answered, then a connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message as _;
use rollway_core::{Incarnation, RunnerId};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::listen::{ConnectionSocket, Peer};
use super::{DisconnectReason, WorkerServerShared};
use crate::byte_budget::ByteBudget;
use crate::codec::{FrameBody, OutgoingFrame};
use crate::message::{DefinitionId, EngineMessage, Hello, Welcome, WorkflowDefinition};
use crate::proto::{self, engine_message::Kind};
use crate::refusal::{ConnectRefusal, RefusalCode};

/// Names a connection; never used twice by one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.0)
    }
}

/// A worker that waits to be taken in. Dropping it refuses the worker.
#[derive(Debug)]
pub struct PendingHandshake {
    pub(super) link: Arc<ConnectionShared>,
    pub(super) hello: Hello,
    pub(super) protocol: u32,
    /// `None` once it was sent.
    pub(super) reply: Option<HandshakeReply>,
}

/// The way to the worker, and the session that waits for the engine's word.
#[derive(Debug)]
pub(super) struct HandshakeReply {
    pub(super) outgoing: mpsc::Sender<OutgoingFrame<proto::EngineMessage>>,
    pub(super) welcomed: oneshot::Sender<()>,
}

impl PendingHandshake {
    /// Returns the name of the connection.
    pub fn conn(&self) -> ConnId {
        self.link.id
    }

    /// Returns who is at the other end.
    pub fn peer(&self) -> Peer {
        self.link.socket.peer
    }

    /// Returns who the worker says it is.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Takes the worker in, with at most as many runners as it offered. From now on its messages
    /// arrive.
    pub fn welcome(
        self,
        runners: &[(RunnerId, Incarnation)],
        heartbeat: Duration,
    ) -> WorkerConnection {
        self.accept(runners, heartbeat, BTreeMap::new())
    }

    /// As [`welcome`](Self::welcome), and tells a worker that was started by hand what it would
    /// have found in its environment otherwise.
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
        for (runner, life) in runners {
            self.link.grant(*runner, *life);
        }
        // The session must know before the worker does, or its first words come too early. If
        // either is gone already, the engine hears it as any other loss.
        let _ = welcomed.send(());
        let _ = outgoing.try_send(proto::EngineMessage::from(welcome).into());
        let room = ByteBudget::new(limits.outgoing_bytes);
        let link = Arc::clone(&self.link);
        let outbox = Mutex::new(ConnectionOutbox { outgoing, room, defined: Defined::default() });
        WorkerConnection(Arc::new(ConnectionHandle { link, outbox }))
    }

    /// Refuses the worker.
    pub fn refuse(mut self, refusal: ConnectRefusal) {
        self.link.end(DisconnectReason::Refused(refusal));
        self.reply = None;
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        if self.reply.is_some() {
            let refusal =
                ConnectRefusal::new(RefusalCode::NotWanted, "the engine has no use for it");
            self.link.end(DisconnectReason::Refused(refusal));
        }
    }
}

/// A worker that was taken in. Clones are the same connection; dropping the last one ends it when
/// what was sent before has been read.
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

/// Locked from the first to the last message of a send, so that a definition stands before its
/// use and is forgotten behind it.
#[derive(Debug)]
struct ConnectionOutbox {
    outgoing: mpsc::Sender<OutgoingFrame<proto::EngineMessage>>,
    room: ByteBudget,
    defined: Defined,
}

/// The definitions that the worker has, oldest first.
#[derive(Debug, Default)]
struct Defined {
    ids: BTreeSet<DefinitionId>,
    order: VecDeque<DefinitionId>,
}

/// Why a message was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionSendError {
    /// The worker is gone or on its way out; [`Left`](super::WorkerServerEvent::Left) tells why.
    #[error("the worker is gone")]
    Gone,
    /// The message is larger than a message may be. The worker is well.
    #[error("the message has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        limit: usize,
    },
}

impl WorkerConnection {
    /// Returns its name.
    pub fn conn(&self) -> ConnId {
        self.0.link.id
    }

    /// Returns who is at the other end.
    pub fn peer(&self) -> Peer {
        self.0.link.socket.peer
    }

    /// Sends a message, in the order of calls. Never waits: a worker that does not read what it is
    /// sent is disconnected when too much of it has piled up. The definition of an attempt is sent
    /// along if the worker does not have it.
    pub fn send(&self, message: EngineMessage) -> Result<(), ConnectionSendError> {
        let mut outbox = self.0.outbox.lock();
        match &message {
            EngineMessage::StartAttempt(start) => self.define(&mut outbox, &start.definition)?,
            EngineMessage::StartRunner { runner, life } => self.0.link.grant(*runner, *life),
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
            let forget = Kind::Forget(proto::Forget { ids: vec![id.0] });
            let message = proto::EngineMessage { kind: Some(forget) };
            self.push(outbox, FrameBody::Message(message))?;
        }
        let kind = Some(Kind::Define(definition.into()));
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

/// What a session, its outgoing stream and the engine's handles know in common.
#[derive(Debug)]
pub(super) struct ConnectionShared {
    pub(super) id: ConnId,
    pub(super) socket: Arc<ConnectionSocket>,
    pub(super) shared: Arc<WorkerServerShared>,
    /// The newest life of every runner that the worker was ever given.
    lives: Mutex<BTreeMap<RunnerId, Incarnation>>,
    reason: OnceLock<DisconnectReason>,
    ended: CancellationToken,
    /// Tells the outgoing stream to stop, and what to say before.
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

    /// Ends the connection, once: the first reason counts.
    pub(super) fn end(&self, reason: DisconnectReason) {
        if self.reason.set(reason.clone()).is_err() {
            return;
        }
        let last_message = match reason {
            // What was sent before is still delivered.
            DisconnectReason::Dropped => None,
            DisconnectReason::Goodbye | DisconnectReason::Lost { .. } => Some(None),
            DisconnectReason::Refused(refusal) => {
                self.shared.gate.count(refusal.code);
                tracing::debug!(conn = %self.id, peer = %self.socket.peer, %refusal, "refused");
                if refusal.code == RefusalCode::SlowReader {
                    // It would not read this either.
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

    /// Waits for the end, by whatever reason.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Returns why it ended.
    pub(super) fn reason(&self) -> DisconnectReason {
        self.reason.get().cloned().unwrap_or(DisconnectReason::Dropped)
    }

    fn grant(&self, runner: RunnerId, life: Incarnation) {
        let mut lives = self.lives.lock();
        let newest = lives.entry(runner).or_insert(life);
        *newest = life.max(*newest);
    }

    /// Tells whether the worker may speak of a life of a runner. It may of an earlier one: its
    /// words and the engine's may cross.
    pub(super) fn granted(&self, runner: RunnerId, life: Incarnation) -> bool {
        self.lives.lock().get(&runner).is_some_and(|newest| life <= *newest)
    }
}
