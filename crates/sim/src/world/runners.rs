//! Behaviour of runners: start, work, failures, hangs and crashes.

use std::sync::Arc;
use std::time::Duration;

use rollway_core::metrics::Metrics;
use rollway_core::{
    AttemptId, BatchKey, BatchType, FailureKind, Payload, PayloadId, RunFailure, RunId, RunOutcome,
    RunOutput, RunnerId, RunnerReport, Suspicion, TaskId,
};

use super::{RunnerOrder, SimWorld, TaskBehaviour, WorldEvent};
use crate::faults::Fault;
use crate::process::{Cut, ProcessState, ProcessWork, RunnerKey, SimProcess};
use crate::reference_model::ReferenceModel;

impl SimWorld {
    pub(super) fn start_runner(&mut self, at: RunnerKey, isolated: bool) {
        self.processes.add(at, isolated, self.now);
        let timeout = self.model.config.supervision.start_timeout;
        if self.strikes(Fault::StartFails) {
            if let Some(process) = self.processes.get_mut(at) {
                process.state = ProcessState::Dead;
            }
            let message = self.message("no such program");
            return self.notify(at, RunnerReport::StartFailed { message });
        }
        let wait = if self.strikes(Fault::SlowStart) || self.is_away(at.0) {
            self.rng.spread(timeout / 2, timeout * 3)
        } else {
            self.rng.spread(Duration::from_millis(1), timeout / 4)
        };
        self.plan(wait, WorldEvent::Started(at));
    }

    pub(super) fn started(&mut self, at: RunnerKey) {
        let Some(process) = self.processes.get_mut(at) else { return };
        if process.state != ProcessState::Starting {
            return;
        }
        process.state = ProcessState::Alive;
        self.send_report(at, RunnerReport::Ready { after: None });
        let first = self.rng.spread(self.shape.heartbeat / 2, self.shape.heartbeat);
        self.plan(first, WorldEvent::Heartbeat(at));
    }

    pub(super) fn heartbeat(&mut self, at: RunnerKey) {
        let Some(process) = self.processes.alive(at) else { return };
        let idle = process.work.is_none();
        let after = process.last;
        let report = if idle { RunnerReport::Ready { after } } else { RunnerReport::Heartbeat };
        self.send_report(at, report);
        self.plan(self.shape.heartbeat, WorldEvent::Heartbeat(at));
        if idle && self.strikes(Fault::CrashIdle) {
            self.crash(at, None, Suspicion::None);
        } else if self.strikes(Fault::Partition) {
            self.cut_off(at, Some(Vec::new()));
        } else if self.strikes(Fault::Blackout) {
            self.cut_off(at, None);
        } else if self.strikes(Fault::MachineLost) {
            self.lose_machine(at.0);
        } else if self.strikes(Fault::NetworkCut) {
            self.cut_machine(at.0);
        }
    }

    fn cut_off(&mut self, at: RunnerKey, backlog: Option<Vec<RunnerReport>>) {
        let Some(process) = self.processes.get_mut(at) else { return };
        if process.cut.is_some() {
            return;
        }
        process.cut = Some(Cut { backlog, unreachable: None });
        let wait = self.rng.spread(self.shape.heartbeat / 4, self.shape.heartbeat * 6);
        self.plan(wait, WorldEvent::Reconnect(at));
    }

    pub(super) fn reconnect(&mut self, at: RunnerKey) {
        let Some(process) = self.processes.alive(at) else { return };
        let Some(cut) = process.cut.take() else { return };
        for report in cut.backlog.unwrap_or_default() {
            self.send_report(at, report);
        }
        if cut.unreachable == Some(true) {
            // A pending kill arrives now, shortly after the reports.
            let wait = self.rng.spread(self.shape.latency, self.shape.latency * 8);
            self.plan(wait, WorldEvent::Killed(at));
        }
    }

    pub(super) fn order_arrives(&mut self, at: RunnerKey, order: RunnerOrder) {
        let Some(process) = self.processes.alive(at) else { return };
        if process.cut.is_some() {
            return;
        }
        match order {
            RunnerOrder::Begin { attempt, batch, task, runs } => {
                // Repeated, or cancelled before its arrival.
                if process.last >= Some(attempt) || process.work.is_some() {
                    return;
                }
                process.last = Some(attempt);
                let left = runs.iter().map(|run| run.0).collect();
                let work =
                    ProcessWork { attempt, batch, task, left, unreported: Vec::new(), deaf: false };
                self.begin(at, work);
            }
            RunnerOrder::Cancel { attempt } => self.cancel(at, attempt),
        }
    }

