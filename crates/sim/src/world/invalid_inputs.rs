//! Invalid inputs: unknown ids, wrong order, other incarnations. All of them can be recognized as
//! invalid, except a false report that a runner is lost.

use rollway_core::{
    AttemptId, BatchKey, DeliveryOutcome, Incarnation, Input, LeaseId, LedgerRecord, Payload,
    PayloadId, RequestId, RunId, RunOutput, RunnerId, RunnerReport, Suspicion,
};

use super::{SimWorld, WorldEvent};
use crate::faults::Fault;
use crate::reference_model::Phase;

impl SimWorld {
    pub(super) fn invalid_input(&mut self) {
        if self.faults_ended {
            return;
        }
        if self.strikes(Fault::IdleClock) {
            self.step(Input::TimePassed);
        }
        if self.strikes(Fault::ReportBogus) {
            let input = self.draw_invalid();
            self.step(input);
        }
        let wait = self.rng.heavy(self.shape.run);
        self.plan(wait, WorldEvent::InvalidInput);
    }

    fn draw_invalid(&mut self) -> Input {
        let lease = LeaseId(1_000_000 + self.rng.below(10));
        match self.rng.below(12) {
            0 => Input::RequestAbandoned { request: RequestId(self.rng.below(40) + 1_000_000) },
            1 => {
                let delivery = DeliveryOutcome::Failed { message: "unknown delivery".into() };
                Input::DeliveryDone { lease, delivery }
            }
            2 => {
                let runner = RunnerId(500);
                Input::Report {
                    runner,
                    incarnation: Incarnation(1),
                    report: self.invalid_report(None),
                }
            }
            3 => Input::Restore(LedgerRecord::DeliveryStarted { batch: BatchKey(1_000_000) }),
            _ => self.about_known_runner(),
        }
    }

    /// Returns an invalid report of a known runner.
    fn about_known_runner(&mut self) -> Input {
        let known: Vec<(RunnerId, Incarnation, Phase)> = (self.model.slots.iter())
            .map(|(runner, slot)| (*runner, slot.incarnation, slot.phase))
            .collect();
        if known.is_empty() {
            return Input::TimePassed;
        }
        let (runner, incarnation, phase) = *self.rng.pick(&known);
        let attempt = match phase {
            Phase::Given(attempt) => Some(attempt),
            Phase::Starting | Phase::Idle | Phase::Over => None,
        };
        let (incarnation, report) = match self.rng.below(5) {
            0 => (Incarnation(incarnation.0.wrapping_add(1)), self.invalid_report(attempt)),
            1 => (Incarnation(incarnation.0.wrapping_sub(1)), self.invalid_report(attempt)),
            2 => (
                incarnation,
                RunnerReport::Lost {
                    message: self.message("lost sight"),
                    suspicion: Suspicion::None,
                },
            ),
            3 => {
                (incarnation, RunnerReport::StartFailed { message: self.message("or so it seems") })
            }
            _ => (incarnation, self.invalid_report(None)),
        };
        Input::Report { runner, incarnation, report }
    }

    /// Returns a report that is invalid unless `attempt` is current.
    fn invalid_report(&mut self, attempt: Option<AttemptId>) -> RunnerReport {
        let never = AttemptId(1_000_000 + self.rng.below(3));
        let attempt = attempt.unwrap_or(never);
        match self.rng.below(4) {
            0 => RunnerReport::AttemptBegan { attempt },
            1 => RunnerReport::AttemptEnded { attempt },
            2 => RunnerReport::Ready { after: Some(attempt) },
            _ => {
                let id: PayloadId = self.next_payload();
                let payload = self.rng.percent(70).then_some(Payload { id, bytes: 1 });
                let metrics = rollway_core::metrics::Metrics::new();
                let outcome = Ok(RunOutput { payload, metrics });
                RunnerReport::RunFinished { attempt, run: RunId(self.rng.small(0, 9)), outcome }
            }
        }
    }
}
