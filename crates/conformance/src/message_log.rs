//! Records the messages of a worker and notes protocol violations.

use std::collections::BTreeMap;

use bytes::Bytes;
use rollway_core::{AttemptId, Incarnation, RunId, RunOutcome, RunRange, RunnerId};
use rollway_protocol::worker_server::DisconnectReason;
use rollway_protocol::{RunnerHeartbeat, WorkerMessage, WorkerReport};
use tokio::time::Instant;

use super::Check;

/// The runner incarnation that sent a report.
type Source = (RunnerId, Incarnation);

/// An attempt started by the kit.
#[derive(Debug)]
pub(super) struct AttemptLog {
    runner: RunnerId,
    incarnation: Incarnation,
    runs: RunRange,
    pub(super) began: bool,
    pub(super) ended: bool,
    pub(super) cancelled: bool,
    pub(super) results: BTreeMap<RunId, RunOutcome<Bytes>>,
}

/// State of a runner incarnation.
#[derive(Debug, Default)]
struct LifeWatch {
    ready: bool,
    stopped: bool,
}

#[derive(Debug)]
pub(super) struct HeartbeatSeen {
    pub(super) at: Instant,
    pub(super) states: Vec<RunnerHeartbeat>,
}

/// Messages of one connection.
#[derive(Debug, Default)]
pub(super) struct MessageLog {
    pub(super) attempts: BTreeMap<AttemptId, AttemptLog>,
    lives: BTreeMap<Source, LifeWatch>,
    pub(super) heartbeats: Vec<HeartbeatSeen>,
    pub(super) left: Option<DisconnectReason>,
    pub(super) faults: Vec<(Check, String)>,
}

impl MessageLog {
    pub(super) fn started(
        &mut self,
        id: AttemptId,
        runner: RunnerId,
        incarnation: Incarnation,
        runs: RunRange,
    ) {
        let (began, ended, cancelled) = (false, false, false);
        let results = BTreeMap::new();
        let attempt = AttemptLog { runner, incarnation, runs, began, ended, cancelled, results };
        self.attempts.insert(id, attempt);
    }

    pub(super) fn cancelled(&mut self, id: AttemptId) {
        if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.cancelled |= !attempt.ended;
        }
    }

    pub(super) fn is_ready(&self, runner: RunnerId, incarnation: Incarnation) -> bool {
        self.lives.get(&(runner, incarnation)).is_some_and(|incarnation| incarnation.ready)
    }

    pub(super) fn is_stopped(&self, runner: RunnerId, incarnation: Incarnation) -> bool {
        self.lives.get(&(runner, incarnation)).is_some_and(|incarnation| incarnation.stopped)
    }

    pub(super) fn began(&self, id: AttemptId) -> bool {
        self.attempts.get(&id).is_some_and(|attempt| attempt.began)
    }

    pub(super) fn ended(&self, id: AttemptId) -> bool {
        self.attempts.get(&id).is_some_and(|attempt| attempt.ended)
    }

    pub(super) fn observe(&mut self, message: WorkerMessage) {
        match message {
            WorkerMessage::Runner { runner, incarnation, report } => {
                self.report(runner, incarnation, report)
            }
            WorkerMessage::Heartbeat(states) => {
                self.heartbeats.push(HeartbeatSeen { at: Instant::now(), states });
            }
            WorkerMessage::Log(_) | WorkerMessage::Goodbye { .. } => {}
        }
    }

    fn fault(&mut self, check: Check, message: String) {
        self.faults.push((check, message));
    }

    fn report(&mut self, runner: RunnerId, incarnation: Incarnation, report: WorkerReport) {
        if self.is_stopped(runner, incarnation) {
            let message =
                format!("{report:?} about {runner}, whose incarnation {incarnation} has ended");
            return self.fault(Check::Restart, message);
        }
        let source = (runner, incarnation);
        match report {
            WorkerReport::Ready { .. } => {
                let busy = self.attempts.iter().find(|(_, attempt)| {
                    (attempt.runner, attempt.incarnation) == source
                        && attempt.began
                        && !attempt.ended
                });
                if let Some((id, _)) = busy {
                    let message = format!("{runner} was reported ready during its attempt {id}");
                    self.fault(Check::Ready, message);
                }
                self.lives.entry(source).or_default().ready = true;
            }
            WorkerReport::Stopped(_) => self.lives.entry(source).or_default().stopped = true,
            WorkerReport::AttemptBegan { attempt } => self.attempt_began(source, attempt),
            WorkerReport::RunFinished { attempt, run, outcome } => {
                self.run_finished(source, attempt, run, outcome);
            }
            WorkerReport::AttemptEnded { attempt } => self.attempt_ended(source, attempt),
        }
    }

    /// Returns the attempt if reports about it are still allowed.
    fn current(&mut self, source: Source, id: AttemptId, kind: &str) -> Option<&mut AttemptLog> {
        let (check, problem) = match self.attempts.get(&id) {
            None => (Check::Runs, "which was never started".to_owned()),
            Some(attempt) if (attempt.runner, attempt.incarnation) != source => {
                (Check::Runs, format!("from {} in incarnation {}", source.0, source.1))
            }
            Some(attempt) if attempt.ended && attempt.cancelled => {
                (Check::AfterCancel, "after its cancel was acknowledged".to_owned())
            }
            Some(attempt) if attempt.ended => (Check::Ended, "after its end".to_owned()),
            Some(_) => return self.attempts.get_mut(&id),
        };
        self.fault(check, format!("{kind} of attempt {id}, {problem}"));
        None
    }

    fn attempt_began(&mut self, source: Source, id: AttemptId) {
        let Some(attempt) = self.current(source, id, "begin") else { return };
        if std::mem::replace(&mut attempt.began, true) {
            self.fault(Check::Began, format!("attempt {id} began twice"));
        }
    }

    fn run_finished(
        &mut self,
        source: Source,
        id: AttemptId,
        run: RunId,
        outcome: RunOutcome<Bytes>,
    ) {
        let Some(attempt) = self.current(source, id, "result") else { return };
        let began = attempt.began;
        let expected = attempt.runs.iter().any(|expected| expected == run);
        let repeated = attempt.results.contains_key(&run);
        attempt.results.entry(run).or_insert(outcome);
        if !began {
            self.fault(Check::Began, format!("run {run} of attempt {id} ended before it began"));
        }
        if !expected {
            self.fault(Check::Runs, format!("run {run} is not one of attempt {id}"));
        }
        if repeated {
            self.fault(Check::Runs, format!("run {run} of attempt {id} was reported twice"));
        }
    }

    fn attempt_ended(&mut self, source: Source, id: AttemptId) {
        let Some(attempt) = self.current(source, id, "end") else { return };
        attempt.ended = true;
        if attempt.cancelled {
            return;
        }
        let began = attempt.began;
        let missing = attempt.runs.iter().filter(|run| !attempt.results.contains_key(run));
        let missing: Vec<String> = missing.map(|run| run.to_string()).collect();
        if !began {
            self.fault(Check::Began, format!("attempt {id} ended and never began"));
        }
        if !missing.is_empty() {
            let message = format!("attempt {id} ended without results of {}", missing.join(", "));
            self.fault(Check::Runs, message);
        }
    }
}
