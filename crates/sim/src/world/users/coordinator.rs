//! Users that submit batches and finalize them, in order and otherwise.

use rollway_core::{Refusal, Request, Response};

use super::{Mine, NextUserAction, User};
use crate::world::SimWorld;

/// Number of failed attempts to finalize before a user aborts a batch.
const MAX_ATTEMPTS: u32 = 4;

impl SimWorld {
    pub(super) fn coordinate(&mut self, user: usize) -> NextUserAction {
        let mine = self.users.list[user].mine.clone();
        let window = self.shape.window as usize;
        if mine.is_empty() || (mine.len() < window && self.rng.percent(60)) {
            let kind = self.kind();
            let tasks = self.tasks();
            let min_wait_num = self.some_of(tasks.len() as u32);
            let batch = self.new_name(kind);
            return NextUserAction::Ask(Request::Submit { batch, kind, tasks, min_wait_num });
        }
        let at = if self.rng.percent(80) { 0 } else { self.rng.below(mine.len() as u64) };
        let Mine { id, kind, tries } = mine[at as usize].clone();
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
    pub(super) fn learn(&mut self, what: &Request, answer: &Response, anew: bool) {
        match (what, answer) {
            // Sent anew after a crash, "already active" confirms the first request.
            (
                Request::Submit { batch, kind, .. },
                Response::Submitted { .. } | Response::Refused(Refusal::AlreadyActive { .. }),
            ) if anew || matches!(answer, Response::Submitted { .. }) => {
                self.mine.push(Mine { id: batch.clone(), kind: *kind, tries: 0 });
            }
            (Request::Finalize { batch, .. } | Request::Abort { batch, .. }, answer) => {
                let more = match answer {
                    Response::Refused(Refusal::TimedOut { .. } | Refusal::SinkFailed { .. }) => 1,
                    Response::Refused(Refusal::Limit { .. }) => 0,
                    Response::Refused(
                        Refusal::BatchFailed { .. } | Refusal::TooFewSucceeded { .. },
                    ) => MAX_ATTEMPTS,
                    _ => return self.mine.retain(|mine| mine.id != *batch),
                };
                for mine in self.mine.iter_mut().filter(|mine| mine.id == *batch) {
                    mine.tries += more;
                }
            }
            _ => {}
        }
    }
}
