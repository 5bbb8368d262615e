//! Listening sockets: limits of connections, peers, and forced disconnects.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use rollway_base::Address;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_util::either::Either;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use crate::refusal::RefusalCode;

/// Connections beyond the limit that are refused with a reason.
const REFUSABLE: usize = 16;

/// Pause after a failed accept, such as one without free file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("another process listens on {address}")]
    InUse { address: Address },
    #[error("there is a file in the way: {}", path.display())]
    NotASocket { path: PathBuf },
    #[error("cannot listen on {address}")]
    Io { address: Address, source: io::Error },
}

/// Remote end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Unix { pid: Option<i32> },
    Tcp(SocketAddr),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { pid: Some(pid) } => write!(f, "pid {pid}"),
            Self::Unix { pid: None } => f.write_str("unix"),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// Limits and counters of connections.
#[derive(Debug)]
pub(crate) struct ConnectionGate {
    connections: usize,
    hello_timeout: Duration,
    /// Cancelled to close every connection.
    pub(crate) stop: CancellationToken,
    open: AtomicUsize,
    /// Indexed by `RefusalCode as usize`.
    refused: Box<[AtomicU64]>,
}

impl ConnectionGate {
    pub(crate) fn new(connections: usize, hello_timeout: Duration) -> Self {
        Self {
            connections,
            hello_timeout,
            stop: CancellationToken::new(),
            open: AtomicUsize::new(0),
            refused: RefusalCode::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }

    pub(crate) fn count(&self, code: RefusalCode) {
        self.refused[code as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the nonzero numbers of refused or disconnected peers by reason.
    pub(crate) fn refused(&self) -> Vec<(RefusalCode, u64)> {
        let counts = RefusalCode::ALL.iter().copied().zip(&self.refused);
        counts
            .map(|(code, count)| (code, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(crate) struct WorkerListener {
    address: Address,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Unix { listener: UnixListener, _file: SocketFile },
    Tcp(TcpListener),
}

impl WorkerListener {
    pub(crate) async fn bind(address: &Address) -> Result<Self, BindError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse { address: address.clone() },
            _ => BindError::Io { address: address.clone(), source },
        };
        match address {
            Address::Unix(path) => {
                clear(path).await?;
                let (listener, file) = bind_private(path).map_err(failed)?;
                Ok(Self { address: address.clone(), kind: Kind::Unix { listener, _file: file } })
            }
            Address::Tcp(host_port) => {
                let listener = TcpListener::bind(host_port).await.map_err(failed)?;
                let address = Address::Tcp(listener.local_addr().map_err(failed)?.to_string());
                Ok(Self { address, kind: Kind::Tcp(listener) })
            }
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    async fn accept(&self) -> io::Result<(PeerStream, Peer)> {
        match &self.kind {
            Kind::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                let pid = stream.peer_cred().ok().and_then(|cred| cred.pid());
                Ok((Either::Left(stream), Peer::Unix { pid }))
            }
            Kind::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Either::Right(stream), Peer::Tcp(peer)))
            }
        }
    }

    /// Accepts connections until the server is dropped.
    pub(crate) fn incoming(self, gate: Arc<ConnectionGate>) -> IncomingConnections {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let stop = gate.stop.clone();
            let accepting = async {
                loop {
                    match self.accept().await {
                        Ok((stream, peer)) => {
                            if let Some(io) = admit(stream, peer, &gate)
                                && sender.send(io).await.is_err()
                            {
                                return;
                            }
                        }
                        Err(error) => {
                            tracing::warn!(%error, "cannot accept a connection");
                            tokio::time::sleep(ACCEPT_BACKOFF).await;
                        }
                    }
                }
            };
            stop.run_until_cancelled(accepting).await;
        });
        IncomingConnections(receiver)
    }
}

/// Removes no file that is in use: a socket without a listener was left by a killed process.
async fn clear(path: &Path) -> Result<(), BindError> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(BindError::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(BindError::InUse { address: Address::Unix(path.to_owned()) }),
        Err(_) => Ok(()),
    }
}

