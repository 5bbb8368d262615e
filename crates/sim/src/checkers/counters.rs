//! The counters of the core equal the number of events.

use rollway_core::{
    Action, ByDropReason, Incarnation, Input, LedgerRecord, RunEnd, RunFailure, RunOutput,
    RunnerId, RunnerReport,
};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::ledger::SimLedger;
use crate::reference_model::Phase;

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
    /// Lower bounds of lost runners and truncated messages.
    lost: u64,
    cut: u64,
}

impl Checker for CountersChecker {
    fn input(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        self.inputs += 1;
        match ctx.input {
            Input::Requested { .. } => self.requests += u64::from(ctx.accepted),
            Input::RequestAbandoned { request } => {
                self.withdrawn += u64::from(ctx.model.open.contains_key(request));
            }
            Input::Report { runner, incarnation, report } => {
                self.reported(ctx, *runner, *incarnation, report)
            }
            Input::Restore(LedgerRecord::Submitted { .. }) => {
                self.batches_restored += u64::from(ctx.accepted);
            }
            Input::Restore(LedgerRecord::RunEnded { ending, .. }) if ctx.accepted => {
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
            _ => {}
        }
        Ok(())
    }

    fn settled(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        let counters = ctx.core.counters();
        let under_way =
            ctx.model.slots.values().filter(|slot| slot.phase.is_given()).count() as u64;
        let gone = self.dropped.total() + ctx.model.held;
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
        for (what, count, counted) in right {
            require!(count == counted, "{count} {what}, the core counts {counted}");
        }
        let (lost, cut) = (counters.runners_lost, counters.messages_truncated);
        require!(lost >= self.lost, "{} runners lost, the core counts {lost}", self.lost);
        require!(cut >= self.cut, "{} messages cut, the core counts {cut}", self.cut);
        let (dropped, counted) = (self.dropped, counters.payloads_dropped);
        require!(dropped == counted, "{dropped:?} payloads dropped, the core counts {counted:?}");
        Ok(())
    }
}

impl CountersChecker {
    fn reported(
        &mut self,
        ctx: &CheckContext<'_>,
        runner: RunnerId,
        incarnation: Incarnation,
        report: &RunnerReport,
    ) {
        let long = |message: &str| message.len() > ctx.model.config.limits.message_bytes as usize;
        match report {
            RunnerReport::RunFinished { outcome: Ok(RunOutput { payload, .. }), .. } => {
                self.received += u64::from(payload.is_some());
            }
            RunnerReport::RunFinished { outcome: Err(RunFailure { message, .. }), .. } => {
                self.cut += u64::from(ctx.accepted && long(message));
            }
            RunnerReport::Lost { .. } => {
                let phase = ctx.model.alive(runner, incarnation).map(|slot| slot.phase);
                let lost = matches!(phase, Some(Phase::Idle | Phase::Given(_)));
                self.lost += u64::from(ctx.accepted && lost);
            }
            _ => {}
        }
    }
}
