//! The bodies of answers, which notice whether the connection took all of them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::HttpBody;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::sync::mpsc;

use super::run_sessions::DeliveryReceipt;

/// A piece of a stream.
#[derive(Debug)]
pub(super) enum StreamChunk {
    /// There is more to come.
    Some(Bytes),
    /// It is the last, with what is to be signed when it was taken.
    Last(Bytes, Option<DeliveryReceipt>),
}

/// The body of an answer that was complete before it was given.
#[derive(Debug)]
pub(super) struct FullBody {
    rest: Option<Bytes>,
    receipt: Option<DeliveryReceipt>,
}

impl FullBody {
    pub(super) fn new(body: Bytes, receipt: Option<DeliveryReceipt>) -> Self {
        Self { rest: Some(body), receipt }
    }
}

impl HttpBody for FullBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let rest = self.rest.take();
        // It is not asked again once it has given as many bytes as it said it has.
        if let Some(receipt) = self.receipt.take() {
            receipt.sign();
        }
        Poll::Ready(rest.map(|body| Ok(Frame::data(body))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.as_ref().map_or(0, |body| body.len() as u64))
    }
}

/// The body of an answer that is made while it is given.
#[derive(Debug)]
pub(super) struct StreamBody {
    pieces: mpsc::Receiver<StreamChunk>,
    receipt: Option<DeliveryReceipt>,
    /// Whether the last piece has come.
    has_ended: bool,
}

impl StreamBody {
    /// Returns the two ends. The far one is closed when the client has left.
    pub(super) fn new() -> (mpsc::Sender<StreamChunk>, Self) {
        // A client that is slower than the server holds it up rather than filling memory.
        let (sender, pieces) = mpsc::channel(16);
        (sender, Self { pieces, receipt: None, has_ended: false })
    }
}

impl HttpBody for StreamBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let piece = std::task::ready!(self.pieces.poll_recv(context));
        Poll::Ready(match piece {
            Some(StreamChunk::Some(bytes)) => Some(Ok(Frame::data(bytes))),
            Some(StreamChunk::Last(bytes, receipt)) => {
                self.receipt = receipt;
                self.has_ended = true;
                Some(Ok(Frame::data(bytes)))
            }
            // The client is not to take what it has for all there is.
            None if !self.has_ended => Some(Err(io::ErrorKind::BrokenPipe.into())),
            None => {
                if let Some(receipt) = self.receipt.take() {
                    receipt.sign();
                }
                None
            }
        })
    }
}
