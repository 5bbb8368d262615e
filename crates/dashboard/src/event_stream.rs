//! Server-sent events: merged changes for open pages, at most twice a second and never faster than
//! a page reads.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use parking_lot::Mutex;
use rollway_telemetry::view::{JobInfo, JobView, Overview};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::json_response::tag;

/// Minimum time between two messages.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum number of subscribed pages.
const MAX_CLIENTS: usize = 32;

/// Intervals without reading after which a page is dropped.
const MAX_MISSED: u32 = 60;

/// Intervals without a message after which an empty one detects a dead connection.
const KEEP_ALIVE_INTERVALS: u32 = 30;

/// Subscription of a page.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EventQuery {
    /// Comma-separated parts beside job and overview.
    watch: String,
    /// Time of the last sample that the page has.
    since: Option<f64>,
}

#[derive(Debug)]
pub(super) struct EventHub {
    subscribers: Mutex<Vec<EventSubscriber>>,
    subscribed: Notify,
    slow: AtomicU64,
}

#[derive(Debug)]
struct EventSubscriber {
    sender: mpsc::Sender<Bytes>,
    watch: Vec<&'static str>,
    /// Tags of the sent parts.
    sent: BTreeMap<&'static str, u64>,
    since: Option<f64>,
    missed: u32,
    silent: u32,
}

/// Parts that pages fetch themselves after a change.
const PARTS: [&str; 4] = ["batches", "runners", "servers", "timeline"];

impl EventHub {
    pub(super) fn start(view: Arc<dyn JobView>, over: CancellationToken) -> Arc<Self> {
        let hub = Arc::new(Self {
            subscribers: Mutex::default(),
            subscribed: Notify::new(),
            slow: AtomicU64::new(0),
        });
        tokio::spawn(send_changes(Arc::clone(&hub), view, over));
        hub
    }

    pub(super) fn slow(&self) -> u64 {
        self.slow.load(Ordering::Relaxed)
    }

    /// Subscribes a page. `None`: the limit is reached.
    pub(super) fn follow(&self, query: &EventQuery) -> Option<Response> {
        let (sender, receiver) = mpsc::channel(1);
        let wants = |part: &&str| query.watch.split(',').any(|wanted| wanted == *part);
        let subscriber = EventSubscriber {
            sender,
            watch: PARTS.into_iter().filter(wants).collect(),
            sent: BTreeMap::new(),
            since: query.since,
            missed: 0,
            silent: 0,
        };
        let mut subscribers = self.subscribers.lock();
        subscribers.retain(|subscriber| !subscriber.sender.is_closed());
        if subscribers.len() >= MAX_CLIENTS {
            return None;
        }
        subscribers.push(subscriber);
        drop(subscribers);
        self.subscribed.notify_one();
        let messages = stream::unfold(receiver, |mut receiver| async {
            let message = receiver.recv().await?;
            Some((Ok::<_, Infallible>(message), receiver))
        });
        let kind = [(header::CONTENT_TYPE, "text/event-stream")];
        Some((kind, Body::from_stream(messages)).into_response())
    }

    /// Returns all subscribed parts. `None`: there is no subscriber.
    fn wanted(&self) -> Option<Vec<&'static str>> {
        let mut subscribers = self.subscribers.lock();
        subscribers.retain(|subscriber| !subscriber.sender.is_closed());
        if subscribers.is_empty() {
            return None;
        }
        let is_wanted = |part: &&str| subscribers.iter().any(|one| one.watch.contains(part));
        Some(PARTS.into_iter().filter(is_wanted).collect())
    }

    /// Sends changes to all subscribers, or only to those without a message so far.
    fn send(&self, now: &EventSnapshot, only_new: bool) {
        self.subscribers.lock().retain_mut(|subscriber| {
            if only_new && !subscriber.sent.is_empty() || subscriber.send(now) {
                return true;
            }
            if !subscriber.sender.is_closed() {
                self.slow.fetch_add(1, Ordering::Relaxed);
                tracing::debug!("dashboard page dropped: it does not read");
            }
            false
        });
    }
}

/// Sends changes while the dashboard is open. Without subscribers, and after the end of the job,
/// nothing is queried.
async fn send_changes(hub: Arc<EventHub>, view: Arc<dyn JobView>, over: CancellationToken) {
    let mut last = Instant::now() - MESSAGE_INTERVAL;
    loop {
        let Some(wanted) = hub.wanted() else {
            tokio::select! {
                () = hub.subscribed.notified() => continue,
                () = over.cancelled() => break,
            }
        };
        let is_new = tokio::select! {
            () = over.cancelled() => break,
            () = sleep_until(last + MESSAGE_INTERVAL) => false,
            () = hub.subscribed.notified() => true,
        };
        last = if is_new { last } else { Instant::now() };
        let Some(now) = EventSnapshot::take(&view, wanted).await else { continue };
        let is_live = now.job.live;
        hub.send(&now, is_new);
        if !is_live {
            tokio::select! {
                () = hub.subscribed.notified() => {}
                () = over.cancelled() => break,
            }
        }
    }
    // The last message has the end of the job.
    if let Some(wanted) = hub.wanted()
        && let Some(now) = EventSnapshot::take(&view, wanted).await
    {
        hub.send(&now, false);
    }
    hub.subscribers.lock().clear();
}

