//! Server side of one worker stream, from its hello to its end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Status};

use super::connection::{ConnId, ConnectionShared, HandshakeReply, PendingHandshake};
use super::{DisconnectReason, WorkerServerEvent, WorkerServerShared};
use crate::authentication::{self, ProofInputs, Prover};
use crate::codec::{CONNECT_PATH, DecodedFrame, OutgoingFrame};
use crate::field_error::InvalidField;
use crate::handshake_limit::HANDSHAKE_BYTES;
use crate::message::{Hello, WorkerMessage};
use crate::peer::ConnectionSocket;
use crate::proto::{self, engine_message, worker_message::Kind};
use crate::refusal::{ConnectRefusal, RefusalCode};
use crate::status_message::status_message;
use crate::stream_service::{self, StreamHandler};

type Messages = stream_service::Messages<proto::WorkerMessage>;

#[derive(Clone, Debug)]
pub(super) struct WorkerService(pub(super) Arc<WorkerServerShared>);

impl StreamHandler for WorkerService {
    const PATH: &'static str = CONNECT_PATH;
    type Incoming = proto::WorkerMessage;
    type Outgoing = proto::EngineMessage;
    type Replies = OutStream;

    fn max_message_bytes(&self) -> usize {
        self.0.limits.message_bytes
    }

    fn open(self, socket: Arc<ConnectionSocket>, messages: Messages) -> OutStream {
        let shared = self.0;
        let id = ConnId(shared.next_conn.fetch_add(1, Ordering::Relaxed));
        let (outgoing, queue) = mpsc::channel(shared.limits.outgoing);
        let (last_message, last) = oneshot::channel();
        let link = Arc::new(ConnectionShared::new(id, socket, shared, last_message));
        tokio::spawn(WorkerSession { link, messages }.run(outgoing));
        OutStream { messages: queue, last: Some(last), status: None }
    }
}

/// Outgoing messages, and at the end perhaps a refusal.
pub(super) struct OutStream {
    messages: mpsc::Receiver<OutgoingFrame<proto::EngineMessage>>,
    /// `None` once it was received or its sender was dropped.
    last: Option<oneshot::Receiver<Option<ConnectRefusal>>>,
    /// Final status, set once the refusal is sent.
    status: Option<Status>,
}

impl Stream for OutStream {
    type Item = Result<OutgoingFrame<proto::EngineMessage>, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(status) = self.status.take() {
            self.messages.close();
            return Poll::Ready(Some(Err(status)));
        }
        if let Some(last) = &mut self.last
            && let Poll::Ready(last) = Pin::new(last).poll(cx)
        {
            self.last = None;
            match last {
                Ok(Some(refusal)) => {
                    self.status = Some(refusal.status());
                    let kind = Some(engine_message::Kind::Refused(refusal.into()));
                    return Poll::Ready(Some(Ok(proto::EngineMessage { kind }.into())));
                }
                Ok(None) => {
                    self.messages.close();
                    return Poll::Ready(None);
                }
                // The queued messages are still sent.
                Err(_) => {}
            }
        }
        self.messages.poll_recv(cx).map(|message| message.map(Ok))
    }
}

/// Incoming half of a stream.
struct WorkerSession {
    link: Arc<ConnectionShared>,
    messages: Messages,
}

impl WorkerSession {
    async fn run(mut self, outgoing: mpsc::Sender<OutgoingFrame<proto::EngineMessage>>) {
        let link = Arc::clone(&self.link);
        if let Err(reason) = self.handshake(&outgoing).await {
            link.end(reason);
        } else {
            // From here on only the engine keeps the outgoing stream open.
            drop(outgoing);
            tokio::select! {
                biased;
                () = link.ended() => {}
                reason = self.listen() => link.end(reason),
            }
            let event = WorkerServerEvent::Left { conn: link.id, reason: link.reason() };
            link.shared.emit(event, 0).await;
        }
        // The worker may still be reading its last message.
        let close_delay = link.shared.limits.close_delay;
        let _ = tokio::time::timeout(close_delay, link.socket.closed()).await;
        link.socket.cut();
    }

