//! Inference server of the embedded model: listener, start and stop.
//!
//! `routes` are the endpoints, `request` parses, `generation_thread` samples all running requests
//! token by token, `response` renders.

mod api_error;
mod generation_thread;
mod options;
mod request;
mod response;
mod routes;
mod seeds;
mod template;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::serve::ListenerExt as _;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use self::generation_thread::GenerationCounts;
use self::generation_thread::{GenerationBatch, GenerationThread};
pub use self::options::{TinyServerLimits, TinyServerOptions};
use self::routes::{TinyServerShared, router};

/// Maximum time to finish open responses at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Connections waiting to be accepted.
const BACKLOG: u32 = 4096;

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct TinyServer {
    address: SocketAddr,
    shared: Arc<TinyServerShared>,
    shutdown: CancellationToken,
    listening: Option<JoinHandle<()>>,
    generating: Option<thread::JoinHandle<()>>,
}

impl TinyServer {
    /// Starts a server in the background of the current runtime, with a generation thread.
    pub fn start(options: TinyServerOptions) -> io::Result<Self> {
        let (known, size) = (options.weights.shape().vocabulary, options.vocabulary.size());
        if known != size {
            let message = format!("the model has {known} tokens, but its vocabulary has {size}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let listener = listen(options.address)?;
        let address = listener.local_addr()?;
        let (generation, generating) = GenerationThread::start(&options)?;
        let shared = Arc::new(TinyServerShared::new(options, generation));
        let shutdown = CancellationToken::new();
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        let serving = axum::serve(listener, router(Arc::clone(&shared)))
            .with_graceful_shutdown(shutdown.clone().cancelled_owned());
        let listening = tokio::spawn(async move {
            // It never fails: connection errors show at the client.
            let _ = serving.await;
        });
        tracing::debug!(%address, "embedded model listening");
        let (listening, generating) = (Some(listening), Some(generating));
        Ok(Self { address, shared, shutdown, listening, generating })
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Base URL without `/v1`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Version of the weights.
    pub fn version(&self) -> Arc<str> {
        self.shared.version()
    }

    pub fn counts(&self) -> GenerationCounts {
        self.shared.generation.counts()
    }

    /// Stops the server and frees its port; running requests fail.
    pub async fn stop(mut self) {
        self.end();
        if let Some(mut listening) = self.listening.take() {
            // Do not wait for a client that never finishes its request.
            if tokio::time::timeout(SHUTDOWN_TIMEOUT, &mut listening).await.is_err() {
                listening.abort();
            }
        }
        if let Some(thread) = self.generating.take() {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }

    fn end(&self) {
        self.shared.generation.send(GenerationBatch::end);
        self.shutdown.cancel();
    }
}

impl Drop for TinyServer {
    fn drop(&mut self) {
        self.end();
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
