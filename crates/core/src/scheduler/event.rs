//! What becomes of runs, tasks and batches, told to whoever wants to see it. Nothing is decided by
//! it, and nothing is noticed unless somebody asked.

use std::sync::Arc;

use crate::Core;
use crate::failure::FailureKind;
use crate::ids::{BatchKey, RunId, TaskId};
use crate::run::{RunEnd, RunFailure};
use crate::scheduler::status::{BatchState, DropReason, Status};
use crate::scheduler::task::{CoreTask, RunPhase, TaskPhase};

/// Something that became of a run, a task or a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum CoreEvent {
    /// A run failed and will be tried again.
    Retried {
        batch: BatchKey,
        task: TaskId,
        run: RunId,
        /// In what way it failed.
        kind: FailureKind,
        /// In the words of whoever noticed.
        message: Arc<str>,
    },
    /// A run ended for good.
    Over { batch: BatchKey, task: TaskId, run: RunId, how: RunEnd },
    /// A task ended for good.
    Ended {
        batch: BatchKey,
        task: TaskId,
        status: Arc<Status>,
        /// Why what its good runs yielded is dropped, if it is.
        dropped: Option<DropReason>,
    },
    /// A submitted batch is in another state.
    Batch {
        batch: BatchKey,
        /// Where it stands.
        state: BatchState,
    },
}

impl Core {
    /// Has everything noticed from now on, beginning with the runs and tasks of active batches that
    /// have ended: a core that was told what happened before a crash knows of some.
    pub fn enable_events(&mut self) {
        let mut notices = self.notices.take().unwrap_or_default();
        let active = self.queues.order.iter().filter_map(|(_, key)| self.batches.get(key));
        for batch in active {
            for (at, task) in batch.tasks.iter().enumerate() {
                ended(batch.key, TaskId(at as u32), task, &mut notices);
            }
        }
        self.notices = Some(notices);
    }

    /// Gives what was noticed since it was last asked, in order, and keeps the room for more.
    pub fn drain_events(&mut self) -> impl Iterator<Item = CoreEvent> + '_ {
        self.notices.iter_mut().flat_map(|notices| notices.drain(..))
    }

    pub(crate) fn note(&mut self, notice: impl FnOnce() -> CoreEvent) {
        if let Some(notices) = &mut self.notices {
            notices.push(notice());
        }
    }
}

/// Notices what has ended of a task.
fn ended(batch: BatchKey, task: TaskId, of: &CoreTask, notices: &mut Vec<CoreEvent>) {
    match &of.body {
        TaskPhase::Working(work) => {
            for (run, state) in work.runs.iter().map(|run| run.state).enumerate() {
                let how = match state {
                    RunPhase::Succeeded => RunEnd::Succeeded(()),
                    RunPhase::Cancelled(reason) => RunEnd::Cancelled(reason),
                    RunPhase::Failed(kind) => {
                        let of_run = |error: &&crate::scheduler::status::FailedRun| {
                            error.run.0 as usize == run
                        };
                        let error = work.first_error.as_ref().filter(of_run);
                        let message = error.map(|error| Arc::clone(&error.message));
                        RunEnd::Failed(RunFailure { kind, message: message.unwrap_or_default() })
                    }
                    RunPhase::Pending | RunPhase::InFlight(_) => continue,
                };
                notices.push(CoreEvent::Over { batch, task, run: RunId(run as u32), how });
            }
        }
        TaskPhase::Ended(ended) => {
            let status = Arc::clone(&ended.status);
            notices.push(CoreEvent::Ended { batch, task, status, dropped: None });
        }
        TaskPhase::Fresh | TaskPhase::Gone => {}
    }
}
