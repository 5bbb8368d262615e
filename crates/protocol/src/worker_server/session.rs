//! One stream, from its hello to its end.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use futures_core::Stream;
use rollway_base::Secret;
use tokio::sync::{mpsc, oneshot};
use tonic::server::{Grpc, StreamingService};
use tonic::{Code, Request, Response, Status, Streaming, body};
use tower_service::Service;

use super::connection::{ConnId, ConnectionShared, HandshakeReply, PendingHandshake};
use super::listen::{ConnectionSocket, WorkerListener};
use super::{DisconnectReason, WorkerServerEvent, WorkerServerShared};
use crate::codec::{CONNECT_PATH, DecodedFrame, OutgoingFrame, ProtoCodec};
use crate::message::{Hello, WorkerMessage};
use crate::proto::{self, engine_message, worker_message::Kind};
use crate::refusal::{ConnectRefusal, RefusalCode};
use crate::status_message::status_message;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Serves connections in the background until the server is dropped.
pub(super) fn serve(listener: WorkerListener, shared: Arc<WorkerServerShared>) {
    const WINDOW: u32 = 4 * 1024 * 1024;
    let keepalive = shared.limits.keepalive;
    let incoming = listener.incoming(Arc::clone(&shared.gate));
    let builder = tonic::transport::Server::builder()
        // One for the worker, one to tell it that there is only one.
        .max_concurrent_streams(2)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW)
        .http2_keepalive_interval(Some(keepalive))
        .http2_keepalive_timeout(Some(keepalive));
    tokio::spawn(async move {
        if let Err(error) = builder.serve_with_incoming(WorkerService(shared), incoming).await {
            tracing::error!(%error, "no more workers are accepted");
        }
    });
}

/// The one service that there is.
#[derive(Clone, Debug)]
struct WorkerService(Arc<WorkerServerShared>);

impl Service<http::Request<body::Body>> for WorkerService {
    type Response = http::Response<body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<body::Body>) -> Self::Future {
        let connect = WorkerConnect(Arc::clone(&self.0));
        Box::pin(async move {
            if request.uri().path() != CONNECT_PATH {
                let status = Status::unimplemented(format!("the only call is {CONNECT_PATH}"));
                return Ok(status.into_http());
            }
            let most = connect.0.limits.message_bytes;
            let mut grpc = Grpc::new(ProtoCodec::new()).max_decoding_message_size(most);
            Ok(grpc.streaming(connect, request).await)
        })
    }
}

/// The one call that there is.
struct WorkerConnect(Arc<WorkerServerShared>);

impl StreamingService<DecodedFrame<proto::WorkerMessage>> for WorkerConnect {
    type Response = OutgoingFrame<proto::EngineMessage>;
    type ResponseStream = OutStream;
    type Future = BoxFuture<Result<Response<OutStream>, Status>>;

    fn call(&mut self, request: Request<Messages>) -> Self::Future {
        let opened = open(Arc::clone(&self.0), request);
        Box::pin(std::future::ready(opened))
    }
}

type Messages = Streaming<DecodedFrame<proto::WorkerMessage>>;

fn open(
    shared: Arc<WorkerServerShared>,
    request: Request<Messages>,
) -> Result<Response<OutStream>, Status> {
    let Some(socket) = request.extensions().get::<Arc<ConnectionSocket>>().cloned() else {
        return Err(Status::internal("a stream without a socket"));
    };
    if socket.taken.swap(true, Ordering::Relaxed) {
        return Err(Status::failed_precondition("a connection has one stream"));
    }
    let id = ConnId(shared.next_conn.fetch_add(1, Ordering::Relaxed));
    let (outgoing, messages) = mpsc::channel(shared.limits.outgoing);
    let (last_word, last) = oneshot::channel();
    let link = Arc::new(ConnectionShared::new(id, socket, shared, last_word));
    let session = WorkerSession { link, messages: request.into_inner() };
    tokio::spawn(session.run(outgoing));
    Ok(Response::new(OutStream { messages, last: Some(last), status: None }))
}

/// What goes out: messages, and in the end perhaps a refusal.
struct OutStream {
    messages: mpsc::Receiver<OutgoingFrame<proto::EngineMessage>>,
    /// None once it has come, or once nobody can say it any more.
    last: Option<oneshot::Receiver<Option<ConnectRefusal>>>,
    /// How the stream ends, once the refusal is out.
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
                // Nobody is left who could; what waits is still sent.
                Err(_) => {}
            }
        }
        self.messages.poll_recv(cx).map(|message| message.map(Ok))
    }
}

/// The incoming half.
struct WorkerSession {
    link: Arc<ConnectionShared>,
    messages: Messages,
}

