//! Properties of routing and of rolling updates, for random events.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::rolling_plan::{RollingPlan, RollingStep, usable};
use super::routing::{Health, RouteOutcome, RouteRequest, RoutingTable, ServerDuty, WaiterId};
use super::{RoutingOptions, ServerId};

const LIMIT: u32 = 3;
const LEAD: u32 = 1;

fn routing(servers: u64) -> RoutingTable {
    let mut routing = RoutingTable::new(RoutingOptions {
        max_in_flight: LIMIT,
        min_in_flight: 1,
        max_failures: 2,
        max_sessions: 4,
        lead: LEAD,
        ..RoutingOptions::default()
    });
    for id in 1..=servers {
        routing.add(ServerId(id), "m", true).unwrap();
        routing.check_passed(ServerId(id));
    }
    routing
}

#[derive(Clone, Debug)]
enum Event {
    Ask { session: u64, avoid: u64 },
    GiveBack(usize),
    Leave(usize),
    Wrong(u64, bool),
    Well(u64),
    Check(u64, Option<bool>),
    Duty(u64, bool),
}

fn event() -> impl Strategy<Value = Event> {
    let server = 1_u64..4;
    prop_oneof![
        4 => (0_u64..6, 0_u64..4).prop_map(|(session, avoid)| Event::Ask { session, avoid }),
        3 => any::<usize>().prop_map(Event::GiveBack),
        1 => any::<usize>().prop_map(Event::Leave),
        1 => (server.clone(), any::<bool>()).prop_map(|(id, is_gone)| Event::Wrong(id, is_gone)),
        1 => server.clone().prop_map(Event::Well),
        2 => (server.clone(), any::<Option<bool>>()).prop_map(|(id, end)| Event::Check(id, end)),
        1 => (server, any::<bool>()).prop_map(|(id, open)| Event::Duty(id, open)),
    ]
}

/// State of a caller of the routing table.
#[derive(Default)]
struct Shell {
    held: Vec<ServerId>,
    waiting: BTreeMap<WaiterId, u64>,
    sessions: BTreeMap<u64, ServerId>,
}

impl Shell {
    fn placed(&mut self, routing: &RoutingTable, server: ServerId, session: u64) {
        let slot = routing.slot(server).unwrap();
        assert!(slot.is_usable(), "{server:?} was given although it cannot be used");
        assert!(slot.in_flight <= LIMIT);
        self.held.push(server);
        self.sessions.insert(session, server);
    }

    fn serve(&mut self, routing: &mut RoutingTable) {
        let mut last = None;
        for placed in routing.grant_waiting() {
            assert!(last < Some(placed.waiter), "served out of order");
            last = Some(placed.waiter);
            // All want the same model: they are served in order.
            assert_eq!(self.waiting.keys().next(), Some(&placed.waiter));
            let session = self.waiting.remove(&placed.waiter).unwrap();
            self.placed(routing, placed.server, session);
        }
    }

    fn apply(&mut self, routing: &mut RoutingTable, event: &Event) {
        match *event {
            Event::Ask { session, avoid } => {
                let want = RouteRequest { session: Some(session), avoid: vec![ServerId(avoid)] };
                let model = routing.trained().unwrap();
                match routing.route(model, want) {
                    RouteOutcome::Placed(server) => {
                        assert!(self.waiting.is_empty(), "a waiter was overtaken");
                        self.placed(routing, server, session);
                    }
                    RouteOutcome::Waits(waiter) => {
                        self.waiting.insert(waiter, session);
                    }
                }
            }
            Event::GiveBack(which) if !self.held.is_empty() => {
                routing.release(self.held.swap_remove(which % self.held.len()));
            }
            Event::Leave(which) if !self.waiting.is_empty() => {
                let which = which % self.waiting.len();
                let waiter = *self.waiting.keys().nth(which).unwrap();
                self.waiting.remove(&waiter);
                routing.leave(waiter);
            }
            Event::GiveBack(_) | Event::Leave(_) => {}
            Event::Wrong(id, is_gone) => {
                routing.record_failure(ServerId(id), "told to", is_gone);
            }
            Event::Well(id) => routing.record_success(ServerId(id)),
            Event::Check(id, None) => {
                routing.check_passed(ServerId(id));
            }
            Event::Check(id, Some(is_gone)) => {
                routing.check_failed(ServerId(id), "told to", is_gone);
            }
            Event::Duty(id, open) => {
                let duty = if open { ServerDuty::Open } else { ServerDuty::Updating };
                routing.slot_mut(ServerId(id)).unwrap().duty = duty;
            }
        }
        self.serve(routing);
    }
}

