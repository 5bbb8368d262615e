//! Who may use which server: the state and the rules, without I/O and without a clock.
//!
//! The rules of the choice, among the servers of a model that are well, not being updated, and have
//! room:
//! 1. Servers that have failed the call already are left out while there is another.
//! 2. A session goes to the server where it was last, for its prefix cache, unless that server has
//!    more than `lead` requests plus a quarter more under way than the least busy one.
//! 3. Otherwise the least busy server is taken; among equals, the one that was taken longest ago.
//!
//! Whoever finds none waits, and is served in the order of arrival, per model.

use std::collections::{BTreeMap, HashSet};

use super::ServerId;
use super::sessions::StickySessions;

/// What the rules need to know of the options.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoutingRules {
    pub(super) max_in_flight: u32,
    pub(super) max_failures: u32,
    pub(super) max_sessions: usize,
    pub(super) lead: u32,
}

/// Names whoever waits; later ones are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct WaiterId(pub(super) u64);

/// What a call wants, once its model is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RouteRequest {
    pub(super) session: Option<u64>,
    pub(super) avoid: Vec<ServerId>,
}

/// Whether a server is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// It has not been heard of yet; why it does not answer, if it was asked.
    Unknown(Option<String>),
    Healthy,
    Unhealthy(String),
}

/// What a server is there for at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerDuty {
    /// Requests.
    Open,
    /// It is about to be updated, and finishes what it has.
    Draining,
    /// Its weights are being replaced.
    Updating,
    /// It is about to be removed, and finishes what it has.
    Leaving,
    /// Nobody knows which weights it has.
    Broken(String),
}

/// A server, as far as choosing is concerned.
#[derive(Clone, Debug)]
pub(super) struct ServerSlot {
    pub(super) model: u32,
    pub(super) health: Health,
    pub(super) duty: ServerDuty,
    /// Nobody listened there when it was last asked: what comes back is another process.
    pub(super) was_gone: bool,
    /// A request could not reach it, and it has not been asked since.
    pub(super) is_doubtful: bool,
    pub(super) in_flight: u32,
    /// Requests in a row that went wrong.
    pub(super) failures: u32,
    /// Checks in a row that went wrong.
    pub(super) failed_checks: u32,
    /// The version of its weights; none if nobody knows.
    pub(super) version: Option<u64>,
    /// When it was last chosen.
    chosen: u64,
    pub(super) counts: ServerCounts,
}

/// What happened at a server, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Requests that were sent to it.
    pub requests: u64,
    /// Requests that went well.
    pub went_well: u64,
    /// Requests that it failed.
    pub went_wrong: u64,
    pub failed_checks: u64,
    /// Sessions that were sent elsewhere although this was their server.
    pub moved_away: u64,
    /// How often it became unusable.
    pub lost: u64,
    /// Updates of its weights.
    pub updates: u64,
    /// Updates of its weights that failed.
    pub failed_updates: u64,
}

impl ServerSlot {
    fn new(model: u32) -> Self {
        Self {
            model,
            health: Health::Unknown(None),
            duty: ServerDuty::Open,
            was_gone: false,
            is_doubtful: false,
            in_flight: 0,
            failures: 0,
            failed_checks: 0,
            version: Some(0),
            chosen: 0,
            counts: ServerCounts::default(),
        }
    }

    /// Whether it takes requests, if it has room.
    pub(super) fn is_usable(&self) -> bool {
        self.health == Health::Healthy && self.duty == ServerDuty::Open && !self.is_doubtful
    }
}

#[derive(Clone, Debug)]
struct RoutedModel {
    name: String,
    trained: bool,
    waiting: BTreeMap<WaiterId, RouteRequest>,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteOutcome {
    /// It has a place at this server.
    Placed(ServerId),
    Waits(WaiterId),
}

/// Somebody who waited has a place now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RouteGrant {
    pub(super) ticket: WaiterId,
    pub(super) server: ServerId,
}

/// All servers and everybody who waits for one.
#[derive(Debug)]
pub(super) struct RoutingTable {
    rules: RoutingRules,
    models: BTreeMap<u32, RoutedModel>,
    seats: BTreeMap<ServerId, ServerSlot>,
    pub(super) sessions: StickySessions,
    next_model: u32,
    next_ticket: u64,
    next_choice: u64,
}

impl RoutingTable {
    pub(super) fn new(rules: RoutingRules) -> Self {
        Self {
            rules,
            models: BTreeMap::new(),
            seats: BTreeMap::new(),
            sessions: StickySessions::new(rules.max_sessions),
            next_model: 0,
            next_ticket: 0,
            next_choice: 0,
        }
    }

