//! Events about runs, tasks and batches for observers. They influence no decision and are recorded
//! only if enabled.

use std::sync::Arc;

use super::{CoreTask, RunPhase, TaskPhase};
use crate::{
    BatchKey, BatchState, Core, DropReason, FailedRun, FailureKind, RunEnd, RunFailure, RunId,
    Status, TaskId,
};

/// Event about a run, a task or a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum CoreEvent {
    /// A run failed and will be retried.
    Retried { batch: BatchKey, task: TaskId, run: RunId, kind: FailureKind, message: Arc<str> },
    /// A run ended for good.
    RunEnded { batch: BatchKey, task: TaskId, run: RunId, end: RunEnd },
    /// A task ended. `dropped`: reason why its payloads are dropped.
    TaskEnded { batch: BatchKey, task: TaskId, status: Arc<Status>, dropped: Option<DropReason> },
    /// A submitted batch changed its state.
    Batch { batch: BatchKey, state: BatchState },
}

impl Core {
    /// Records events from now on, beginning with the ended runs and tasks of active batches: a
    /// restored core has some.
    pub fn enable_events(&mut self) {
        let mut events = self.events.take().unwrap_or_default();
        let active = self.queues.order.iter().filter_map(|(_, key)| self.batches.get(key));
        for batch in active {
            for (at, task) in batch.tasks.iter().enumerate() {
                ended(batch.key, TaskId(at as u32), task, &mut events);
            }
        }
        self.events = Some(events);
    }

    /// Drains the recorded events in order and keeps the buffer's capacity.
    pub fn drain_events(&mut self) -> impl Iterator<Item = CoreEvent> + '_ {
        self.events.iter_mut().flat_map(|events| events.drain(..))
    }

    pub(crate) fn emit(&mut self, event: impl FnOnce() -> CoreEvent) {
        if let Some(events) = &mut self.events {
            events.push(event());
        }
    }
}

/// Records what has ended of a task.
fn ended(batch: BatchKey, task: TaskId, of: &CoreTask, events: &mut Vec<CoreEvent>) {
    match &of.body {
        TaskPhase::Working(work) => {
            for (run, state) in work.runs.iter().map(|run| run.state).enumerate() {
                let end = match state {
                    RunPhase::Succeeded => RunEnd::Succeeded(()),
                    RunPhase::Cancelled(reason) => RunEnd::Cancelled(reason),
                    RunPhase::Failed(kind) => {
                        let of_run = |error: &&FailedRun| error.run.0 as usize == run;
                        let error = work.first_error.as_ref().filter(of_run);
                        let message = error.map(|error| Arc::clone(&error.message));
                        RunEnd::Failed(RunFailure { kind, message: message.unwrap_or_default() })
                    }
                    RunPhase::Pending | RunPhase::InFlight(_) => continue,
                };
                events.push(CoreEvent::RunEnded { batch, task, run: RunId(run as u32), end });
            }
        }
        TaskPhase::Ended(ended) => {
            let status = Arc::clone(&ended.status);
            events.push(CoreEvent::TaskEnded { batch, task, status, dropped: None });
        }
        TaskPhase::Fresh | TaskPhase::Gone => {}
    }
}