impl WorkerSession {
    async fn run(mut self, outgoing: mpsc::Sender<OutgoingFrame<proto::EngineMessage>>) {
        let link = Arc::clone(&self.link);
        if let Err(reason) = self.greet(&outgoing).await {
            link.end(reason);
        } else {
            // Now the stream out is open for as long as the engine wants it.
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
        let linger = link.shared.limits.linger;
        let _ = tokio::time::timeout(linger, link.socket.closed.cancelled()).await;
        link.socket.cut();
    }

    /// Goes as far as a valid hello that the engine knows of. Nobody hears of a failure but the
    /// peer.
    async fn greet(
        &mut self,
        outgoing: &mpsc::Sender<OutgoingFrame<proto::EngineMessage>>,
    ) -> Result<(), DisconnectReason> {
        let refused = |code, message: String| {
            Err(DisconnectReason::Refused(ConnectRefusal::new(code, message)))
        };
        let shared = Arc::clone(&self.link.shared);
        if self.link.socket.surplus {
            let most = shared.limits.connections;
            let message = format!("there are {most} connections already");
            return refused(RefusalCode::TooManyConnections, message);
        }
        let timeout = shared.limits.hello_timeout;
        let Ok(first) = tokio::time::timeout(timeout, self.next()).await else {
            return refused(RefusalCode::HelloTimeout, format!("no hello within {timeout:?}"));
        };
        let (Some(Kind::Hello(hello)), _) = first? else {
            let message = "the first message has to be a hello".to_owned();
            return refused(RefusalCode::HelloExpected, message);
        };
        // A stranger is told nothing but that it is one.
        if Secret::new(hello.secret.as_str()).as_ref() != Ok(&shared.secret) {
            let message = "the secret is not the engine's".to_owned();
            return refused(RefusalCode::BadSecret, message);
        }
        let hello = match Hello::try_from(hello) {
            Ok(hello) => hello,
            Err(invalid) => return refused(RefusalCode::InvalidMessage, invalid.to_string()),
        };
        let Some(protocol) = shared.versions.common(hello.versions) else {
            let (ours, theirs) = (shared.versions, hello.versions);
            let message = format!("the engine speaks version {ours}, the worker {theirs}");
            return refused(RefusalCode::Version, message);
        };
        let (welcomed, decision) = oneshot::channel();
        let answer = Some(HandshakeReply { outgoing: outgoing.clone(), welcomed });
        let greeting = PendingHandshake { link: Arc::clone(&self.link), hello, protocol, answer };
        shared.emit(WorkerServerEvent::Hello(greeting), 0).await;
        // From here on the engine knows the worker and hears of its end.
        self.await_decision(decision).await;
        Ok(())
    }

    async fn await_decision(&mut self, decision: oneshot::Receiver<()>) {
        let reason = tokio::select! {
            biased;
            // Either a welcome, or the greeting is gone and with it the reason.
            _ = decision => return,
            next = self.next() => match next {
                Ok(_) => DisconnectReason::Refused(ConnectRefusal::new(
                    RefusalCode::UnexpectedMessage,
                    "nothing may be said before the welcome",
                )),
                Err(reason) => reason,
            },
        };
        self.link.end(reason);
    }

    /// Hands messages to the engine until the worker leaves; returns why it did.
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
        if let Kind::Hello(_) = kind {
            let message = "only the first message is a hello";
            return Err(ConnectRefusal::new(RefusalCode::UnexpectedMessage, message));
        }
        let message = WorkerMessage::try_from(kind).map_err(|invalid| {
            ConnectRefusal::new(RefusalCode::InvalidMessage, invalid.to_string())
        })?;
        let check = |runner, life| {
            if self.link.granted(runner, life) {
                return Ok(());
            }
            let message = format!("runner {runner} in life {life} is not the worker's");
            Err(ConnectRefusal::new(RefusalCode::UnknownRunner, message))
        };
        match &message {
            WorkerMessage::Runner { runner, life, .. } => check(*runner, *life)?,
            WorkerMessage::Heartbeat(states) => {
                states.iter().try_for_each(|state| check(state.runner, state.life))?;
            }
            WorkerMessage::Log(_) | WorkerMessage::Goodbye { .. } => {}
        }
        Ok(message)
    }

    /// After a goodbye nothing may follow but the end of the stream.
    async fn await_close(&mut self) -> DisconnectReason {
        let linger = self.link.shared.limits.linger;
        match tokio::time::timeout(linger, self.next()).await {
            Ok(Ok(_)) => {
                let message = "a message came after the goodbye";
                DisconnectReason::Refused(ConnectRefusal::new(RefusalCode::AfterGoodbye, message))
            }
            Ok(Err(_)) | Err(_) => DisconnectReason::Goodbye,
        }
    }

    /// Waits for the next message; none: one that this version does not know.
    async fn next(&mut self) -> Result<(Option<Kind>, usize), DisconnectReason> {
        match self.messages.message().await {
            Ok(Some(DecodedFrame { bytes, message: Ok(message) })) => Ok((message.kind, bytes)),
            Ok(Some(DecodedFrame { message: Err(error), .. })) => {
                let message = format!("cannot be decoded: {error}");
                Err(DisconnectReason::Refused(ConnectRefusal::new(
                    RefusalCode::InvalidMessage,
                    message,
                )))
            }
            Ok(None) => Err(DisconnectReason::Lost { message: "the stream ended".into() }),
            Err(status) => Err(match status.code() {
                Code::OutOfRange => {
                    let most = self.link.shared.limits.message_bytes;
                    let message = format!("a message has more than {most} bytes");
                    DisconnectReason::Refused(ConnectRefusal::new(
                        RefusalCode::MessageTooLarge,
                        message,
                    ))
                }
                _ => DisconnectReason::Lost { message: status_message(&status).into() },
            }),
        }
    }
}
