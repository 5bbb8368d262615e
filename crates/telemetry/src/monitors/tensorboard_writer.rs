//! The thread that writes event files: it gathers records, and writes them every few moments.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rollway_core::metrics::Metrics;

use super::tensorboard_proto::{self, What as Content};
use super::{MonitorMessage, MonitorMessageKind, event_file};

/// How long a number may wait until it is in a file.
const FLUSH: Duration = Duration::from_secs(2);

/// Bytes that are written without further waiting.
const FLUSH_BYTES: usize = 64 * 1024;

/// Bytes that are kept for a disk that takes none.
const MAX_BUFFERED_BYTES: usize = 4 * 1024 * 1024;

/// What files begin their names with. The number behind it orders them.
const PREFIX: &str = "events.out.tfevents.";

/// What the thread knows of a job.
#[derive(Debug)]
pub(super) struct WriteJob {
    /// The folder of the explorer's files.
    pub(super) explorer: PathBuf,
    /// The folder of the trainer's files.
    pub(super) trainer: PathBuf,
    /// What is told about the job, in Markdown.
    pub(super) description: String,
}

#[derive(Debug)]
pub(super) struct EventWriter {
    description: String,
    explorer: EventLog,
    trainer: EventLog,
    dropped: Arc<AtomicU64>,
    /// How many dropped numbers were spoken of.
    told: u64,
}

impl EventWriter {
    pub(super) fn new(job: WriteJob, dropped: Arc<AtomicU64>) -> Self {
        Self {
            description: job.description,
            explorer: EventLog::new(job.explorer),
            trainer: EventLog::new(job.trainer),
            dropped,
            told: 0,
        }
    }

    /// Writes until nobody tells anything any more.
    pub(super) fn work(mut self, told: &Receiver<MonitorMessage>) {
        let mut due: Option<Instant> = None;
        loop {
            let next = match due {
                None => told.recv().map_err(RecvTimeoutError::from),
                Some(due) => told.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match next {
                Ok(next) => {
                    self.take(next);
                    due.get_or_insert_with(|| Instant::now() + FLUSH);
                    if self.explorer.is_full() || self.trainer.is_full() {
                        self.flush();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.flush();
                    // What the disk did not take is offered again.
                    let is_left =
                        !self.explorer.waiting.is_empty() || !self.trainer.waiting.is_empty();
                    due = is_left.then(|| Instant::now() + FLUSH);
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.flush();
        self.explorer.give_up();
        self.trainer.give_up();
    }

    fn take(&mut self, told: MonitorMessage) {
        let MonitorMessage { at, step, what } = told;
        match what {
            MonitorMessageKind::Began => {
                self.explorer.add(at, step, Content::start());
                self.explorer.add(at, step - 1, Content::text("config", &self.description));
            }
            MonitorMessageKind::Looked => {
                self.explorer.add(at, step, Content::text("config", &self.description));
            }
            MonitorMessageKind::Trains => {
                self.trainer.add(at, step, Content::text("config", &self.description));
            }
            MonitorMessageKind::Explored(metrics) => self.explorer.add(at, step, numbers(&metrics)),
            MonitorMessageKind::Trained(metrics) => self.trainer.add(at, step, numbers(&metrics)),
        }
    }

    fn flush(&mut self) {
        self.explorer.flush();
        self.trainer.flush();
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > self.told {
            tracing::warn!(
                monitor.dropped = dropped,
                "the monitor has no time for all numbers: its disk is slow"
            );
            self.told = dropped;
        }
    }
}

fn numbers(metrics: &Metrics) -> Content {
    Content::numbers(metrics.iter().map(|(key, value)| (&**key, value)))
}

/// The files of one folder, of which this process writes one.
#[derive(Debug)]
pub(super) struct EventLog {
    folder: PathBuf,
    file: Option<File>,
    /// Bytes of the file that are whole records.
    good: u64,
    /// Records that are not in the file yet.
    pub(super) waiting: Vec<u8>,
    /// Records that there was no room for.
    lost: u64,
    is_failing: bool,
}

impl EventLog {
    pub(super) const fn new(folder: PathBuf) -> Self {
        let waiting = Vec::new();
        Self { folder, file: None, good: 0, waiting, lost: 0, is_failing: false }
    }

    /// Adds a record.
    pub(super) fn add(&mut self, at: f64, step: u64, what: Content) {
        let record = |what| tensorboard_proto::Event {
            wall_time: at,
            step: i64::try_from(step).unwrap_or(i64::MAX),
            what: Some(what),
        };
        if self.good == 0 && self.waiting.is_empty() {
            let begin = tensorboard_proto::Event { step: 0, ..record(Content::file_version()) };
            event_file::append(&begin, &mut self.waiting);
        }
        let before = self.waiting.len();
        event_file::append(&record(what), &mut self.waiting);
        if self.waiting.len() > MAX_BUFFERED_BYTES {
            self.waiting.truncate(before);
            self.lost += 1;
        }
    }

    const fn is_full(&self) -> bool {
        // A disk that takes nothing is not asked more often for it.
        self.waiting.len() >= FLUSH_BYTES && !self.is_failing
    }

    /// Writes what waits. If that fails, it waits for the next time: the file never has half a
    /// record in its middle.
    pub(super) fn flush(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        match self.write() {
            Ok(()) => {
                self.good += self.waiting.len() as u64;
                self.waiting.clear();
                if std::mem::take(&mut self.is_failing) {
                    let folder = self.folder.display();
                    tracing::info!(
                        monitor.lost = self.lost,
                        "curves are written to {folder} again"
                    );
                }
            }
            Err(error) if !self.is_failing => {
                self.is_failing = true;
                tracing::warn!(
                    "curves cannot be written to {}: {error}; the job goes on, and what fits into \
                     memory is written when there is room again",
                    self.folder.display()
                );
            }
            Err(_) => {}
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(create(&self.folder)?),
        };
        file.write_all_at(&self.waiting, self.good).inspect_err(|_| {
            // Readers stop at a torn record for now and read it again later, so that it may also
            // stay.
            let _ = file.set_len(self.good);
        })
    }

    /// Says what is lost for good.
    fn give_up(&self) {
        if !self.waiting.is_empty() || self.lost > 0 {
            tracing::warn!(
                monitor.lost = self.lost,
                monitor.unwritten_bytes = self.waiting.len(),
                "the curves in {} are not complete",
                self.folder.display()
            );
        }
    }
}

/// Makes a file that is read after all that are there: readers go through them by name.
fn create(folder: &Path) -> io::Result<File> {
    fs::create_dir_all(folder)?;
    let number = |name: &str| name.strip_prefix(PREFIX)?.split('.').next()?.parse::<u64>().ok();
    let mut last = 0;
    for entry in fs::read_dir(folder)? {
        last = last.max(entry?.file_name().to_str().and_then(number).unwrap_or(0));
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let number = now.map_or(0, |now| now.as_secs()).max(last + 1);
    let path = folder.join(format!("{PREFIX}{number:010}.rollway.{}", std::process::id()));
    File::create_new(path)
}
