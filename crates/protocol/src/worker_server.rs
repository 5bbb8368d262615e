//! The engine's end: who may talk to the engine, and what arrives in what order.
//!
//! ```text
//!            hello                 welcome                 goodbye
//! accepted ─────────► Hello event ─────────► Message… ──────────────────► Left event
//!     │                   │                     │                             ▲
//!     └─ refused, counted └─ refuse, drop ──────┴─ rubbish, slow, lost, drop ─┘
//! ```
//!
//! Whoever does not get as far as a valid hello is refused, counted and never seen by the engine.
//! A worker that was announced by [`WorkerServerEvent::Hello`] leaves with exactly one
//! [`WorkerServerEvent::Left`], behind everything that it said. What the messages mean is left to
//! the engine; here it is only certain that they are valid and about runners of their sender.

mod connection;
pub(crate) mod listen;
mod session;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rollway_base::{Address, Secret};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::DropGuard;

pub use connection::{ConnId, ConnectionSendError, PendingHandshake, WorkerConnection};
pub use listen::{BindError, Peer};

use crate::byte_budget::ByteBudget;
use crate::message::{VersionRange, WorkerMessage};
use crate::refusal::{ConnectRefusal, RefusalCode};
use crate::stream_service;
use listen::{ConnectionGate, WorkerListener};
use session::WorkerService;

/// Where and for whom to listen.
#[derive(Clone, Debug)]
pub struct WorkerServerOptions {
    /// Where. A socket in the file system is for this user only; a TCP address other than the
    /// loopback is protected by nothing but the secret, which travels in the clear.
    pub address: Address,
    /// What a worker has to know.
    pub secret: Secret,
    /// The versions of the protocol that are spoken.
    pub versions: VersionRange,
    /// What is accepted.
    pub limits: WorkerServerLimits,
}

impl WorkerServerOptions {
    /// Returns the usual options.
    pub fn new(address: Address, secret: Secret) -> Self {
        Self {
            address,
            secret,
            versions: VersionRange::SUPPORTED,
            limits: WorkerServerLimits::default(),
        }
    }
}

/// How much of anything there may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerServerLimits {
    /// Connections at a time. Sixteen more are told that there are too many; the rest is dropped.
    pub connections: usize,
    /// The time from a connection to a hello.
    pub hello_timeout: Duration,
    /// The time that a refused or leaving worker has to read the last message and close.
    pub linger: Duration,
    /// The largest message in either direction, in bytes.
    pub message_bytes: usize,
    /// Events that wait for the engine. When they are that many, workers have to wait.
    pub events: usize,
    /// Bytes of large messages that wait for the engine.
    pub event_bytes: usize,
    /// Messages that wait for one worker. One that lets them grow beyond is disconnected.
    pub outgoing: usize,
    /// Bytes that wait for one worker, like `outgoing`.
    pub outgoing_bytes: usize,
    /// Definitions that a worker has to keep.
    pub definitions: usize,
    /// How often a silent connection is probed. One that does not answer in the same time again is
    /// taken for lost.
    pub keepalive: Duration,
}

impl Default for WorkerServerLimits {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            connections: 1024,
            hello_timeout: Duration::from_secs(10),
            linger: Duration::from_secs(1),
            message_bytes: 64 * MIB,
            events: 8192,
            event_bytes: 256 * MIB,
            outgoing: 8192,
            outgoing_bytes: 256 * MIB,
            definitions: 1024,
            keepalive: Duration::from_secs(10),
        }
    }
}

/// Something that the engine has to know.
#[derive(Debug)]
pub enum WorkerServerEvent {
    /// A worker with the right secret wants to be taken in.
    Hello(PendingHandshake),
    /// A worker said something.
    Message { conn: ConnId, message: WorkerMessage },
    /// A worker is gone; nothing more is heard of it.
    Left { conn: ConnId, reason: DisconnectReason },
}

/// Why a worker is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    /// It said goodbye.
    Goodbye,
    /// Its stream ended or broke without a goodbye.
    Lost {
        /// In the words of whoever noticed.
        message: Arc<str>,
    },
    /// It was refused or disconnected.
    Refused(ConnectRefusal),
    /// The engine dropped its [`WorkerConnection`].
    Dropped,
}

