//! The thread that has the database: nobody else waits for a disk.
//!
//! What is asked for at the same time is done in one transaction, so that many answers that end
//! together cost one wait for the disk. Nobody hears that something is done before that
//! transaction has ended.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::feedback::{Feedback, FeedbackOutcome};
use super::tables::{CommittedRow, Fixed, Member, Tables, TurnRow, TurnTotals};
use crate::recording::Turn;

/// How many requests are done in one transaction.
const MAX_TRANSACTION_REQUESTS: usize = 512;

/// A unit of the room for bytes that wait.
const ROOM_UNIT: usize = 1024;

/// How the store behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeStoreOptions {
    /// The SQLite file. Its folder is made.
    pub path: PathBuf,
    /// How many recorded choices are kept, those included that were committed, of which only the
    /// names are left.
    pub max_rows: u64,
    /// How many bytes of recorded choices without feedback are kept.
    pub max_bytes: u64,
    /// How long a recorded choice is kept.
    pub max_age: Duration,
    /// How many bytes may wait for a commit before more feedback is refused.
    pub max_queued_bytes: u64,
    /// Whether callers of the gateway must show a key.
    pub needs_key: bool,
    /// How many requests may wait for the thread before the next one waits for room among them.
    pub max_waiting: usize,
    /// How many bytes of answers may wait for the thread.
    pub max_waiting_bytes: usize,
}

impl ServeStoreOptions {
    /// Returns the usual options for a file.
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

/// Why something was not kept, or not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Another process has the file open.
    #[error("{path} is used by {holder}: stop it, or choose another `explorer.db_url`")]
    Locked {
        /// Which file.
        path: String,
        holder: String,
    },
    /// The file cannot be opened or used.
    #[error("the history in {path} failed: {message}")]
    Failed {
        /// Which file.
        path: String,
        message: String,
    },
    /// The thread has ended.
    #[error("the history is closed")]
    Closed,
}

/// What is known of the store without asking it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServeStoreCounts {
    /// Choices that were ever recorded.
    pub recorded: u64,
    /// Choices that have feedback and wait for a commit.
    pub ready: u64,
    /// The last step that is done.
    pub step: u64,
    /// Choices of which the names were removed after their commit.
    pub forgotten: u64,
    /// Choices that were removed before anybody gave feedback.
    pub expired: u64,
    pub rows: u64,
    /// Bytes of choices without feedback.
    pub bytes: u64,
}

/// The database of serve mode. Clones are the same; when the last one is dropped, what was asked
/// for is done and the thread ends.
#[derive(Clone, Debug)]
pub(super) struct ServeStore {
    jobs: mpsc::Sender<Box<dyn StoreJob>>,
    room: Arc<Semaphore>,
    max_units: u32,
    shared: Arc<Mutex<ServeStoreCounts>>,
}

impl ServeStore {
    /// Opens the file, or makes it.
    pub(super) async fn open(options: ServeStoreOptions) -> Result<Self, StoreError> {
        let units = options.max_waiting_bytes.div_ceil(ROOM_UNIT).clamp(1, u32::MAX as usize >> 3);
        let (jobs, inbox) = mpsc::channel(options.max_waiting.max(1));
        let shared = Arc::new(Mutex::new(ServeStoreCounts::default()));
        let (opened, is_open) = oneshot::channel();
        let counts = Arc::clone(&shared);
        let path = options.path.display().to_string();
        let work = move || match Tables::open(&options) {
            Ok(tables) => {
                *counts.lock() = tables.totals().counts();
                let _ = opened.send(Ok(()));
                StoreThread { tables, counts }.run(inbox);
            }
            Err(error) => {
                let _ = opened.send(Err(error));
            }
        };
        thread::Builder::new()
            .name("rollway-history".to_owned())
            .spawn(work)
            .map_err(|error| StoreError::Failed { path, message: format!("no thread: {error}") })?;
        is_open.await.map_err(|_| StoreError::Closed)??;
        let max_units = u32::try_from(units).unwrap_or(u32::MAX);
        Ok(Self { jobs, room: Arc::new(Semaphore::new(units)), max_units, shared })
    }

