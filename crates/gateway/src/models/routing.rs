//! Routing rules and server states, without I/O and clock.
//!
//! Among the healthy servers of a model that are not being updated and have room:
//! 1. Servers that have failed the call are avoided while there is another.
//! 2. A session stays at its last server, for the prefix cache, unless that is much busier than the
//!    least busy one (`lead`).
//! 3. Otherwise the least busy server is chosen; among equals, the least recently chosen one.
//!    Servers that report a queue or a full KV cache come last.
//!
//! The load of a server is the one that it reports, which includes the requests of others, or the
//! number of requests in flight. Calls without a server wait in order of arrival, per model.

use std::collections::{BTreeMap, HashSet};

use rollway_model_api::server_api::ServerLoad;

use super::ServerId;
use super::concurrency::{ConcurrencyLimit, LimitBounds, LimitChange, queue_target};
use super::options::RoutingOptions;
use crate::lru::LruMap;

/// Cache usage from which a server is congested.
const CONGESTED_CACHE: f64 = 0.95;

/// Later waiters have larger ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct WaiterId(pub(super) u64);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RouteRequest {
    pub(super) session: Option<u64>,
    pub(super) avoid: Vec<ServerId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// Not checked successfully yet, with the reason of the last failure.
    Unknown(Option<String>),
    Healthy,
    Unhealthy(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerDuty {
    Open,
    /// About to be updated; finishes its requests.
    Draining,
    Updating,
    /// About to be removed; finishes its requests.
    Leaving,
    /// The version of its weights is unknown.
    Broken(String),
}

#[derive(Clone, Debug)]
pub(super) struct ServerSlot {
    pub(super) model: u32,
    pub(super) health: Health,
    pub(super) duty: ServerDuty,
    /// The last check found no listener: a returning server is another process.
    pub(super) was_gone: bool,
    /// A request could not reach it, and it was not checked since.
    pub(super) is_unconfirmed: bool,
    /// It returned with older weights than the latest update, and is not used before it has them.
    pub(super) is_behind: bool,
    pub(super) in_flight: u32,
    /// Consecutive failed requests.
    pub(super) failures: u32,
    /// Consecutive failed checks.
    pub(super) failed_checks: u32,
    /// Version of new tokens. `None`: unknown.
    pub(super) version: Option<u64>,
    /// Version of the weights: the reported one, or that of the last load. `None`: unknown.
    pub(super) loaded: Option<u64>,
    /// Last reported load, and the number of requests in flight at that time.
    pub(super) load: Option<ServerLoad>,
    in_flight_at_load: u32,
    pub(super) concurrency: ConcurrencyLimit,
    /// Sequence number of its last choice.
    chosen: u64,
    pub(super) counts: ServerCounts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    pub requests: u64,
    pub succeeded_requests: u64,
    pub failed_requests: u64,
    pub failed_checks: u64,
    /// Sessions that left this server for load.
    pub moved_away: u64,
    /// Number of times it became unhealthy.
    pub lost: u64,
    pub updates: u64,
    pub failed_updates: u64,
    /// Restart commands that succeeded.
    pub restarts: u64,
    pub failed_restarts: u64,
    /// Reports of the load that raised and lowered the limit of requests in flight.
    pub limit_raises: u64,
    pub limit_reductions: u64,
}

impl ServerSlot {
    fn new(model: u32, options: &RoutingOptions) -> Self {
        let bounds = LimitBounds { min: options.min_in_flight, max: options.max_in_flight };
        Self {
            model,
            health: Health::Unknown(None),
            duty: ServerDuty::Open,
            was_gone: false,
            is_unconfirmed: false,
            is_behind: false,
            in_flight: 0,
            failures: 0,
            failed_checks: 0,
            version: Some(0),
            loaded: Some(0),
            load: None,
            in_flight_at_load: 0,
            concurrency: ConcurrencyLimit::new(bounds),
            chosen: 0,
            counts: ServerCounts::default(),
        }
    }

    /// Returns whether it takes requests, apart from its limit.
    pub(super) fn is_usable(&self) -> bool {
        self.health == Health::Healthy
            && self.duty == ServerDuty::Open
            && !self.is_unconfirmed
            && !self.is_behind
    }

    /// Returns whether it can take a request now.
    fn has_room(&self) -> bool {
        self.is_usable() && self.in_flight < self.concurrency.get()
    }

    /// Returns whether it is usable and full only because its limit follows its load.
    pub(super) fn is_held(&self) -> bool {
        self.is_usable() && !self.has_room() && self.concurrency.is_adapted()
    }

    /// Returns the number of requests that it has to do, including those of others if it reports
    /// its load.
    fn busyness(&self) -> u64 {
        let Some(load) = self.load else { return self.in_flight.into() };
        let (now, then) = (u64::from(self.in_flight), u64::from(self.in_flight_at_load));
        (load.running + load.waiting + now).saturating_sub(then)
    }

    /// Returns whether further requests would wait at the server, or displace others.
    fn is_congested(&self) -> bool {
        self.load.is_some_and(|load| {
            let is_full = load.cache_usage.is_some_and(|usage| usage >= CONGESTED_CACHE);
            is_full || load.waiting > queue_target(load.running)
        })
    }

    /// Returns whether an update is in progress, or about to begin.
    pub(super) fn is_updating(&self) -> bool {
        match self.duty {
            ServerDuty::Draining | ServerDuty::Updating => true,
            ServerDuty::Open => self.is_behind && self.health == Health::Healthy,
            ServerDuty::Leaving | ServerDuty::Broken(_) => false,
        }
    }
}

#[derive(Clone, Debug)]
struct RoutedModel {
    name: String,
    trained: bool,
    waiting: BTreeMap<WaiterId, RouteRequest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteOutcome {
    Placed(ServerId),
    Waits(WaiterId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RouteGrant {
    pub(super) waiter: WaiterId,
    pub(super) server: ServerId,
}

#[derive(Debug)]
pub(super) struct RoutingTable {
    options: RoutingOptions,
    models: BTreeMap<u32, RoutedModel>,
    slots: BTreeMap<ServerId, ServerSlot>,
    pub(super) sessions: StickySessions,
    next_model: u32,
    next_ticket: u64,
    next_choice: u64,
}

impl RoutingTable {
    pub(super) fn new(options: RoutingOptions) -> Self {
        Self {
            models: BTreeMap::new(),
            slots: BTreeMap::new(),
            sessions: StickySessions::new(options.max_sessions),
            options,
            next_model: 0,
            next_ticket: 0,
            next_choice: 0,
        }
    }

    pub(super) fn add(&mut self, id: ServerId, name: &str, trained: bool) -> Result<(), String> {
        let known = self.models.iter().find(|(_, model)| model.name == name);
        let number = match known {
            Some((_, model)) if model.trained != trained => {
                let (is, wanted) = if trained { ("not ", "") } else { ("", "not ") };
                return Err(format!(
                    "the other servers of model {name:?} are configured as {is}the trained model, \
                     this one as {wanted}: all servers of one name must agree"
                ));
            }
            Some((number, _)) => *number,
            None => {
                let other = self.models.values().find(|model| model.trained && trained);
                if let Some(other) = other {
                    return Err(format!(
                        "model {:?} is already the trained model, and there can be only one: add \
                         {name:?} as an auxiliary model",
                        other.name
                    ));
                }
                self.next_model += 1;
                let model =
                    RoutedModel { name: name.to_owned(), trained, waiting: BTreeMap::new() };
                self.models.insert(self.next_model, model);
                self.next_model
            }
        };
        self.slots.insert(id, ServerSlot::new(number, &self.options));
        Ok(())
    }

    /// Removes a server, and its model with the last server unless calls wait.
    pub(super) fn remove(&mut self, id: ServerId) {
        self.slots.remove(&id);
        self.forget_models();
    }

    fn forget_models(&mut self) {
        let used: HashSet<u32> = self.slots.values().map(|slot| slot.model).collect();
        self.models.retain(|number, model| used.contains(number) || !model.waiting.is_empty());
    }

    /// Returns the number of a model by name. `None`: the trained model.
    pub(super) fn model(&self, name: Option<&str>) -> Option<u32> {
        let is_it = |model: &RoutedModel| name.map_or(model.trained, |name| model.name == name);
        self.models.iter().find(|(_, model)| is_it(model)).map(|(number, _)| *number)
    }

    pub(super) fn trained(&self) -> Option<u32> {
        self.model(None)
    }

    /// Returns number, name, whether it is trained, and number of waiting calls of each model.
    pub(super) fn models(&self) -> impl Iterator<Item = (u32, &str, bool, usize)> {
        self.models.iter().map(|(number, model)| {
            (*number, model.name.as_str(), model.trained, model.waiting.len())
        })
    }

    pub(super) fn slot(&self, id: ServerId) -> Option<&ServerSlot> {
        self.slots.get(&id)
    }

    pub(super) fn slot_mut(&mut self, id: ServerId) -> Option<&mut ServerSlot> {
        self.slots.get_mut(&id)
    }

    pub(super) fn slots(&self, model: u32) -> impl Iterator<Item = (ServerId, &ServerSlot)> {
        self.slots.iter().filter(move |(_, slot)| slot.model == model).map(|(id, slot)| (*id, slot))
    }

    pub(super) fn route(&mut self, model: u32, want: RouteRequest) -> RouteOutcome {
        let is_queue_empty = self.models.get(&model).is_none_or(|model| model.waiting.is_empty());
        if is_queue_empty && let Some(server) = self.choose(model, &want) {
            return RouteOutcome::Placed(self.assign(server, model, &want));
        }
        self.next_ticket += 1;
        let waiter = WaiterId(self.next_ticket);
        if let Some(model) = self.models.get_mut(&model) {
            model.waiting.insert(waiter, want);
        }
        RouteOutcome::Waits(waiter)
    }

    pub(super) fn leave(&mut self, waiter: WaiterId) {
        for model in self.models.values_mut() {
            model.waiting.remove(&waiter);
        }
        self.forget_models();
    }

    /// Grants permits to waiting calls in order, while there are any.
    pub(super) fn grant_waiting(&mut self) -> Vec<RouteGrant> {
        let mut placed = Vec::new();
        let waited_for: Vec<u32> = self
            .models
            .iter()
            .filter(|(_, model)| !model.waiting.is_empty())
            .map(|(number, _)| *number)
            .collect();
        for number in waited_for {
            while let Some(model) = self.models.get(&number)
                && let Some((waiter, want)) = model.waiting.first_key_value()
                && let Some(server) = self.choose(number, want)
            {
                let waiter = *waiter;
                let Some(model) = self.models.get_mut(&number) else { break };
                let Some(want) = model.waiting.remove(&waiter) else { break };
                placed.push(RouteGrant { waiter, server: self.assign(server, number, &want) });
            }
        }
        placed
    }

    pub(super) fn release(&mut self, id: ServerId) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.in_flight = slot.in_flight.saturating_sub(1);
        }
    }

    pub(super) fn record_success(&mut self, id: ServerId) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.counts.succeeded_requests += 1;
            slot.failures = 0;
            // A server that answers requests is healthy, even if it is too busy for checks.
            slot.failed_checks = 0;
        }
    }

    /// Records a failed request. Returns whether the server became unhealthy.
    pub(super) fn record_failure(
        &mut self,
        id: ServerId,
        reason: &str,
        is_unreached: bool,
    ) -> bool {
        let limit = self.options.max_failures;
        let Some(slot) = self.slots.get_mut(&id) else { return false };
        slot.counts.failed_requests += 1;
        if is_unreached {
            slot.is_unconfirmed = true;
        }
        slot.failures = slot.failures.saturating_add(1);
        slot.failures >= limit.max(1) && mark_unhealthy(slot, reason)
    }

    /// Records a passed check. Returns whether the server became healthy.
    pub(super) fn check_passed(&mut self, id: ServerId) -> bool {
        let Some(slot) = self.slots.get_mut(&id) else { return false };
        let was_well = slot.health == Health::Healthy && !slot.is_unconfirmed;
        // After failed requests it is on probation: the next failure makes it unhealthy again.
        slot.failures = slot.failures.min(self.options.max_failures.saturating_sub(1));
        slot.failed_checks = 0;
        slot.health = Health::Healthy;
        slot.is_unconfirmed = false;
        slot.was_gone = false;
        !was_well
    }

    /// Sets the load that a server reported; `None`: it reports none. If it is not steady, a weight
    /// update has changed it.
    pub(super) fn set_load(&mut self, id: ServerId, load: Option<ServerLoad>, is_steady: bool) {
        let is_adaptive = self.options.is_adaptive;
        let Some(slot) = self.slots.get_mut(&id) else { return };
        slot.load = load;
        slot.in_flight_at_load = slot.in_flight;
        let Some(load) = load else { return slot.concurrency.reset() };
        if !is_steady || !slot.is_usable() {
            return slot.concurrency.skip_preemptions();
        }
        if !is_adaptive {
            return;
        }
        match slot.concurrency.adapt(slot.in_flight, &load) {
            LimitChange::Raised => slot.counts.limit_raises += 1,
            LimitChange::Lowered => slot.counts.limit_reductions += 1,
            LimitChange::Unchanged => {}
        }
    }

    /// Sets the version that a server reported; `None`: not a version. Returns whether a healthy
    /// server had another one: its weights were changed from outside.
    pub(super) fn set_version(&mut self, id: ServerId, version: Option<u64>) -> bool {
        let Some(slot) = self.slots.get_mut(&id) else { return false };
        if !reopen(slot) {
            return false;
        }
        let before = std::mem::replace(&mut slot.version, version);
        slot.loaded = version;
        before != version && slot.health == Health::Healthy
    }

    /// Sets the version of a server that does not report it, after its start: that of its first
    /// weights. If these can be replaced from outside, the version of tokens is unknown.
    pub(super) fn set_unreported(&mut self, id: ServerId, can_load: bool) {
        if let Some(slot) = self.slots.get_mut(&id)
            && reopen(slot)
        {
            slot.version = if can_load { None } else { Some(0) };
            slot.loaded = Some(0);
        }
    }

    /// Records a pause outside of updates. Returns whether the server became unhealthy.
    pub(super) fn found_paused(&mut self, id: ServerId, reason: &str) -> bool {
        let Some(slot) = self.slots.get_mut(&id) else { return false };
        slot.counts.failed_checks += 1;
        mark_unhealthy(slot, reason)
    }

    /// Records the end of a restart command. After a success the server is another process.
    pub(super) fn restarted(&mut self, id: ServerId, is_restarted: bool) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        slot.counts.restarts += u64::from(is_restarted);
        slot.counts.failed_restarts += u64::from(!is_restarted);
        slot.was_gone |= is_restarted;
        slot.is_unconfirmed |= is_restarted;
    }

    /// Records a failed check; `is_gone`: connection refused. Returns whether the server became
    /// unhealthy.
    pub(super) fn check_failed(&mut self, id: ServerId, reason: &str, is_gone: bool) -> bool {
        let limit = self.options.max_failures;
        let Some(slot) = self.slots.get_mut(&id) else { return false };
        slot.counts.failed_checks += 1;
        slot.was_gone |= is_gone;
        if let Health::Unknown(known) = &mut slot.health {
            *known = Some(reason.to_owned());
            return false;
        }
        // A server may not respond while it loads weights; the update has its own deadline.
        if slot.duty == ServerDuty::Updating {
            return false;
        }
        slot.failed_checks = slot.failed_checks.saturating_add(1);
        (is_gone || slot.failed_checks >= limit.max(1)) && mark_unhealthy(slot, reason)
    }

    fn choose(&self, model: u32, want: &RouteRequest) -> Option<ServerId> {
        let open = |(_, slot): &(ServerId, &ServerSlot)| slot.has_room();
        let fresh = |(id, _): &(ServerId, &ServerSlot)| !want.avoid.contains(id);
        let key = |(_, slot): &(ServerId, &ServerSlot)| {
            (slot.is_congested(), slot.busyness(), slot.chosen)
        };
        let least = (self.slots(model).filter(open).filter(fresh).min_by_key(key))
            .or_else(|| self.slots(model).filter(open).min_by_key(key))?;
        let own = want.session.and_then(|session| self.sessions.server(model, session));
        if let Some(own) = own
            && let Some(slot) = self.slots.get(&own)
            && open(&(own, slot))
            && (fresh(&(own, slot)) || own == least.0)
            && slot.busyness() <= self.tolerated(least.1.busyness())
        {
            return Some(own);
        }
        Some(least.0)
    }

    /// Maximum load of a session's own server, given the least load.
    fn tolerated(&self, least: u64) -> u64 {
        least + least / 4 + u64::from(self.options.lead)
    }

    fn assign(&mut self, server: ServerId, model: u32, want: &RouteRequest) -> ServerId {
        self.next_choice += 1;
        if let Some(session) = want.session {
            let before = self.sessions.server(model, session);
            if let Some(before) = before
                && before != server
                && let Some(slot) = self.slots.get_mut(&before)
            {
                slot.counts.moved_away += 1;
            }
            self.sessions.set(model, session, server);
        }
        if let Some(slot) = self.slots.get_mut(&server) {
            slot.in_flight += 1;
            slot.chosen = self.next_choice;
            slot.counts.requests += 1;
        }
        server
    }
}

