//! Runners whose runs may call the models: a key for every run, from the moment its attempt is
//! given to a runner until it is over, whatever becomes of the runner.
//!
//! ```text
//! Start ──► open ──► Cancel, Ended, Ready after it, Lost, StartFailed, stop, the end ──► close
//! ```
//!
//! Whichever comes first closes; nothing closes twice, and words about another attempt or of
//! another life close nothing.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use rollway_base::Secret;
use rollway_core::{AttemptId, Life, RunnerId, Runs};
use rollway_gateway::gateway::{Gateway, Handle, UnderWay};

use crate::runner_status::RunnerStates;
use crate::workers::{Command, ModelAccess, Reporter, Said, Workers};

/// Who hands out keys to the models.
pub trait ModelKeys: Send + 'static {
    /// Where the models are, with `/v1`.
    fn base_url(&self) -> Arc<str>;

    /// Lets the runs of an attempt in. Returns the key of each, in order. Must not block.
    fn open(&mut self, attempt: AttemptId, runs: Runs) -> Vec<Secret>;

    /// Refuses the keys of an attempt from now on, and aborts what its runs have under way. Called
    /// once for every attempt that was opened. Must not block.
    fn close(&mut self, attempt: AttemptId);

    /// Returns what finds the calls that an attempt has under way, if anybody knows.
    fn under_way(&self) -> Option<CallsOf> {
        None
    }
}

/// Finds the calls that an attempt has under way, the oldest first.
pub type CallsOf = Box<dyn Fn(AttemptId) -> Vec<UnderWay> + Send + Sync>;

/// Keys to a gateway.
#[derive(Clone, Debug)]
pub struct GatewayKeys {
    handle: Handle,
    base_url: Arc<str>,
}

impl GatewayKeys {
    /// Returns what opens and closes a gateway for attempts.
    pub fn new(gateway: &Gateway) -> Self {
        let base_url = format!("{}/v1", gateway.url()).into();
        Self { handle: gateway.handle(), base_url }
    }
}

impl ModelKeys for GatewayKeys {
    fn base_url(&self) -> Arc<str> {
        Arc::clone(&self.base_url)
    }

    fn open(&mut self, attempt: AttemptId, runs: Runs) -> Vec<Secret> {
        let keys = self.handle.open(attempt.0, runs.first, runs.count);
        keys.into_iter().flat_map(Secret::new).collect()
    }

    fn close(&mut self, attempt: AttemptId) {
        self.handle.close(attempt.0);
    }

    fn under_way(&self) -> Option<CallsOf> {
        let handle = self.handle.clone();
        Some(Box::new(move |attempt| handle.under_way(attempt.0)))
    }
}

/// Runners from elsewhere, with keys to the models for what they execute.
pub struct Gated<W, K: ModelKeys = GatewayKeys> {
    workers: W,
    keys: K,
    /// What each runner was given and has not ended, the oldest first: one attempt, and perhaps one
    /// ahead.
    open: HashMap<RunnerId, Vec<(Life, AttemptId)>>,
}

impl<W: Workers, K: ModelKeys> Gated<W, K> {
    /// Returns these runners with these keys.
    pub fn new(workers: W, keys: K) -> Self {
        Self { workers, keys, open: HashMap::new() }
    }

    fn close_if(&mut self, runner: RunnerId, is_it: impl Fn(Life, AttemptId) -> bool) {
        let Some(open) = self.open.get_mut(&runner) else { return };
        for (_, attempt) in open.extract_if(.., |(life, attempt)| is_it(*life, *attempt)) {
            self.keys.close(attempt);
        }
    }

    /// Opens an attempt. Whatever an earlier life was at is over, and so is all but the last of
    /// what this one was given.
    fn open(&mut self, runner: RunnerId, life: Life, attempt: AttemptId) {
        let last = self.open.get(&runner).and_then(|open| open.last()).copied();
        self.close_if(runner, |current, known| current != life || Some((life, known)) != last);
        self.open.entry(runner).or_default().push((life, attempt));
    }
}

impl<W: Workers, K: ModelKeys> Workers for Gated<W, K> {
    fn start(&mut self, reporter: Reporter) {
        // Whatever an earlier life was at is over.
        self.close_if(reporter.runner(), |_, _| true);
        self.workers.start(reporter);
    }

    fn tell(&mut self, runner: RunnerId, life: Life, command: Command) -> bool {
        match command {
            Command::Start(mut attempt) => {
                let id = attempt.id;
                self.open(runner, life, id);
                let keys = self.keys.open(id, attempt.runs);
                attempt.models = Some(ModelAccess { base_url: self.keys.base_url(), keys });
                let heard = self.workers.tell(runner, life, Command::Start(attempt));
                if !heard {
                    self.close_if(runner, |_, attempt| attempt == id);
                }
                heard
            }
            Command::Cancel { attempt: id, .. } => {
                // Before the runner hears of it: what waits for a model need not wait any longer.
                self.close_if(runner, |_, attempt| attempt == id);
                self.workers.tell(runner, life, command)
            }
        }
    }

