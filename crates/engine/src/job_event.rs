//! Job events: one stream for the progress view, monitors, the summary and the log.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rollway_config::Mode;
use rollway_core::BatchResult;
use rollway_core::metrics::Metrics;

use crate::job_wait::{JobWait, WaitObserver};
use crate::live_stats::LiveStats;

#[derive(Clone, Debug)]
pub enum JobEvent {
    /// All components are open; live statistics are available.
    Ready(LiveStats),
    /// The loop begins.
    Began {
        mode: Mode,
        job_dir: PathBuf,
        /// Steps completed by earlier processes.
        done_steps: u64,
        /// `None`: unknown (mode `train`).
        total_steps: Option<u64>,
        tasks_per_step: u64,
        runners: u32,
    },
    StepBegun {
        step: u64,
        tasks: u64,
        runs: u64,
    },
    StepDone {
        step: u64,
        result: Arc<BatchResult>,
        /// All metrics of the step, under their final names.
        metrics: Metrics,
        waited: Duration,
    },
    /// The evaluation of one taskset finished.
    Evaluated {
        /// Step of the evaluation; in mode `bench` that of the checkpoint.
        step: u64,
        /// Model version.
        version: u64,
        set: Arc<str>,
        /// Mean reward. `None`: no run succeeded.
        score: Option<f64>,
        result: Arc<BatchResult>,
        /// Final names: `eval/…` or `bench/…`.
        metrics: Metrics,
    },
    /// A weight sync ended, with new weights or without.
    Synced {
        step: u64,
        /// Model version of the servers.
        version: u64,
        /// Wait for the trainer.
        waited: Duration,
        /// Loading time of the servers.
        loading: Duration,
    },
    Trained {
        step: u64,
        /// Final names: `trainer/…`.
        metrics: Metrics,
    },
    /// The job begins to wait.
    WaitBegun(JobWait),
    WaitEnded(JobWait),
    Info(String),
    /// An alarm was raised or cleared.
    Alarm(Alarm),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    pub at: SystemTime,
    /// Alarm kind, as in `summary.json` and the metric `rollway_alarm`.
    pub kind: &'static str,
    /// The problem and the remedy; when cleared, the change.
    pub message: String,
    /// `false`: the alarm was cleared.
    pub raised: bool,
}

/// Receives job events. Must not block.
pub trait JobObserver: Debug + Send + Sync + 'static {
    fn on_event(&self, event: &JobEvent);

    /// Flushes pending data within its own deadline; later events may be ignored. Blocks.
    fn close(&self) {}
}

/// Observers of a job. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct JobObservers(Arc<Vec<Arc<dyn JobObserver>>>);

impl JobObservers {
    pub fn new(watchers: Vec<Arc<dyn JobObserver>>) -> Self {
        Self(Arc::new(watchers))
    }

    /// Returns these observers and one more.
    #[must_use]
    pub fn with(&self, watcher: Arc<dyn JobObserver>) -> Self {
        Self::new(self.0.iter().cloned().chain([watcher]).collect())
    }

    pub fn emit(&self, event: &JobEvent) {
        self.0.iter().for_each(|watcher| watcher.on_event(event));
    }
}

impl WaitObserver for JobObservers {
    fn wait_begun(&self, wait: &JobWait) {
        self.emit(&JobEvent::WaitBegun(wait.clone()));
    }

    fn wait_ended(&self, wait: &JobWait) {
        self.emit(&JobEvent::WaitEnded(wait.clone()));
    }
}
