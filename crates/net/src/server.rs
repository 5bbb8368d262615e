//! The accept loop of a listener.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response};
use hyper_util::service::TowerToHyperService;
use rollway_base::Address;
use rollway_base::listener::ListenerLimits;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bind::{BoundListener, PeerStream, tune};
use crate::body::RequestBody;
use crate::connection::{Connection, Peer};
use crate::connections;
use crate::counters::{CloseReason, ConnectionCounters};
use crate::http_server::{BoxError, ConnectionService, HttpServer, OutgoingBody};
use crate::options::{HttpVersions, ListenerOptions};
use crate::registry::Registry;
use crate::tls;

/// Pause after a failed accept, as for lack of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
    content-type: text/plain\r\ncontent-length: 21\r\nconnection: close\r\n\r\n\
    too many connections\n";

/// A running listener. Dropping it closes all connections at once.
#[derive(Debug)]
pub struct RunningListener {
    address: Address,
    tcp_address: Option<SocketAddr>,
    counters: Arc<ConnectionCounters>,
    connections: TaskTracker,
    /// No further requests are taken.
    closing: CancellationToken,
    /// Open connections are closed.
    cut: CancellationToken,
    runtime: Handle,
    /// A task closes the connections after this listener is dropped.
    lingers: AtomicBool,
}

impl RunningListener {
    /// Serves the connections of a bound address, each with a service of its own. Needs a tokio
    /// runtime.
    pub fn serve<F, S, B>(bound: BoundListener, options: ListenerOptions, service: F) -> Self
    where
        F: Fn(&Arc<Connection>) -> S + Send + Sync + 'static,
        S: ConnectionService<B>,
        B: OutgoingBody,
    {
        let ListenerOptions { kind, versions, mut limits, tls: identity, needs_proof } = options;
        let (mut address, tcp_address) = (bound.address().clone(), bound.tcp_address());
        if tcp_address.is_some() {
            limits.connections = connections::allowed(kind, &limits);
        }
        if let (Some(identity), Address::Tcp(host_port)) = (&identity, &address) {
            let (host_port, fingerprint) = (host_port.clone(), identity.fingerprint());
            address = Address::Tls { host_port, fingerprint };
        }
        let running = Self {
            address,
            tcp_address,
            counters: Arc::new(ConnectionCounters::new(kind)),
            connections: TaskTracker::new(),
            closing: CancellationToken::new(),
            cut: CancellationToken::new(),
            runtime: Handle::current(),
            lingers: AtomicBool::new(false),
        };
        let acceptor = AcceptLoop {
            versions,
            tls: identity.map(|identity| identity.acceptor(versions.protocols())),
            server: HttpServer::new(versions, limits.clone()),
            limits,
            registry: Registry::new(needs_proof),
            counters: Arc::clone(&running.counters),
            connections: running.connections.clone(),
            closing: running.closing.clone(),
            cut: running.cut.clone(),
            service,
        };
        running.connections.spawn(Arc::new(acceptor).accept(bound));
        running
    }

    /// Same as [`serve`](Self::serve), with one service for all connections, such as a router.
    pub fn serve_shared<S, B>(bound: BoundListener, options: ListenerOptions, service: S) -> Self
    where
        S: tower_service::Service<
                Request<RequestBody>,
                Response = Response<B>,
                Error: Into<BoxError>,
                Future: Send + 'static,
            > + Clone
            + Send
            + Sync
            + 'static,
        B: OutgoingBody,
    {
        let service = TowerToHyperService::new(service);
        Self::serve(bound, options, move |_| service.clone())
    }

    /// Returns the bound address, with the port that the system chose.
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the TCP address. `None`: a Unix socket.
    pub const fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp_address
    }

    pub const fn counters(&self) -> &Arc<ConnectionCounters> {
        &self.counters
    }

    /// Accepts no more connections and no more requests.
    pub fn close(&self) {
        self.closing.cancel();
        self.connections.close();
    }

    /// Takes no more requests, and returns when all have been answered.
    pub async fn finish(&self) {
        self.close();
        self.connections.wait().await;
    }

    /// Takes no more requests. Requests in flight get this time, also if the listener is dropped.
    pub fn close_within(&self, timeout: Duration) {
        self.close();
        self.lingers.store(true, Ordering::Relaxed);
        let (connections, cut) = (self.connections.clone(), self.cut.clone());
        self.runtime.spawn(async move {
            let _ = tokio::time::timeout(timeout, connections.wait()).await;
            cut.cancel();
        });
    }

    /// Closes all connections at once.
    pub fn cut(&self) {
        self.close();
        self.cut.cancel();
    }
}