    /// Completes the handshake up to the engine's decision. The engine never sees a failure.
    async fn handshake(
        &mut self,
        outgoing: &mpsc::Sender<OutgoingFrame<proto::EngineMessage>>,
    ) -> Result<(), DisconnectReason> {
        let shared = Arc::clone(&self.link.shared);
        if self.link.socket.is_surplus() {
            let message =
                format!("the limit of {} connections is reached", shared.limits.connections);
            return Err(refused(RefusalCode::TooManyConnections, message));
        }
        let timeout = shared.limits.hello_timeout;
        let proving = tokio::time::timeout(timeout, self.authenticate(outgoing));
        let Ok(authenticated) = proving.await else {
            let message = format!("no hello and proof within {timeout:?}");
            return Err(refused(RefusalCode::HelloTimeout, message));
        };
        let (hello, protocol) = authenticated?;
        self.link.socket.set_authenticated();
        let (welcomed, decision) = oneshot::channel();
        let reply = Some(HandshakeReply { outgoing: outgoing.clone(), welcomed });
        let handshake = PendingHandshake { link: Arc::clone(&self.link), hello, protocol, reply };
        shared.emit(WorkerServerEvent::Hello(handshake), 0).await;
        // From here on the engine knows the worker and receives its end.
        self.await_decision(decision).await;
        Ok(())
    }

    /// Receives the hello, proves that this engine has the secret, and checks the worker's proof.
    /// Returns the hello and the protocol version.
    async fn authenticate(
        &mut self,
        outgoing: &mpsc::Sender<OutgoingFrame<proto::EngineMessage>>,
    ) -> Result<(Hello, u32), DisconnectReason> {
        let shared = Arc::clone(&self.link.shared);
        let (Some(Kind::Hello(hello)), _) = self.next().await? else {
            let message = "the first message must be a hello";
            return Err(refused(RefusalCode::HelloExpected, message));
        };
        let invalid = |error: InvalidField| refused(RefusalCode::InvalidMessage, error.to_string());
        let client_nonce = hello.nonce.clone();
        let hello = Hello::try_from(hello).map_err(invalid)?;
        let Some(protocol) = shared.versions.common(hello.versions) else {
            let (ours, theirs) = (shared.versions, hello.versions);
            let message = format!("the engine speaks version {ours}, the worker {theirs}");
            return Err(refused(RefusalCode::Version, message));
        };
        authentication::check_nonce("hello.nonce", &client_nonce).map_err(invalid)?;
        let server_nonce = authentication::nonce().map_err(|error| {
            refused(RefusalCode::Other, format!("the engine has no random bytes: {error}"))
        })?;
        let inputs = ProofInputs { path: CONNECT_PATH, client_nonce, server_nonce };
        let challenge = proto::Challenge {
            nonce: inputs.server_nonce.clone(),
            proof: inputs.proof(&shared.secret, Prover::Server),
        };
        let kind = Some(engine_message::Kind::Challenge(challenge));
        // Fails only if the peer has disconnected, which the next receive reports.
        let _ = outgoing.send(proto::EngineMessage { kind }.into()).await;
        let proof = match self.next().await {
            Ok((Some(Kind::Proof(proto::Proof { proof })), _)) => proof,
            Ok(_) => return Err(refused(RefusalCode::UnexpectedMessage, "a proof was expected")),
            Err(DisconnectReason::Lost { .. }) => {
                let message = "the worker disconnected after the challenge: its secret does not \
                               match";
                return Err(refused(RefusalCode::BadSecret, message));
            }
            Err(reason) => return Err(reason),
        };
        if !inputs.is_proof(&shared.secret, Prover::Client, &proof) {
            return Err(refused(
                RefusalCode::BadSecret,
                "the secret does not match that of the engine",
            ));
        }
        Ok((hello, protocol))
    }

