//! The engine's end: authenticates workers and delivers their messages in order.
//!
//! ```text
//!          hello, proof            welcome                 goodbye
//! accepted ─────────► Hello event ─────────► Message… ──────────────────► Left event
//!     │                   │                     │                             ▲
//!     └─ refused, counted └─ refuse, drop ──────┴─ invalid, slow, lost, drop ─┘
//! ```
//!
//! A peer without a valid hello is refused, counted and never seen by the engine. After
//! [`WorkerServerEvent::Hello`] a worker gets exactly one [`WorkerServerEvent::Left`], behind all
//! its messages, which are valid and about its own runners.

mod connection;
mod session;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rollway_base::tls::TlsOptions;
use rollway_base::{Address, Secret};
use rollway_net::{BoundListener, ListenerKind, RunningListener};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

pub use connection::{ConnId, ConnectionSendError, PendingHandshake, WorkerConnection};
pub use rollway_net::{BindError, Peer};

use crate::byte_budget::ByteBudget;
use crate::message::{VersionRange, WorkerMessage};
use crate::peer::RefusalCounters;
use crate::refusal::{ConnectRefusal, RefusalCode};
use crate::stream_service::{self, StreamServerOptions};
use session::WorkerService;

#[derive(Clone, Debug)]
pub struct WorkerServerOptions {
    /// A Unix socket is accessible to this user only.
    pub address: Address,
    pub secret: Secret,
    /// Encryption of a TCP address. Without it only the secret protects it, which is never sent.
    pub tls: TlsOptions,
    pub versions: VersionRange,
    pub limits: WorkerServerLimits,
}

