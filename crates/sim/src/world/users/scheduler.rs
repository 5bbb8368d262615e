//! Users that schedule tasks and collect results; and users with requests about any batch.

use rollway_core::{BatchId, CollectOutcome, CollectedResults, Request, Response, RunId, TaskId};

use super::{NextUserAction, OwnBatch, User};
use crate::world::SimWorld;

impl SimWorld {
    pub(super) fn schedule(&mut self, user: usize) -> NextUserAction {
        let own = self.users.list[user].own.clone();
        let window = self.shape.window as usize;
        if own.is_empty() || (own.len() < window && self.rng.percent(50)) {
            let kind = self.kind();
            let batch = self.new_name(kind);
            return NextUserAction::Ask(Request::Schedule { batch, kind, tasks: self.tasks() });
        }
        let OwnBatch { id, kind, tries } = self.rng.pick(&own).clone();
        if tries > 4 {
            return NextUserAction::Ask(Request::Discard { batch: id });
        }
        NextUserAction::Ask(match self.rng.below(21) {
            20 => self.cancel_one(),
            0..3 => Request::Schedule { batch: id, kind, tasks: self.tasks() },
            3..5 => Request::Drain { batch: id },
            5 => Request::Discard { batch: id },
            6 => self.abort(id),
            _ => self.collect(id),
        })
    }

    fn collect(&mut self, batch: BatchId) -> Request {
        Request::Collect {
            batch,
            min_num: self.some_of(self.shape.tasks),
            timeout: self.wait_timeout(),
            clear_timeout_tasks: self.rng.percent(50),
            return_partial_tasks: self.rng.percent(50),
        }
    }

    /// Sends a request about a batch of another user.
    pub(super) fn disturb_other_user(&mut self) -> NextUserAction {
        let unknown = self.users.names.is_empty() || self.rng.percent(15);
        let batch = if unknown {
            BatchId::from(format!("{}/unknown", self.rng.below(100)).as_str())
        } else {
            self.rng.pick(&self.users.names).clone()
        };
        let kind = self.kind();
        NextUserAction::Ask(match self.rng.below(18) {
            16 => self.cancel_one(),
            17 => Request::CancelRun { batch, task: TaskId(self.rng.small(0, 3)), run: RunId(0) },
            0..6 => Request::Finalize { batch, kind, timeout: self.wait_timeout() },
            6..8 => self.abort(batch),
            8..11 => self.collect(batch),
            11 => Request::Drain { batch },
            12 => Request::Discard { batch },
            13 => Request::Schedule { batch, kind, tasks: self.tasks() },
            _ => {
                let tasks = self.tasks();
                let min_wait_num = self.some_of(tasks.len() as u32);
                Request::Submit { batch, kind, tasks, min_wait_num }
            }
        })
    }
}

impl User {
    /// Applies a response to the user's batches.
    pub(super) fn apply_scheduler_response(&mut self, what: &Request, answer: &Response) {
        match (what, answer) {
            (Request::Schedule { batch, kind, .. }, Response::Scheduled { batch: Some(_), .. }) => {
                self.own.retain(|own| own.id != *batch);
                self.own.push(OwnBatch { id: batch.clone(), kind: *kind, tries: 0 });
            }
            (
                Request::Collect { batch, .. },
                Response::Collected(CollectedResults { outcome: CollectOutcome::Complete, .. }),
            )
            | (Request::Discard { batch }, _) => self.own.retain(|own| own.id != *batch),
            (Request::Collect { batch, .. }, _) => {
                for own in self.own.iter_mut().filter(|own| own.id == *batch) {
                    own.tries += 1;
                }
            }
            _ => {}
        }
    }
}
