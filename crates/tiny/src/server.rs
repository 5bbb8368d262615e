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

use rollway_net::{BoundListener, ListenerKind, ListenerOptions, RunningListener};

pub use self::generation_thread::GenerationCounts;
use self::generation_thread::{GenerationBatch, GenerationThread};
pub use self::options::{TinyServerLimits, TinyServerOptions};
use self::routes::{TinyServerShared, router};

/// Maximum time to finish open responses at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct TinyServer {
    address: SocketAddr,
    shared: Arc<TinyServerShared>,
    listening: RunningListener,
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
        let listener = BoundListener::bind_tcp(options.address)?;
        let address = listener.tcp_address().unwrap_or(options.address);
        let limits = options.listener.clone();
        let (generation, generating) = GenerationThread::start(&options)?;
        let shared = Arc::new(TinyServerShared::new(options, generation));
        let listener_options = ListenerOptions::new(ListenerKind::EmbeddedModel, limits);
        let listening =
            RunningListener::serve_shared(listener, listener_options, router(Arc::clone(&shared)));
        tracing::debug!(%address, "embedded model listening");
        Ok(Self { address, shared, listening, generating: Some(generating) })
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
        self.listening.finish().await;
        if let Some(thread) = self.generating.take() {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }

    fn end(&self) {
        self.shared.generation.send(GenerationBatch::end);
        self.listening.close_within(SHUTDOWN_TIMEOUT);
    }
}

impl Drop for TinyServer {
    fn drop(&mut self) {
        self.end();
    }
}
