//! HTTP on one connection, with its timeouts.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use http::header::HOST;
use http::{HeaderValue, Request, Response, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rollway_base::listener::ListenerLimits;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::body::{RequestBody, RequestInFlight, ResponseBody};
use crate::connection::Connection;
use crate::counters::CloseReason;
use crate::io::ConnectionIo;
use crate::options::HttpVersions;

/// Bytes of a stream and of a connection that an HTTP/2 peer may send before they are read.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;

/// Requests in flight on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;

/// Errors of services and bodies.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Service of one connection.
pub trait ConnectionService<B>:
    Service<
        Request<RequestBody>,
        Response = Response<B>,
        Error: Into<BoxError>,
        Future: Send + 'static,
    > + Send
    + 'static
{
}

impl<B, S> ConnectionService<B> for S where
    S: Service<
            Request<RequestBody>,
            Response = Response<B>,
            Error: Into<BoxError>,
            Future: Send + 'static,
        > + Send
        + 'static
{
}

/// Body of a response.
pub trait OutgoingBody:
    Body<Data: Buf + Send, Error: Into<BoxError>> + Send + Unpin + 'static
{
}

impl<B> OutgoingBody for B where
    B: Body<Data: Buf + Send, Error: Into<BoxError>> + Send + Unpin + 'static
{
}

/// The HTTP settings of a listener.
#[derive(Clone, Debug)]
pub(crate) struct HttpServer {
    builder: auto::Builder<TokioExecutor>,
    limits: ListenerLimits,
}

impl HttpServer {
    pub(crate) fn new(versions: HttpVersions, limits: ListenerLimits) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // hyper counts the time between requests as part of the next head.
        builder.http1().timer(TokioTimer::new()).header_read_timeout(None::<Duration>);
        builder.http1().max_buf_size(limits.head_bytes);
        let max_head = u32::try_from(limits.head_bytes).unwrap_or(u32::MAX);
        builder.http2().timer(TokioTimer::new()).max_header_list_size(max_head);
        match versions {
            HttpVersions::Http1And2 => {
                builder
                    .http2()
                    .max_concurrent_streams(MAX_STREAMS)
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW);
            }
            HttpVersions::Http2 { stream_window, connection_window, max_streams, keepalive } => {
                builder
                    .http2()
                    .max_concurrent_streams(max_streams)
                    .initial_stream_window_size(stream_window)
                    .initial_connection_window_size(connection_window)
                    .keep_alive_interval(keepalive)
                    .keep_alive_timeout(keepalive);
                builder = builder.http2_only();
            }
        }
        Self { builder, limits }
    }

    /// Serves a connection until it ends, is cut or reaches a timeout. With `closing`, requests in
    /// flight are finished.
    pub(crate) async fn serve<I, S, B>(
        &self,
        stream: I,
        connection: &Arc<Connection>,
        service: S,
        closing: CancellationToken,
    ) where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        S: ConnectionService<B>,
        B: OutgoingBody,
    {
        let io = TokioIo::new(ConnectionIo::new(stream, Arc::clone(connection)));
        let service = CountedService {
            service,
            connection: Arc::clone(connection),
            body_timeout: self.limits.body_timeout,
        };
        let mut serving = std::pin::pin!(self.builder.serve_connection(io, service));
        let first_check = self.limits.header_timeout.min(self.limits.idle_timeout);
        let mut check = std::pin::pin!(tokio::time::sleep(first_check));
        let mut is_closing = false;
        loop {
            tokio::select! {
                biased;
                () = connection.cut.cancelled() => return,
                end = serving.as_mut() => {
                    if let Err(error) = end {
                        tracing::debug!(peer = %connection.peer(), error, "a connection ended");
                    }
                    return;
                }
                () = closing.cancelled(), if !is_closing => {
                    is_closing = true;
                    serving.as_mut().graceful_shutdown();
                }
                () = check.as_mut() => match connection.activity.check(&self.limits) {
                    Ok(next) => check.as_mut().reset(tokio::time::Instant::now() + next),
                    // The peer may be about to send a request: HTTP/2 tells it not to.
                    Err(CloseReason::IdleTimeout) if !is_closing => {
                        is_closing = true;
                        connection.counters.count(CloseReason::IdleTimeout);
                        serving.as_mut().graceful_shutdown();
                        let next = tokio::time::Instant::now() + self.limits.header_timeout;
                        check.as_mut().reset(next);
                    }
                    Err(CloseReason::IdleTimeout) => return,
                    Err(reason) => {
                        connection.close(reason);
                        return;
                    }
                },
            }
        }
    }
}

/// Sets the header `Host` of an HTTP/2 request to its `:authority`: services check one name.
fn set_host(request: &mut Request<RequestBody>) {
    if request.version() != Version::HTTP_2 {
        return;
    }
    let authority = request.uri().authority().map(|authority| authority.as_str());
    let host = authority.and_then(|authority| HeaderValue::from_str(authority).ok());
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    }
}

/// A service whose requests are part of the activity of their connection.
struct CountedService<S> {
    service: S,
    connection: Arc<Connection>,
    body_timeout: Duration,
}

impl<S, B> Service<Request<Incoming>> for CountedService<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>, Future: Send + 'static>,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let in_flight = RequestInFlight::new(&self.connection);
        let mut request = request.map(|body| RequestBody::new(body, self.body_timeout));
        set_host(&mut request);
        let responding = self.service.call(request);
        Box::pin(async move {
            let response = responding.await?;
            Ok(response.map(|body| ResponseBody::new(body, in_flight)))
        })
    }
}
