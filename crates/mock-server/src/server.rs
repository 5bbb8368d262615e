//! Listener and connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rollway_base::{ServerKind, suggest};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::control::MockControl;
use super::generation_state::GenerationState;
use super::options::MockServerOptions;
use super::response::Disconnected;
use super::server_api::{mock_api, mocked_kinds, router};

const BACKLOG: u32 = 16_384;

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct MockServer {
    address: SocketAddr,
    control: MockControl,
    stopped: CancellationToken,
    listening: JoinHandle<()>,
}

impl MockServer {
    /// Starts a server on the current runtime.
    pub fn start(options: MockServerOptions) -> io::Result<Self> {
        let Some(api) = mock_api(options.kind) else {
            let kind = options.kind;
            let kinds = suggest::either(mocked_kinds().map(ServerKind::name));
            let message = format!("there is no mock server of the kind {kind}; use {kinds}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        };
        let socket = match options.address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(options.address)?;
        let listener = socket.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        let state = Arc::new(GenerationState::new(api, options));
        let router = router(Arc::clone(&state));
        let stopped = CancellationToken::new();
        let listening = listen(listener, router, stopped.clone());
        Ok(Self {
            address,
            control: MockControl { state },
            listening: tokio::spawn(listening),
            stopped,
        })
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Root URL, without `/v1`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn control(&self) -> MockControl {
        self.control.clone()
    }

    /// Stops like a crash: closes all connections at once. Returns when the port is free.
    pub async fn stop(mut self) {
        self.stopped.cancel();
        // It ends because of that or has panicked; nothing is left to do.
        let _ = (&mut self.listening).await;
    }
}

impl Drop for MockServer {
    fn drop(&mut self) {
        self.stopped.cancel();
    }
}

async fn listen(listener: TcpListener, router: Router, stopped: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stopped.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                connections.spawn(serve(stream, router.clone()));
            }
            // Out of file descriptors, or the client disconnected: later ones may succeed.
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                tokio::task::yield_now().await;
            }
        }
    }
    drop(listener);
    connections.shutdown().await;
}

#[derive(Debug, thiserror::Error)]
#[error("injected fault: disconnect")]
struct InjectedDisconnect;

async fn serve(stream: TcpStream, router: Router) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let router = router.clone();
        async move {
            let Ok(response) = router.oneshot(request).await;
            match response.extensions().get::<Disconnected>() {
                Some(_) => Err(InjectedDisconnect),
                None => Ok(response),
            }
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    // The client sees why the connection ended.
    let _ = connection.await;
}
