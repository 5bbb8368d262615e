//! Cancelling one run.
//!
//! An attempt is cancelled as a whole: its other runs are retried, uncharged, once the attempt has
//! ended. The task continues without the run, as after a final failure.

use super::{RunPhase, RunnerPhase, RunnerSlot, TaskPhase, TaskRuns};
use crate::{
    AttemptCancelReason, AttemptId, BatchId, BatchKey, CancelReason, Core, RequestId, Response,
    RunEnd, RunId, RunnerId, TaskId, UnresponsivePolicy,
};

impl Core {
    pub(crate) fn cancel_run(
        &mut self,
        request: RequestId,
        batch: &BatchId,
        (task, run): (TaskId, RunId),
    ) {
        let key = self.active(batch);
        let found = key.and_then(|key| Some((key, self.open_run(key, task, run)?)));
        if let Some((key, state)) = found {
            match state {
                RunPhase::InFlight(attempt) => self.give_up_attempt(attempt, run),
                RunPhase::Pending => self.unqueue(key, task, run),
                RunPhase::Succeeded | RunPhase::Failed(_) | RunPhase::Cancelled(_) => {}
            }
            let ending = RunEnd::Cancelled(CancelReason::Requested);
            self.end_run(key, task, run, ending);
            self.end_task_if_done(key, task);
        }
        self.answer(request, Response::RunCancelled(found.is_some()));
    }

    /// Returns the phase of an open run. `None`: there is no such run.
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

    /// Removes a run from the retries that are ready. Retries in backoff and runs that were never
    /// dispatched are skipped when their turn comes.
    fn unqueue(&mut self, key: BatchKey, task: TaskId, run: RunId) {
        self.unqueue_retries(key, task, Some(run));
    }

    /// Cancels the attempt that executes a run, unless it is being cancelled already.
    fn give_up_attempt(&mut self, attempt: AttemptId, run: RunId) {
        let executes =
            |slot: &RunnerSlot| slot.attempt().is_some_and(|current| current.id == attempt);
        let Some(at) = self.pool.runners.iter().position(executes) else { return };
        let requested = AttemptCancelReason::Runs(CancelReason::Requested);
        let runner = RunnerId(at as u32);
        if let RunnerPhase::Busy(_) = &self.pool[runner].phase {
            self.cancel_attempt(runner, requested, UnresponsivePolicy::Replace);
        } else if let RunnerPhase::Cancelling(current, _) = &self.pool[runner].phase
            // With sequential execution only this run would be charged.
            && self.config.runs_in_turn
            && self.open_runs(current).first() == Some(&run)
            && let RunnerPhase::Cancelling(_, reason) = &mut self.pool[runner].phase
        {
            *reason = requested;
        }
    }
}
