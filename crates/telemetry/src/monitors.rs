//! Monitors: metrics of a job as curves, in event files for TensorBoard or through Python packages.
//!
//! Each monitor has a thread behind a bounded queue. Messages that do not fit are dropped and
//! counted; a full disk is a warning. A job never waits for its monitors.

mod event_file;
mod python;
mod tensorboard_proto;
mod tensorboard_writer;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rollway_config::{Config, Mode, MonitorType};
use rollway_core::metrics::Metrics;
use rollway_engine::job_event::{JobEvent, JobObserver};

use self::python::PythonMonitor;
use self::tensorboard_writer::EventWriter;
use crate::dropped::DropCounters;
use crate::redact;

/// Maximum number of queued messages of a monitor: many steps.
const QUEUE_CAPACITY: usize = 1024;

/// Maximum time that the end of a job waits for its event files.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the folder of a job's event files, with one folder for each writer. `None`: no files are
/// written.
pub fn folder(config: &Config) -> Option<PathBuf> {
    let folder = || config.job_dir().join("monitor").join("tensorboard");
    config.monitor.monitor_type.contains(&MonitorType::Tensorboard).then(folder)
}

/// Opens the monitors of a configuration.
///
/// # Errors
/// If a folder cannot be created.
pub fn open(config: &Config, drops: &DropCounters) -> io::Result<Vec<Arc<dyn JobObserver>>> {
    let mut monitors: Vec<Arc<dyn JobObserver>> = Vec::new();
    for kind in &config.monitor.monitor_type {
        match kind {
            MonitorType::Tensorboard => {
                if let Some(monitor) = TensorboardMonitor::open(config, drops)? {
                    monitors.push(Arc::new(monitor));
                }
            }
            MonitorType::Wandb | MonitorType::Mlflow | MonitorType::Swanlab => {
                monitors.push(Arc::new(PythonMonitor::open(config, *kind, drops)?));
            }
            MonitorType::None => {}
        }
    }
    Ok(monitors)
}

/// Checks the monitors of a configuration; returns each problem with a remedy.
pub async fn check(config: &Config) -> Vec<(String, String)> {
    let mut problems = Vec::new();
    for kind in config.monitor.monitor_type.iter().filter(|kind| kind.is_outside()) {
        problems.extend(python::check(config, *kind).await);
    }
    problems
}

/// Queue to the thread of a monitor.
#[derive(Debug)]
struct MonitorQueue<T> {
    name: &'static str,
    sender: Mutex<Option<SyncSender<T>>>,
    drops: DropCounters,
    thread_end: Mutex<Receiver<()>>,
}

impl<T: Send + 'static> MonitorQueue<T> {
    fn new(name: &'static str, drops: &DropCounters) -> (Self, Receiver<T>, Sender<()>) {
        let (sender, receiver) = sync_channel(QUEUE_CAPACITY);
        let (end, thread_end) = channel();
        drops.expect(name);
        let (sender, drops) = (Mutex::new(Some(sender)), drops.clone());
        (Self { name, sender, drops, thread_end: thread_end.into() }, receiver, end)
    }

    /// Starts the thread of a monitor.
    fn start(
        name: &'static str,
        drops: &DropCounters,
        work: impl FnOnce(&Receiver<T>) + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, receiver, end) = Self::new(name, drops);
        let work = move || {
            work(&receiver);
            let _ = end.send(());
        };
        thread::Builder::new().name(format!("monitor-{name}")).spawn(work)?;
        Ok(queue)
    }

    /// Queues a message; one that does not fit is dropped and counted.
    fn push(&self, message: T) {
        let sent = self.sender.lock().as_ref().map(|sender| sender.try_send(message));
        if let Some(Err(_)) = sent {
            self.drops.count(self.name, 1);
        }
    }

    /// Closes the queue; returns whether the thread ended within the timeout.
    fn close(&self, timeout: Duration) -> bool {
        drop(self.sender.lock().take());
        self.thread_end.lock().recv_timeout(timeout) != Err(RecvTimeoutError::Timeout)
    }
}

/// Writes event files for TensorBoard. Dropping it writes the queued messages.
#[derive(Debug)]
struct TensorboardMonitor(MonitorQueue<MonitorMessage>);

#[derive(Clone, Debug)]
struct MonitorMessage {
    /// Seconds since 1970.
    at: f64,
    step: u64,
    kind: MonitorMessageKind,
}

#[derive(Clone, Debug)]
enum MonitorMessageKind {
    /// The explorer begins: earlier values of this step and later ones are void.
    ExplorerBegan,
    /// A benchmark begins; nothing is void.
    BenchBegan,
    /// A trainer without explorer begins.
    TrainerBegan,
    Explored(Metrics),
    Trained(Metrics),
}

impl TensorboardMonitor {
    /// Creates the folder and starts the thread. `None`: the configuration wants no files.
    fn open(config: &Config, drops: &DropCounters) -> io::Result<Option<Self>> {
        let Some(folder) = folder(config) else { return Ok(None) };
        std::fs::create_dir_all(&folder)?;
        let (explorer, trainer) = (&config.explorer.name, &config.trainer.name);
        let (explorer, trainer) = (folder.join(explorer), folder.join(trainer));
        let writer = EventWriter::new(explorer, trainer, redact::describe(config), drops);
        let name = MonitorType::Tensorboard.name();
        let work = |messages: &Receiver<MonitorMessage>| writer.write(messages);
        MonitorQueue::start(name, drops, work).map(|queue| Some(Self(queue)))
    }
}

impl JobObserver for TensorboardMonitor {
    fn on_event(&self, event: &JobEvent) {
        let (step, kind) = match event {
            JobEvent::Began { mode, done_steps, .. } => match mode {
                Mode::Both | Mode::Explore => (*done_steps + 1, MonitorMessageKind::ExplorerBegan),
                Mode::Train => (*done_steps, MonitorMessageKind::TrainerBegan),
                _ => (*done_steps, MonitorMessageKind::BenchBegan),
            },
            JobEvent::StepDone { step, metrics, .. }
            | JobEvent::Evaluated { step, metrics, .. } => {
                (*step, MonitorMessageKind::Explored(metrics.clone()))
            }
            JobEvent::Trained { step, metrics } => {
                (*step, MonitorMessageKind::Trained(metrics.clone()))
            }
            JobEvent::Ready(_)
            | JobEvent::StepBegun { .. }
            | JobEvent::Synced { .. }
            | JobEvent::WaitBegun(_)
            | JobEvent::WaitEnded(_)
            | JobEvent::Info(_)
            | JobEvent::Alarm(_) => return,
        };
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        self.0.push(MonitorMessage { at, step, kind });
    }

    fn close(&self) {
        if !self.0.close(SHUTDOWN_TIMEOUT) {
            tracing::warn!("event files incomplete: timeout of {SHUTDOWN_TIMEOUT:?}");
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
