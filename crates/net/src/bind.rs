//! Binding of TCP addresses and private Unix sockets.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollway_base::Address;
use rollway_base::tls::TlsOptions;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

use crate::connection::Peer;
use crate::tls::{TlsError, TlsIdentity};

/// Maximum number of connections that wait to be accepted; the kernel may allow fewer.
const BACKLOG: u32 = 16_384;

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("another process listens on {address}")]
    InUse { address: Address },
    #[error("there is a file in the way: {}", path.display())]
    NotASocket { path: PathBuf },
    #[error("cannot listen on {address}")]
    Io { address: Address, source: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl From<BindError> for io::Error {
    fn from(error: BindError) -> Self {
        match error {
            BindError::Io { source, .. } => source,
            BindError::InUse { .. } => Self::new(io::ErrorKind::AddrInUse, error.to_string()),
            BindError::NotASocket { .. } | BindError::Tls(_) => Self::other(error.to_string()),
        }
    }
}

pub(crate) type PeerStream = Either<UnixStream, TcpStream>;

/// A bound address, before connections are accepted.
#[derive(Debug)]
pub struct BoundListener {
    address: Address,
    socket: ListeningSocket,
}

#[derive(Debug)]
enum ListeningSocket {
    Unix { listener: UnixListener, _file: SocketFile },
    Tcp(TcpListener),
}

impl BoundListener {
    /// Binds an address; of a name, the first address that can be bound. A Unix socket is
    /// accessible to this user only. Needs a tokio runtime.
    pub async fn bind(address: &Address) -> Result<Self, BindError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse { address: address.clone() },
            _ => BindError::Io { address: address.clone(), source },
        };
        match address {
            Address::Unix(path) => {
                clear(path).await?;
                let (listener, file) = bind_private(path).map_err(failed)?;
                let socket = ListeningSocket::Unix { listener, _file: file };
                Ok(Self { address: address.clone(), socket })
            }
            Address::Tcp(host_port) | Address::Tls { host_port, .. } => {
                let found = tokio::net::lookup_host(host_port).await.map_err(failed)?;
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                for address in found {
                    match Self::bind_tcp(address) {
                        Ok(bound) => return Ok(bound),
                        Err(error) => last = error,
                    }
                }
                Err(failed(last))
            }
        }
    }

    /// Binds a TCP address. Needs a tokio runtime.
    pub fn bind_tcp(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        let address = Address::Tcp(listener.local_addr()?.to_string());
        Ok(Self { address, socket: ListeningSocket::Tcp(listener) })
    }

    /// Returns the bound address, with the port that the system chose.
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the TCP address. `None`: a Unix socket.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match &self.socket {
            ListeningSocket::Tcp(listener) => listener.local_addr().ok(),
            ListeningSocket::Unix { .. } => None,
        }
    }

    /// Returns the certificate of this listener. `None`: it speaks clear text, as Unix sockets do.
    ///
    /// # Errors
    /// If the certificate cannot be read or made.
    pub fn identity(&self, options: &TlsOptions) -> Result<Option<TlsIdentity>, TlsError> {
        match self.tcp_address() {
            Some(address) => TlsIdentity::of(options, address),
            None => Ok(None),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<(PeerStream, Peer)> {
        match &self.socket {
            ListeningSocket::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                let pid = stream.peer_cred().ok().and_then(|cred| cred.pid());
                Ok((Either::Left(stream), Peer::Unix { pid }))
            }
            ListeningSocket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Either::Right(stream), Peer::Tcp(peer)))
            }
        }
    }
}

/// Sends small messages at once and detects lost peers. Failures mean that the peer has left.
pub(crate) fn tune(stream: &PeerStream, keepalive: Duration) {
    if let Either::Right(stream) = stream {
        let _ = stream.set_nodelay(true);
        let probes = TcpKeepalive::new().with_time(keepalive).with_interval(keepalive);
        let _ = SockRef::from(stream).set_tcp_keepalive(&probes);
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