    fn begin(&mut self, at: RunnerKey, mut work: ProcessWork) {
        let attempt = work.attempt;
        let never = self.strikes(Fault::NeverBegins);
        if never {
            if let Some(process) = self.processes.get_mut(at) {
                process.work = Some(work);
            }
            return;
        }
        self.send_report(at, RunnerReport::AttemptBegan { attempt });
        work.deaf = self.strikes(Fault::HangDeaf);
        let together = !self.model.config.runs_in_turn;
        let mut end = Duration::ZERO;
        for run in work.left.clone() {
            let lasts = self.run_lasts();
            end = if together { lasts } else { end + lasts };
            if self.strikes(Fault::Unspoken) {
                work.unreported.push(run);
            }
            if !work.deaf && !self.strikes(Fault::Hang) {
                self.plan(end, WorldEvent::RunDone(at, attempt, run));
            }
        }
        let poison = self.behaviour(work.batch, work.task) == TaskBehaviour::Poison;
        if let Some(process) = self.processes.get_mut(at) {
            process.work = Some(work);
        }
        if poison {
            self.faults.note(Fault::Poison);
            let wait = self.rng.spread(Duration::from_millis(1), self.shape.run);
            self.plan(wait, WorldEvent::EndProcess(at, attempt));
        } else if self.strikes(Fault::CrashBusy) {
            let wrong = self.strikes(Fault::WrongSuspect);
            let suspicion = if wrong { Suspicion::Sole } else { Suspicion::None };
            let wait = self.rng.spread(Duration::from_millis(1), self.shape.run * 2);
            self.plan(wait, WorldEvent::Crash(at, Some(attempt), suspicion));
        }
    }

    fn run_lasts(&mut self) -> Duration {
        if self.faults_ended {
            return self.rng.spread(Duration::from_millis(1), Duration::from_millis(20));
        }
        self.rng.heavy(self.shape.run)
    }

    fn cancel(&mut self, at: RunnerKey, attempt: AttemptId) {
        let Some(process) = self.processes.alive(at) else { return };
        match &process.work {
            Some(work) if work.attempt == attempt => {
                if work.deaf {
                    return;
                }
                let grace = self.model.config.supervision.cancel_grace;
                let wait = if self.strikes(Fault::SlowCancel) {
                    self.rng.spread(grace / 2, grace * 4)
                } else {
                    self.rng.spread(Duration::from_micros(100), grace / 4)
                };
                self.plan(wait, WorldEvent::AttemptDone(at, attempt));
            }
            // It executes another attempt and has reported the end of this one.
            Some(_) => {}
            None => {
                process.last = process.last.max(Some(attempt));
                self.send_report(at, RunnerReport::AttemptEnded { attempt });
            }
        }
    }

    pub(super) fn run_done(&mut self, at: RunnerKey, attempt: AttemptId, run: u32) {
        let Some(process) = self.processes.alive(at) else { return };
        let Some(work) = process.work.as_mut().filter(|work| work.attempt == attempt) else {
            return;
        };
        work.left.retain(|left| *left != run);
        let (batch, task) = (work.batch, work.task);
        let (is_reported, last) = (!work.unreported.contains(&run), work.left.is_empty());
        if is_reported {
            let outcome = self.outcome(batch, task, attempt, run);
            self.send_report(at, RunnerReport::RunFinished { attempt, run: RunId(run), outcome });
        }
        if last {
            let wait = self.rng.spread(Duration::from_micros(100), self.shape.latency);
            self.plan(wait, WorldEvent::AttemptDone(at, attempt));
        }
    }

    pub(super) fn attempt_done(&mut self, at: RunnerKey, attempt: AttemptId) {
        let Some(process) = self.processes.alive(at) else { return };
        if process.work.take_if(|work| work.attempt == attempt).is_some() {
            self.send_report(at, RunnerReport::AttemptEnded { attempt });
        }
    }