/// Returns whether a report of the server's version counts. A server is no longer broken if the
/// process with the broken weights is gone.
fn reopen(slot: &mut ServerSlot) -> bool {
    if matches!(slot.duty, ServerDuty::Broken(_)) && slot.was_gone {
        slot.duty = ServerDuty::Open;
    }
    slot.duty == ServerDuty::Open
}

/// Returns whether it was healthy before.
fn mark_unhealthy(slot: &mut ServerSlot, reason: &str) -> bool {
    let was_well = slot.health == Health::Healthy;
    slot.health = Health::Unhealthy(reason.to_owned());
    slot.counts.lost += u64::from(was_well);
    was_well
}

/// Servers by model and session: a session may call several models.
#[derive(Debug)]
pub(super) struct StickySessions {
    limit: usize,
    servers: LruMap<(u32, u64), ServerId>,
}

impl StickySessions {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, servers: LruMap::default() }
    }

    pub(super) fn server(&self, model: u32, session: u64) -> Option<ServerId> {
        self.servers.peek(&(model, session)).copied()
    }

    pub(super) fn set(&mut self, model: u32, session: u64, server: ServerId) {
        if self.limit == 0 {
            return;
        }
        *self.servers.get_or_insert_with((model, session), || server) = server;
        if self.servers.len() > self.limit {
            self.servers.pop_oldest();
        }
    }
}
