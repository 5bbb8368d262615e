//! What changes, told to every page that is open: put together, twice a second at most, and never
//! faster than a page listens.

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
use parking_lot::{Mutex, MutexGuard};
use rollway_telemetry::view::{JobInfo, JobView, Overview, Timeline};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::json_response::tag;

/// The shortest time between two messages.
const FRAME: Duration = Duration::from_millis(500);

/// How many pages can follow at once.
const MAX_CLIENTS: usize = 32;

/// After how many frames without room for a message a page is let go.
const MAX_MISSED: u32 = 60;

/// After how many silent frames something is sent all the same, so that a dead connection is seen.
const SILENCE: u32 = 30;

/// What a page wants to be told of, and what it has.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EventQuery {
    /// Parts beside the job and its numbers, parted by commas.
    watch: String,
    /// The moment of the last beat that it has.
    since: Option<f64>,
}

/// Everybody who follows.
#[derive(Debug)]
pub(super) struct EventHub {
    clients: Mutex<Vec<EventSubscriber>>,
    came: Notify,
    slow: AtomicU64,
}

#[derive(Debug)]
struct EventSubscriber {
    sender: mpsc::Sender<Bytes>,
    watch: Vec<&'static str>,
    /// The tags of what it was told.
    told: BTreeMap<&'static str, u64>,
    since: Option<f64>,
    missed: u32,
    silent: u32,
}

/// Parts whose content pages fetch themselves when they are told that it is another.
const PARTS: [&str; 3] = ["batches", "runners", "timeline"];

impl EventHub {
    pub(super) fn start(scene: Arc<dyn JobView>, over: CancellationToken) -> Arc<Self> {
        let hub = Arc::new(Self {
            clients: Mutex::default(),
            came: Notify::new(),
            slow: AtomicU64::new(0),
        });
        tokio::spawn(keep_telling(Arc::clone(&hub), scene, over));
        hub
    }

    pub(super) fn slow(&self) -> u64 {
        self.slow.load(Ordering::Relaxed)
    }

    /// Begins to tell a page; none if there are too many already.
    pub(super) fn follow(&self, query: &EventQuery) -> Option<Response> {
        let (sender, receiver) = mpsc::channel(1);
        let wants = |part: &&str| query.watch.split(',').any(|wanted| wanted == *part);
        let client = EventSubscriber {
            sender,
            watch: PARTS.into_iter().filter(wants).collect(),
            told: BTreeMap::new(),
            since: query.since,
            missed: 0,
            silent: 0,
        };
        let mut clients = self.clients();
        clients.retain(|client| !client.sender.is_closed());
        if clients.len() >= MAX_CLIENTS {
            return None;
        }
        clients.push(client);
        drop(clients);
        self.came.notify_one();
        let messages = stream::unfold(receiver, |mut receiver| async {
            let message = receiver.recv().await?;
            Some((Ok::<_, Infallible>(message), receiver))
        });
        let kind = [(header::CONTENT_TYPE, "text/event-stream")];
        Some((kind, Body::from_stream(messages)).into_response())
    }

    fn clients(&self) -> MutexGuard<'_, Vec<EventSubscriber>> {
        self.clients.lock()
    }

    /// Which parts anybody watches; none if nobody is there.
    fn wanted(&self) -> Option<Vec<&'static str>> {
        let mut clients = self.clients();
        clients.retain(|client| !client.sender.is_closed());
        if clients.is_empty() {
            return None;
        }
        let is_wanted = |part: &&str| clients.iter().any(|client| client.watch.contains(part));
        Some(PARTS.into_iter().filter(is_wanted).collect())
    }

    /// Tells everybody, or only those who have just come: the others have heard something less than
    /// a frame ago.
    fn tell(&self, now: &EventSnapshot, newcomers: bool) {
        let mut clients = self.clients();
        let is_left_out = |client: &EventSubscriber| newcomers && !client.told.is_empty();
        clients.retain_mut(|client| match client {
            client if is_left_out(client) => true,
            client => self.keeps(client.tell(now)),
        });
    }

    /// Tells whether a page is kept, after it was told something.
    fn keeps(&self, told: EventMessage) -> bool {
        match told {
            EventMessage::Heard => true,
            EventMessage::Gone => false,
            EventMessage::Slow => {
                self.slow.fetch_add(1, Ordering::Relaxed);
                tracing::debug!("a page that followed the dashboard does not listen: let go");
                false
            }
        }
    }
}

