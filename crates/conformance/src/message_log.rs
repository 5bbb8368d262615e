//! Watches what a worker says, and notes whatever it should not have said.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;
use rollway_core::{AttemptId, Incarnation, RunId, RunOutcome, RunRange, RunnerId};
use rollway_protocol::worker_server::DisconnectReason;
use rollway_protocol::{RunnerHeartbeat, WorkerMessage, WorkerReport};
use tokio::time::Instant;

use super::Check;

/// An attempt that the kit started.
#[derive(Debug)]
pub(super) struct AttemptLog {
    runner: RunnerId,
    life: Incarnation,
    runs: RunRange,
    pub(super) began: bool,
    pub(super) ended: bool,
    pub(super) cancelled: bool,
    pub(super) results: BTreeMap<RunId, RunOutcome<Bytes>>,
}

/// What is known of a life of a runner.
#[derive(Debug, Default)]
struct LifeWatch {
    ready: bool,
    stopped: bool,
}

/// A heartbeat.
#[derive(Debug)]
pub(super) struct HeartbeatSeen {
    pub(super) at: Instant,
    pub(super) states: Vec<RunnerHeartbeat>,
}

/// Everything that a worker said on one stream.
#[derive(Debug, Default)]
pub(super) struct MessageLog {
    pub(super) attempts: BTreeMap<AttemptId, AttemptLog>,
    lives: BTreeMap<(RunnerId, Incarnation), LifeWatch>,
    pub(super) beats: Vec<HeartbeatSeen>,
    pub(super) left: Option<DisconnectReason>,
    pub(super) faults: Vec<(Check, String)>,
}

impl MessageLog {
    /// Notes that the kit started an attempt.
    pub(super) fn started(
        &mut self,
        id: AttemptId,
        runner: RunnerId,
        life: Incarnation,
        runs: RunRange,
    ) {
        let attempt = AttemptLog {
            runner,
            life,
            runs,
            began: false,
            ended: false,
            cancelled: false,
            results: BTreeMap::new(),
        };
        self.attempts.insert(id, attempt);
    }

    /// Notes that the kit cancelled an attempt.
    pub(super) fn cancelled(&mut self, id: AttemptId) {
        if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.cancelled |= !attempt.ended;
        }
    }

    pub(super) fn is_ready(&self, runner: RunnerId, life: Incarnation) -> bool {
        self.lives.get(&(runner, life)).is_some_and(|life| life.ready)
    }

    pub(super) fn is_stopped(&self, runner: RunnerId, life: Incarnation) -> bool {
        self.lives.get(&(runner, life)).is_some_and(|life| life.stopped)
    }

    pub(super) fn began(&self, id: AttemptId) -> bool {
        self.attempts.get(&id).is_some_and(|attempt| attempt.began)
    }

    pub(super) fn ended(&self, id: AttemptId) -> bool {
        self.attempts.get(&id).is_some_and(|attempt| attempt.ended)
    }

    pub(super) fn observe(&mut self, message: WorkerMessage) {
        match message {
            WorkerMessage::Runner { runner, life, report } => self.report(runner, life, report),
            WorkerMessage::Heartbeat(states) => {
                self.beats.push(HeartbeatSeen { at: Instant::now(), states });
            }
            WorkerMessage::Log(_) | WorkerMessage::Goodbye { .. } => {}
        }
    }

    fn fault(&mut self, check: Check, what: String) {
        self.faults.push((check, what));
    }

    fn report(&mut self, runner: RunnerId, life: Incarnation, report: WorkerReport) {
        if self.is_stopped(runner, life) {
            let what = format!("{report:?} about {runner} in life {life}, which is over");
            return self.fault(Check::Restart, what);
        }
        match report {
            WorkerReport::Ready { .. } => {
                let busy = self.attempts.iter().find(|(_, attempt)| {
                    (attempt.runner, attempt.life) == (runner, life)
                        && attempt.began
                        && !attempt.ended
                });
                if let Some((id, _)) = busy {
                    let what = format!("{runner} was reported ready during its attempt {id}");
                    self.fault(Check::Ready, what);
                }
                self.lives.entry((runner, life)).or_default().ready = true;
            }
            WorkerReport::Stopped(_) => {
                self.lives.entry((runner, life)).or_default().stopped = true;
            }
            WorkerReport::AttemptBegan { attempt } => self.attempt_began(runner, life, attempt),
            WorkerReport::RunFinished { attempt, run, outcome } => {
                self.run_finished(runner, life, attempt, run, outcome);
            }
            WorkerReport::AttemptEnded { attempt } => self.attempt_ended(runner, life, attempt),
        }
    }

    /// Returns the attempt if the worker may still speak of it.
    fn current(
        &mut self,
        runner: RunnerId,
        life: Incarnation,
        id: AttemptId,
        said: &str,
    ) -> Option<&mut AttemptLog> {
        let fault = match self.attempts.get(&id) {
            None => (Check::Runs, format!("{said} of attempt {id}, which was never started")),
            Some(attempt) if (attempt.runner, attempt.life) != (runner, life) => {
                let what = format!("{said} of attempt {id} came from {runner} in life {life}");
                (Check::Runs, what)
            }
            Some(attempt) if attempt.ended && attempt.cancelled => {
                let what = format!("{said} of attempt {id} after its cancel was acknowledged");
                (Check::AfterCancel, what)
            }
            Some(attempt) if attempt.ended => {
                (Check::Ended, format!("{said} of attempt {id} after its end"))
            }
            Some(_) => return self.attempts.get_mut(&id),
        };
        self.faults.push(fault);
        None
    }

    fn attempt_began(&mut self, runner: RunnerId, life: Incarnation, id: AttemptId) {
        let Some(attempt) = self.current(runner, life, id, "the begin") else { return };
        if attempt.began {
            self.fault(Check::Began, format!("attempt {id} began twice"));
        } else {
            attempt.began = true;
        }
    }

    fn run_finished(
        &mut self,
        runner: RunnerId,
        life: Incarnation,
        id: AttemptId,
        run: RunId,
        outcome: RunOutcome<Bytes>,
    ) {
        let Some(attempt) = self.current(runner, life, id, "a result") else { return };
        let began = attempt.began;
        let wanted = attempt.runs.iter().any(|wanted| wanted == run);
        let again = match attempt.results.entry(run) {
            Entry::Vacant(free) => {
                free.insert(outcome);
                false
            }
            Entry::Occupied(_) => true,
        };
        if !began {
            self.fault(Check::Began, format!("run {run} of attempt {id} ended before it began"));
        }
        if !wanted {
            self.fault(Check::Runs, format!("run {run} is not one of attempt {id}"));
        }
        if again {
            self.fault(Check::Runs, format!("run {run} of attempt {id} was reported twice"));
        }
    }

    fn attempt_ended(&mut self, runner: RunnerId, life: Incarnation, id: AttemptId) {
        let Some(attempt) = self.current(runner, life, id, "the end") else { return };
        attempt.ended = true;
        if attempt.cancelled {
            return;
        }
        let began = attempt.began;
        let missing: Vec<String> = attempt
            .runs
            .iter()
            .filter(|run| !attempt.results.contains_key(run))
            .map(|run| run.to_string())
            .collect();
        if !began {
            self.fault(Check::Began, format!("attempt {id} ended and never began"));
        }
        if !missing.is_empty() {
            let what = format!("attempt {id} ended without a word about {}", missing.join(", "));
            self.fault(Check::Runs, what);
        }
    }
}