    /// Keeps the turns of an answer. A turn that is kept already stays as it is.
    pub(super) async fn keep(&self, turns: &[Turn]) -> Result<(), StoreError> {
        let rows = turns.iter().map(TurnRow::new).collect::<Result<Vec<TurnRow>, _>>();
        let rows = rows.map_err(|error| StoreError::Failed {
            path: "memory".to_owned(),
            message: format!("a turn cannot be written: {error}"),
        })?;
        let bytes: usize = rows.iter().map(TurnRow::bytes).sum();
        // One that is larger than all the room has it to itself.
        let units = u32::try_from(bytes.div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(units.clamp(1, self.max_units)).await;
        let room = room.map_err(|_| StoreError::Closed)?;
        self.ask_with(Some(room), move |tables| tables.keep(&rows)).await
    }

    /// Takes feedback.
    pub(super) async fn feedback(&self, feedback: Feedback) -> Result<FeedbackOutcome, StoreError> {
        self.ask(move |tables| tables.feedback(&feedback)).await
    }

    /// Returns the step that was begun and is not done.
    pub(super) async fn begun(&self) -> Result<Option<Fixed>, StoreError> {
        self.ask(|tables| tables.begun()).await
    }

    /// Makes a step of all feedback that waits; returns none if none does.
    pub(super) async fn fix(&self) -> Result<Option<Fixed>, StoreError> {
        self.ask(Tables::fix).await
    }

    /// Returns what a step consists of.
    pub(super) async fn members(&self, step: u64) -> Result<Vec<Member>, StoreError> {
        self.ask(move |tables| tables.members(step)).await
    }

    /// A step was delivered. Doing it twice does no harm.
    pub(super) async fn settle(&self, done: CommittedRow) -> Result<(), StoreError> {
        self.ask(move |tables| tables.settle(&done)).await
    }

    /// Returns the turns of a feedback of a step, as they were written.
    pub(super) async fn turns(&self, feedback: u64) -> Result<Vec<Vec<u8>>, StoreError> {
        self.ask(move |tables| tables.turns(feedback)).await
    }

    /// What is known of the store.
    pub(super) fn counts(&self) -> ServeStoreCounts {
        *self.shared.lock()
    }

    async fn ask<T: Send + 'static>(
        &self,
        act: impl FnMut(&mut Tables) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask_with(None, act).await
    }

    async fn ask_with<T: Send + 'static>(
        &self,
        room: Option<OwnedSemaphorePermit>,
        act: impl FnMut(&mut Tables) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let asked = QueuedJob { act, done: None, reply, _room: room };
        self.jobs.send(Box::new(asked)).await.map_err(|_| StoreError::Closed)?;
        answer.await.unwrap_or(Err(StoreError::Closed))
    }
}

/// Something to do inside a transaction, which may be tried again.
trait StoreJob: Send {
    fn act(&mut self, tables: &mut Tables) -> Result<(), StoreError>;
    /// The transaction has ended.
    fn answer(self: Box<Self>, outcome: Result<(), StoreError>);
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

    fn answer(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { done, reply, .. } = *self;
        // Who asked may have left.
        let _ = reply.send(outcome.and_then(|()| done.ok_or(StoreError::Closed)));
    }
}

/// What the thread has.
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
            // One of them is to blame, and the others shall not suffer for it.
            for job in group {
                self.perform(vec![job]);
            }
            return;
        }
        if let Err(error) = &outcome {
            tracing::error!(%error, "the history failed");
        }
        for job in group {
            job.answer(outcome.clone());
        }
    }

    fn transact(&mut self, group: &mut [Box<dyn StoreJob>]) -> Result<(), StoreError> {
        let before: TurnTotals = self.tables.totals();
        self.tables.begin()?;
        let acted = group.iter_mut().try_for_each(|job| job.act(&mut self.tables));
        let ended = acted.and_then(|()| self.tables.prune()).and_then(|()| self.tables.commit());
        match ended {
            Ok(()) => *self.counts.lock() = self.tables.totals().counts(),
            Err(_) => self.tables.roll_back(before),
        }
        ended
    }
}
