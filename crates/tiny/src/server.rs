//! The server of the embedded model: listener, start and stop.
//!
//! `ask` reads requests, `brain` answers all that are under way token by token on a thread of its
//! own, `answer` gives the answers their shape, `routes` are the endpoints.

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
use self::generation_thread::GenerationThread;
pub use self::options::{TinyServerLimits, TinyServerOptions};
use self::routes::{TinyServerShared, router};

/// How long the last words of a server that stops may take.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 4096;

/// A server of the embedded model. It ends when it is dropped.
#[derive(Debug)]
pub struct TinyServer {
    address: SocketAddr,
    shared: Arc<TinyServerShared>,
    over: CancellationToken,
    listening: Option<JoinHandle<()>>,
    thinking: Option<thread::JoinHandle<()>>,
}

impl TinyServer {
    /// Starts a server. It runs in the background of the runtime that this is called in, and thinks
    /// on a thread of its own.
    pub fn start(options: TinyServerOptions) -> io::Result<Self> {
        let (known, size) = (options.weights.shape().vocabulary, options.vocabulary.size());
        if known != size {
            let message = format!("the model has {known} tokens, its vocabulary {size}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let listener = listen(options.address)?;
        let address = listener.local_addr()?;
        let (brain, thinking) = GenerationThread::start(&options)?;
        let shared = Arc::new(TinyServerShared::new(options, brain));
        let over = CancellationToken::new();
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        let serving = axum::serve(listener, router(Arc::clone(&shared)))
            .with_graceful_shutdown(over.clone().cancelled_owned());
        let listening = tokio::spawn(async move {
            // It never fails: what goes wrong with a connection is seen at its other end.
            let _ = serving.await;
        });
        tracing::info!(%address, "the tiny model listens");
        let (listening, thinking) = (Some(listening), Some(thinking));
        Ok(Self { address, shared, over, listening, thinking })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its root, without `/v1`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What the weights are called now.
    pub fn version(&self) -> Arc<str> {
        self.shared.version()
    }

    /// What went on, in numbers.
    pub fn counts(&self) -> GenerationCounts {
        self.shared.brain.counts()
    }

    /// Ends it: what is under way fails, and its port is free.
    pub async fn stop(mut self) {
        self.end();
        if let Some(mut listening) = self.listening.take() {
            // A client that never finishes its request is not waited for.
            if tokio::time::timeout(SHUTDOWN_TIMEOUT, &mut listening).await.is_err() {
                listening.abort();
            }
        }
        if let Some(thinking) = self.thinking.take() {
            let _ = tokio::task::spawn_blocking(move || thinking.join()).await;
        }
    }

    fn end(&self) {
        self.shared.brain.end();
        self.over.cancel();
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