impl WorkerServerOptions {
    pub fn new(address: Address, secret: Secret) -> Self {
        Self {
            address,
            secret,
            tls: TlsOptions::off(),
            versions: VersionRange::SUPPORTED,
            limits: WorkerServerLimits::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerServerLimits {
    /// Maximum number of connections. Sixteen more are refused with a reason, others closed at
    /// once.
    pub connections: usize,
    /// Limit from the connection to the proof of the worker.
    pub hello_timeout: Duration,
    /// Time for a refused or leaving worker to read the last message and close.
    pub close_delay: Duration,
    /// Maximum size of a message in either direction, in bytes.
    pub message_bytes: usize,
    /// Length of the event queue; workers wait while it is full.
    pub events: usize,
    /// Bytes of large messages in the event queue.
    pub event_bytes: usize,
    /// Length of a worker's send queue; a worker that exceeds it is disconnected.
    pub outgoing: usize,
    /// Bytes in a worker's send queue, like `outgoing`.
    pub outgoing_bytes: usize,
    /// Workflow definitions that a worker caches.
    pub definitions: usize,
    /// Interval of probes of a silent connection, and time limit of their responses.
    pub keepalive: Duration,
}

impl Default for WorkerServerLimits {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            connections: 1024,
            hello_timeout: Duration::from_secs(10),
            close_delay: Duration::from_secs(1),
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

#[derive(Debug)]
pub enum WorkerServerEvent {
    /// An authenticated worker waits for the engine's decision.
    Hello(PendingHandshake),
    Message {
        conn: ConnId,
        message: WorkerMessage,
    },
    /// A worker disconnected; its last event.
    Left {
        conn: ConnId,
        reason: DisconnectReason,
    },
}

/// Reason for the end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    Goodbye,
    /// The stream ended or broke without a goodbye.
    Lost {
        message: Arc<str>,
    },
    Refused(ConnectRefusal),
    /// The engine dropped its [`WorkerConnection`].
    Dropped,
}

/// Listener for workers. Dropping it disconnects all of them.
#[derive(Debug)]
pub struct WorkerServer {
    listening: RunningListener,
    events: mpsc::Receiver<Queued>,
    shared: Arc<WorkerServerShared>,
    /// Arrival of the first of the last received events.
    received_at: Option<Instant>,
}

#[derive(Debug)]
struct Queued {
    event: WorkerServerEvent,
    received_at: Instant,
    /// Share of the byte budget, released when the engine receives the event.
    _room: Option<OwnedSemaphorePermit>,
}

impl WorkerServer {
    /// Binds the address and starts listening. Needs a tokio runtime.
    pub async fn bind(options: WorkerServerOptions) -> Result<Self, BindError> {
        let WorkerServerOptions { address, secret, tls, versions, limits } = options;
        let listener = BoundListener::bind(&address).await?;
        let tls = listener.identity(&tls)?;
        let (sender, events) = mpsc::channel(limits.events);
        let shared = Arc::new(WorkerServerShared {
            secret,
            versions,
            events: sender,
            event_room: ByteBudget::new(limits.event_bytes),
            limits,
            counters: Arc::new(RefusalCounters::new()),
            next_conn: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
        });
        let options = StreamServerOptions {
            kind: ListenerKind::Workers,
            connections: shared.limits.connections,
            hello_timeout: shared.limits.hello_timeout,
            keepalive: shared.limits.keepalive,
            tls,
        };
        let service = WorkerService(Arc::clone(&shared));
        let counters = Arc::clone(&shared.counters);
        let listening = stream_service::serve(service, listener, counters, options);
        Ok(Self { listening, events, shared, received_at: None })
    }

    /// Returns the bound address, with the port that the system chose.
    pub fn address(&self) -> &Address {
        self.listening.address()
    }

    /// Waits for the next event. Cancel-safe.
    pub async fn recv(&mut self) -> WorkerServerEvent {
        match self.events.recv().await {
            Some(queued) => {
                self.received_at = Some(queued.received_at);
                queued.event
            }
            // `shared` holds a sender, so the channel never closes.
            None => std::future::pending().await,
        }
    }

    /// Waits for events and appends up to `limit` of them. Cancel-safe.
    pub async fn recv_many(&mut self, events: &mut Vec<WorkerServerEvent>, limit: usize) -> usize {
        if limit == 0 {
            return 0;
        }
        events.push(self.recv().await);
        1 + self.try_recv_many(events, limit - 1)
    }

    /// Appends up to `limit` queued events.
    pub fn try_recv_many(&mut self, events: &mut Vec<WorkerServerEvent>, limit: usize) -> usize {
        let queued = std::iter::from_fn(|| self.events.try_recv().ok()).take(limit);
        let before = events.len();
        events.extend(queued.map(|queued| queued.event));
        events.len() - before
    }

    /// Returns the arrival of the first of the last received events.
    pub const fn received_at(&self) -> Option<Instant> {
        self.received_at
    }

    /// Returns the nonzero numbers of refused or disconnected peers by reason.
    pub fn refused(&self) -> Vec<(RefusalCode, u64)> {
        self.shared.counters.refused()
    }

    /// Returns the number of ignored messages of unknown kinds.
    pub fn unknown_messages(&self) -> u64 {
        self.shared.unknown.load(Ordering::Relaxed)
    }

    /// Returns the number of open sockets.
    pub fn open(&self) -> usize {
        usize::try_from(self.listening.counters().open()).unwrap_or(usize::MAX)
    }
}

/// State shared by all connections.
#[derive(Debug)]
struct WorkerServerShared {
    secret: Secret,
    versions: VersionRange,
    limits: WorkerServerLimits,
    events: mpsc::Sender<Queued>,
    event_room: ByteBudget,
    counters: Arc<RefusalCounters>,
    next_conn: AtomicU64,
    unknown: AtomicU64,
}

impl WorkerServerShared {
    /// Queues an event for the engine; waits for budget. `bytes`: its encoded size.
    async fn emit(&self, event: WorkerServerEvent, bytes: usize) {
        let received_at = Instant::now();
        let room = self.event_room.take(bytes).await;
        // Fails only if the engine was dropped.
        let _ = self.events.send(Queued { event, received_at, _room: room }).await;
    }
}
