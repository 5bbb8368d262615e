//! The listener and its connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rollway_base::ServerKind;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::control::MockControl;
use super::generation_state::GenerationState;
use super::options::MockServerOptions;
use super::response::Lost;
use super::routes;

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 16_384;

/// A running server. It ends when it is dropped.
#[derive(Debug)]
pub struct MockServer {
    address: SocketAddr,
    control: MockControl,
    over: CancellationToken,
    listening: JoinHandle<()>,
}

impl MockServer {
    /// Starts a server. It runs in the background of the runtime that this is called in.
    pub fn start(options: MockServerOptions) -> io::Result<Self> {
        if options.kind == ServerKind::LlamaCpp {
            let message = "there is no mock server of the kind llama_cpp; use openai";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let socket = match options.address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(options.address)?;
        let listener = socket.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        let state = Arc::new(GenerationState::new(options));
        let router = routes::router(Arc::clone(&state));
        let over = CancellationToken::new();
        let listening = listen(listener, router, over.clone());
        Ok(Self {
            address,
            control: MockControl { state },
            listening: tokio::spawn(listening),
            over,
        })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its root, without `/v1`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The way inside.
    pub fn control(&self) -> MockControl {
        self.control.clone()
    }

    /// Ends it like a crash does: all connections are lost at once. Returns when its port is free.
    pub async fn stop(mut self) {
        self.over.cancel();
        // It ends because of that, or has panicked: there is nothing left to do in either case.
        let _ = (&mut self.listening).await;
    }
}

impl Drop for MockServer {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

async fn listen(listener: TcpListener, router: Router, over: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = over.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                connections.spawn(serve(stream, router.clone()));
            }
            // Out of file handles, or a client that left again: others may do better.
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::task::yield_now().await;
            }
        }
    }
    drop(listener);
    connections.shutdown().await;
}

/// The connection is lost on purpose.
#[derive(Debug, thiserror::Error)]
#[error("lost, as it was told to")]
struct LostOnPurpose;

async fn serve(stream: TcpStream, router: Router) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let router = router.clone();
        async move {
            let answered = router.oneshot(request).await;
            let Ok(response) = answered;
            match response.extensions().get::<Lost>() {
                Some(_) => Err(LostOnPurpose),
                None => Ok(response),
            }
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    // What ended a connection is seen by whoever holds the other end.
    let _ = connection.await;
}
