//! What can be seen of a job: one stream of events for the progress view, the monitor, the summary
//! and the log.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rollway_config::Mode;
use rollway_core::BatchResult;
use rollway_core::metrics::Metrics;

use crate::live_stats::LiveStats;

/// Something that happened to a job.
#[derive(Clone, Debug)]
pub enum JobEvent {
    /// Everything is open: from now on there are live numbers.
    Ready(LiveStats),
    /// Everything is ready; the loop begins.
    Began {
        /// What the job does.
        mode: Mode,
        /// Its folder.
        job_dir: PathBuf,
        /// Steps that are done already, by an earlier process.
        done_steps: u64,
        /// Steps of the whole job; none: unknown (mode `train`).
        total_steps: Option<u64>,
        tasks_per_step: u64,
        runners: u32,
    },
    StepBegun {
        step: u64,
        tasks: u64,
        runs: u64,
    },
    /// A step was finalized.
    StepDone {
        step: u64,
        /// How its tasks ended.
        result: Arc<BatchResult>,
        /// Everything there is to log, under its final names.
        metrics: Metrics,
        waited: Duration,
    },
    /// The evaluation of one set was finished.
    Evaluated {
        /// The step that it belongs to: of mode `bench` the checkpoint.
        step: u64,
        /// The version of the weights.
        version: u64,
        set: Arc<str>,
        /// The mean reward; none if no run succeeded.
        score: Option<f64>,
        /// How its tasks ended.
        result: Arc<BatchResult>,
        /// Everything there is to log, under its final names (`eval/…` or `bench/…`).
        metrics: Metrics,
    },
    /// Weights were exchanged, or there was nothing new.
    Synced {
        /// After which step.
        step: u64,
        /// The version that the servers have now.
        version: u64,
        /// How long the trainer was waited for.
        waited: Duration,
        /// How long the servers took to load.
        loading: Duration,
    },
    /// The trainer made a step.
    Trained {
        step: u64,
        /// Everything there is to log, under its final names (`trainer/…`).
        metrics: Metrics,
    },
    /// Something that a person should know.
    Info(String),
    /// Something goes wrong that a person should look into, or does no longer.
    Alarm(Alarm),
}

/// Something that goes wrong, or does no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// When it was noticed.
    pub at: SystemTime,
    /// Alarm kind, as in `summary.json` and the metric `rollway_alarm`.
    pub kind: &'static str,
    /// What is the matter and what can be done, in words; of one that is over, what has changed.
    pub words: String,
    /// Whether it goes wrong now; otherwise it did, and is over.
    pub raised: bool,
}

/// Sees events, one after the other. Must be quick: whatever takes long goes elsewhere.
pub trait JobObserver: Debug + Send + Sync + 'static {
    /// Receives one event, in order.
    fn on_event(&self, event: &JobEvent);

    /// Flushes what is pending, within a deadline of its own; later events may be ignored. Blocks.
    fn close(&self) {}
}

/// All who watch a job. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct JobObservers(Arc<Vec<Arc<dyn JobObserver>>>);

impl JobObservers {
    /// Returns these watchers.
    pub fn new(watchers: Vec<Arc<dyn JobObserver>>) -> Self {
        Self(Arc::new(watchers))
    }

    /// Returns these and one more.
    #[must_use]
    pub fn with(&self, watcher: Arc<dyn JobObserver>) -> Self {
        Self::new(self.0.iter().cloned().chain([watcher]).collect())
    }

    /// Tells everybody.
    pub fn emit(&self, event: &JobEvent) {
        self.0.iter().for_each(|watcher| watcher.on_event(event));
    }
}
