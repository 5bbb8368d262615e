//! Attempts that a worker was given ahead: each begins when the one before it is over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rollway_core::{AttemptId, Life, RunnerId};

use crate::message::{EngineMessage, RunnerReport, StartAttempt, WorkerMessage};

/// What is to be done with what the engine said.
#[derive(Clone, Debug, PartialEq)]
pub enum Taken {
    /// It is the worker's turn.
    Now(EngineMessage),
    /// An attempt has to wait; it is kept here.
    Kept,
    /// An attempt that waited was given up: this is to be said.
    GivenUp(WorkerMessage),
}

/// Keeps the attempts of every runner in order, for a worker that takes them ahead. All that the
/// engine says passes through [`take`](Self::take).
#[derive(Debug, Default)]
pub struct Ahead {
    runners: BTreeMap<RunnerId, Line>,
    /// Runners whose attempt is over; that this was said has perhaps not left the process.
    due: BTreeSet<RunnerId>,
}

/// The attempts of a runner.
#[derive(Debug)]
struct Line {
    life: Life,
    /// The one that was handed out; none: the next one is due.
    current: Option<AttemptId>,
    waiting: VecDeque<StartAttempt>,
}

impl Ahead {
    /// Takes something that the engine said.
    pub fn take(&mut self, message: EngineMessage) -> Taken {
        match message {
            EngineMessage::StartAttempt(start) => self.start(start),
            EngineMessage::CancelAttempt { runner, life, attempt, .. } => {
                if self.give_up(runner, life, attempt) {
                    let report = RunnerReport::AttemptEnded { attempt };
                    return Taken::GivenUp(WorkerMessage::Runner { runner, life, report });
                }
                Taken::Now(message)
            }
            EngineMessage::StopRunner { runner, life } => {
                self.stopped(runner, life);
                Taken::Now(message)
            }
            EngineMessage::StartRunner { runner, .. } => {
                // Whatever became of its earlier life, that is over.
                self.forget(runner);
                Taken::Now(message)
            }
            EngineMessage::Shutdown { .. } => {
                // What is under way is given up; nothing begins in its place.
                *self = Self::default();
                Taken::Now(message)
            }
        }
    }

    fn start(&mut self, start: StartAttempt) -> Taken {
        let (runner, life, attempt) = (start.runner, start.life, start.attempt);
        match self.runners.get_mut(&runner).filter(|line| line.life == life) {
            Some(line) => {
                line.waiting.push_back(start);
                Taken::Kept
            }
            None => {
                // If there is a line, it is that of an earlier life.
                self.due.remove(&runner);
                let line = Line { life, current: Some(attempt), waiting: VecDeque::new() };
                self.runners.insert(runner, line);
                Taken::Now(EngineMessage::StartAttempt(start))
            }
        }
    }

    /// Gives up an attempt that waits; tells whether there was one.
    fn give_up(&mut self, runner: RunnerId, life: Life, attempt: AttemptId) -> bool {
        let Some(line) = self.runners.get_mut(&runner).filter(|line| line.life == life) else {
            return false;
        };
        let before = line.waiting.len();
        line.waiting.retain(|start| start.attempt != attempt);
        line.waiting.len() < before
    }

    fn forget(&mut self, runner: RunnerId) {
        self.runners.remove(&runner);
        self.due.remove(&runner);
    }

    /// A life of a runner is over: nothing more is said of what it was given. That the engine
    /// ordered it is known; a worker that ends it by itself tells before it says so.
    pub fn stopped(&mut self, runner: RunnerId, life: Life) {
        if self.runners.get(&runner).is_some_and(|line| line.life == life) {
            self.forget(runner);
        }
    }

    /// An attempt that was handed out is over, and that was said.
    pub fn ended(&mut self, runner: RunnerId, life: Life, attempt: AttemptId) {
        let Some(line) = self.runners.get_mut(&runner) else { return };
        if line.life != life || line.current != Some(attempt) {
            return;
        }
        line.current = None;
        self.due.insert(runner);
    }

