//! Sends spans to a collector, as OTLP over HTTP, from a thread of its own. A collector that is
//! slow or away costs spans, which are counted, and nothing else.

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

use self::messages::{Export, Exported, Resource, ResourceSpans, Scope, ScopeSpans};
pub(super) use self::target::Target;
use super::dropped::Losses;
use super::ids::{SpanId, TraceId};
use super::span::Span;

/// How many spans may wait for the collector: about 30 MB.
const QUEUE_CAPACITY: usize = 32_768;

/// How many spans are sent at once.
const BATCH_SIZE: usize = 1_024;

/// How long a span waits for others to go with.
const BATCH_DELAY: Duration = Duration::from_secs(1);

/// How long a request is tried again.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long is waited before a second try, and before a later one at most.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(10);

/// How long the end of a job waits for its last spans.
pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Sends spans. Dropped, it sends what it has, for as long as [`SHUTDOWN_TIMEOUT`] lasts.
#[derive(Debug)]
pub(super) struct Exporter {
    sender: Option<Sender<Vec<Span>>>,
    /// How many spans wait.
    waiting: Arc<AtomicUsize>,
    losses: Arc<Losses>,
    thread: Option<JoinHandle<()>>,
    goodbye: tokio_util::sync::CancellationToken,
}

impl Exporter {
    /// Begins to send.
    pub(super) fn start(target: Target, losses: &Arc<Losses>) -> io::Result<Self> {
        let (sender, receiver) = channel();
        let goodbye = tokio_util::sync::CancellationToken::new();
        let waiting = Arc::<AtomicUsize>::default();
        let sending = Sending {
            target,
            waiting: Arc::clone(&waiting),
            losses: Arc::clone(losses),
            goodbye: goodbye.clone(),
        };
        let client = sending.client()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let work = move || sending.work(&receiver, &client, &runtime);
        let thread = std::thread::Builder::new().name("otlp".to_owned()).spawn(work)?;
        let losses = Arc::clone(losses);
        Ok(Self { sender: Some(sender), waiting, losses, thread: Some(thread), goodbye })
    }

    /// Has spans sent, as many as there is room for.
    pub(super) fn send(&self, mut spans: Vec<Span>) {
        let room = QUEUE_CAPACITY.saturating_sub(self.waiting.load(Ordering::Relaxed));
        let left = spans.len().saturating_sub(room);
        if left > 0 {
            spans.truncate(room);
            self.losses.spans(left, "the collector does not take them fast enough");
        }
        if spans.is_empty() {
            return;
        }
        self.waiting.fetch_add(spans.len(), Ordering::Relaxed);
        if let Some(sender) = &self.sender {
            // Without a thread nobody sends anything any more.
            let _ = sender.send(spans);
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        drop(self.sender.take());
        // From here on nothing is tried for longer than the farewell.
        self.goodbye.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Sending {
    target: Target,
    waiting: Arc<AtomicUsize>,
    losses: Arc<Losses>,
    goodbye: tokio_util::sync::CancellationToken,
}

/// What became of a request.
enum ExportReply {
    Taken,
    /// Another try may help; the collector may have said after how long.
    Later(String, Option<Duration>),
    Refused(String),
}

impl Sending {
    fn client(&self) -> io::Result<Client> {
        let (url, headers) = (&self.target.url, self.target.headers.clone());
        rollway_gateway::models::http_client(url, headers, CONNECT_TIMEOUT)
            .map_err(io::Error::other)
    }

    /// Sends spans until there are no more.
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
            for together in spans.chunks(BATCH_SIZE) {
                self.waiting.fetch_sub(together.len(), Ordering::Relaxed);
                if self.goodbye.is_cancelled() {
                    end.get_or_insert_with(|| Instant::now() + SHUTDOWN_TIMEOUT);
                }
                runtime.block_on(self.deliver(client, together, end));
            }
        }
    }

    /// Sends spans, again if need be.
    async fn deliver(&self, client: &Client, spans: &[Span], end: Option<Instant>) {
        let body = self.export(spans).encode_to_vec();
        let mut deadline = end.unwrap_or_else(|| Instant::now() + RETRY_TIMEOUT);
        let mut pause = FIRST_PAUSE;
        loop {
            let goodbye = self.goodbye.is_cancelled();
            let said = tokio::select! {
                said = self.post(client, body.clone()) => said,
                () = tokio::time::sleep_until(deadline.into()) => {
                    ExportReply::Refused("it does not answer".to_owned())
                }
                // What is under way is given a last moment.
                () = self.leave(), if !goodbye => ExportReply::Refused("the job ends".to_owned()),
            };
            let (why, wait) = match said {
                ExportReply::Taken => return,
                ExportReply::Refused(why) => return self.losses.spans(spans.len(), &why),
                ExportReply::Later(why, wait) => (why, wait),
            };
            if self.goodbye.is_cancelled() {
                deadline = deadline.min(Instant::now() + SHUTDOWN_TIMEOUT);
            }
            let wait = wait.unwrap_or(pause);
            pause = (pause * 2).min(LAST_PAUSE);
            if Instant::now() + wait >= deadline {
                return self.losses.spans(spans.len(), &why);
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // A last try at once.
                () = self.goodbye.cancelled(), if !goodbye => {}
            }
        }
    }

    /// Waits for the end of the job, and then the farewell.
    async fn leave(&self) {
        self.goodbye.cancelled().await;
        tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
    }

    async fn post(&self, client: &Client, body: Vec<u8>) -> ExportReply {
        let url = &self.target.url;
        let request = client.post(url).timeout(self.target.timeout).body(body);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => {
                return ExportReply::Later(format!("{url} cannot be reached: {error}"), None);
            }
        };
        let status = response.status();
        let wait = response.headers().get(RETRY_AFTER);
        let wait = wait.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let wait = wait.map(Duration::from_secs);
        match status {
            _ if status.is_success() => {
                let said = response.bytes().await.unwrap_or_default();
                if let Ok(Exported { partly: Some(partly) }) = Exported::decode(said)
                    && partly.rejected > 0
                {
                    let rejected = usize::try_from(partly.rejected).unwrap_or_default();
                    self.losses.spans(rejected, &partly.message);
                }
                ExportReply::Taken
            }
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                ExportReply::Later(format!("{url} says {status}"), wait)
            }
            _ => ExportReply::Refused(format!("{url} says {status}")),
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
