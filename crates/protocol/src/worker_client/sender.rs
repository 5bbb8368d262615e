//! Sends messages of a worker through a bounded queue, and keeps the states that heartbeats carry.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use parking_lot::Mutex;
use prost::Message as _;
use rollway_core::{AttemptId, Incarnation, RunnerId};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::WorkerClientOptions;
use crate::byte_budget::{self, ByteBudget};
use crate::codec::{FrameBody, OutgoingFrame};
use crate::message::{RunnerHeartbeat, Welcome, WorkerMessage, WorkerReport};
use crate::proto::{self, worker_message::Kind};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerSendError {
    /// The connection is lost, or a goodbye was sent. [`EngineReceiver`](super::EngineReceiver) has
    /// the reason.
    #[error("the connection to the engine is closed")]
    Closed,
    /// The message exceeds the limit; the connection stays open.
    #[error("the message has {bytes} bytes, the limit is {limit}")]
    TooLarge { bytes: usize, limit: usize },
}

/// Sending half of a connection. Cheap to clone; messages of all clones keep their order. Dropping
/// the last one without a goodbye counts as a lost connection.
#[derive(Clone, Debug)]
pub struct EngineSender(Arc<SenderShared>);

#[derive(Debug)]
struct SenderShared {
    queue: SendQueue,
    runtime: Handle,
    room: ByteBudget,
    max_message_bytes: usize,
    states: Mutex<BTreeMap<RunnerId, RunnerHeartbeat>>,
}

impl EngineSender {
    pub(super) fn new(queue: SendQueue, welcome: &Welcome, options: &WorkerClientOptions) -> Self {
        Self(Arc::new(SenderShared {
            queue,
            runtime: Handle::current(),
            room: ByteBudget::new(options.outgoing_bytes),
            max_message_bytes: usize::try_from(welcome.max_message_bytes).unwrap_or(usize::MAX),
            states: Mutex::default(),
        }))
    }

    /// Sends a message; waits while the queue is full.
    pub async fn send(&self, message: WorkerMessage) -> Result<(), WorkerSendError> {
        self.update_heartbeat(&message);
        let message = proto::WorkerMessage::from(message);
        let (bytes, limit) = (message.encoded_len(), self.0.max_message_bytes);
        if bytes > limit {
            return Err(WorkerSendError::TooLarge { bytes, limit });
        }
        let room = self.0.room.take(bytes).await;
        let outgoing = OutgoingFrame { body: FrameBody::Message(message), room };
        self.0.queue.messages.send(outgoing).await.map_err(|_| WorkerSendError::Closed)?;
        self.0.queue.sent.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Waits until the transport has taken everything that was sent: from then on it arrives even
    /// if this process dies.
    pub async fn drained(&self) -> Result<(), WorkerSendError> {
        let all = self.0.queue.sent.load(Ordering::Acquire);
        let mut taken = self.0.queue.taken.clone();
        taken.wait_for(|taken| *taken >= all).await.map_err(|_| WorkerSendError::Closed)?;
        // The connection was woken before: a task spawned now runs after it.
        let _ = self.0.runtime.spawn(tokio::task::yield_now()).await;
        Ok(())
    }

    /// Sends a small message if the queue has room; otherwise returns it.
    pub fn try_send(
        &self,
        message: WorkerMessage,
    ) -> Result<Option<WorkerMessage>, WorkerSendError> {
        let messages = &self.0.queue.messages;
        if message.payload_len() > byte_budget::SMALL_MESSAGE_BYTES {
            return Ok(Some(message));
        }
        let Ok(permit) = messages.try_reserve() else {
            return if messages.is_closed() {
                Err(WorkerSendError::Closed)
            } else {
                Ok(Some(message))
            };
        };
        self.update_heartbeat(&message);
        permit.send(proto::WorkerMessage::from(message).into());
        self.0.queue.sent.fetch_add(1, Ordering::AcqRel);
        Ok(None)
    }

    /// Sends a message from a thread outside the runtime; blocks while the queue is full.
    pub fn blocking_send(&self, message: WorkerMessage) -> Result<(), WorkerSendError> {
        self.0.runtime.block_on(self.send(message))
    }

    pub async fn report(
        &self,
        runner: RunnerId,
        incarnation: Incarnation,
        report: WorkerReport,
    ) -> Result<(), WorkerSendError> {
        self.send(WorkerMessage::Runner { runner, incarnation, report }).await
    }

    /// Sends a goodbye. Nothing can be sent afterwards.
    pub async fn goodbye(&self, reason: impl Into<Arc<str>>) -> Result<(), WorkerSendError> {
        self.send(WorkerMessage::Goodbye { reason: reason.into() }).await
    }

    /// Sets the labels of a runner in later heartbeats. Ignored for a runner that has never been
    /// ready.
    pub fn set_labels(&self, runner: RunnerId, labels: BTreeMap<String, String>) {
        if let Some(entry) = self.0.states.lock().get_mut(&runner) {
            entry.labels = labels;
        }
    }

    /// Returns the current heartbeat.
    pub fn heartbeat(&self) -> WorkerMessage {
        WorkerMessage::Heartbeat(self.0.states.lock().values().cloned().collect())
    }

    pub(super) fn goodbye_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0.queue.goodbye)
    }

    /// Sends heartbeats in the background until all clones are dropped.
    pub(super) fn spawn_heartbeats(&self, interval: Duration, alive: CancellationToken) {
        let shared = Arc::downgrade(&self.0);
        tokio::spawn(alive.run_until_cancelled_owned(send_heartbeats(shared, interval)));
    }

    /// Updates the heartbeat states from an outgoing report.
    fn update_heartbeat(&self, message: &WorkerMessage) {
        let WorkerMessage::Runner { runner, incarnation, report } = message else { return };
        match report {
            WorkerReport::Ready { .. } => self.set_attempt(*runner, *incarnation, None),
            WorkerReport::AttemptBegan { attempt } => {
                self.set_attempt(*runner, *incarnation, Some(*attempt));
            }
            WorkerReport::AttemptEnded { .. } => self.set_attempt(*runner, *incarnation, None),
            WorkerReport::Stopped(_) => {
                let mut states = self.0.states.lock();
                if states.get(runner).is_some_and(|state| state.incarnation == *incarnation) {
                    states.remove(runner);
                }
            }
            WorkerReport::RunFinished { .. } => {}
        }
    }

    fn set_attempt(&self, runner: RunnerId, incarnation: Incarnation, attempt: Option<AttemptId>) {
        let mut states = self.0.states.lock();
        let new = || RunnerHeartbeat { runner, incarnation, attempt, labels: BTreeMap::new() };
        let entry = states.entry(runner).or_insert_with(new);
        if entry.incarnation != incarnation {
            *entry = new();
        }
        entry.attempt = attempt;
    }
}

