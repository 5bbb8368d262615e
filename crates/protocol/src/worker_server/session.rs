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

use super::connection::{Answer, ConnId, Greeting, Link};
use super::listen::{Listener, Socket};
use super::{LeftReason, ServerEvent, Shared};
use crate::codec::{CONNECT, Decoded, Outgoing, WireCodec};
use crate::message::{Hello, WorkerMessage};
use crate::proto::{self, engine_message, worker_message::Kind};
use crate::refusal::{Refusal, RefusalCode};
use crate::status_message::status_message;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Serves connections in the background until the server is dropped.
pub(super) fn serve(listener: Listener, shared: Arc<Shared>) {
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
struct WorkerService(Arc<Shared>);

impl Service<http::Request<body::Body>> for WorkerService {
    type Response = http::Response<body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<body::Body>) -> Self::Future {
        let connect = Connect(Arc::clone(&self.0));
        Box::pin(async move {
            if request.uri().path() != CONNECT {
                let status = Status::unimplemented(format!("the only call is {CONNECT}"));
                return Ok(status.into_http());
            }
            let most = connect.0.limits.message_bytes;
            let mut grpc = Grpc::new(WireCodec::new()).max_decoding_message_size(most);
            Ok(grpc.streaming(connect, request).await)
        })
    }
}

/// The one call that there is.
struct Connect(Arc<Shared>);

impl StreamingService<Decoded<proto::WorkerMessage>> for Connect {
    type Response = Outgoing<proto::EngineMessage>;
    type ResponseStream = OutStream;
    type Future = BoxFuture<Result<Response<OutStream>, Status>>;

    fn call(&mut self, request: Request<Messages>) -> Self::Future {
        let opened = open(Arc::clone(&self.0), request);
        Box::pin(std::future::ready(opened))
    }
}

type Messages = Streaming<Decoded<proto::WorkerMessage>>;

fn open(shared: Arc<Shared>, request: Request<Messages>) -> Result<Response<OutStream>, Status> {
    let Some(socket) = request.extensions().get::<Arc<Socket>>().cloned() else {
        return Err(Status::internal("a stream without a socket"));
    };
    if socket.taken.swap(true, Ordering::Relaxed) {
        return Err(Status::failed_precondition("a connection has one stream"));
    }
    let id = ConnId(shared.next_conn.fetch_add(1, Ordering::Relaxed));
    let (outgoing, messages) = mpsc::channel(shared.limits.outgoing);
    let (last_word, last) = oneshot::channel();
    let link = Arc::new(Link::new(id, socket, shared, last_word));
    let session = Session { link, messages: request.into_inner() };
    tokio::spawn(session.run(outgoing));
    Ok(Response::new(OutStream { messages, last: Some(last), status: None }))
}

/// What goes out: messages, and in the end perhaps a refusal.
struct OutStream {
    messages: mpsc::Receiver<Outgoing<proto::EngineMessage>>,
    /// None once it has come, or once nobody can say it any more.
    last: Option<oneshot::Receiver<Option<Refusal>>>,
    /// How the stream ends, once the refusal is out.
    status: Option<Status>,
}

impl Stream for OutStream {
    type Item = Result<Outgoing<proto::EngineMessage>, Status>;

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
struct Session {
    link: Arc<Link>,
    messages: Messages,
}

impl Session {
    async fn run(mut self, outgoing: mpsc::Sender<Outgoing<proto::EngineMessage>>) {
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
            let event = ServerEvent::Left { conn: link.id, reason: link.reason() };
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
        outgoing: &mpsc::Sender<Outgoing<proto::EngineMessage>>,
    ) -> Result<(), LeftReason> {
        let refused = |code, message: String| Err(LeftReason::Refused(Refusal::new(code, message)));
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
        let answer = Some(Answer { outgoing: outgoing.clone(), welcomed });
        let greeting = Greeting { link: Arc::clone(&self.link), hello, protocol, answer };
        shared.emit(ServerEvent::Hello(greeting), 0).await;
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
                Ok(_) => LeftReason::Refused(Refusal::new(
                    RefusalCode::UnexpectedMessage,
                    "nothing may be said before the welcome",
                )),
                Err(reason) => reason,
            },
        };
        self.link.end(reason);
    }

    /// Hands messages to the engine until the worker leaves; returns why it did.
    async fn listen(&mut self) -> LeftReason {
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
                Err(refusal) => return LeftReason::Refused(refusal),
            };
            let goodbye = matches!(message, WorkerMessage::Goodbye { .. });
            let event = ServerEvent::Message { conn: self.link.id, message };
            self.link.shared.emit(event, bytes).await;
            if goodbye {
                return self.await_close().await;
            }
        }
    }

    fn check(&self, kind: Kind) -> Result<WorkerMessage, Refusal> {
        if let Kind::Hello(_) = kind {
            let message = "only the first message is a hello";
            return Err(Refusal::new(RefusalCode::UnexpectedMessage, message));
        }
        let message = WorkerMessage::try_from(kind)
            .map_err(|invalid| Refusal::new(RefusalCode::InvalidMessage, invalid.to_string()))?;
        let check = |runner, life| {
            if self.link.granted(runner, life) {
                return Ok(());
            }
            let message = format!("runner {runner} in life {life} is not the worker's");
            Err(Refusal::new(RefusalCode::UnknownRunner, message))
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
    async fn await_close(&mut self) -> LeftReason {
        let linger = self.link.shared.limits.linger;
        match tokio::time::timeout(linger, self.next()).await {
            Ok(Ok(_)) => {
                let message = "a message came after the goodbye";
                LeftReason::Refused(Refusal::new(RefusalCode::AfterGoodbye, message))
            }
            Ok(Err(_)) | Err(_) => LeftReason::Goodbye,
        }
    }

    /// Waits for the next message; none: one that this version does not know.
    async fn next(&mut self) -> Result<(Option<Kind>, usize), LeftReason> {
        match self.messages.message().await {
            Ok(Some(Decoded { bytes, message: Ok(message) })) => Ok((message.kind, bytes)),
            Ok(Some(Decoded { message: Err(error), .. })) => {
                let message = format!("cannot be decoded: {error}");
                Err(LeftReason::Refused(Refusal::new(RefusalCode::InvalidMessage, message)))
            }
            Ok(None) => Err(LeftReason::Lost { message: "the stream ended".into() }),
            Err(status) => Err(match status.code() {
                Code::OutOfRange => {
                    let most = self.link.shared.limits.message_bytes;
                    let message = format!("a message has more than {most} bytes");
                    LeftReason::Refused(Refusal::new(RefusalCode::MessageTooLarge, message))
                }
                _ => LeftReason::Lost { message: status_message(&status).into() },
            }),
        }
    }
}