/// State of a job with the tags of its parts.
#[derive(Debug)]
struct EventSnapshot {
    job: JobInfo,
    overview: Overview,
    stuck: usize,
    tags: BTreeMap<&'static str, u64>,
}

impl EventSnapshot {
    async fn take(view: &Arc<dyn JobView>, wanted: Vec<&'static str>) -> Option<Self> {
        let runners = view.runners().await;
        let stuck = runners.iter().filter(|runner| runner.stuck).count();
        let view = Arc::clone(view);
        let query = move || {
            let (job, overview) = (view.job(), view.overview());
            let mut tags = BTreeMap::from([
                ("job", tag(&job)),
                ("overview", tag(&overview)),
                ("rewards", tag(&overview.rewards)),
                ("evals", tag(&overview.evals)),
                ("stuck", stuck as u64),
            ]);
            for part in wanted {
                let tag = match part {
                    "batches" => tag(&view.batches()),
                    "runners" => tag(&runners),
                    "servers" => tag(&view.servers()),
                    _ => tag(&view.timeline()),
                };
                tags.insert(part, tag);
            }
            Self { job, overview, stuck, tags }
        };
        tokio::task::spawn_blocking(query).await.ok()
    }
}

impl EventSubscriber {
    /// Sends the changes since the last message that the page has read. Returns whether the page is
    /// kept.
    fn send(&mut self, now: &EventSnapshot) -> bool {
        let Ok(permit) = self.sender.try_reserve() else {
            self.missed += 1;
            return !self.sender.is_closed() && self.missed <= MAX_MISSED;
        };
        self.missed = 0;
        let is_new = |part: &&str| now.tags.get(part) != self.sent.get(part);
        let Some(message) = message(now, &self.watch, self.since, &is_new) else {
            self.silent += 1;
            if self.silent >= KEEP_ALIVE_INTERVALS {
                self.silent = 0;
                permit.send(Bytes::from_static(b":\n\n"));
            }
            return true;
        };
        self.silent = 0;
        for (part, tag) in &now.tags {
            if !PARTS.contains(part) || self.watch.contains(part) {
                self.sent.insert(part, *tag);
            }
        }
        if let Some(sample) = now.overview.samples.last() {
            self.since = Some(sample.at);
        }
        permit.send(Bytes::from(format!("data: {message}\n\n")));
        true
    }
}

/// Returns the changed parts. `None`: nothing changed.
fn message(
    now: &EventSnapshot,
    watch: &[&'static str],
    since: Option<f64>,
    is_new: &dyn Fn(&&str) -> bool,
) -> Option<Value> {
    let mut message = json!({});
    if is_new(&"job") {
        message["job"] = json!(now.job);
    }
    if is_new(&"overview") {
        message["overview"] = overview_changes(&now.overview, since, is_new);
    }
    if is_new(&"stuck") {
        message["stuck"] = json!(now.stuck);
    }
    let changed: Vec<&str> = watch.iter().filter(|part| is_new(part)).copied().collect();
    if !changed.is_empty() {
        message["changed"] = json!(changed);
    }
    message.as_object().is_some_and(|parts| !parts.is_empty()).then_some(message)
}

/// Returns the overview without the samples and curves that the page has.
fn overview_changes(
    overview: &Overview,
    since: Option<f64>,
    is_new: &dyn Fn(&&str) -> bool,
) -> Value {
    let known = |at: f64| since.is_some_and(|since| at <= since);
    let samples: Vec<_> = overview.samples.iter().filter(|sample| !known(sample.at)).collect();
    let mut changes = json!({
        "now": overview.now,
        "since": since,
        "samples": samples,
        "runs": overview.runs,
        "tasks": overview.tasks,
        "waste": overview.waste,
        "runners": overview.runners,
        "wait": overview.wait,
        "servers": overview.servers,
        "failures": overview.failures,
        "alarms": overview.alarms,
        "dropped": overview.dropped,
    });
    if is_new(&"rewards") {
        changes["rewards"] = json!(overview.rewards);
    }
    if is_new(&"evals") {
        changes["evals"] = json!(overview.evals);
    }
    changes
}