    /// Adds a server, or says in words why it cannot be.
    pub(super) fn add(&mut self, id: ServerId, name: &str, trained: bool) -> Result<(), String> {
        let known = self.models.iter().find(|(_, model)| model.name == name);
        let number = match known {
            Some((_, model)) if model.trained != trained => {
                let (is, wanted) = if trained { ("not ", "") } else { ("", "not ") };
                return Err(format!(
                    "other servers of model {name:?} say that it is {is}the trained model, this \
                     one that it is {wanted}: all servers of a name are the same model"
                ));
            }
            Some((number, _)) => *number,
            None => {
                let other = self.models.values().find(|model| model.trained && trained);
                if let Some(other) = other {
                    return Err(format!(
                        "model {:?} is the trained model already: there can be one, and {name:?} \
                         must be added as another model",
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
        self.seats.insert(id, ServerSlot::new(number));
        Ok(())
    }

    /// Forgets a server. Its model is forgotten with the last of its servers unless somebody waits.
    pub(super) fn remove(&mut self, id: ServerId) {
        self.seats.remove(&id);
        self.forget_models();
    }

    fn forget_models(&mut self) {
        let used: HashSet<u32> = self.seats.values().map(|seat| seat.model).collect();
        self.models.retain(|number, model| used.contains(number) || !model.waiting.is_empty());
    }

    /// Returns the number of the named model, or of the one that is trained.
    pub(super) fn model(&self, name: Option<&str>) -> Option<u32> {
        let is_it = |model: &RoutedModel| name.map_or(model.trained, |name| model.name == name);
        self.models.iter().find(|(_, model)| is_it(model)).map(|(number, _)| *number)
    }

    /// Returns the number of the trained model.
    pub(super) fn trained(&self) -> Option<u32> {
        self.model(None)
    }

    /// Returns the models: number, name, whether it is trained, and how many wait for it.
    pub(super) fn models(&self) -> impl Iterator<Item = (u32, &str, bool, usize)> {
        self.models.iter().map(|(number, model)| {
            (*number, model.name.as_str(), model.trained, model.waiting.len())
        })
    }

    pub(super) fn seat(&self, id: ServerId) -> Option<&ServerSlot> {
        self.seats.get(&id)
    }

    pub(super) fn seat_mut(&mut self, id: ServerId) -> Option<&mut ServerSlot> {
        self.seats.get_mut(&id)
    }

    /// Returns the servers of a model.
    pub(super) fn seats(&self, model: u32) -> impl Iterator<Item = (ServerId, &ServerSlot)> {
        self.seats.iter().filter(move |(_, seat)| seat.model == model).map(|(id, seat)| (*id, seat))
    }

    /// A call wants a place.
    pub(super) fn route(&mut self, model: u32, want: RouteRequest) -> RouteOutcome {
        let nobody_waits = self.models.get(&model).is_none_or(|model| model.waiting.is_empty());
        if nobody_waits && let Some(server) = self.choose(model, &want) {
            return RouteOutcome::Placed(self.seat_down(server, model, &want));
        }
        self.next_ticket += 1;
        let ticket = WaiterId(self.next_ticket);
        if let Some(model) = self.models.get_mut(&model) {
            model.waiting.insert(ticket, want);
        }
        RouteOutcome::Waits(ticket)
    }

    /// Whoever held this ticket waits no more.
    pub(super) fn leave(&mut self, ticket: WaiterId) {
        for model in self.models.values_mut() {
            model.waiting.remove(&ticket);
        }
        self.forget_models();
    }

    /// Gives places to those who wait, in order, as long as there are any.
    pub(super) fn serve(&mut self) -> Vec<RouteGrant> {
        let mut placed = Vec::new();
        let waited_for: Vec<u32> = self
            .models
            .iter()
            .filter(|(_, model)| !model.waiting.is_empty())
            .map(|(number, _)| *number)
            .collect();
        for number in waited_for {
            while let Some(model) = self.models.get(&number)
                && let Some((ticket, want)) = model.waiting.first_key_value()
                && let Some(server) = self.choose(number, want)
            {
                let ticket = *ticket;
                let Some(model) = self.models.get_mut(&number) else { break };
                let Some(want) = model.waiting.remove(&ticket) else { break };
                placed.push(RouteGrant { ticket, server: self.seat_down(server, number, &want) });
            }
        }
        placed
    }

    /// A place is given back.
    pub(super) fn give_back(&mut self, id: ServerId) {
        if let Some(seat) = self.seats.get_mut(&id) {
            seat.in_flight = seat.in_flight.saturating_sub(1);
        }
    }

    /// A request went well.
    pub(super) fn went_well(&mut self, id: ServerId) {
        if let Some(seat) = self.seats.get_mut(&id) {
            seat.counts.went_well += 1;
            seat.failures = 0;
            // A server that is too busy to say that it is well, but answers, is well.
            seat.failed_checks = 0;
        }
    }

    /// A request went wrong. Returns whether the server became unusable by it.
    pub(super) fn went_wrong(&mut self, id: ServerId, why: &str, is_unreached: bool) -> bool {
        let limit = self.rules.max_failures;
        let Some(seat) = self.seats.get_mut(&id) else { return false };
        seat.counts.went_wrong += 1;
        if is_unreached {
            seat.is_doubtful = true;
        }
        seat.failures = seat.failures.saturating_add(1);
        seat.failures >= limit.max(1) && fell_ill(seat, why)
    }

    /// A check went well. Returns whether the server became usable, or at least well, by it.
    pub(super) fn check_passed(&mut self, id: ServerId) -> bool {
        let Some(seat) = self.seats.get_mut(&id) else { return false };
        let was_well = seat.health == Health::Healthy && !seat.is_doubtful;
        // One that failed requests although it says that it is well is on probation: the next
        // failure makes it unusable again.
        seat.failures = seat.failures.min(self.rules.max_failures.saturating_sub(1));
        seat.failed_checks = 0;
        seat.health = Health::Healthy;
        seat.is_doubtful = false;
        seat.was_gone = false;
        !was_well
    }

    /// A server that was not known to be well has said which weights it has.
    pub(super) fn told_version(&mut self, id: ServerId, version: u64) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        match seat.duty {
            ServerDuty::Open => seat.version = Some(version),
            // Whatever was wrong with its weights, the process that had them is gone.
            ServerDuty::Broken(_) if seat.was_gone => {
                seat.version = Some(version);
                seat.duty = ServerDuty::Open;
            }
            ServerDuty::Broken(_)
            | ServerDuty::Draining
            | ServerDuty::Updating
            | ServerDuty::Leaving => {}
        }
    }

    /// A check went wrong; `is_gone` if nobody listens there at all. Returns whether the server
    /// became unusable by it.
    pub(super) fn check_failed(&mut self, id: ServerId, why: &str, is_gone: bool) -> bool {
        let limit = self.rules.max_failures;
        let Some(seat) = self.seats.get_mut(&id) else { return false };
        seat.counts.failed_checks += 1;
        seat.was_gone |= is_gone;
        if let Health::Unknown(reason) = &mut seat.health {
            *reason = Some(why.to_owned());
            return false;
        }
        // A server that loads weights may be silent for long; the update has its own deadline.
        if seat.duty == ServerDuty::Updating {
            return false;
        }
        seat.failed_checks = seat.failed_checks.saturating_add(1);
        (is_gone || seat.failed_checks >= limit.max(1)) && fell_ill(seat, why)
    }

    fn choose(&self, model: u32, want: &RouteRequest) -> Option<ServerId> {
        let limit = self.rules.max_in_flight;
        let open = |(_, seat): &(ServerId, &ServerSlot)| seat.is_usable() && seat.in_flight < limit;
        let fresh = |(id, _): &(ServerId, &ServerSlot)| !want.avoid.contains(id);
        let key = |(_, seat): &(ServerId, &ServerSlot)| (seat.in_flight, seat.chosen);
        let least = (self.seats(model).filter(open).filter(fresh).min_by_key(key))
            .or_else(|| self.seats(model).filter(open).min_by_key(key))?;
        let own = want.session.and_then(|session| self.sessions.place(model, session));
        if let Some(own) = own
            && let Some(seat) = self.seats.get(&own)
            && open(&(own, seat))
            && (fresh(&(own, seat)) || own == least.0)
            && u64::from(seat.in_flight) <= self.tolerated(least.1.in_flight)
        {
            return Some(own);
        }
        Some(least.0)
    }

    /// How busy a session's own server may be, given how busy the least busy one is.
    fn tolerated(&self, least: u32) -> u64 {
        u64::from(least) + u64::from(least / 4) + u64::from(self.rules.lead)
    }

    fn seat_down(&mut self, server: ServerId, model: u32, want: &RouteRequest) -> ServerId {
        self.next_choice += 1;
        if let Some(session) = want.session {
            let before = self.sessions.place(model, session);
            if let Some(before) = before
                && before != server
                && let Some(seat) = self.seats.get_mut(&before)
            {
                seat.counts.moved_away += 1;
            }
            self.sessions.put(model, session, server);
        }
        if let Some(seat) = self.seats.get_mut(&server) {
            seat.in_flight += 1;
            seat.chosen = self.next_choice;
            seat.counts.requests += 1;
        }
        server
    }
}

/// Returns whether it was well before.
fn fell_ill(seat: &mut ServerSlot, why: &str) -> bool {
    let was_well = seat.health == Health::Healthy;
    seat.health = Health::Unhealthy(why.to_owned());
    seat.counts.lost += u64::from(was_well);
    was_well
}
