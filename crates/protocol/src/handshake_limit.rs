//! Limit of the bytes that a peer may send before it is authenticated.
//!
//! The message limit of a stream is that of large payloads. A peer without the secret must not be
//! able to make this process buffer and decode as much.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use rollway_net::RequestBody;
use tonic::Status;

use crate::peer::ConnectionSocket;

/// Maximum bytes of all messages of a handshake.
pub(crate) const HANDSHAKE_BYTES: usize = 16 * 1024;

/// Request body that fails once an unauthenticated peer has sent more than a handshake needs.
pub(crate) struct HandshakeLimit {
    body: RequestBody,
    socket: Arc<ConnectionSocket>,
    received: usize,
}

impl HandshakeLimit {
    pub(crate) fn new(body: RequestBody, socket: Arc<ConnectionSocket>) -> Self {
        Self { body, socket, received: 0 }
    }
}

impl HttpBody for HandshakeLimit {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && !self.socket.is_authenticated()
        {
            self.received += data.len();
            if self.received > HANDSHAKE_BYTES {
                return Poll::Ready(Some(Err(Status::out_of_range("handshake too large"))));
            }
        }
        Poll::Ready(frame.map(|frame| {
            frame.map_err(|error| Status::unavailable(rollway_base::error_chain(&error)))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
