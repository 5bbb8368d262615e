//! Bytes of a connection: activity, framing check and forced close.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::Connection;
use crate::counters::CloseReason;
use crate::framing::FramingCheck;

const AMBIGUOUS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
    content-length: 64\r\nconnection: close\r\n\r\n\
    send one of Content-Length and Transfer-Encoding, and only once\n";

/// A stream that records what its connection does.
pub(crate) struct ConnectionIo<S> {
    stream: S,
    connection: Arc<Connection>,
    framing: FramingCheck,
    /// Requests that began before the current head.
    requests: u32,
}

impl<S> ConnectionIo<S> {
    pub(crate) fn new(stream: S, connection: Arc<Connection>) -> Self {
        Self { stream, connection, framing: FramingCheck::default(), requests: 0 }
    }

    fn note_write<T>(&self, written: Poll<T>) -> Poll<T> {
        self.connection.activity.write_blocked(written.is_pending());
        written
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ConnectionIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let this = &mut *self;
        let activity = &this.connection.activity;
        if !activity.is_idle() || this.framing.is_http2() {
            return Poll::Ready(Ok(()));
        }
        let requests = activity.requests();
        if requests != this.requests {
            this.requests = requests;
            this.framing.restart();
        }
        let is_clear = this.framing.read(&buffer.filled()[before..]);
        if this.framing.has_begun() {
            activity.head_began();
        }
        if is_clear.is_ok() {
            return Poll::Ready(Ok(()));
        }
        // No response is being written: without a request in flight the stream is free.
        let _ = Pin::new(&mut this.stream).poll_write(cx, AMBIGUOUS);
        let _ = Pin::new(&mut this.stream).poll_flush(cx);
        let _ = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.connection.close(CloseReason::AmbiguousFraming);
        Poll::Ready(Err(io::ErrorKind::InvalidData.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ConnectionIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.note_write(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
