//! Attempts given ahead that cannot be sent: what is to be said of them waits until the one before
//! is over, because whoever speaks of the next attempt is done with that.

use std::collections::HashMap;

use rollway_core::{AttemptId, Life, RunnerId};

use crate::workers::{Reporter, Said};

/// What is to be said of attempts, one for a runner at most.
#[derive(Debug, Default)]
pub(super) struct Unsent(HashMap<RunnerId, Held>);

#[derive(Debug)]
struct Held {
    attempt: AttemptId,
    reporter: Reporter,
    said: Vec<Said>,
}

impl Unsent {
    /// Keeps what is to be said of an attempt.
    pub(super) fn hold(&mut self, attempt: AttemptId, reporter: Reporter, said: Vec<Said>) {
        self.0.insert(reporter.runner(), Held { attempt, reporter, said });
    }

    /// An attempt is cancelled. Tells whether it is one of these: then it is given back.
    pub(super) fn cancel(&mut self, runner: RunnerId, life: Life, attempt: AttemptId) -> bool {
        let held = self.take(runner, life, |held| held.attempt == attempt);
        let cancelled = held.is_some();
        if let Some(held) = held {
            say(held.reporter, vec![Said::Ended(attempt)]);
        }
        cancelled
    }

    /// The engine has heard of a runner: its turn may have come, or never will.
    pub(super) fn heard(&mut self, runner: RunnerId, life: Life, said: &Said) {
        if self.0.is_empty() {
            return;
        }
        match said {
            Said::Ended(_) | Said::Ready { after: Some(_) } => {
                if let Some(held) = self.take(runner, life, |_| true) {
                    say(held.reporter, held.said);
                }
            }
            Said::Lost { .. } | Said::StartFailed(_) => self.forget(runner, life),
            Said::Ready { after: None }
            | Said::Alive
            | Said::TakesAhead
            | Said::Waits(_)
            | Said::Began(_)
            | Said::Finished(..) => {}
        }
    }

    /// A life of a runner is over.
    pub(super) fn forget(&mut self, runner: RunnerId, life: Life) {
        self.take(runner, life, |_| true);
    }

    fn take(
        &mut self,
        runner: RunnerId,
        life: Life,
        is_it: impl FnOnce(&Held) -> bool,
    ) -> Option<Held> {
        let held = self.0.get(&runner)?;
        if held.reporter.life() != life || !is_it(held) {
            return None;
        }
        self.0.remove(&runner)
    }
}

/// Says something without waiting for the engine, which may be the one who asks for it.
pub(super) fn say(reporter: Reporter, said: Vec<Said>) {
    tokio::spawn(async move { reporter.say(said).await });
}