/// Tells everybody what has changed, for as long as there is a dashboard. Nothing is looked at
/// while nobody is there, nor again and again where nothing can change any more.
async fn keep_telling(hub: Arc<EventHub>, scene: Arc<dyn JobView>, over: CancellationToken) {
    let mut last = Instant::now() - FRAME;
    loop {
        let Some(wanted) = hub.wanted() else {
            tokio::select! {
                () = hub.came.notified() => continue,
                () = over.cancelled() => break,
            }
        };
        let came = tokio::select! {
            () = over.cancelled() => break,
            () = sleep_until(last + FRAME) => false,
            () = hub.came.notified() => true,
        };
        last = if came { last } else { Instant::now() };
        let Some(now) = EventSnapshot::take(&scene, wanted).await else { continue };
        let is_live = now.job.live;
        hub.tell(&now, came);
        if !is_live {
            tokio::select! {
                () = hub.came.notified() => {}
                () = over.cancelled() => break,
            }
        }
    }
    // The last thing that pages see is how it ended.
    if let Some(wanted) = hub.wanted()
        && let Some(now) = EventSnapshot::take(&scene, wanted).await
    {
        hub.tell(&now, false);
    }
    hub.clients().clear();
}

/// How everything stands at a moment.
#[derive(Debug)]
struct EventSnapshot {
    job: JobInfo,
    overview: Overview,
    stuck: usize,
    tags: BTreeMap<&'static str, u64>,
}

impl EventSnapshot {
    async fn take(scene: &Arc<dyn JobView>, wanted: Vec<&'static str>) -> Option<Self> {
        let runners = scene.runners().await;
        let stuck = runners.iter().filter(|runner| runner.stuck).count();
        let scene = Arc::clone(scene);
        let look = move || {
            let (job, overview) = (scene.job(), scene.overview());
            let mut tags = BTreeMap::from([
                ("job", of_job(&job)),
                ("overview", of_overview(&overview)),
                ("rewards", tag(&overview.rewards)),
                ("evals", tag(&overview.evals)),
                ("stuck", stuck as u64),
            ]);
            for part in wanted {
                tags.insert(
                    part,
                    match part {
                        "batches" => tag(&scene.batches()),
                        "runners" => tag(&runners),
                        _ => of_timeline(&scene.timeline()),
                    },
                );
            }
            Self { job, overview, stuck, tags }
        };
        tokio::task::spawn_blocking(look).await.ok()
    }
}

enum EventMessage {
    Heard,
    Slow,
    Gone,
}

impl EventSubscriber {
    /// Sends what has changed since the last message. Whoever has not taken that one yet gets all
    /// of it later, in one.
    fn tell(&mut self, now: &EventSnapshot) -> EventMessage {
        let Ok(place) = self.sender.try_reserve() else {
            self.missed += 1;
            return match (self.sender.is_closed(), self.missed > MAX_MISSED) {
                (true, _) => EventMessage::Gone,
                (false, true) => EventMessage::Slow,
                (false, false) => EventMessage::Heard,
            };
        };
        self.missed = 0;
        let is_new = |part: &&str| now.tags.get(part) != self.told.get(part);
        let Some(message) = message(now, &self.watch, self.since, &is_new) else {
            self.silent += 1;
            if self.silent >= SILENCE {
                self.silent = 0;
                place.send(Bytes::from_static(b":\n\n"));
            }
            return EventMessage::Heard;
        };
        self.silent = 0;
        for (part, tag) in &now.tags {
            if !PARTS.contains(part) || self.watch.contains(part) {
                self.told.insert(part, *tag);
            }
        }
        if let Some(beat) = now.overview.beats.last() {
            self.since = Some(beat.at);
        }
        place.send(Bytes::from(format!("data: {message}\n\n")));
        EventMessage::Heard
    }
}

/// Returns what has changed; none if nothing has.
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
        message["overview"] = numbers(&now.overview, since, is_new);
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

/// The numbers without what the page has: curves are sent from where it knows them.
fn numbers(overview: &Overview, since: Option<f64>, is_new: &dyn Fn(&&str) -> bool) -> Value {
    let known = |at: f64| since.is_some_and(|since| at <= since);
    let beats: Vec<_> = overview.beats.iter().filter(|beat| !known(beat.at)).collect();
    let mut said = json!({
        "now": overview.now,
        "since": since,
        "beats": beats,
        "runs": overview.runs,
        "tasks": overview.tasks,
        "waste": overview.waste,
        "runners": overview.runners,
        "alarms": overview.alarms,
        "dropped": overview.dropped,
    });
    if is_new(&"rewards") {
        said["rewards"] = json!(overview.rewards);
    }
    if is_new(&"evals") {
        said["evals"] = json!(overview.evals);
    }
    said
}

/// The tag of a job, whatever the time.
pub(super) fn of_job(job: &JobInfo) -> u64 {
    tag(&JobInfo { now: 0.0, ..job.clone() })
}

/// The tag of the numbers, whatever the time.
pub(super) fn of_overview(overview: &Overview) -> u64 {
    tag(&Overview { now: 0.0, ..overview.clone() })
}

/// The tag of a timeline, whatever the time.
pub(super) fn of_timeline(timeline: &Timeline) -> u64 {
    tag(&Timeline { now: 0.0, ..timeline.clone() })
}