/// Binds a private socket: it is renamed to its path after its permissions are set.
fn bind_private(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(".new");
    let hidden = PathBuf::from(hidden);
    // Left by a process that was killed in this function.
    let _ = std::fs::remove_file(&hidden);
    let listener = UnixListener::bind(&hidden)?;
    let named = std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| std::fs::rename(&hidden, path))
        .and_then(|()| std::fs::symlink_metadata(path));
    match named {
        Ok(found) => Ok((listener, SocketFile { path: path.to_owned(), inode: found.ino() })),
        Err(error) => {
            let _ = std::fs::remove_file(&hidden);
            Err(error)
        }
    }
}

/// File of a Unix socket, removed with the listener unless another process has replaced it.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Accepted connections for the HTTP/2 server.
#[derive(Debug)]
pub(crate) struct IncomingConnections(mpsc::Receiver<PeerIo>);

impl Stream for IncomingConnections {
    type Item = io::Result<PeerIo>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|io| io.map(Ok))
    }
}

/// State of a connection, shared with its stream.
#[derive(Debug)]
pub(crate) struct ConnectionSocket {
    pub(crate) peer: Peer,
    /// Accepted beyond the limit.
    pub(crate) surplus: bool,
    /// Set once the only stream is opened.
    pub(crate) taken: AtomicBool,
    /// Set once the peer has proven that it has the secret.
    authenticated: AtomicBool,
    /// Cancelled to close it.
    cut: CancellationToken,
    /// Cancelled when it is closed by either side.
    pub(crate) closed: CancellationToken,
}

impl ConnectionSocket {
    pub(crate) fn set_authenticated(&self) {
        self.authenticated.store(true, Ordering::Release);
    }

    pub(crate) fn is_authenticated(&self) -> bool {
        self.authenticated.load(Ordering::Acquire)
    }

    /// Closes the connection immediately.
    pub(crate) fn cut(&self) {
        self.cut.cancel();
    }
}

fn admit(stream: PeerStream, peer: Peer, gate: &Arc<ConnectionGate>) -> Option<PeerIo> {
    let open = gate.open.fetch_add(1, Ordering::Relaxed);
    let surplus = open >= gate.connections;
    let socket = Arc::new(ConnectionSocket {
        peer,
        surplus,
        taken: AtomicBool::new(false),
        authenticated: AtomicBool::new(false),
        cut: gate.stop.child_token(),
        closed: CancellationToken::new(),
    });
    let io = PeerIo {
        stream,
        cut: Box::pin(socket.cut.clone().cancelled_owned()),
        socket: Arc::clone(&socket),
        gate: Arc::clone(gate),
    };
    if open >= gate.connections + REFUSABLE {
        // Dropping `io` closes it.
        socket.taken.store(true, Ordering::Relaxed);
        gate.count(RefusalCode::TooManyConnections);
        return None;
    }
    let hello_timeout = gate.hello_timeout;
    tokio::spawn(async move {
        let _ = tokio::time::timeout(hello_timeout, socket.closed.cancelled()).await;
        // With a stream, the session enforces the hello timeout.
        if !socket.taken.load(Ordering::Relaxed) {
            socket.cut();
        }
    });
    Some(io)
}

type PeerStream = Either<UnixStream, TcpStream>;

/// A connection that can be closed from outside.
pub(crate) struct PeerIo {
    stream: PeerStream,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    socket: Arc<ConnectionSocket>,
    gate: Arc<ConnectionGate>,
}

impl PeerIo {
    /// Is ready once the connection must close. Polled before reads and writes: an HTTP/2
    /// connection that cannot write does not read either.
    fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.cut.as_mut().poll(cx).map(|()| io::ErrorKind::ConnectionAborted.into())
    }
}

impl Drop for PeerIo {
    fn drop(&mut self) {
        self.gate.open.fetch_sub(1, Ordering::Relaxed);
        self.socket.closed.cancel();
        if !self.socket.taken.load(Ordering::Relaxed) {
            self.gate.count(RefusalCode::NoStream);
            tracing::debug!(peer = %self.socket.peer, "a peer left without opening a stream");
        }
    }
}

impl Connected for PeerIo {
    type ConnectInfo = Arc<ConnectionSocket>;

    fn connect_info(&self) -> Arc<ConnectionSocket> {
        Arc::clone(&self.socket)
    }
}

impl AsyncRead for PeerIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(cut) = self.poll_cut(cx) {
            return Poll::Ready(Err(cut));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for PeerIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(cut) = self.poll_cut(cx) {
            return Poll::Ready(Err(cut));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(cut) = self.poll_cut(cx) {
            return Poll::Ready(Err(cut));
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
