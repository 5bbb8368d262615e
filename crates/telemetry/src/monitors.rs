//! Monitors: the numbers of a job as curves, in files that TensorBoard reads, or through the Python
//! packages of others.
//!
//! Files are written by a thread of its own, `python.rs` talks to the packages. What they have no
//! time for is dropped and counted, and a disk that is full is a warning: a job does not wait for
//! its curves.

mod event_file;
mod python;
mod redact;
mod tensorboard_proto;
mod tensorboard_writer;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rollway_config::{Config, Mode, MonitorType};
use rollway_core::metrics::Metrics;
use rollway_engine::job_event::{JobEvent, JobObserver};

use self::python::Outside;
use self::tensorboard_writer::{EventWriter, WriteJob};
use crate::dropped::DropCounters;

/// What may wait for the thread: many steps, in case that the disk takes its time.
const QUEUE_CAPACITY: usize = 1024;

/// How long the end of a job waits for its last numbers to be written.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the folder below which the curves of a job are, one folder for each who writes; none if
/// no files are written.
pub fn folder(config: &Config) -> Option<PathBuf> {
    let folder = || config.job_dir().join("monitor").join("tensorboard");
    config.monitor.monitor_type.contains(&MonitorType::Tensorboard).then(folder)
}

/// Begins to write to every monitor that a configuration names.
///
/// # Errors
///
/// If a folder cannot be made.
pub fn open(config: &Config, drops: &DropCounters) -> io::Result<Vec<Arc<dyn JobObserver>>> {
    let mut monitors: Vec<Arc<dyn JobObserver>> = Vec::new();
    for kind in &config.monitor.monitor_type {
        match kind {
            MonitorType::Tensorboard => monitors.extend(TensorboardMonitor::begin(config, drops)?),
            MonitorType::Wandb | MonitorType::Mlflow | MonitorType::Swanlab => {
                monitors.push(Arc::new(Outside::open(config, *kind, drops)?));
            }
            MonitorType::None => {}
        }
    }
    Ok(monitors)
}

/// Returns what is wrong with the monitors that a configuration names, each with a remedy.
pub async fn check(config: &Config) -> Vec<(String, String)> {
    let mut wrong = Vec::new();
    for kind in config.monitor.monitor_type.iter().filter(|kind| kind.is_outside()) {
        wrong.extend(python::check(config, *kind).await);
    }
    wrong
}

/// Writes what happens to a job to files for TensorBoard. What was told before it is dropped is
/// written then.
#[derive(Debug)]
pub struct TensorboardMonitor {
    sender: parking_lot::Mutex<Option<SyncSender<MonitorMessage>>>,
    dropped: Arc<AtomicU64>,
    drops: DropCounters,
    over: parking_lot::Mutex<Receiver<()>>,
}

/// What the thread is told.
#[derive(Clone, Debug)]
struct MonitorMessage {
    /// Seconds since 1970.
    at: f64,
    step: u64,
    what: MonitorMessageKind,
}

#[derive(Clone, Debug)]
enum MonitorMessageKind {
    /// The loop begins; what earlier files say about this step and later ones happens again.
    Began,
    /// The loop begins, and nothing happens again.
    Looked,
    /// A trainer without an explorer begins.
    Trains,
    /// Numbers of the explorer.
    Explored(Metrics),
    /// Numbers of the trainer.
    Trained(Metrics),
}

impl TensorboardMonitor {
    /// Makes the folder and begins to write; nothing if the configuration wants no files.
    ///
    /// # Errors
    ///
    /// If the folder cannot be made.
    pub fn open(config: &Config) -> io::Result<Option<Arc<dyn JobObserver>>> {
        Self::begin(config, &DropCounters::default())
    }

    fn begin(config: &Config, drops: &DropCounters) -> io::Result<Option<Arc<dyn JobObserver>>> {
        let Some(folder) = folder(config) else { return Ok(None) };
        std::fs::create_dir_all(&folder)?;
        let job = WriteJob {
            explorer: folder.join(&config.explorer.name),
            trainer: folder.join(&config.trainer.name),
            description: redact::describe(config),
        };
        let name = MonitorType::Tensorboard.name();
        drops.expect(name);
        let (mut monitor, thread) = Self::new(move |dropped| EventWriter::new(job, dropped));
        monitor.drops = drops.clone();
        thread::Builder::new().name("monitor".to_owned()).spawn(thread)?;
        Ok(Some(Arc::new(monitor)))
    }

    /// Returns a monitor, and what its thread does.
    fn new(
        writer: impl FnOnce(Arc<AtomicU64>) -> EventWriter + Send,
    ) -> (Self, impl FnOnce() + Send) {
        let (sender, receiver) = sync_channel(QUEUE_CAPACITY);
        let (end, over) = channel();
        let dropped = Arc::new(AtomicU64::new(0));
        let monitor = Self {
            sender: Some(sender).into(),
            dropped: Arc::clone(&dropped),
            drops: DropCounters::default(),
            over: over.into(),
        };
        let thread = move || {
            writer(dropped).work(&receiver);
            // Nobody may be waiting.
            let _ = end.send(());
        };
        (monitor, thread)
    }

    fn tell(&self, step: u64, what: MonitorMessageKind) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let message = MonitorMessage { at, step, what };
        let sent = self.sender.lock().as_ref().map(|sender| sender.try_send(message));
        if let Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) = sent {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.drops.count(MonitorType::Tensorboard.name(), 1);
        }
    }
}

impl JobObserver for TensorboardMonitor {
    fn on_event(&self, event: &JobEvent) {
        match event {
            JobEvent::Began { mode: Mode::Both | Mode::Explore, done_steps, .. } => {
                self.tell(*done_steps + 1, MonitorMessageKind::Began);
            }
            JobEvent::Began { mode: Mode::Train, done_steps, .. } => {
                self.tell(*done_steps, MonitorMessageKind::Trains);
            }
            JobEvent::Began { done_steps, .. } => {
                self.tell(*done_steps, MonitorMessageKind::Looked)
            }
            JobEvent::StepDone { step, metrics, .. }
            | JobEvent::Evaluated { step, metrics, .. } => {
                self.tell(*step, MonitorMessageKind::Explored(metrics.clone()));
            }
            JobEvent::Trained { step, metrics } => {
                self.tell(*step, MonitorMessageKind::Trained(metrics.clone()));
            }
            JobEvent::Ready(_)
            | JobEvent::StepBegun { .. }
            | JobEvent::Synced { .. }
            | JobEvent::Info(_)
            | JobEvent::Alarm(_) => {}
        }
    }

    fn close(&self) {
        drop(self.sender.lock().take());
        // The wait is bounded: a disk that hangs must not keep the job from ending.
        let over = self.over.lock();
        if over.recv_timeout(SHUTDOWN_TIMEOUT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("the last numbers of the monitor are not written: its disk hangs");
        }
    }
}

impl Drop for TensorboardMonitor {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