    /// Tells whether an attempt could begin, if there is one.
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Returns the attempts that can begin now. Not before all that was said has left the process:
    /// if the next attempt brings it down, the one before must not be blamed for that.
    pub fn due(&mut self) -> Vec<StartAttempt> {
        let mut due = Vec::with_capacity(self.due.len());
        for runner in std::mem::take(&mut self.due) {
            let Some(line) = self.runners.get_mut(&runner) else { continue };
            line.current = line.waiting.front().map(|next| next.attempt);
            match line.waiting.pop_front() {
                Some(start) => due.push(start),
                None => drop(self.runners.remove(&runner)),
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;
    use rollway_core::{BatchId, BatchKind, Cancel, Runs, TaskId};

    use super::*;
    use crate::message::{Definition, DefinitionId};

    const RUNNER: RunnerId = RunnerId(3);
    const LIFE: Life = Life(7);
    const NEXT_LIFE: Life = Life(8);
    const NONE: [u64; 0] = [];

    fn start(runner: RunnerId, life: Life, attempt: u64) -> EngineMessage {
        EngineMessage::StartAttempt(StartAttempt {
            runner,
            life,
            attempt: AttemptId(attempt),
            batch: BatchId::Number(1),
            kind: BatchKind::Train,
            task_id: TaskId(0),
            runs: Runs { first: 0, count: 1 },
            task: Bytes::new(),
            definition: Arc::new(Definition {
                id: DefinitionId(1),
                name: "a".into(),
                encoding: "name".into(),
                task_encoding: "json".into(),
                body: Bytes::new(),
            }),
            timeout: Duration::from_secs(60),
            kills: 0,
            env: BTreeMap::new(),
            model_keys: Vec::new(),
        })
    }

    fn cancel(life: Life, attempt: u64) -> EngineMessage {
        let (attempt, reason) = (AttemptId(attempt), Cancel::Recalled);
        EngineMessage::CancelAttempt { runner: RUNNER, life, attempt, reason }
    }

    /// What the runner of the tests is given in its life.
    fn given(ahead: &mut Ahead, attempt: u64) -> Taken {
        ahead.take(start(RUNNER, LIFE, attempt))
    }

    fn given_up(attempt: u64) -> Taken {
        let report = RunnerReport::AttemptEnded { attempt: AttemptId(attempt) };
        Taken::GivenUp(WorkerMessage::Runner { runner: RUNNER, life: LIFE, report })
    }

    fn now(message: EngineMessage) -> Taken {
        Taken::Now(message)
    }

    fn ended(ahead: &mut Ahead, attempt: u64) {
        ahead.ended(RUNNER, LIFE, AttemptId(attempt));
    }

    fn due(ahead: &mut Ahead) -> Vec<u64> {
        let is_due = ahead.is_due();
        let due: Vec<u64> = ahead.due().iter().map(|start| start.attempt.0).collect();
        assert!(is_due || due.is_empty());
        assert!(!ahead.is_due());
        due
    }

    /// A runner that executes attempt 1 while attempt 2 waits.
    fn waiting() -> Ahead {
        let mut ahead = Ahead::default();
        assert_eq!(given(&mut ahead, 1), now(start(RUNNER, LIFE, 1)));
        assert_eq!(given(&mut ahead, 2), Taken::Kept);
        ahead
    }

    #[test]
    fn each_begins_when_the_one_before_is_over_and_in_order() {
        let mut ahead = waiting();
        assert_eq!(given(&mut ahead, 3), Taken::Kept);
        assert_eq!(due(&mut ahead), NONE);
        ended(&mut ahead, 1);
        // It stands behind what is due.
        assert_eq!(given(&mut ahead, 4), Taken::Kept);
        for attempt in 2..=4 {
            assert_eq!(due(&mut ahead), [attempt]);
            assert_eq!(due(&mut ahead), NONE, "it is handed out once");
            ended(&mut ahead, attempt);
        }
        assert_eq!(due(&mut ahead), NONE);
        assert_eq!(given(&mut ahead, 5), now(start(RUNNER, LIFE, 5)));
    }

    #[test]
    fn what_comes_before_the_end_of_the_one_before_is_known_has_to_wait() {
        let mut ahead = Ahead::default();
        assert_eq!(given(&mut ahead, 1), now(start(RUNNER, LIFE, 1)));
        ended(&mut ahead, 1);
        assert_eq!(given(&mut ahead, 2), Taken::Kept);
        assert_eq!(due(&mut ahead), [2]);
    }

    #[test]
    fn runners_do_not_wait_for_each_other() {
        let mut ahead = waiting();
        let other = RunnerId(RUNNER.0 + 1);
        assert_eq!(ahead.take(start(other, LIFE, 11)), now(start(other, LIFE, 11)));
        assert_eq!(ahead.take(start(other, LIFE, 12)), Taken::Kept);
        ahead.ended(other, LIFE, AttemptId(11));
        assert_eq!(due(&mut ahead), [12]);
        ahead.ended(other, LIFE, AttemptId(12));
        ended(&mut ahead, 1);
        assert_eq!(due(&mut ahead), [2]);
    }

    #[test]
    fn what_waits_is_given_up_and_never_begins() {
        let mut ahead = waiting();
        assert_eq!(ahead.take(cancel(LIFE, 2)), given_up(2));
        assert_eq!(ahead.take(cancel(LIFE, 2)), now(cancel(LIFE, 2)), "it is said once");
        assert_eq!(given(&mut ahead, 3), Taken::Kept, "the one before goes on");
        ended(&mut ahead, 1);
        assert_eq!(due(&mut ahead), [3]);
    }

    #[test]
    fn what_is_due_can_be_given_up_until_it_is_handed_out() {
        let mut ahead = waiting();
        ended(&mut ahead, 1);
        assert_eq!(ahead.take(cancel(LIFE, 2)), given_up(2));
        assert_eq!(due(&mut ahead), NONE);
        assert_eq!(given(&mut ahead, 3), now(start(RUNNER, LIFE, 3)));
        assert_eq!(given(&mut ahead, 4), Taken::Kept);
        ended(&mut ahead, 3);
        assert_eq!(due(&mut ahead), [4]);
        assert_eq!(ahead.take(cancel(LIFE, 4)), now(cancel(LIFE, 4)), "the worker has it");
    }

    #[test]
    fn the_end_of_something_else_changes_nothing() {
        let mut ahead = waiting();
        ended(&mut ahead, 2);
        ended(&mut ahead, 9);
        ahead.ended(RUNNER, NEXT_LIFE, AttemptId(1));
        ahead.ended(RunnerId(0), LIFE, AttemptId(1));
        assert_eq!(ahead.take(cancel(NEXT_LIFE, 2)), now(cancel(NEXT_LIFE, 2)));
        assert_eq!(ahead.take(cancel(LIFE, 1)), now(cancel(LIFE, 1)), "the worker has it");
        assert_eq!(due(&mut ahead), NONE);
        ended(&mut ahead, 1);
        ended(&mut ahead, 1);
        assert_eq!(due(&mut ahead), [2]);
    }

    /// Has a life end in some way, while an attempt waits or is due, and looks for traces of it.
    fn is_forgotten(end: impl Fn(&mut Ahead)) {
        for is_due in [false, true] {
            let mut ahead = waiting();
            if is_due {
                ended(&mut ahead, 1);
            }
            end(&mut ahead);
            ended(&mut ahead, 1);
            assert_eq!(due(&mut ahead), NONE);
            assert_eq!(ahead.take(cancel(LIFE, 2)), now(cancel(LIFE, 2)), "nothing is said of it");
            let first = start(RUNNER, NEXT_LIFE, 5);
            assert_eq!(ahead.take(first.clone()), now(first));
            assert_eq!(ahead.take(start(RUNNER, NEXT_LIFE, 6)), Taken::Kept);
            // What the life before says late is no word of this one.
            ended(&mut ahead, 5);
            ahead.stopped(RUNNER, LIFE);
            assert_eq!(due(&mut ahead), NONE);
            ahead.ended(RUNNER, NEXT_LIFE, AttemptId(5));
            assert_eq!(due(&mut ahead), [6]);
        }
    }

    #[test]
    fn what_waits_is_forgotten_with_the_life_of_its_runner() {
        is_forgotten(|ahead| {
            let stop = EngineMessage::StopRunner { runner: RUNNER, life: LIFE };
            assert_eq!(ahead.take(stop.clone()), now(stop));
        });
        is_forgotten(|ahead| ahead.stopped(RUNNER, LIFE));
        is_forgotten(|ahead| {
            let begin = EngineMessage::StartRunner { runner: RUNNER, life: NEXT_LIFE };
            assert_eq!(ahead.take(begin.clone()), now(begin));
        });
        is_forgotten(|ahead| {
            let leave = EngineMessage::Shutdown { deadline: Duration::ZERO };
            assert_eq!(ahead.take(leave.clone()), now(leave));
        });
    }

    #[test]
    fn a_new_life_takes_the_place_of_one_that_nobody_ended() {
        let mut ahead = waiting();
        ended(&mut ahead, 1);
        let first = start(RUNNER, NEXT_LIFE, 5);
        assert_eq!(ahead.take(first.clone()), now(first));
        assert_eq!(due(&mut ahead), NONE);
    }

    #[test]
    fn the_stop_of_another_life_is_no_stop() {
        let mut ahead = waiting();
        let stop = EngineMessage::StopRunner { runner: RUNNER, life: Life(LIFE.0 - 1) };
        assert_eq!(ahead.take(stop.clone()), now(stop));
        ended(&mut ahead, 1);
        assert_eq!(due(&mut ahead), [2]);
    }
}
