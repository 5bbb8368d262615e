//! The connection below a stream, with access to its socket: a caller that drives the runtime
//! itself polls the socket for readability and, while it is full, for writability.

use std::future::{Ready, ready};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use rollway_base::Address;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Channel, Endpoint, Uri};
use tower_service::Service;

use super::{WorkerClientOptions, WorkerConnectError, endpoint};

/// Socket of a connection, for polling only.
#[derive(Debug)]
pub struct ClientSocket {
    descriptor: OwnedFd,
    full: Arc<AtomicBool>,
}

impl ClientSocket {
    /// Tells whether unwritten data waits for the socket.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }
}

impl AsRawFd for ClientSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

pub(super) async fn open_channel(
    address: &Address,
    options: &WorkerClientOptions,
) -> Result<(Channel, ClientSocket), WorkerConnectError> {
    let unreachable = |message: String| WorkerConnectError::Unreachable {
        address: address.clone(),
        message: message.into(),
    };
    let endpoint = endpoint(address, options)?;
    let dialling = async {
        match address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|e| e.to_string())?;
                open(&endpoint, stream).await
            }
            Address::Tcp(host_port) => {
                let stream = TcpStream::connect(host_port).await.map_err(|e| e.to_string())?;
                stream.set_nodelay(true).map_err(|error| error.to_string())?;
                open(&endpoint, stream).await
            }
        }
    };
    let timed_out = |_| Err(format!("no connection within {:?}", options.timeout));
    let opened = tokio::time::timeout(options.timeout, dialling).await.unwrap_or_else(timed_out);
    opened.map_err(unreachable)
}

async fn open<S>(endpoint: &Endpoint, stream: S) -> Result<(Channel, ClientSocket), String>
where
    S: AsFd + AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let descriptor = stream.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let full = Arc::new(AtomicBool::new(false));
    let watched = Watched { stream, full: Arc::clone(&full) };
    let channel =
        endpoint.connect_with_connector(SingleConnection(Some(TokioIo::new(watched)))).await;
    let channel = channel.map_err(|error| rollway_base::error_chain(&error))?;
    Ok((channel, ClientSocket { descriptor, full }))
}

/// Connector that returns one existing connection.
struct SingleConnection<S>(Option<S>);

impl<S> Service<Uri> for SingleConnection<S> {
    type Response = S;
    type Error = io::Error;
    type Future = Ready<io::Result<S>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        ready(self.0.take().ok_or_else(|| io::ErrorKind::NotConnected.into()))
    }
}

/// Stream that records whether its last write was pending.
struct Watched<S> {
    stream: S,
    full: Arc<AtomicBool>,
}

impl<S> Watched<S> {
    fn note<T>(&self, written: Poll<T>) -> Poll<T> {
        self.full.store(written.is_pending(), Ordering::Release);
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
