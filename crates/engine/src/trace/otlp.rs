//! Sends spans to a collector, as OTLP over HTTP, from a thread of its own. A collector that is
//! slow or away costs spans, which are counted, and nothing else.

mod messages;
mod target;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prost::Message as _;
use reqwest::header::RETRY_AFTER;
use reqwest::{Client, StatusCode};

use self::messages::{Export, Exported, Resource, ResourceSpans, Scope, ScopeSpans};
pub(super) use self::target::Target;
use super::ids::{SpanId, TraceId};
use super::losses::Losses;
use super::span::Span;

/// How many spans may wait for the collector: about 30 MB.
const WAITING: usize = 32_768;

/// How many spans are sent at once.
const TOGETHER: usize = 1_024;

/// How long a span waits for others to go with.
const GATHER: Duration = Duration::from_secs(1);

/// How long a request is tried again.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long is waited before a second try, and before a later one at most.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(10);

/// How long the end of a job waits for its last spans.
pub(super) const FAREWELL: Duration = Duration::from_secs(5);

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(3);

/// Sends spans. Dropped, it sends what it has, for as long as [`FAREWELL`] lasts.
#[derive(Debug)]
pub(super) struct Exporter {
    sender: Option<SyncSender<Span>>,
    losses: Arc<Losses>,
    thread: Option<JoinHandle<()>>,
    goodbye: tokio_util::sync::CancellationToken,
}

impl Exporter {
    /// Begins to send.
    pub(super) fn start(target: Target, losses: &Arc<Losses>) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(WAITING);
        let goodbye = tokio_util::sync::CancellationToken::new();
        let sending = Sending { target, losses: Arc::clone(losses), goodbye: goodbye.clone() };
        let client = sending.client()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let work = move || sending.work(&receiver, &client, &runtime);
        let thread = std::thread::Builder::new().name("otlp".to_owned()).spawn(work)?;
        let losses = Arc::clone(losses);
        Ok(Self { sender: Some(sender), losses, thread: Some(thread), goodbye })
    }

    /// Has a span sent, if there is room for it.
    pub(super) fn send(&self, span: Span) {
        if let Some(sender) = &self.sender
            && sender.try_send(span).is_err()
        {
            self.losses.spans(1, "the collector does not take them fast enough");
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
    losses: Arc<Losses>,
    goodbye: tokio_util::sync::CancellationToken,
}

/// What became of a request.
enum Said {
    Taken,
    /// Another try may help; the collector may have said after how long.
    Later(String, Option<Duration>),
    Refused(String),
}

impl Sending {
    fn client(&self) -> io::Result<Client> {
        let (url, headers) = (&self.target.url, self.target.headers.clone());
        rollway_gateway::models::connections(url, headers, CONNECT).map_err(io::Error::other)
    }

    /// Sends spans until there are no more.
    fn work(&self, receiver: &Receiver<Span>, client: &Client, runtime: &tokio::runtime::Runtime) {
        let mut end = None;
        loop {
            let Ok(first) = receiver.recv() else { return };
            let mut spans = vec![first];
            let gathered = Instant::now() + GATHER;
            while spans.len() < TOGETHER {
                match receiver.recv_timeout(gathered.saturating_duration_since(Instant::now())) {
                    Ok(span) => spans.push(span),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                }
            }
            if self.goodbye.is_cancelled() {
                end.get_or_insert_with(|| Instant::now() + FAREWELL);
            }
            runtime.block_on(self.deliver(client, &spans, end));
        }
    }

    /// Sends spans, again if need be.
    async fn deliver(&self, client: &Client, spans: &[Span], end: Option<Instant>) {
        let body = self.export(spans).encode_to_vec();
        let mut deadline = end.unwrap_or_else(|| Instant::now() + PATIENCE);
        let mut pause = FIRST_PAUSE;
        loop {
            let goodbye = self.goodbye.is_cancelled();
            let said = tokio::select! {
                said = self.post(client, body.clone()) => said,
                () = tokio::time::sleep_until(deadline.into()) => {
                    Said::Refused("it does not answer".to_owned())
                }
                // What is under way is given a last moment.
                () = self.leave(), if !goodbye => Said::Refused("the job ends".to_owned()),
            };
            let (why, wait) = match said {
                Said::Taken => return,
                Said::Refused(why) => return self.losses.spans(spans.len(), &why),
                Said::Later(why, wait) => (why, wait),
            };
            if self.goodbye.is_cancelled() {
                deadline = deadline.min(Instant::now() + FAREWELL);
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
        tokio::time::sleep(FAREWELL).await;
    }

    async fn post(&self, client: &Client, body: Vec<u8>) -> Said {
        let url = &self.target.url;
        let request = client.post(url).timeout(self.target.timeout).body(body);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return Said::Later(format!("{url} cannot be reached: {error}"), None),
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
                Said::Taken
            }
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Said::Later(format!("{url} says {status}"), wait),
            _ => Said::Refused(format!("{url} says {status}")),
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
