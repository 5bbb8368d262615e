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
use rollway_net::tls::{self, TlsConnectError};
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

/// Connects, with TLS if the address demands it.
pub(crate) async fn open_channel(
    address: &Address,
    options: &WorkerClientOptions,
) -> Result<(Channel, ClientSocket), WorkerConnectError> {
    let unreachable = |message: String| WorkerConnectError::Unreachable {
        address: address.clone(),
        message: message.into(),
    };
    let failed = |error: io::Error| unreachable(error.to_string());
    let endpoint = endpoint(address, options)?;
    let dialling = async {
        let tcp = async |host_port: &str| {
            let stream = TcpStream::connect(host_port).await?;
            stream.set_nodelay(true)?;
            watched(stream)
        };
        let (channel, socket) = match address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await.and_then(watched);
                let (stream, socket) = stream.map_err(failed)?;
                (open(&endpoint, stream).await, socket)
            }
            Address::Tcp(host_port) => {
                let (stream, socket) = tcp(host_port).await.map_err(failed)?;
                (open(&endpoint, stream).await, socket)
            }
            Address::Tls { host_port, fingerprint } => {
                let (stream, socket) = tcp(host_port).await.map_err(failed)?;
                let secured = tls::connect(stream, host_port, *fingerprint).await;
                let stream = secured.map_err(|error| match error {
                    TlsConnectError::Handshake(_) => unreachable(error.to_string()),
                    TlsConnectError::Certificate(_) | TlsConnectError::ClearText => {
                        WorkerConnectError::Untrusted {
                            address: address.clone(),
                            error: Box::new(error),
                        }
                    }
                })?;
                (open(&endpoint, stream).await, socket)
            }
        };
        Ok((channel.map_err(|error| unreachable(rollway_base::error_chain(&error)))?, socket))
    };
    let timed_out = |_| Err(unreachable(format!("no connection within {:?}", options.timeout)));
    tokio::time::timeout(options.timeout, dialling).await.unwrap_or_else(timed_out)
}

/// Returns a stream that records whether its socket is full.
fn watched<S: AsFd>(stream: S) -> io::Result<(Watched<S>, ClientSocket)> {
    let descriptor = stream.as_fd().try_clone_to_owned()?;
    let full = Arc::new(AtomicBool::new(false));
    Ok((Watched { stream, full: Arc::clone(&full) }, ClientSocket { descriptor, full }))
}

async fn open<S>(endpoint: &Endpoint, stream: S) -> Result<Channel, tonic::transport::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    endpoint.connect_with_connector(SingleConnection(Some(TokioIo::new(stream)))).await
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
