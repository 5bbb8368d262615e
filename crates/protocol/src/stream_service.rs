//! The gRPC server of a protocol with one bidirectional call, shared by workers and readers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use prost::Message;
use tonic::server::{Grpc, StreamingService};
use tonic::{Request, Response, Status, Streaming, body};
use tower_service::Service;

use crate::codec::{DecodedFrame, OutgoingFrame, ProtoCodec};
use crate::handshake_limit::HandshakeLimit;
use crate::listen::{ConnectionGate, ConnectionSocket, WorkerListener};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Messages of a peer.
pub(crate) type Messages<M> = Streaming<DecodedFrame<M>>;

/// Server side of one protocol. Cheap to clone; clones share state.
pub(crate) trait StreamHandler: Clone + Send + Sync + 'static {
    /// Path of the only call.
    const PATH: &'static str;
    type Incoming: Message + Default + 'static;
    type Outgoing: Message + 'static;
    type Replies: Stream<Item = Result<OutgoingFrame<Self::Outgoing>, Status>> + Send + 'static;

    fn max_message_bytes(&self) -> usize;

    /// Serves a new stream in the background; returns its outgoing half.
    fn open(
        self,
        socket: Arc<ConnectionSocket>,
        messages: Messages<Self::Incoming>,
    ) -> Self::Replies;
}

/// Serves connections in the background until the gate is stopped.
pub(crate) fn serve<H: StreamHandler>(
    handler: H,
    listener: WorkerListener,
    gate: Arc<ConnectionGate>,
    keepalive: Duration,
) {
    const WINDOW: u32 = 4 * 1024 * 1024;
    let incoming = listener.incoming(gate);
    let builder = tonic::transport::Server::builder()
        // The second one is refused with an explanation.
        .max_concurrent_streams(2)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW)
        .http2_keepalive_interval(Some(keepalive))
        .http2_keepalive_timeout(Some(keepalive));
    tokio::spawn(async move {
        if let Err(error) = builder.serve_with_incoming(StreamService(handler), incoming).await {
            tracing::error!(%error, call = H::PATH, "server ended, no connection is accepted");
        }
    });
}

#[derive(Clone, Debug)]
struct StreamService<H>(H);

impl<H: StreamHandler> Service<http::Request<body::Body>> for StreamService<H> {
    type Response = http::Response<body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<body::Body>) -> Self::Future {
        let service = Self(self.0.clone());
        Box::pin(async move {
            if request.uri().path() != H::PATH {
                let status = Status::unimplemented(format!("the only call is {}", H::PATH));
                return Ok(status.into_http());
            }
            let Some(socket) = request.extensions().get::<Arc<ConnectionSocket>>().cloned() else {
                return Ok(Status::internal("a stream without a socket").into_http());
            };
            let request =
                request.map(|body| body::Body::new(HandshakeLimit::new(body, Arc::clone(&socket))));
            let limit = service.0.max_message_bytes();
            let mut grpc = Grpc::new(ProtoCodec::new()).max_decoding_message_size(limit);
            Ok(grpc.streaming(service, request).await)
        })
    }
}

impl<H: StreamHandler> StreamingService<DecodedFrame<H::Incoming>> for StreamService<H> {
    type Response = OutgoingFrame<H::Outgoing>;
    type ResponseStream = H::Replies;
    type Future = std::future::Ready<Result<Response<H::Replies>, Status>>;

    fn call(&mut self, request: Request<Messages<H::Incoming>>) -> Self::Future {
        let open = || {
            let socket = request.extensions().get::<Arc<ConnectionSocket>>().cloned();
            let socket = socket.ok_or_else(|| Status::internal("a stream without a socket"))?;
            if socket.taken.swap(true, Ordering::Relaxed) {
                return Err(Status::failed_precondition("a connection has one stream"));
            }
            Ok(Response::new(self.0.clone().open(socket, request.into_inner())))
        };
        std::future::ready(open())
    }
}
