//! Listener and connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::options::GatewayLimits;

/// Maximum number of connections that wait to be accepted; the kernel may allow fewer.
const BACKLOG: u32 = 16_384;

/// Delay after a failed accept, as for lack of file descriptors.
const EXHAUSTED: Duration = Duration::from_millis(50);

const MAX_HEAD_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct HttpListener {
    pub(crate) address: SocketAddr,
    connections: TaskTracker,
    /// No further requests are taken.
    closing: CancellationToken,
    /// Open connections are closed.
    cut: CancellationToken,
}

pub(crate) async fn listen(
    at: &str,
    limits: &GatewayLimits,
    router: Router,
) -> io::Result<HttpListener> {
    let listener = bind(at).await?;
    let address = listener.local_addr()?;
    let connections = TaskTracker::new();
    let (closing, cut) = (CancellationToken::new(), CancellationToken::new());
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request_timeout)
        .max_buf_size(MAX_HEAD_BYTES);
    let acceptor = Acceptor {
        permits: Arc::new(Semaphore::new(limits.max_connections.min(Semaphore::MAX_PERMITS))),
        protocol,
        router,
        connections: connections.clone(),
        closing: closing.clone(),
        cut: cut.clone(),
    };
    connections.spawn(acceptor.accept(listener));
    Ok(HttpListener { address, connections, closing, cut })
}

/// Binds the first address of a name that can be bound.
async fn bind(at: &str) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in tokio::net::lookup_host(at).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl HttpListener {
    /// Takes no more requests, and returns when all have been answered.
    pub(crate) async fn finish(&self) {
        self.closing.cancel();
        self.connections.close();
        self.connections.wait().await;
    }

    pub(crate) fn cut(&self) {
        self.closing.cancel();
        self.cut.cancel();
    }
}

impl Drop for HttpListener {
    fn drop(&mut self) {
        self.cut();
    }
}

#[derive(Debug)]
struct Acceptor {
    permits: Arc<Semaphore>,
    protocol: http1::Builder,
    router: Router,
    connections: TaskTracker,
    closing: CancellationToken,
    cut: CancellationToken,
}

impl Acceptor {
    async fn accept(self, listener: TcpListener) {
        let Some(()) = self.closing.run_until_cancelled(self.accept_all(&listener)).await else {
            return;
        };
    }

    async fn accept_all(&self, listener: &TcpListener) {
        // The semaphore is never closed: this ends only by cancellation.
        while let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let connection = self.serve(stream);
                    self.connections.spawn(async move {
                        connection.await;
                        drop(permit);
                    });
                }
                Err(error) if is_client_disconnect(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "no connection can be accepted at the moment");
                    tokio::time::sleep(EXHAUSTED).await;
                }
            }
        }
    }

    fn serve(&self, stream: TcpStream) -> impl Future<Output = ()> + Send + use<> {
        // Sends small events at once. Without it they still arrive.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(self.router.clone());
        let connection = self.protocol.serve_connection(TokioIo::new(stream), service);
        let (closing, cut) = (self.closing.clone(), self.cut.clone());
        async move {
            let mut connection = std::pin::pin!(connection);
            let end = tokio::select! {
                end = connection.as_mut() => end,
                () = closing.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        end = connection => end,
                        () = cut.cancelled() => Ok(()),
                    }
                }
            };
            if let Err(error) = end {
                tracing::debug!(%error, "a connection ended");
            }
        }
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
