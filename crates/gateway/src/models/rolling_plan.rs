//! Order of a rolling update. No I/O, no clock.

use std::collections::BTreeSet;

use super::ServerId;
use super::routing::{Health, RoutingTable, ServerDuty};

#[derive(Debug)]
pub(super) struct RollingPlan {
    model: u32,
    left: BTreeSet<ServerId>,
    in_progress: BTreeSet<ServerId>,
    at_once: usize,
    /// Minimum number of usable servers.
    floor: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RollingStep {
    /// Update this server, which is marked as draining.
    Begin(ServerId),
    /// Wait until a server is done or usable again.
    Wait,
    Done,
}

impl RollingPlan {
    /// Plans an update. `min_running` servers stay usable if there are more, else all but one.
    pub(super) fn new(
        routing: &RoutingTable,
        model: u32,
        servers: impl IntoIterator<Item = ServerId>,
        at_once: usize,
        min_running: usize,
    ) -> Self {
        let floor = min_running.min(usable(routing, model).saturating_sub(1));
        let (left, in_progress) = (servers.into_iter().collect(), BTreeSet::new());
        Self { model, left, in_progress, at_once: at_once.max(1), floor }
    }

    pub(super) fn next(&mut self, routing: &mut RoutingTable) -> RollingStep {
        self.left.retain(|id| routing.slot(*id).is_some());
        if self.left.is_empty() && self.in_progress.is_empty() {
            return RollingStep::Done;
        }
        if self.in_progress.len() >= self.at_once {
            return RollingStep::Wait;
        }
        let spare = usable(routing, self.model) > self.floor;
        // Unusable servers first, then the least busy, which drain soonest.
        let candidates = self.left.iter().filter_map(|id| Some((*id, routing.slot(*id)?)));
        let next = candidates
            .filter(|(_, slot)| slot.health == Health::Healthy && !slot.is_unconfirmed)
            .filter(|(_, slot)| spare || !slot.is_usable())
            .filter(|(_, slot)| matches!(slot.duty, ServerDuty::Open | ServerDuty::Broken(_)))
            .min_by_key(|(id, slot)| (slot.is_usable(), slot.in_flight, *id))
            .map(|(id, _)| id);
        let Some(id) = next else { return RollingStep::Wait };
        self.left.remove(&id);
        self.in_progress.insert(id);
        if let Some(slot) = routing.slot_mut(id) {
            slot.duty = ServerDuty::Draining;
        }
        RollingStep::Begin(id)
    }

    pub(super) fn done(&mut self, id: ServerId) {
        self.in_progress.remove(&id);
    }

    /// Returns the servers that were not begun.
    pub(super) fn left(&self) -> impl Iterator<Item = ServerId> {
        self.left.iter().copied()
    }

    pub(super) fn is_updating(&self) -> bool {
        !self.in_progress.is_empty()
    }
}

pub(super) fn usable(routing: &RoutingTable, model: u32) -> usize {
    routing.slots(model).filter(|(_, slot)| slot.is_usable()).count()
}
