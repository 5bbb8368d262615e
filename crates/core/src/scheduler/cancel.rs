//! Cancelling one run.
//!
//! What was finished stays, and nobody else pays: the other runs of its attempt are given up with
//! it, because an attempt is cancelled as a whole, and go out again uncharged once nobody works on
//! them. The task goes on without the run, as it would if the run had failed for good.

use crate::Core;
use crate::batch_id::BatchId;
use crate::failure::CancelReason;
use crate::ids::{AttemptId, BatchKey, RequestId, RunId, RunnerId, TaskId};
use crate::run::RunEnd;
use crate::scheduler::action::{Action, AttemptCancelReason, Response};
use crate::scheduler::input::UnresponsivePolicy;
use crate::scheduler::runner_slot::RunnerPhase;
use crate::scheduler::task::{RunPhase, TaskPhase, TaskRuns};

impl Core {
    pub(crate) fn cancel_run(
        &mut self,
        request: RequestId,
        batch: &BatchId,
        (task, run): (TaskId, RunId),
        actions: &mut Vec<Action>,
    ) {
        let key = self.active(batch);
        let found = key.and_then(|key| Some((key, self.open_run(key, task, run)?)));
        if let Some((key, state)) = found {
            match state {
                RunPhase::InFlight(attempt) => self.give_up_attempt(attempt, run, actions),
                RunPhase::Pending => self.unqueue(key, task, run),
                RunPhase::Succeeded | RunPhase::Failed(_) | RunPhase::Cancelled(_) => {}
            }
            let ending = RunEnd::Cancelled(CancelReason::Requested);
            self.end_run(key, task, run, ending, actions);
            self.end_task_if_done(key, task, actions);
        }
        self.answer(request, Response::RunCancelled(found.is_some()), actions);
    }

    /// Returns where a run is that has not ended; none: there is no such run.
    fn open_run(&mut self, key: BatchKey, task: TaskId, run: RunId) -> Option<RunPhase> {
        let task = self.batches.get_mut(&key)?.tasks.get_mut(task.0 as usize)?;
        if run.0 >= task.total {
            return None;
        }
        if matches!(task.body, TaskPhase::Fresh) {
            task.body = TaskPhase::Working(Box::new(TaskRuns::new(task.total)));
        }
        let TaskPhase::Working(work) = &task.body else { return None };
        Some(work.runs[run.0 as usize].state).filter(|state| state.open())
    }

    /// Takes a run out of the retries that may go out now. One whose pause is not over is found
    /// to have ended when it is, and one that was never sent when its turn comes.
    fn unqueue(&mut self, key: BatchKey, task: TaskId, run: RunId) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        batch.retries.retain(|retry| (retry.task, retry.run) != (task, run));
        if batch.retries.is_empty() {
            self.queues.retrying.remove(&batch.rank());
        }
    }

    /// Has whoever executes a run stop. Who has been told to already is not told again.
    fn give_up_attempt(&mut self, attempt: AttemptId, run: RunId, actions: &mut Vec<Action>) {
        let theirs = |slot: &crate::scheduler::runner_slot::RunnerSlot| {
            slot.attempt().is_some_and(|current| current.id == attempt)
        };
        let Some(at) = self.pool.runners.iter().position(theirs) else { return };
        let requested = AttemptCancelReason::Runs(CancelReason::Requested);
        match &self.pool.runners[at].phase {
            RunnerPhase::Busy(_) => {
                let runner = RunnerId(at as u32);
                self.cancel_attempt(runner, requested, UnresponsivePolicy::Replace, actions);
            }
            // Of runs that are executed in turn this one alone would have been blamed.
            RunnerPhase::Cancelling(current, _)
                if self.config.runs_in_turn && self.left_behind(current).first() == Some(&run) =>
            {
                if let RunnerPhase::Cancelling(_, why) = &mut self.pool.runners[at].phase {
                    *why = requested;
                }
            }
            RunnerPhase::Cancelling(..)
            | RunnerPhase::Starting
            | RunnerPhase::Idle
            | RunnerPhase::Broken
            | RunnerPhase::Resting
            | RunnerPhase::Retired => {}
        }
    }
}
