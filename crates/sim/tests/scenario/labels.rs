//! Labels of batches, runners and times in a scenario.

use std::collections::BTreeMap;
use std::time::Duration;

use rollway_core::{
    Action, AttemptId, BatchId, BatchKey, BatchType, Core, Incarnation, Input, LeaseId, Request,
    RequestId, Response, RunnerId, Time,
};

/// Labels of objects that actions refer to by number.
#[derive(Default)]
pub(super) struct ScenarioLabels {
    batches: BTreeMap<BatchKey, (BatchId, BatchType)>,
    asked: BTreeMap<RequestId, (BatchId, Option<BatchType>)>,
}

impl ScenarioLabels {
    /// Records the batch of a request.
    pub(super) fn note_input(&mut self, input: &Input) {
        let Input::Requested { request, what } = input else { return };
        let Some(batch) = what.batch() else { return };
        let kind = match what {
            Request::Schedule { kind, .. } | Request::Submit { kind, .. } => Some(*kind),
            _ => None,
        };
        self.asked.insert(*request, (batch.clone(), kind));
    }

    /// Records the key of an accepted batch.
    pub(super) fn note_action(&mut self, action: &Action) {
        if let Action::Respond { request, answer } = action
            && let Response::Submitted { batch } | Response::Scheduled { batch: Some(batch), .. } =
                answer
            && let Some((id, Some(kind))) = self.asked.get(request)
        {
            self.batches.insert(*batch, (id.clone(), *kind));
        }
    }

    pub(super) fn note_batches(&mut self, core: &Core) {
        self.batches.extend(core.batches().map(|view| (view.key, (view.batch, view.kind))));
    }

    pub(super) fn kind(&self, key: BatchKey) -> Option<BatchType> {
        self.batches.get(&key).map(|(_, kind)| *kind)
    }

    pub(super) fn request_label(&self, request: RequestId) -> String {
        let asked = self.asked.get(&request);
        asked.map_or_else(String::new, |(id, _)| batch_id(id))
    }

    /// Returns the label of a batch, with its key unless it is the first of its id.
    pub(super) fn batch(&self, key: BatchKey) -> String {
        let Some((id, _)) = self.batches.get(&key) else {
            return key.to_string();
        };
        let earlier = self.batches.range(..key).any(|(_, (other, _))| other == id);
        if earlier { format!("{}({key})", batch_id(id)) } else { batch_id(id) }
    }
}

/// Returns the id of a batch, in quotes where it looks like a number.
pub(super) fn batch_id(id: &BatchId) -> String {
    match id {
        BatchId::Text(text) if text.parse::<i64>().is_ok() => format!("\"{text}\""),
        BatchId::Number(_) | BatchId::Text(_) => id.to_string(),
    }
}

/// Returns the label of a runner, with its incarnation unless it is the first.
pub(super) fn runner(runner: RunnerId, incarnation: Incarnation) -> String {
    match incarnation {
        Incarnation(0 | 1) => runner.to_string(),
        incarnation => format!("{runner}/{}", numbered('l', incarnation.0.into(), LIFE_BITS)),
    }
}

/// Bits of a sequential number below the epoch.
pub(super) const BITS: u32 = 40;
pub(super) const LIFE_BITS: u32 = 16;

pub(super) fn attempt(attempt: AttemptId) -> String {
    numbered('a', attempt.0, BITS)
}

pub(super) fn lease(lease: LeaseId) -> String {
    numbered('d', lease.0, BITS)
}

/// Returns a label with its number, preceded by the epoch unless it is the first.
fn numbered(letter: char, number: u64, bits: u32) -> String {
    let (epoch, number) = (number >> bits, number & ((1 << bits) - 1));
    if epoch == 0 { format!("{letter}{number}") } else { format!("{letter}{epoch}.{number}") }
}

pub(super) fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}

pub(super) fn instant(time: Time) -> String {
    seconds(time.since(Time::ZERO))
}
