//! Exporter to a collector: OTLP over HTTP, in its own thread. Spans that a slow or unreachable
//! collector does not take are dropped and counted.

mod messages;
mod target;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prost::Message as _;
use reqwest::header::RETRY_AFTER;
use reqwest::{Client, StatusCode};
use tokio_util::sync::CancellationToken;

use self::messages::{Export, Exported, Resource, ResourceSpans, Scope, ScopeSpans};
pub(super) use self::target::Target;
use super::dropped::Losses;
use super::ids::{SpanId, TraceId};
use super::span::Span;

/// Maximum number of queued spans: about 30 MB.
const QUEUE_CAPACITY: usize = 32_768;

/// Maximum number of spans in a request.
const BATCH_SIZE: usize = 1_024;

/// Time in which spans are gathered for a request.
const BATCH_DELAY: Duration = Duration::from_secs(1);

/// Time in which a request is retried.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// First backoff of a request; it doubles up to the maximum.
const RETRY_DELAY: Duration = Duration::from_millis(250);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Maximum time that the end of a job waits for its last spans.
pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Sends spans. Dropping it sends the queued ones within [`SHUTDOWN_TIMEOUT`].
#[derive(Debug)]
pub(super) struct Exporter {
    sender: Option<Sender<Vec<Span>>>,
    waiting: Arc<AtomicUsize>,
    losses: Arc<Losses>,
    thread: Option<JoinHandle<()>>,
    shutdown: CancellationToken,
}

impl Exporter {
    pub(super) fn start(target: Target, losses: &Arc<Losses>) -> io::Result<Self> {
        let (sender, receiver) = channel();
        let shutdown = CancellationToken::new();
        let waiting = Arc::<AtomicUsize>::default();
        let sending = Sending {
            target,
            waiting: Arc::clone(&waiting),
            losses: Arc::clone(losses),
            shutdown: shutdown.clone(),
        };
        let client = sending.client()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let work = move || sending.work(&receiver, &client, &runtime);
        let thread = std::thread::Builder::new().name("otlp".to_owned()).spawn(work)?;
        let losses = Arc::clone(losses);
        Ok(Self { sender: Some(sender), waiting, losses, thread: Some(thread), shutdown })
    }

    /// Queues spans; those that do not fit are dropped and counted.
    pub(super) fn send(&self, mut spans: Vec<Span>) {
        let room = QUEUE_CAPACITY.saturating_sub(self.waiting.load(Ordering::Relaxed));
        let excess = spans.len().saturating_sub(room);
        if excess > 0 {
            spans.truncate(room);
            self.losses.spans(excess, "the collector is too slow");
        }
        if spans.is_empty() {
            return;
        }
        self.waiting.fetch_add(spans.len(), Ordering::Relaxed);
        if let Some(sender) = &self.sender {
            let _ = sender.send(spans);
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        drop(self.sender.take());
        self.shutdown.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Sending {
    target: Target,
    waiting: Arc<AtomicUsize>,
    losses: Arc<Losses>,
    shutdown: CancellationToken,
}

enum ExportReply {
    Accepted,
    /// With the collector's `Retry-After`.
    Retry(String, Option<Duration>),
    Refused(String),
}

impl Sending {
    fn client(&self) -> io::Result<Client> {
        let (url, headers) = (&self.target.url, self.target.headers.clone());
        rollway_gateway::models::http_client(url, headers, CONNECT_TIMEOUT)
            .map_err(io::Error::other)
    }

    /// Sends spans until the exporter is dropped.
    fn work(
        &self,
        receiver: &Receiver<Vec<Span>>,
        client: &Client,
        runtime: &tokio::runtime::Runtime,
    ) {
        let mut end = None;
        while let Ok(mut spans) = receiver.recv() {
            let gathered = Instant::now() + BATCH_DELAY;
            while spans.len() < BATCH_SIZE
                && let Ok(more) =
                    receiver.recv_timeout(gathered.saturating_duration_since(Instant::now()))
            {
                spans.extend(more);
            }
            for batch in spans.chunks(BATCH_SIZE) {
                self.waiting.fetch_sub(batch.len(), Ordering::Relaxed);
                if self.shutdown.is_cancelled() {
                    end.get_or_insert_with(|| Instant::now() + SHUTDOWN_TIMEOUT);
                }
                runtime.block_on(self.deliver(client, batch, end));
            }
        }
    }

    /// Sends a batch with retries.
    async fn deliver(&self, client: &Client, spans: &[Span], end: Option<Instant>) {
        let body = self.export(spans).encode_to_vec();
        let mut deadline = end.unwrap_or_else(|| Instant::now() + RETRY_TIMEOUT);
        let mut delay = RETRY_DELAY;
        loop {
            let is_shutdown = self.shutdown.is_cancelled();
            let reply = tokio::select! {
                reply = self.post(client, body.clone()) => reply,
                () = tokio::time::sleep_until(deadline.into()) => {
                    ExportReply::Refused("no response from the collector".to_owned())
                }
                // The request in flight gets the shutdown timeout.
                () = self.shutdown_timeout(), if !is_shutdown => {
                    ExportReply::Refused("the job ended".to_owned())
                }
            };
            let (reason, wait) = match reply {
                ExportReply::Accepted => return,
                ExportReply::Refused(reason) => return self.losses.spans(spans.len(), &reason),
                ExportReply::Retry(reason, wait) => (reason, wait),
            };
            if self.shutdown.is_cancelled() {
                deadline = deadline.min(Instant::now() + SHUTDOWN_TIMEOUT);
            }
            let wait = wait.unwrap_or(delay);
            delay = (delay * 2).min(MAX_RETRY_DELAY);
            if Instant::now() + wait >= deadline {
                return self.losses.spans(spans.len(), &reason);
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // The last attempt starts at once.
                () = self.shutdown.cancelled(), if !is_shutdown => {}
            }
        }
    }

    /// Waits for the shutdown and its timeout.
    async fn shutdown_timeout(&self) {
        self.shutdown.cancelled().await;
        tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
    }

    async fn post(&self, client: &Client, body: Vec<u8>) -> ExportReply {
        let url = &self.target.url;
        let request = client.post(url).timeout(self.target.timeout).body(body);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => {
                return ExportReply::Retry(format!("{url} is unreachable: {error}"), None);
            }
        };
        let status = response.status();
        let wait = response.headers().get(RETRY_AFTER);
        let wait = wait.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let wait = wait.map(Duration::from_secs);
        match status {
            _ if status.is_success() => {
                let body = response.bytes().await.unwrap_or_default();
                if let Ok(Exported { partly: Some(partly) }) = Exported::decode(body)
                    && partly.rejected > 0
                {
                    let rejected = usize::try_from(partly.rejected).unwrap_or_default();
                    self.losses.spans(rejected, &partly.message);
                }
                ExportReply::Accepted
            }
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                ExportReply::Retry(format!("{url} responded with {status}"), wait)
            }
            _ => ExportReply::Refused(format!("{url} responded with {status}")),
        }
    }

    fn export(&self, spans: &[Span]) -> Export {
        let scope =
            Scope { name: "rollway".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
        let spans = spans.iter().map(messages::Span::from).collect();
        let scopes = vec![ScopeSpans { scope: Some(scope), spans }];
        let resource = Some(Resource { attributes: self.target.resource.clone() });
        Export { resources: vec![ResourceSpans { resource, scopes }] }
    }
}