/// Listens for workers. Dropping it disconnects all of them.
#[derive(Debug)]
pub struct WorkerServer {
    address: Address,
    events: mpsc::Receiver<Queued>,
    shared: Arc<WorkerServerShared>,
    /// When the first of the events came that were last received.
    came: Option<Instant>,
    _alive: DropGuard,
}

/// An event on its way to the engine.
#[derive(Debug)]
struct Queued {
    event: WorkerServerEvent,
    came: Instant,
    /// Room in the budget for large messages; given back when the engine has the event.
    _room: Option<OwnedSemaphorePermit>,
}

impl WorkerServer {
    /// Begins to listen. Needs a tokio runtime.
    pub async fn bind(options: WorkerServerOptions) -> Result<Self, BindError> {
        let WorkerServerOptions { address, secret, versions, limits } = options;
        let listener = WorkerListener::bind(&address).await?;
        let address = listener.address().clone();
        let (sender, events) = mpsc::channel(limits.events);
        let gate = Arc::new(ConnectionGate::new(limits.connections, limits.hello_timeout));
        let alive = gate.stop.clone().drop_guard();
        let shared = Arc::new(WorkerServerShared {
            secret,
            versions,
            events: sender,
            event_room: ByteBudget::new(limits.event_bytes),
            limits,
            gate,
            next_conn: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
        });
        let gate = Arc::clone(&shared.gate);
        let service = WorkerService(Arc::clone(&shared));
        stream_service::serve(service, listener, gate, shared.limits.keepalive);
        Ok(Self { address, events, shared, came: None, _alive: alive })
    }

    /// Returns where it listens: the port, if the system chose it.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Waits for the next event. Can be given up at any time without losing one.
    pub async fn recv(&mut self) -> WorkerServerEvent {
        match self.events.recv().await {
            Some(queued) => {
                self.came = Some(queued.came);
                queued.event
            }
            // `shared` holds a sender, so the channel never closes.
            None => std::future::pending().await,
        }
    }

    /// Waits for events and appends up to `limit` of them. Can be given up at any time without
    /// losing one.
    pub async fn recv_many(&mut self, events: &mut Vec<WorkerServerEvent>, limit: usize) -> usize {
        if limit == 0 {
            return 0;
        }
        events.push(self.recv().await);
        1 + self.try_recv_many(events, limit - 1)
    }

    /// Appends up to `limit` events that are there already.
    pub fn try_recv_many(&mut self, events: &mut Vec<WorkerServerEvent>, limit: usize) -> usize {
        let queued = std::iter::from_fn(|| self.events.try_recv().ok()).take(limit);
        let before = events.len();
        events.extend(queued.map(|queued| queued.event));
        events.len() - before
    }

    /// Returns when the first of the events came in that were last waited for. The others came
    /// later.
    pub const fn came(&self) -> Option<Instant> {
        self.came
    }

    /// Returns how many peers were refused or disconnected, by reason, without the zeros.
    pub fn refused(&self) -> Vec<(RefusalCode, u64)> {
        self.shared.gate.refused()
    }

    /// Returns how many messages were ignored because this version does not know them.
    pub fn unknown_messages(&self) -> u64 {
        self.shared.unknown.load(Ordering::Relaxed)
    }

    /// Returns how many sockets are open, whoever they belong to.
    pub fn open(&self) -> usize {
        self.shared.gate.open()
    }
}

/// What all connections have in common.
#[derive(Debug)]
struct WorkerServerShared {
    secret: Secret,
    versions: VersionRange,
    limits: WorkerServerLimits,
    events: mpsc::Sender<Queued>,
    event_room: ByteBudget,
    gate: Arc<ConnectionGate>,
    next_conn: AtomicU64,
    unknown: AtomicU64,
}

impl WorkerServerShared {
    /// Hands an event to the engine, when there is room for it. `bytes` is its size as it
    /// travelled.
    async fn emit(&self, event: WorkerServerEvent, bytes: usize) {
        let came = Instant::now();
        let room = self.event_room.take(bytes).await;
        // An engine that is gone needs no events.
        let _ = self.events.send(Queued { event, came, _room: room }).await;
    }
}