    fn stop(&mut self, runner: RunnerId, life: Life) {
        self.close_if(runner, |current, _| current == life);
        self.workers.stop(runner, life);
    }

    fn dismiss(&mut self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        self.workers.dismiss()
    }

    fn heard(&mut self, runner: RunnerId, life: Life, said: &Said) {
        match said {
            Said::Ended(id) | Said::Ready { after: Some(id) } => {
                self.close_if(runner, |current, attempt| current == life && attempt == *id);
            }
            Said::Lost { .. } | Said::StartFailed(_) => {
                self.close_if(runner, |current, _| current == life);
            }
            Said::Ready { after: None }
            | Said::Alive
            | Said::TakesAhead
            | Said::Waits(_)
            | Said::Began(_)
            | Said::Finished(..) => {}
        }
        self.workers.heard(runner, life, said);
    }

    fn states(&self) -> RunnerStates {
        let states = self.workers.states();
        match self.keys.under_way() {
            Some(calls) => states.with_calls(calls),
            None => states,
        }
    }
}

impl<W, K: ModelKeys> Drop for Gated<W, K> {
    fn drop(&mut self) {
        for (_, attempt) in self.open.drain().flat_map(|(_, open)| open) {
            self.keys.close(attempt);
        }
    }
}

impl<W: fmt::Debug, K: ModelKeys> fmt::Debug for Gated<W, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Gated");
        shown.field("workers", &self.workers).field("open", &self.open).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rollway_core::{BatchId, BatchKind, Cancel, TaskId};

    use super::*;
    use crate::task::Task;
    use crate::workers::Attempt;

    /// Takes every command.
    struct Obedient;

    impl Workers for Obedient {
        fn start(&mut self, _: Reporter) {}

        fn tell(&mut self, _: RunnerId, _: Life, _: Command) -> bool {
            true
        }

        fn stop(&mut self, _: RunnerId, _: Life) {}
    }

    /// The attempts that are let in.
    #[derive(Default)]
    struct Inside(Vec<u64>);

    impl ModelKeys for Inside {
        fn base_url(&self) -> Arc<str> {
            "http://gateway/v1".into()
        }

        fn open(&mut self, attempt: AttemptId, _: Runs) -> Vec<Secret> {
            self.0.push(attempt.0);
            Vec::new()
        }

        fn close(&mut self, attempt: AttemptId) {
            let before = self.0.len();
            self.0.retain(|inside| *inside != attempt.0);
            assert_eq!(self.0.len() + 1, before, "{attempt} was not inside");
        }
    }

    const RUNNER: RunnerId = RunnerId(3);

    fn give(gated: &mut Gated<Obedient, Inside>, life: u32, attempt: u64) {
        let attempt = Attempt {
            id: AttemptId(attempt),
            batch: BatchId::Number(1),
            kind: BatchKind::Train,
            task_id: TaskId(0),
            task: Arc::new(Task::new("a", "")),
            runs: Runs { first: 0, count: 1 },
            timeout: Duration::from_secs(1),
            kills: 0,
            ahead: false,
            models: None,
        };
        assert!(gated.tell(RUNNER, Life(life), Command::Start(Box::new(attempt))));
    }

    #[test]
    fn what_is_given_ahead_leaves_the_one_before_inside() {
        let mut gated = Gated::new(Obedient, Inside::default());
        give(&mut gated, 1, 1);
        give(&mut gated, 1, 2);
        assert_eq!(gated.keys.0, [1, 2]);
        gated.heard(RUNNER, Life(1), &Said::Ended(AttemptId(1)));
        give(&mut gated, 1, 3);
        assert_eq!(gated.keys.0, [2, 3]);
        let (attempt, reason) = (AttemptId(3), Cancel::Recalled);
        gated.tell(RUNNER, Life(1), Command::Cancel { attempt, reason });
        assert_eq!(gated.keys.0, [2]);
        // The end of what was called back is heard too.
        gated.heard(RUNNER, Life(1), &Said::Ended(attempt));
        give(&mut gated, 1, 4);
        assert_eq!(gated.keys.0, [2, 4]);
        // That 2 has ended was never heard, but somebody who is given 5 has at most one before.
        give(&mut gated, 1, 5);
        assert_eq!(gated.keys.0, [4, 5]);
        give(&mut gated, 2, 6);
        assert_eq!(gated.keys.0, [6], "the life before is over");
        gated.heard(RUNNER, Life(1), &Said::Lost { message: "late".into(), suspect: false });
        assert_eq!(gated.keys.0, [6]);
        gated.heard(RUNNER, Life(2), &Said::Lost { message: "gone".into(), suspect: false });
        assert!(gated.keys.0.is_empty());
    }
}
