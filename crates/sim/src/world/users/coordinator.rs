//! Users that submit batches and finalize them, in order and otherwise.

use rollway_core::{Refusal, Request, Response};

use super::{NextUserAction, OwnBatch, User};
use crate::world::SimWorld;

/// Number of failed attempts to finalize before a user aborts a batch.
const MAX_ATTEMPTS: u32 = 4;

impl SimWorld {
    pub(super) fn coordinate(&mut self, user: usize) -> NextUserAction {
        let own = self.users.list[user].own.clone();
        let window = self.shape.window as usize;
        if own.is_empty() || (own.len() < window && self.rng.percent(60)) {
            let kind = self.kind();
            let tasks = self.tasks();
            let min_wait_num = self.some_of(tasks.len() as u32);
            let batch = self.new_name(kind);
            return NextUserAction::Ask(Request::Submit { batch, kind, tasks, min_wait_num });
        }
        let at = if self.rng.percent(80) { 0 } else { self.rng.below(own.len() as u64) };
        let OwnBatch { id, kind, tries } = own[at as usize].clone();
        if tries >= MAX_ATTEMPTS || self.rng.percent(8) {
            return NextUserAction::Ask(self.abort(id));
        }
        if self.rng.percent(5) {
            return NextUserAction::Ask(self.cancel_one());
        }
        let timeout = self.wait_timeout();
        NextUserAction::Ask(Request::Finalize { batch: id, kind, timeout })
    }
}

impl User {
    /// Applies a response to the user's batches.
    pub(super) fn apply_coordinator_response(
        &mut self,
        what: &Request,
        answer: &Response,
        resubmitted: bool,
    ) {
        match (what, answer) {
            // Sent anew after a crash, "already active" confirms the first request.
            (
                Request::Submit { batch, kind, .. },
                Response::Submitted { .. } | Response::Refused(Refusal::AlreadyActive { .. }),
            ) if resubmitted || matches!(answer, Response::Submitted { .. }) => {
                self.own.push(OwnBatch { id: batch.clone(), kind: *kind, tries: 0 });
            }
            (Request::Finalize { batch, .. } | Request::Abort { batch, .. }, answer) => {
                let more = match answer {
                    Response::Refused(Refusal::TimedOut { .. } | Refusal::SinkFailed { .. }) => 1,
                    Response::Refused(Refusal::Limit { .. }) => 0,
                    Response::Refused(
                        Refusal::BatchFailed { .. } | Refusal::TooFewSucceeded { .. },
                    ) => MAX_ATTEMPTS,
                    _ => return self.own.retain(|own| own.id != *batch),
                };
                for own in self.own.iter_mut().filter(|own| own.id == *batch) {
                    own.tries += more;
                }
            }
            _ => {}
        }
    }
}