async fn send_heartbeats(shared: Weak<SenderShared>, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(sender) = shared.upgrade().map(EngineSender) else { return };
        let heartbeat = sender.heartbeat();
        if sender.send(heartbeat).await.is_err() {
            return;
        }
    }
}

#[derive(Debug)]
pub(super) struct SendQueue {
    messages: mpsc::Sender<OutgoingFrame<proto::WorkerMessage>>,
    goodbye: Arc<AtomicBool>,
    /// Messages queued so far.
    sent: AtomicU64,
    /// Messages taken by the transport when the queue was last empty.
    taken: watch::Receiver<u64>,
}

impl SendQueue {
    /// Queues a message of the handshake, which never fills the queue.
    pub(super) fn push(&self, kind: Kind) {
        let _ = self.messages.try_send(proto::WorkerMessage { kind: Some(kind) }.into());
        self.sent.fetch_add(1, Ordering::AcqRel);
    }
}

/// Returns an outgoing queue and the stream that empties it.
pub(super) fn queue(options: &WorkerClientOptions) -> (SendQueue, OutStream) {
    let (sender, messages) = mpsc::channel(options.outgoing.max(1));
    let goodbye = Arc::new(AtomicBool::new(false));
    let (empty, taken) = watch::channel(0);
    let sent = AtomicU64::new(0);
    let queue = SendQueue { messages: sender, goodbye: Arc::clone(&goodbye), sent, taken };
    (queue, OutStream { messages, goodbye, taken: 0, empty })
}

/// Stream of outgoing messages, up to the goodbye.
#[derive(Debug)]
pub(super) struct OutStream {
    messages: mpsc::Receiver<OutgoingFrame<proto::WorkerMessage>>,
    goodbye: Arc<AtomicBool>,
    taken: u64,
    /// Publishes `taken` whenever the queue is empty.
    empty: watch::Sender<u64>,
}

impl Stream for OutStream {
    type Item = OutgoingFrame<proto::WorkerMessage>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.goodbye.load(Ordering::Acquire) {
            return Poll::Ready(None);
        }
        let Poll::Ready(next) = self.messages.poll_recv(cx) else {
            let taken = self.taken;
            self.empty.send_if_modified(|known| std::mem::replace(known, taken) != taken);
            return Poll::Pending;
        };
        self.taken += u64::from(next.is_some());
        if let Some(OutgoingFrame { body: FrameBody::Message(message), .. }) = &next
            && let Some(Kind::Goodbye(_)) = message.kind
        {
            // Messages behind a goodbye are not sent; their senders get an error.
            self.messages.close();
            self.goodbye.store(true, Ordering::Release);
        }
        Poll::Ready(next)
    }
}