    async fn await_decision(&mut self, decision: oneshot::Receiver<()>) {
        let reason = tokio::select! {
            biased;
            // Welcomed, or the handshake was dropped and has set the reason.
            _ = decision => return,
            next = self.next() => match next {
                Ok(_) => refused(RefusalCode::UnexpectedMessage, "a message before the welcome"),
                Err(reason) => reason,
            },
        };
        self.link.end(reason);
    }

    /// Passes messages to the engine until the worker disconnects.
    async fn listen(&mut self) -> DisconnectReason {
        loop {
            let (kind, bytes) = match self.next().await {
                Ok((Some(kind), bytes)) => (kind, bytes),
                Ok((None, _)) => {
                    self.link.shared.unknown.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Err(reason) => return reason,
            };
            let message = match self.check(kind) {
                Ok(message) => message,
                Err(refusal) => return DisconnectReason::Refused(refusal),
            };
            let goodbye = matches!(message, WorkerMessage::Goodbye { .. });
            let event = WorkerServerEvent::Message { conn: self.link.id, message };
            self.link.shared.emit(event, bytes).await;
            if goodbye {
                return self.await_close().await;
            }
        }
    }

    fn check(&self, kind: Kind) -> Result<WorkerMessage, ConnectRefusal> {
        if let Kind::Hello(_) | Kind::Proof(_) = kind {
            let message = "a hello or a proof after the handshake";
            return Err(ConnectRefusal::new(RefusalCode::UnexpectedMessage, message));
        }
        let message = WorkerMessage::try_from(kind).map_err(|invalid| {
            ConnectRefusal::new(RefusalCode::InvalidMessage, invalid.to_string())
        })?;
        let check = |runner, incarnation| {
            if self.link.granted(runner, incarnation) {
                return Ok(());
            }
            let message = format!(
                "runner {runner} in incarnation {incarnation} does not belong to the worker"
            );
            Err(ConnectRefusal::new(RefusalCode::UnknownRunner, message))
        };
        match &message {
            WorkerMessage::Runner { runner, incarnation, .. } => check(*runner, *incarnation)?,
            WorkerMessage::Heartbeat(states) => {
                states.iter().try_for_each(|state| check(state.runner, state.incarnation))?;
            }
            WorkerMessage::Log(_) | WorkerMessage::Goodbye { .. } => {}
        }
        Ok(message)
    }

    /// Waits for the end of the stream, which must follow a goodbye.
    async fn await_close(&mut self) -> DisconnectReason {
        let close_delay = self.link.shared.limits.close_delay;
        match tokio::time::timeout(close_delay, self.next()).await {
            Ok(Ok(_)) => refused(RefusalCode::AfterGoodbye, "a message came after the goodbye"),
            Ok(Err(_)) | Err(_) => DisconnectReason::Goodbye,
        }
    }

    /// Waits for the next message and its size. `None`: a kind that this version does not know.
    async fn next(&mut self) -> Result<(Option<Kind>, usize), DisconnectReason> {
        match self.messages.message().await {
            Ok(Some(DecodedFrame { bytes, message: Ok(message) })) => Ok((message.kind, bytes)),
            Ok(Some(DecodedFrame { message: Err(error), .. })) => {
                Err(refused(RefusalCode::InvalidMessage, format!("cannot be decoded: {error}")))
            }
            Ok(None) => Err(DisconnectReason::Lost { message: "the stream ended".into() }),
            Err(status) => Err(match status.code() {
                Code::OutOfRange => {
                    let limit = match self.link.socket.is_authenticated() {
                        true => self.link.shared.limits.message_bytes,
                        false => HANDSHAKE_BYTES.min(self.link.shared.limits.message_bytes),
                    };
                    let message = format!("a message has more than {limit} bytes");
                    refused(RefusalCode::MessageTooLarge, message)
                }
                _ => DisconnectReason::Lost { message: status_message(&status).into() },
            }),
        }
    }
}

fn refused(code: RefusalCode, message: impl Into<Arc<str>>) -> DisconnectReason {
    DisconnectReason::Refused(ConnectRefusal::new(code, message))
}
