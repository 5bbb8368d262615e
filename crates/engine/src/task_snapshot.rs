//! Snapshots of tasks and batches with their bytes, and the restart of one runner.

use std::sync::Arc;
use std::time::Instant as Moment;

use bytes::Bytes;
use rollway_core::{
    BatchId, BatchState, BatchType, BatchView, Core, RunnerId, RunnerState, Suspicion, TaskView,
};
use tokio::sync::oneshot;

use crate::coordinator::RolloutCoordinator;
use crate::driver::{DriverMessage, DriverTasks};
use crate::driver_handle::DriverHandle;
use crate::error::{Error, Result};
use crate::run::RunnerReport;
use crate::scheduler::Scheduler;
use crate::task::Task;
use crate::workers::RunnerMessage;

/// A task with the bytes that the core knows by number.
#[derive(Clone, Debug)]
pub struct TaskSnapshot {
    pub batch: BatchId,
    pub kind: BatchType,
    pub task: Arc<Task>,
    pub view: TaskView,
    /// Payloads of the successful runs, in the order of `view.payloads`.
    pub payloads: Vec<Bytes>,
}

impl TaskSnapshot {
    fn new(of: DriverTasks<'_>, view: TaskView) -> Option<Self> {
        let (batch, kind, tasks) = of.tasks.get(&view.batch)?;
        let task = Arc::clone(tasks.get(view.task.0 as usize)?);
        let payloads = view.payloads.iter();
        let payloads = payloads.filter_map(|payload| of.payloads.get(&payload.id).cloned());
        Some(Self { batch: batch.clone(), kind: *kind, task, payloads: payloads.collect(), view })
    }
}

/// An attempt of a runner, with its task.
#[derive(Clone, Debug)]
pub struct RunningTask {
    pub runner: RunnerId,
    pub task: TaskSnapshot,
}

/// A submitted batch that is neither finalized nor aborted.
#[derive(Clone, Debug)]
pub struct PendingBatch {
    pub view: BatchView,
    pub state: BatchState,
    /// Number of tasks that finalizing needs; `None`: all.
    pub min_wait_num: Option<u32>,
    pub expected_tasks: u64,
    /// Ended tasks.
    pub ended: Vec<TaskView>,
}

impl DriverHandle {
    async fn inspect_tasks<T: Send + 'static>(
        &self,
        look: impl FnOnce(DriverTasks<'_>) -> T + Send + 'static,
    ) -> Result<T> {
        let (send, seen) = oneshot::channel();
        let look = Box::new(move |of: DriverTasks<'_>| {
            let _ = send.send(look(of));
        });
        self.inbox.send(DriverMessage::InspectTasks(look)).await.map_err(|_| Error::Closed)?;
        seen.await.map_err(|_| Error::Closed)
    }
}

impl Scheduler {
    /// Returns the tasks of a batch whose results were not taken. Results stay.
    pub async fn tasks(&self, batch: impl Into<BatchId>) -> Result<Vec<TaskSnapshot>> {
        let batch = batch.into();
        let look = move |of: DriverTasks<'_>| {
            let views = of.core.tasks(&batch).into_iter();
            views.filter_map(|view| TaskSnapshot::new(of, view)).collect()
        };
        self.handle.inspect_tasks(look).await
    }

    /// Returns the task of every busy runner.
    pub async fn running_tasks(&self) -> Result<Vec<RunningTask>> {
        let look = |of: DriverTasks<'_>| {
            let runners = of.core.runners().filter_map(|runner| {
                let (batch, task, _) = runner.work?;
                let task = TaskSnapshot::new(of, of.core.task(batch, task)?)?;
                Some(RunningTask { runner: runner.runner, task })
            });
            runners.collect()
        };
        self.handle.inspect_tasks(look).await
    }

    /// Replaces a runner by a new incarnation; its runs are retried without suspicion. Returns
    /// whether there was a runner to replace.
    pub async fn restart_runner(&self, runner: RunnerId) -> Result<bool> {
        let Some(view) = self.handle.inspect(move |core| core.runner(runner)).await? else {
            return Ok(false);
        };
        let is_up = matches!(
            view.state,
            RunnerState::Idle | RunnerState::Busy(_) | RunnerState::Cancelling(_)
        );
        if !is_up {
            return Ok(false);
        }
        let message = "restart requested".into();
        let reports = vec![RunnerReport::Lost { message, suspicion: Suspicion::None }];
        let message =
            RunnerMessage { at: Moment::now(), runner, incarnation: view.incarnation, reports };
        self.handle.inbox.send(DriverMessage::Runner(message)).await.map_err(|_| Error::Closed)?;
        Ok(true)
    }
}

impl RolloutCoordinator {
    /// Returns the scheduler of this coordinator's runners: both share one core.
    pub fn scheduler(&self) -> Scheduler {
        Scheduler { handle: self.handle.clone() }
    }

    /// Returns the submitted batches that are neither finalized nor aborted, oldest first.
    pub async fn pending_batches(&self) -> Result<Vec<PendingBatch>> {
        self.handle.inspect(pending_batches).await
    }
}

fn pending_batches(core: &Core) -> Vec<PendingBatch> {
    let batches = core.batches().filter_map(|view| {
        let state = view.state?;
        if matches!(state, BatchState::Finalized | BatchState::Aborted) {
            return None;
        }
        let mut ended = core.tasks(&view.batch);
        let expected_tasks = ended.len() as u64;
        ended.retain(|task| task.status.is_some());
        let min_wait_num = core.min_wait_num(&view.batch);
        Some(PendingBatch { view, state, min_wait_num, expected_tasks, ended })
    });
    batches.collect()
}
