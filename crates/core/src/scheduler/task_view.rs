//! Views of single tasks: progress by run and slice, and results that were not taken.

use std::sync::Arc;

use crate::Core;
use crate::batch_id::BatchId;
use crate::ids::{BatchKey, TaskId};
use crate::metrics::Metrics;
use crate::run::Payload;
use crate::scheduler::batch::slices;
use crate::scheduler::status::{FailedRun, Status};
use crate::scheduler::task::{RunPhase, TaskPhase};

/// A task at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskView {
    pub batch: BatchKey,
    pub task: TaskId,
    pub total_runs: u32,
    /// Number of successful runs.
    pub completed_runs: u32,
    /// Number of slices of the first dispatch.
    pub slices: u64,
    /// Slices whose runs have all ended.
    pub ended_slices: u64,
    /// Metrics of the successful runs, in the order of runs.
    pub run_metrics: Vec<Metrics>,
    /// Payloads of the successful runs that were not taken.
    pub payloads: Vec<Payload>,
    pub first_error: Option<FailedRun>,
    /// Status of an ended task. `None`: some of its runs have not ended.
    pub status: Option<Arc<Status>>,
}

impl Core {
    /// Returns a task; `None`: unknown, or its results were taken.
    pub fn task(&self, key: BatchKey, id: TaskId) -> Option<TaskView> {
        let task = self.batches.get(&key)?.tasks.get(id.0 as usize)?;
        let most = self.config.max_repeat_times_per_runner.unwrap_or(task.total).max(1);
        let mut view = TaskView {
            batch: key,
            task: id,
            total_runs: task.total,
            completed_runs: 0,
            slices: slices(task.total, most),
            ended_slices: 0,
            run_metrics: Vec::new(),
            payloads: Vec::new(),
            first_error: None,
            status: None,
        };
        match &task.body {
            TaskPhase::Fresh => {}
            TaskPhase::Working(work) => {
                for run in work.runs.iter().filter(|run| run.state == RunPhase::Succeeded) {
                    view.completed_runs += 1;
                    view.run_metrics.push(run.metrics.clone());
                    view.payloads.extend(run.payload);
                }
                let slices = work.runs.chunks(most as usize);
                let ended = slices.filter(|slice| slice.iter().all(|run| !run.state.open()));
                view.ended_slices = ended.count() as u64;
                view.first_error = work.first_error.clone();
            }
            TaskPhase::Ended(ended) => {
                view.completed_runs = ended.status.completed_runs;
                view.run_metrics = ended.status.run_metrics.clone();
                view.payloads = ended.payloads.clone();
                view.ended_slices = view.slices;
                view.first_error = ended.status.first_error.clone();
                view.status = Some(Arc::clone(&ended.status));
            }
            TaskPhase::Gone => return None,
        }
        Some(view)
    }

    /// Returns the tasks of a batch whose results were not taken, by task id.
    pub fn tasks(&self, batch: &BatchId) -> Vec<TaskView> {
        let Some(key) = self.ids.get(batch) else { return Vec::new() };
        let count = self.batches.get(key).map_or(0, |batch| batch.tasks.len() as u32);
        (0..count).filter_map(|id| self.task(*key, TaskId(id))).collect()
    }

    /// Returns the minimum number of tasks that a submitted batch waits for; `None`: all.
    pub fn min_wait_num(&self, batch: &BatchId) -> Option<u32> {
        self.batches.get(self.ids.get(batch)?)?.min_wait_num
    }
}
