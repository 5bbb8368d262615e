//! Bodies of requests and responses, which are part of the activity of a connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::connection::Connection;

/// Error of the body of a request.
#[derive(Debug, thiserror::Error)]
pub enum BodyTimedOut {
    #[error("no data of the body of the request for {0:?}")]
    TimedOut(Duration),
    #[error("cannot read the body of the request")]
    Read(#[from] hyper::Error),
}

/// Body of a request, with a limit of the time between two parts.
#[derive(Debug)]
pub struct RequestBody {
    body: Incoming,
    timeout: Duration,
    /// Set while the body waits for the peer.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    pub(crate) const fn new(body: Incoming, timeout: Duration) -> Self {
        Self { body, timeout, sleep: None }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyTimedOut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyTimedOut>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.sleep = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let timeout = this.timeout;
        let Some(deadline) = Instant::now().checked_add(timeout) else { return Poll::Pending };
        let sleep = this.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        sleep.as_mut().poll(cx).map(|()| Some(Err(BodyTimedOut::TimedOut(timeout))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request of a connection, until its response was sent.
#[derive(Debug)]
pub(crate) struct RequestInFlight(Arc<Connection>);

impl RequestInFlight {
    pub(crate) fn new(connection: &Arc<Connection>) -> Self {
        connection.activity.request_began();
        Self(Arc::clone(connection))
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.0.activity.request_ended();
    }
}

/// Body of a response; its request ends with it.
#[derive(Debug)]
pub struct ResponseBody<B> {
    body: B,
    _request: RequestInFlight,
}

impl<B> ResponseBody<B> {
    pub(crate) const fn new(body: B, request: RequestInFlight) -> Self {
        Self { body, _request: request }
    }
}

impl<B: Body + Unpin> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
