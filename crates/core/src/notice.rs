//! What becomes of runs, tasks and batches, told to whoever wants to see it. Nothing is decided by
//! it, and nothing is noticed unless somebody asked.

use std::sync::Arc;

use crate::Core;
use crate::failure::{CancelReason, FailureKind};
use crate::ids::{BatchKey, RunId, TaskId};
use crate::record::Ending;
use crate::status::{BatchState, DropReason, Status};
use crate::task::{Body, RunState, Task};

/// Something that became of a run, a task or a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A run failed and will be tried again.
    Retried {
        /// Of which batch.
        batch: BatchKey,
        /// Of which task.
        task: TaskId,
        /// Which run.
        run: RunId,
        /// In what way it failed.
        kind: FailureKind,
        /// In the words of whoever noticed.
        message: Arc<str>,
    },
    /// A run ended for good.
    Over {
        /// Of which batch.
        batch: BatchKey,
        /// Of which task.
        task: TaskId,
        /// Which run.
        run: RunId,
        /// How.
        how: Over,
    },
    /// A task ended for good.
    Ended {
        /// Of which batch.
        batch: BatchKey,
        /// Which.
        task: TaskId,
        /// How.
        status: Arc<Status>,
        /// Why what its good runs yielded is dropped, if it is.
        dropped: Option<DropReason>,
    },
    /// A submitted batch is in another state.
    Batch {
        /// Which.
        batch: BatchKey,
        /// Where it stands.
        state: BatchState,
    },
}

/// How a run ended for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// Well.
    Succeeded,
    /// Badly, with no retry left.
    Failed {
        /// In what way.
        kind: FailureKind,
        /// In the words of whoever noticed.
        message: Arc<str>,
    },
    /// Before its time.
    Cancelled {
        /// Why.
        reason: CancelReason,
    },
}

impl Over {
    pub(crate) fn of(ending: &Ending) -> Self {
        match ending {
            Ending::Succeeded { .. } => Self::Succeeded,
            Ending::Failed { kind, message } => {
                Self::Failed { kind: *kind, message: Arc::clone(message) }
            }
            Ending::Cancelled { reason } => Self::Cancelled { reason: *reason },
        }
    }
}

impl Core {
    /// Has everything noticed from now on, beginning with the runs and tasks of active batches that
    /// have ended: a core that was told what happened before a crash knows of some.
    pub fn notice(&mut self) {
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
    pub fn noticed(&mut self) -> impl Iterator<Item = Notice> + '_ {
        self.notices.iter_mut().flat_map(|notices| notices.drain(..))
    }

    pub(crate) fn note(&mut self, notice: impl FnOnce() -> Notice) {
        if let Some(notices) = &mut self.notices {
            notices.push(notice());
        }
    }
}

/// Notices what has ended of a task.
fn ended(batch: BatchKey, task: TaskId, of: &Task, notices: &mut Vec<Notice>) {
    match &of.body {
        Body::Working(work) => {
            for (run, state) in work.runs.iter().map(|run| run.state).enumerate() {
                let how = match state {
                    RunState::Succeeded => Over::Succeeded,
                    RunState::Cancelled(reason) => Over::Cancelled { reason },
                    RunState::Failed(kind) => {
                        let of_run = |error: &&crate::status::Failure| error.run.0 as usize == run;
                        let error = work.first_error.as_ref().filter(of_run);
                        let message = error.map(|error| Arc::clone(&error.message));
                        Over::Failed { kind, message: message.unwrap_or_default() }
                    }
                    RunState::Pending | RunState::InFlight(_) => continue,
                };
                notices.push(Notice::Over { batch, task, run: RunId(run as u32), how });
            }
        }
        Body::Ended(ended) => {
            let status = Arc::clone(&ended.status);
            notices.push(Notice::Ended { batch, task, status, dropped: None });
        }
        Body::Fresh | Body::Gone => {}
    }
}
