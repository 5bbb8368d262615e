//! The counters of the core count what happened, no more and no less.

use rollway_core::{
    Action, ByDropReason, Incarnation, Input, LedgerRecord, RunEnd, RunFailure, RunOutput,
    RunnerId, RunnerReport,
};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::ledger::SimLedger;
use crate::reference_model::Phase;

/// Counts along.
#[derive(Debug, Default)]
pub(super) struct CountersChecker {
    inputs: u64,
    requests: u64,
    withdrawn: u64,
    received: u64,
    answers: u64,
    attempts: u64,
    started: u64,
    stopped: u64,
    dropped: ByDropReason,
    batches_restored: u64,
    runs_restored: u64,
    payloads_restored: u64,
    /// At least so many runners were lost, and messages cut.
    lost: u64,
    cut: u64,
}

impl Checker for CountersChecker {
    fn name(&self) -> &'static str {
        "counts"
    }

    fn input(&mut self, scene: &CheckContext<'_>) -> CheckVerdict {
        self.inputs += 1;
        match scene.input {
            Input::Requested { .. } => self.requests += u64::from(scene.believed),
            Input::RequestAbandoned { request } => {
                self.withdrawn += u64::from(scene.book.open.contains_key(request));
            }
            Input::Report { runner, life, report } => self.reported(scene, *runner, *life, report),
            Input::Restore(LedgerRecord::Submitted { .. }) => {
                self.batches_restored += u64::from(scene.believed);
            }
            Input::Restore(LedgerRecord::RunEnded { ending, .. }) if scene.believed => {
                let payload =
                    matches!(ending, RunEnd::Succeeded(RunOutput { payload: Some(_), .. }));
                self.runs_restored += 1;
                self.payloads_restored += u64::from(payload);
            }
            _ => {}
        }
        Ok(())
    }

    fn crashed(&mut self, _: &SimLedger) {
        *self = Self::default();
    }

    fn action(&mut self, _: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        match action {
            Action::StartRunner { .. } => self.started += 1,
            Action::StopRunner { .. } => self.stopped += 1,
            Action::StartAttempt { .. } => self.attempts += 1,
            Action::DropPayload { reason, .. } => self.dropped[*reason] += 1,
            Action::Respond { .. } => self.answers += 1,
            Action::CancelAttempt { .. }
            | Action::ReleasePayloads(_)
            | Action::Deliver { .. }
            | Action::AppendRecord(_)
            | Action::DropTasks { .. } => {}
        }
        Ok(())
    }

    fn settled(&mut self, scene: &CheckContext<'_>) -> CheckVerdict {
        let counters = scene.core.counters();
        let given = |phase: Phase| matches!(phase, Phase::Given(_));
        let under_way = scene.book.slots.values().filter(|slot| given(slot.phase)).count() as u64;
        let gone = self.dropped.total() + scene.book.held;
        let came = self.received + self.payloads_restored;
        let right = [
            ("inputs", self.inputs, counters.inputs),
            ("requests", self.requests, counters.requests),
            ("requests withdrawn", self.withdrawn, counters.abandoned),
            ("answers", self.answers, counters.answers),
            ("attempts started", self.attempts, counters.attempts_started),
            ("attempts ended", self.attempts.saturating_sub(under_way), counters.attempts_ended),
            ("runners started", self.started, counters.runners_started),
            ("runners stopped", self.stopped, counters.runners_stopped),
            ("payloads received", self.received, counters.payloads_received),
            ("payloads delivered", came.saturating_sub(gone), counters.payloads_delivered),
            ("batches restored", self.batches_restored, counters.batches_restored),
            ("runs restored", self.runs_restored, counters.runs_restored),
            ("payloads restored", self.payloads_restored, counters.payloads_restored),
        ];
        for (what, count, told) in right {
            require!(count == told, "{count} {what}, the core counts {told}");
        }
        let (lost, cut) = (counters.runners_lost, counters.messages_truncated);
        require!(lost >= self.lost, "{} runners lost, the core counts {lost}", self.lost);
        require!(cut >= self.cut, "{} messages cut, the core counts {cut}", self.cut);
        let (dropped, told) = (self.dropped, counters.payloads_dropped);
        require!(dropped == told, "{dropped:?} payloads dropped, the core counts {told:?}");
        Ok(())
    }
}

impl CountersChecker {
    fn reported(
        &mut self,
        scene: &CheckContext<'_>,
        runner: RunnerId,
        life: Incarnation,
        report: &RunnerReport,
    ) {
        let long = |message: &str| message.len() > scene.book.config.limits.message_bytes as usize;
        match report {
            RunnerReport::RunFinished { outcome: Ok(RunOutput { payload, .. }), .. } => {
                self.received += u64::from(payload.is_some());
            }
            RunnerReport::RunFinished { outcome: Err(RunFailure { message, .. }), .. } => {
                self.cut += u64::from(scene.believed && long(message));
            }
            RunnerReport::Lost { .. } => {
                let phase = scene.book.alive(runner, life).map(|slot| slot.phase);
                let lost = matches!(phase, Some(Phase::Idle | Phase::Given(_)));
                self.lost += u64::from(scene.believed && lost);
            }
            _ => {}
        }
    }
}
