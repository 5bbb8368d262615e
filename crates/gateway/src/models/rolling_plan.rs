//! In which order servers are updated, and when the next may be taken. No I/O, no clock.

use std::collections::BTreeSet;

use super::ServerId;
use super::routing::{Health, RoutingTable, ServerDuty};

/// An update that goes from server to server.
#[derive(Debug)]
pub(super) struct RollingPlan {
    model: u32,
    left: BTreeSet<ServerId>,
    under_way: BTreeSet<ServerId>,
    at_once: usize,
    /// How many servers must stay usable.
    floor: usize,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RollingStep {
    /// Update this server; the board has it as draining.
    Begin(ServerId),
    /// Wait until a server is done, or can be used again.
    Wait,
    Done,
}

impl RollingPlan {
    /// Plans the update of some servers of a model. As many servers as `min_running` stay usable if
    /// there are more than that; else all but one do.
    pub(super) fn new(
        board: &RoutingTable,
        model: u32,
        servers: impl IntoIterator<Item = ServerId>,
        at_once: usize,
        min_running: usize,
    ) -> Self {
        let floor = min_running.min(usable(board, model).saturating_sub(1));
        let (left, under_way) = (servers.into_iter().collect(), BTreeSet::new());
        Self { model, left, under_way, at_once: at_once.max(1), floor }
    }

    /// Says what to do next, and marks the server as draining if one is to begin.
    pub(super) fn next(&mut self, board: &mut RoutingTable) -> RollingStep {
        self.left.retain(|id| board.seat(*id).is_some());
        if self.left.is_empty() && self.under_way.is_empty() {
            return RollingStep::Done;
        }
        if self.under_way.len() >= self.at_once {
            return RollingStep::Wait;
        }
        let spare = usable(board, self.model) > self.floor;
        // Those that cannot be used first, because nobody misses them; then the least busy, which
        // are empty soonest.
        let candidates = self.left.iter().filter_map(|id| Some((*id, board.seat(*id)?)));
        let next = candidates
            .filter(|(_, seat)| seat.health == Health::Healthy && !seat.is_doubtful)
            .filter(|(_, seat)| spare || !seat.is_usable())
            .filter(|(_, seat)| matches!(seat.duty, ServerDuty::Open | ServerDuty::Broken(_)))
            .min_by_key(|(id, seat)| (seat.is_usable(), seat.in_flight, *id))
            .map(|(id, _)| id);
        let Some(id) = next else { return RollingStep::Wait };
        self.left.remove(&id);
        self.under_way.insert(id);
        if let Some(seat) = board.seat_mut(id) {
            seat.duty = ServerDuty::Draining;
        }
        RollingStep::Begin(id)
    }

    /// A server is done, however it ended.
    pub(super) fn done(&mut self, id: ServerId) {
        self.under_way.remove(&id);
    }

    /// The servers whose turn has not come.
    pub(super) fn left(&self) -> impl Iterator<Item = ServerId> {
        self.left.iter().copied()
    }

    /// Whether a server is being updated.
    pub(super) fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }
}

/// How many servers of a model take requests.
pub(super) fn usable(board: &RoutingTable, model: u32) -> usize {
    board.seats(model).filter(|(_, seat)| seat.is_usable()).count()
}
