//! Things that are said without sense: about nobody, from nobody, in the wrong order. They are
//! never lies that a healthy caller could not tell from the truth, but for one: that a runner is
//! lost which is not.

use rollway_core::{
    AttemptId, BatchKey, Delivery, Input, LeaseId, Life, Payload, PayloadId, Record, Report,
    RequestId, RunId, RunOutcome, RunnerId,
};

use super::{Event, World};
use crate::book::Phase;
use crate::faults::Fault;

impl World {
    pub(super) fn mischief(&mut self) {
        if self.healed {
            return;
        }
        if self.strikes(Fault::IdleClock) {
            self.step(Input::TimePassed);
        }
        if self.strikes(Fault::ReportBogus) {
            let input = self.nonsense();
            self.step(input);
        }
        let wait = self.dice.heavy(self.shape.run);
        self.plan(wait, Event::Mischief);
    }

    fn nonsense(&mut self) -> Input {
        let lease = LeaseId(1_000_000 + self.dice.below(10));
        match self.dice.below(12) {
            0 => Input::Withdrawn { request: RequestId(self.dice.below(40) + 1_000_000) },
            1 => {
                let delivery = Delivery::Failed { message: "what delivery?".into() };
                Input::Delivered { lease, delivery }
            }
            2 => {
                let runner = RunnerId(500);
                Input::Reported { runner, life: Life(1), report: self.senseless(None) }
            }
            3 => Input::Recorded(Record::Offered { batch: BatchKey(1_000_000) }),
            _ => self.about_somebody(),
        }
    }

    /// Says something senseless in the name of a runner that there is or was.
    fn about_somebody(&mut self) -> Input {
        let known: Vec<(RunnerId, Life, Phase)> = (self.book.slots.iter())
            .map(|(runner, slot)| (*runner, slot.life, slot.phase))
            .collect();
        if known.is_empty() {
            return Input::TimePassed;
        }
        let (runner, life, phase) = *self.dice.pick(&known);
        let attempt = match phase {
            Phase::Given(attempt) => Some(attempt),
            Phase::Starting | Phase::Idle | Phase::Over => None,
        };
        let (life, report) = match self.dice.below(5) {
            0 => (Life(life.0.wrapping_add(1)), self.senseless(attempt)),
            1 => (Life(life.0.wrapping_sub(1)), self.senseless(attempt)),
            2 => (life, Report::Lost { message: self.message("lost sight"), suspect: false }),
            3 => (life, Report::StartFailed { message: self.message("or so it seems") }),
            _ => (life, self.senseless(None)),
        };
        Input::Reported { runner, life, report }
    }

    /// Returns a report that cannot be right unless `attempt` is current for whoever says it.
    fn senseless(&mut self, attempt: Option<AttemptId>) -> Report {
        let never = AttemptId(1_000_000 + self.dice.below(3));
        let attempt = attempt.unwrap_or(never);
        match self.dice.below(4) {
            0 => Report::AttemptBegan { attempt },
            1 => Report::AttemptEnded { attempt },
            2 => Report::Ready { after: Some(attempt) },
            _ => {
                let id: PayloadId = self.next_payload();
                let payload = self.dice.percent(70).then_some(Payload { id, bytes: 1 });
                let metrics = rollway_core::metrics::Metrics::new();
                let outcome = RunOutcome::Succeeded { payload, metrics };
                Report::RunFinished { attempt, run: RunId(self.dice.small(0, 9)), outcome }
            }
        }
    }
}
