//! Thread that owns the database, so that no other thread waits for the disk.
//!
//! Concurrent requests are executed in one transaction, so that responses that end together wait
//! for one sync. Results are returned after the transaction was committed.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::tables::{Tables, TurnRow};
use rollway_recording::Turn;

const MAX_TRANSACTION_REQUESTS: usize = 512;

/// Unit of the budget for waiting bytes.
const ROOM_UNIT: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeStoreOptions {
    pub path: PathBuf,
    /// Maximum number of choices, including committed ones, of which only the ids are left.
    pub max_rows: u64,
    /// Maximum bytes of choices without feedback.
    pub max_bytes: u64,
    pub max_age: Duration,
    /// Bytes queued for a commit above which feedback is refused.
    pub max_queued_bytes: u64,
    pub needs_key: bool,
    /// Maximum number of requests in the queue of the thread.
    pub max_waiting: usize,
    /// Maximum bytes of turns in the queue of the thread.
    pub max_waiting_bytes: usize,
}

impl ServeStoreOptions {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            max_rows: 1_000_000,
            max_bytes: 16 << 30,
            max_age: Duration::from_secs(14 * 24 * 3600),
            max_queued_bytes: 2 << 30,
            needs_key: true,
            max_waiting: 4096,
            max_waiting_bytes: 256 << 20,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("{path} is in use by {holder}: stop it, or set another `explorer.db_url`")]
    Locked { path: String, holder: String },
    #[error("turn store {path} failed: {message}")]
    Failed { path: String, message: String },
    #[error("the turn store is closed")]
    Closed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServeStoreCounts {
    /// Choices ever recorded.
    pub recorded: u64,
    /// Choices with feedback, queued for a commit.
    pub ready: u64,
    /// The last finished step.
    pub step: u64,
    /// Committed choices whose ids were removed.
    pub forgotten: u64,
    /// Choices that were removed without feedback.
    pub expired: u64,
    pub rows: u64,
    /// Bytes of choices without feedback.
    pub bytes: u64,
    /// Bytes of queued choices.
    pub queued_bytes: u64,
}

/// Cheap to clone. Dropping the last clone ends the thread after its queue.
#[derive(Clone, Debug)]
pub(super) struct ServeStore {
    jobs: mpsc::Sender<Box<dyn StoreJob>>,
    room: Arc<Semaphore>,
    max_units: u32,
    shared: Arc<Mutex<ServeStoreCounts>>,
}

impl ServeStore {
    pub(super) async fn open(options: ServeStoreOptions) -> Result<Self, StoreError> {
        let units = options.max_waiting_bytes.div_ceil(ROOM_UNIT).clamp(1, u32::MAX as usize >> 3);
        let (jobs, inbox) = mpsc::channel(options.max_waiting.max(1));
        let shared = Arc::new(Mutex::new(ServeStoreCounts::default()));
        let (opened, is_open) = oneshot::channel();
        let counts = Arc::clone(&shared);
        let path = options.path.display().to_string();
        let work = move || match Tables::open(&options) {
            Ok(tables) => {
                *counts.lock() = tables.totals();
                let _ = opened.send(Ok(()));
                StoreThread { tables, counts }.run(inbox);
            }
            Err(error) => {
                let _ = opened.send(Err(error));
            }
        };
        thread::Builder::new().name("rollway-history".to_owned()).spawn(work).map_err(|error| {
            StoreError::Failed { path, message: format!("cannot start a thread: {error}") }
        })?;
        is_open.await.map_err(|_| StoreError::Closed)??;
        let max_units = u32::try_from(units).unwrap_or(u32::MAX);
        Ok(Self { jobs, room: Arc::new(Semaphore::new(units)), max_units, shared })
    }

    /// Stores the turns of a response. Known turns stay unchanged.
    pub(super) async fn store_turns(&self, turns: &[Turn]) -> Result<(), StoreError> {
        let rows = turns.iter().map(TurnRow::new).collect::<Result<Vec<TurnRow>, _>>();
        let rows = rows.map_err(|error| StoreError::Failed {
            path: "memory".to_owned(),
            message: format!("cannot serialize a turn: {error}"),
        })?;
        let bytes: usize = rows.iter().map(TurnRow::bytes).sum();
        // A turn above the budget takes all of it.
        let units = u32::try_from(bytes.div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(units.clamp(1, self.max_units)).await;
        let room = room.map_err(|_| StoreError::Closed)?;
        self.run_with(Some(room), move |tables| tables.store_turns(&rows)).await
    }

    pub(super) fn counts(&self) -> ServeStoreCounts {
        *self.shared.lock()
    }

    /// Runs a closure on the store thread, within a transaction.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        act: impl FnMut(&mut Tables) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run_with(None, act).await
    }

    async fn run_with<T: Send + 'static>(
        &self,
        room: Option<OwnedSemaphorePermit>,
        act: impl FnMut(&mut Tables) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, outcome) = oneshot::channel();
        let job = QueuedJob { act, done: None, reply, _room: room };
        self.jobs.send(Box::new(job)).await.map_err(|_| StoreError::Closed)?;
        outcome.await.unwrap_or(Err(StoreError::Closed))
    }
}

/// An operation within a transaction, which may be repeated.
trait StoreJob: Send {
    fn act(&mut self, tables: &mut Tables) -> Result<(), StoreError>;
    fn complete(self: Box<Self>, outcome: Result<(), StoreError>);
}

struct QueuedJob<F, T> {
    act: F,
    done: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
    _room: Option<OwnedSemaphorePermit>,
}

impl<T, F> StoreJob for QueuedJob<F, T>
where
    T: Send,
    F: FnMut(&mut Tables) -> Result<T, StoreError> + Send,
{
    fn act(&mut self, tables: &mut Tables) -> Result<(), StoreError> {
        self.done = Some((self.act)(tables)?);
        Ok(())
    }

    fn complete(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { done, reply, .. } = *self;
        // The caller may have stopped waiting.
        let _ = reply.send(outcome.and_then(|()| done.ok_or(StoreError::Closed)));
    }
}

struct StoreThread {
    tables: Tables,
    counts: Arc<Mutex<ServeStoreCounts>>,
}

impl StoreThread {
    fn run(mut self, mut inbox: mpsc::Receiver<Box<dyn StoreJob>>) {
        while let Some(first) = inbox.blocking_recv() {
            let mut group = vec![first];
            while group.len() < MAX_TRANSACTION_REQUESTS
                && let Ok(next) = inbox.try_recv()
            {
                group.push(next);
            }
            self.perform(group);
        }
    }

    fn perform(&mut self, mut group: Vec<Box<dyn StoreJob>>) {
        let outcome = self.transact(&mut group);
        if outcome.is_err() && group.len() > 1 {
            // Isolates the failing operation.
            for job in group {
                self.perform(vec![job]);
            }
            return;
        }
        if let Err(error) = &outcome {
            tracing::error!(%error, "turn store failed");
        }
        for job in group {
            job.complete(outcome.clone());
        }
    }

    fn transact(&mut self, group: &mut [Box<dyn StoreJob>]) -> Result<(), StoreError> {
        let before = self.tables.totals();
        self.tables.begin()?;
        let acted = group.iter_mut().try_for_each(|job| job.act(&mut self.tables));
        let ended = acted.and_then(|()| self.tables.prune()).and_then(|()| self.tables.commit());
        match ended {
            Ok(()) => *self.counts.lock() = self.tables.totals(),
            Err(_) => self.tables.roll_back(before),
        }
        ended
    }
}