    fn outcome(
        &mut self,
        batch: BatchKey,
        task: TaskId,
        attempt: AttemptId,
        run: u32,
    ) -> RunOutcome {
        if let TaskBehaviour::Failing(kind) = self.behaviour(batch, task) {
            self.faults.note(Fault::TaskFails);
            return Err(RunFailure { kind, message: self.message("as always") });
        }
        if self.strikes(Fault::RunFails) {
            let kind = *self.rng.pick(FailureKind::ALL);
            return Err(RunFailure { kind, message: self.message("bad luck") });
        }
        if self.strikes(Fault::OutputInvalid) {
            let message = self.message("not an experience");
            return Err(RunFailure { kind: FailureKind::InvalidOutput, message });
        }
        let most = self.model.config.limits.payload_bytes_per_run;
        let bytes = if self.strikes(Fault::TooLarge) {
            most + 1
        } else {
            self.rng.between(0, self.shape.payload * 2)
        };
        let kind = self.model.batches.get(&batch).map_or(BatchType::Train, |batch| batch.kind);
        let yields = match kind {
            BatchType::Train => self.rng.percent(95),
            BatchType::Eval => self.rng.percent(10),
        };
        let payload = yields.then_some(Payload { id: PayloadId(0), bytes });
        let mut metrics: Metrics =
            [("label", ReferenceModel::label(attempt, run))].into_iter().collect();
        for extra in 0..self.rng.below(3) {
            metrics.set(format!("more/{extra}"), extra as f64);
        }
        Ok(RunOutput { payload, metrics })
    }

    fn behaviour(&mut self, batch: BatchKey, task: TaskId) -> TaskBehaviour {
        if self.faults_ended {
            return TaskBehaviour::Sound;
        }
        if let Some(behaviour) = self.behaviours.get(&(batch, task)) {
            return *behaviour;
        }
        let behaviour = if self.rng.chance(self.faults.rate(Fault::Poison)) {
            TaskBehaviour::Poison
        } else if self.rng.chance(self.faults.rate(Fault::TaskFails)) {
            TaskBehaviour::Failing(*self.rng.pick(FailureKind::ALL))
        } else {
            TaskBehaviour::Sound
        };
        self.behaviours.insert((batch, task), behaviour);
        behaviour
    }

    /// Returns an error message, sometimes longer than its limit.
    pub(crate) fn message(&mut self, text: &str) -> Arc<str> {
        text.repeat(self.rng.below(12) as usize).replace('a', "ä").into()
    }

    /// Ends the process of a runner whose task does so, with all runners that share it. The
    /// execution marks show either the attempt or all of the process.
    pub(super) fn end_process(&mut self, at: RunnerKey, attempt: AttemptId) {
        let Some(process) = self.processes.alive(at) else { return };
        let isolated = process.isolated;
        if process.work.as_ref().is_none_or(|work| work.attempt != attempt) {
            return;
        }
        let place = |runner: RunnerId| runner.0 / self.model.config.runners_per_worker.max(1);
        let shares = |other: &RunnerKey, process: &SimProcess| {
            *other == at || (!isolated && !process.isolated && place(other.0) == place(at.0))
        };
        let up = |state| matches!(state, ProcessState::Starting | ProcessState::Alive);
        let all = self.processes.iter().filter(|(other, it)| up(it.state) && shares(other, it));
        let all: Vec<_> = all.map(|(other, process)| (other, process.work.is_some())).collect();
        let busy = all.iter().filter(|(_, busy)| *busy).count();
        let marked = busy == 1 || self.rng.percent(50);
        for (other, busy) in all {
            let suspicion = match (other == at, marked, busy) {
                (true, true, _) => Suspicion::Sole,
                (_, false, true) => Suspicion::Shared,
                _ => Suspicion::Neighbour,
            };
            if self.processes.alive(other).is_some() {
                self.crash(other, None, suspicion);
            } else if let Some(process) = self.processes.get_mut(other) {
                process.state = ProcessState::Dead;
                let message = self.message("its process ended");
                self.notify(other, RunnerReport::Lost { message, suspicion });
            }
        }
    }

    pub(crate) fn crash(
        &mut self,
        at: RunnerKey,
        attempt: Option<AttemptId>,
        suspicion: Suspicion,
    ) {
        let Some(process) = self.processes.alive(at) else { return };
        let working = process.work.as_ref().map(|work| work.attempt);
        if attempt.is_some() && attempt != working {
            return;
        }
        process.work = None;
        process.state = ProcessState::Dead;
        if self.strikes(Fault::CrashUnseen) {
            if let Some(process) = self.processes.get_mut(at) {
                process.state = ProcessState::DiedUnseen;
            }
            return;
        }
        let message = self.message("killed by a signal");
        self.notify(at, RunnerReport::Lost { message, suspicion });
    }

    pub(super) fn killed(&mut self, at: RunnerKey) {
        let Some(process) = self.processes.get_mut(at) else { return };
        if let Some(tried) = process.cut.as_mut().and_then(|cut| cut.unreachable.as_mut()) {
            *tried = true;
            return;
        }
        process.work = None;
        process.state = ProcessState::Dead;
        // The supervisor may report a loss although it was ordered.
        if !self.faults_ended && self.rng.percent(10) {
            let message = self.message("gone");
            self.notify(at, RunnerReport::Lost { message, suspicion: Suspicion::None });
        }
    }
}
