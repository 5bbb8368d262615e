//! Writer of event files: gathers records and writes them every few seconds.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rollway_config::MonitorType;
use rollway_core::metrics::Metrics;

use super::tensorboard_proto::{Event, EventKind};
use super::{MonitorMessage, MonitorMessageKind, event_file};
use crate::dropped::DropCounters;

const FLUSH_INTERVAL: Duration = Duration::from_secs(2);

/// Bytes that are written at once.
const FLUSH_BYTES: usize = 64 * 1024;

/// Maximum bytes that are kept while writes fail.
const MAX_BUFFERED_BYTES: usize = 4 * 1024 * 1024;

/// Prefix of file names; a number follows that orders them.
const PREFIX: &str = "events.out.tfevents.";

#[derive(Debug)]
pub(super) struct EventWriter {
    /// Configuration of the job, in Markdown.
    description: String,
    explorer: EventLog,
    trainer: EventLog,
    drops: DropCounters,
    /// Number of drops that were logged.
    logged_drops: u64,
}

impl EventWriter {
    pub(super) fn new(
        explorer: PathBuf,
        trainer: PathBuf,
        description: String,
        drops: &DropCounters,
    ) -> Self {
        let (explorer, trainer) = (EventLog::new(explorer), EventLog::new(trainer));
        Self { description, explorer, trainer, drops: drops.clone(), logged_drops: 0 }
    }

    /// Writes messages until the queue is closed.
    pub(super) fn write(mut self, messages: &Receiver<MonitorMessage>) {
        let mut due: Option<Instant> = None;
        loop {
            let next = match due {
                None => messages.recv().map_err(RecvTimeoutError::from),
                Some(due) => messages.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match next {
                Ok(message) => {
                    self.add(message);
                    due.get_or_insert_with(|| Instant::now() + FLUSH_INTERVAL);
                    if self.explorer.is_full() || self.trainer.is_full() {
                        self.flush();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.flush();
                    // A failed write is retried.
                    let is_left =
                        !self.explorer.waiting.is_empty() || !self.trainer.waiting.is_empty();
                    due = is_left.then(|| Instant::now() + FLUSH_INTERVAL);
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.flush();
        self.explorer.log_losses();
        self.trainer.log_losses();
    }

    fn add(&mut self, MonitorMessage { at, step, kind }: MonitorMessage) {
        let config = || EventKind::text("config", &self.description);
        match kind {
            MonitorMessageKind::ExplorerBegan => {
                self.explorer.add(at, step, EventKind::start());
                self.explorer.add(at, step - 1, config());
            }
            MonitorMessageKind::BenchBegan => self.explorer.add(at, step, config()),
            MonitorMessageKind::TrainerBegan => self.trainer.add(at, step, config()),
            MonitorMessageKind::Explored(metrics) => self.explorer.add(at, step, numbers(&metrics)),
            MonitorMessageKind::Trained(metrics) => self.trainer.add(at, step, numbers(&metrics)),
        }
    }

    fn flush(&mut self) {
        self.explorer.flush();
        self.trainer.flush();
        let dropped = self.drops.read().get(MonitorType::Tensorboard.name()).copied();
        if let Some(dropped) = dropped.filter(|dropped| *dropped > self.logged_drops) {
            tracing::warn!(monitor.dropped = dropped, "slow disk: metrics dropped");
            self.logged_drops = dropped;
        }
    }
}

fn numbers(metrics: &Metrics) -> EventKind {
    EventKind::numbers(metrics.iter().map(|(key, value)| (&**key, value)))
}

/// Event files of one folder; each process writes one.
#[derive(Debug)]
pub(super) struct EventLog {
    folder: PathBuf,
    file: Option<File>,
    /// Bytes of complete records in the file.
    good: u64,
    /// Unwritten records.
    pub(super) waiting: Vec<u8>,
    /// Number of dropped records.
    lost: u64,
    is_failing: bool,
}

impl EventLog {
    pub(super) const fn new(folder: PathBuf) -> Self {
        let waiting = Vec::new();
        Self { folder, file: None, good: 0, waiting, lost: 0, is_failing: false }
    }

    pub(super) fn add(&mut self, at: f64, step: u64, kind: EventKind) {
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        let record = |step, kind| Event { wall_time: at, step, kind: Some(kind) };
        if self.good == 0 && self.waiting.is_empty() {
            event_file::append(&record(0, EventKind::file_version()), &mut self.waiting);
        }
        let before = self.waiting.len();
        event_file::append(&record(step, kind), &mut self.waiting);
        if self.waiting.len() > MAX_BUFFERED_BYTES {
            self.waiting.truncate(before);
            self.lost += 1;
        }
    }

    const fn is_full(&self) -> bool {
        // Failed writes are not retried more often.
        self.waiting.len() >= FLUSH_BYTES && !self.is_failing
    }

    /// Writes all records, or keeps them for the next time: the file has no incomplete record in
    /// its middle.
    pub(super) fn flush(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        match self.write() {
            Ok(()) => {
                self.good += self.waiting.len() as u64;
                self.waiting.clear();
                if std::mem::take(&mut self.is_failing) {
                    let (folder, lost) = (self.folder.display(), self.lost);
                    tracing::info!(monitor.lost = lost, "event files writable again: {folder}");
                }
            }
            Err(error) if !self.is_failing => {
                self.is_failing = true;
                tracing::warn!(
                    "cannot write event files to {}: {error}; the job continues, recent metrics \
                     are kept in memory",
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
            // May fail: readers retry an incomplete record at the end.
            let _ = file.set_len(self.good);
        })
    }

    /// Logs records that were not written.
    fn log_losses(&self) {
        if !self.waiting.is_empty() || self.lost > 0 {
            tracing::warn!(
                monitor.lost = self.lost,
                monitor.unwritten_bytes = self.waiting.len(),
                "event files in {} incomplete",
                self.folder.display()
            );
        }
    }
}

/// Creates a file whose name sorts after the existing ones, as readers need it.
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
