//! The gRPC server of a protocol with one bidirectional call, shared by workers and readers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_core::Stream;
use hyper::service::Service;
use prost::Message;
use rollway_net::tls::TlsIdentity;
use rollway_net::{
    BoundListener, HttpVersions, ListenerKind, ListenerLimits, ListenerOptions, RequestBody,
    RunningListener,
};
use tonic::server::{Grpc, StreamingService};
use tonic::{Request, Response, Status, Streaming, body};

use crate::codec::{DecodedFrame, OutgoingFrame, ProtoCodec};
use crate::handshake_limit::HandshakeLimit;
use crate::peer::{ConnectionSocket, RefusalCounters, StreamExpected};

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

/// Connections beyond the limit that are refused with a reason.
const REFUSABLE: usize = 16;

/// Options of the listener of a protocol.
pub(crate) struct StreamServerOptions {
    pub(crate) kind: ListenerKind,
    pub(crate) connections: usize,
    /// Limit from the connection to its stream.
    pub(crate) hello_timeout: Duration,
    pub(crate) keepalive: Duration,
    /// `None`: clear text.
    pub(crate) tls: Option<TlsIdentity>,
}

/// Serves connections in the background until the result is dropped.
pub(crate) fn serve<H: StreamHandler>(
    handler: H,
    listener: BoundListener,
    counters: Arc<RefusalCounters>,
    options: StreamServerOptions,
) -> RunningListener {
    const WINDOW: u32 = 4 * 1024 * 1024;
    let versions = HttpVersions::Http2 {
        stream_window: WINDOW,
        connection_window: 2 * WINDOW,
        // The second one is refused with an explanation.
        max_streams: 2,
        keepalive: options.keepalive,
    };
    let limits = ListenerLimits {
        connections: options.connections,
        refusable: REFUSABLE,
        header_timeout: options.hello_timeout,
        // The stream of a peer may be silent for long; HTTP/2 pings detect lost peers.
        body_timeout: Duration::MAX,
        ..ListenerLimits::of(options.kind)
    };
    let StreamServerOptions { kind, tls, .. } = options;
    let options = ListenerOptions { kind, versions, limits, tls, needs_proof: true };
    RunningListener::serve(listener, options, move |connection| {
        let socket = Arc::new(ConnectionSocket::new(Arc::clone(connection)));
        let counters = Arc::clone(&counters);
        let expected = StreamExpected { socket: Arc::clone(&socket), counters };
        StreamService { handler: handler.clone(), socket, _expected: Some(Arc::new(expected)) }
    })
}

/// Service of one connection.
#[derive(Clone, Debug)]
struct StreamService<H> {
    handler: H,
    socket: Arc<ConnectionSocket>,
    /// `None` in requests, which may outlive the connection.
    _expected: Option<Arc<StreamExpected>>,
}

impl<H: StreamHandler> Service<http::Request<RequestBody>> for StreamService<H> {
    type Response = http::Response<body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn call(&self, request: http::Request<RequestBody>) -> Self::Future {
        let (handler, socket) = (self.handler.clone(), Arc::clone(&self.socket));
        let service = Self { handler, socket, _expected: None };
        Box::pin(async move {
            if request.uri().path() != H::PATH {
                let status = Status::unimplemented(format!("the only call is {}", H::PATH));
                return Ok(status.into_http());
            }
            let socket = Arc::clone(&service.socket);
            let request = request.map(|body| body::Body::new(HandshakeLimit::new(body, socket)));
            let limit = service.handler.max_message_bytes();
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
            let socket = Arc::clone(&self.socket);
            if socket.taken.swap(true, Ordering::Relaxed) {
                return Err(Status::failed_precondition("a connection has one stream"));
            }
            Ok(Response::new(self.handler.clone().open(socket, request.into_inner())))
        };
        std::future::ready(open())
    }
}