fn has_room(routing: &RoutingTable) -> bool {
    let model = routing.trained().unwrap();
    routing.slots(model).any(|(_, slot)| slot.is_usable() && slot.in_flight < LIMIT)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn permits_are_granted_in_order_and_never_lost(events in vec(event(), 1..120)) {
        let (mut routing, mut shell) = (routing(3), Shell::default());
        for event in &events {
            shell.apply(&mut routing, event);
            prop_assert!(shell.waiting.is_empty() || !has_room(&routing));
            let model = routing.trained().unwrap();
            for (id, slot) in routing.slots(model) {
                let held = shell.held.iter().filter(|held| **held == id).count();
                prop_assert_eq!(slot.in_flight as usize, held);
            }
        }
        for id in 1..=3 {
            shell.apply(&mut routing, &Event::Duty(id, true));
            shell.apply(&mut routing, &Event::Check(id, None));
        }
        while !shell.held.is_empty() {
            shell.apply(&mut routing, &Event::GiveBack(0));
        }
        prop_assert!(shell.waiting.is_empty());
    }

    #[test]
    fn sessions_stay_while_they_can(events in vec(event(), 1..120), session in 0_u64..3) {
        let (mut routing, mut shell) = (routing(3), Shell::default());
        for event in &events {
            shell.apply(&mut routing, event);
        }
        let model = routing.trained().unwrap();
        let open = |routing: &RoutingTable, id| {
            let slot = routing.slot(id).unwrap();
            slot.is_usable() && slot.in_flight < LIMIT
        };
        let own = routing.sessions.server(model, session);
        let least = routing.slots(model).filter(|(id, _)| open(&routing, *id));
        let least = least.map(|(_, slot)| slot.in_flight).min();
        let want = RouteRequest { session: Some(session), avoid: Vec::new() };
        if let (Some(own), Some(least)) = (own, least)
            && open(&routing, own)
        {
            let busy = routing.slot(own).unwrap().in_flight;
            let RouteOutcome::Placed(server) = routing.route(model, want) else {
                panic!("there was room, and no waiter")
            };
            prop_assert_eq!(server == own, busy <= least + LEAD || busy == least);
        }
    }

    #[test]
    fn an_update_leaves_enough_servers(
        servers in 1_u64..7,
        min_running in 0_usize..5,
        at_once in 0_usize..4,
        broken in 0_u64..3,
        order in vec(any::<usize>(), 64),
    ) {
        let mut routing = routing(servers);
        for id in 1..=broken.min(servers - 1) {
            routing.slot_mut(ServerId(id)).unwrap().duty = ServerDuty::Broken("told to".into());
        }
        let model = routing.trained().unwrap();
        let at_first = usable(&routing, model);
        let all: Vec<_> = routing.slots(model).map(|(id, _)| id).collect();
        let mut roll = RollingPlan::new(&routing, model, all.clone(), at_once, min_running);
        let (mut in_progress, mut seen) = (Vec::new(), BTreeSet::new());
        let mut order = order.into_iter().cycle();
        loop {
            match roll.next(&mut routing) {
                RollingStep::Done => break,
                RollingStep::Begin(id) => {
                    prop_assert!(seen.insert(id), "twice");
                    in_progress.push(id);
                }
                RollingStep::Wait => {
                    prop_assert!(!in_progress.is_empty(), "stuck with all servers well");
                    let which = order.next().unwrap_or(0) % in_progress.len();
                    let id = in_progress.swap_remove(which);
                    routing.slot_mut(id).unwrap().duty = ServerDuty::Open;
                    roll.done(id);
                }
            }
            prop_assert!(in_progress.len() <= at_once.max(1));
            if at_first > min_running {
                prop_assert!(usable(&routing, model) >= min_running);
            } else {
                prop_assert!(usable(&routing, model) + 1 >= at_first);
            }
        }
        prop_assert_eq!(seen.len(), all.len());
    }

    #[test]
    fn an_update_waits_for_unhealthy_servers(healthy in 1_u64..4) {
        let mut routing = routing(3);
        let model = routing.trained().unwrap();
        let all: Vec<_> = routing.slots(model).map(|(id, _)| id).collect();
        let mut roll = RollingPlan::new(&routing, model, all, 1, 2);
        for id in (1..=3).filter(|id| *id != healthy) {
            routing.slot_mut(ServerId(id)).unwrap().health = Health::Unhealthy("told to".into());
        }
        prop_assert_eq!(roll.next(&mut routing), RollingStep::Wait);
        for id in 1..=3 {
            routing.check_passed(ServerId(id));
        }
        prop_assert!(matches!(roll.next(&mut routing), RollingStep::Begin(_)));
    }
}