impl Drop for RunningListener {
    fn drop(&mut self) {
        if !self.lingers.load(Ordering::Relaxed) {
            self.cut();
        }
    }
}

struct AcceptLoop<F> {
    versions: HttpVersions,
    tls: Option<TlsAcceptor>,
    server: HttpServer,
    limits: ListenerLimits,
    registry: Registry,
    counters: Arc<ConnectionCounters>,
    connections: TaskTracker,
    closing: CancellationToken,
    cut: CancellationToken,
    service: F,
}

impl<F> AcceptLoop<F> {
    async fn accept<S, B>(self: Arc<Self>, listener: BoundListener)
    where
        F: Fn(&Arc<Connection>) -> S + Send + Sync + 'static,
        S: ConnectionService<B>,
        B: OutgoingBody,
    {
        let accepting = async {
            loop {
                match listener.accept().await {
                    Ok((stream, peer)) => self.admit(stream, peer),
                    Err(error) if is_client_disconnect(&error) => {}
                    Err(error) => {
                        self.counters.count(CloseReason::AcceptFailed);
                        self.registry.evict(self.counters.accepted());
                        tracing::warn!(
                            %error, listener = self.counters.kind().name(),
                            "no connection can be accepted at the moment"
                        );
                        tokio::time::sleep(ACCEPT_BACKOFF).await;
                    }
                }
            }
        };
        let _: Option<()> = self.closing.run_until_cancelled(accepting).await;
    }

    fn admit<S, B>(self: &Arc<Self>, stream: PeerStream, peer: Peer)
    where
        F: Fn(&Arc<Connection>) -> S + Send + Sync + 'static,
        S: ConnectionService<B>,
        B: OutgoingBody,
    {
        let is_full = self.registry.len() >= self.limits.connections
            && !self.registry.evict(self.counters.accepted());
        if is_full && self.registry.len() >= self.limits.connections + self.limits.refusable {
            self.counters.count(CloseReason::ConnectionLimit);
            self.refuse(stream);
            return;
        }
        tune(&stream, self.limits.tcp_keepalive);
        let cut = self.cut.child_token();
        let connection = Connection::new(peer, is_full, Arc::clone(&self.counters), cut);
        let connection = Arc::new(connection);
        self.registry.insert(Arc::clone(&connection));
        let service = (self.service)(&connection);
        let acceptor = Arc::clone(self);
        self.connections.spawn(async move {
            let open = OpenConnection { connection, acceptor };
            match (&open.acceptor.tls, stream) {
                (Some(tls), Either::Right(stream)) => {
                    if let Some(stream) = open.handshake(tls, stream).await {
                        open.serve(stream, service).await;
                    }
                }
                (_, stream) => open.serve(stream, service).await,
            }
        });
    }

    /// Tells the peer why it is refused, if that needs no wait.
    fn refuse(&self, stream: PeerStream) {
        if let (HttpVersions::Http1And2, None, Either::Right(stream)) =
            (self.versions, &self.tls, stream)
        {
            let _ = stream.try_write(BUSY);
        }
    }
}

/// A connection that is removed from the registry when it ends, however that happens.
struct OpenConnection<F> {
    connection: Arc<Connection>,
    acceptor: Arc<AcceptLoop<F>>,
}

impl<F> OpenConnection<F> {
    async fn serve<I, S, B>(&self, stream: I, service: S)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        S: ConnectionService<B>,
        B: OutgoingBody,
    {
        let closing = self.acceptor.closing.clone();
        self.acceptor.server.serve(stream, &self.connection, service, closing).await;
    }

    /// Begins TLS. `None`: the peer is refused, and counted.
    async fn handshake(
        &self,
        acceptor: &TlsAcceptor,
        stream: TcpStream,
    ) -> Option<TlsStream<TcpStream>> {
        let timeout = self.acceptor.limits.header_timeout;
        let accepting = tokio::time::timeout(timeout, tls::accept(acceptor, stream));
        let accepted = self.connection.cut.run_until_cancelled(accepting).await?;
        match accepted.unwrap_or(Err(Some(CloseReason::HeaderTimeout))) {
            Ok(stream) => return Some(stream),
            Err(Some(reason)) => self.connection.close(reason),
            Err(None) => {}
        }
        None
    }
}

impl<F> Drop for OpenConnection<F> {
    fn drop(&mut self) {
        self.acceptor.registry.remove(&self.connection);
        self.connection.ended();
    }
}

/// Returns whether the client disconnected before it was accepted.
fn is_client_disconnect(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}
