//! What holds for the choice of servers and the plan of updates, whatever happens.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::ServerId;
use super::rolling_plan::{RollingPlan, RollingStep, usable};
use super::routing::{
    Health, RouteOutcome, RouteRequest, RoutingRules, RoutingTable, ServerDuty, WaiterId,
};

const LIMIT: u32 = 3;
const LEAD: u32 = 1;

fn board(servers: u64) -> RoutingTable {
    let rules = RoutingRules { max_in_flight: LIMIT, max_failures: 2, max_sessions: 4, lead: LEAD };
    let mut board = RoutingTable::new(rules);
    for id in 1..=servers {
        board.add(ServerId(id), "m", true).unwrap();
        board.check_passed(ServerId(id));
    }
    board
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
        1 => (server.clone(), any::<bool>()).prop_map(|(id, gone)| Event::Wrong(id, gone)),
        1 => server.clone().prop_map(Event::Well),
        2 => (server.clone(), any::<Option<bool>>()).prop_map(|(id, how)| Event::Check(id, how)),
        1 => (server, any::<bool>()).prop_map(|(id, open)| Event::Duty(id, open)),
    ]
}

/// What the shell would know.
#[derive(Default)]
struct Shell {
    held: Vec<ServerId>,
    waiting: BTreeMap<WaiterId, u64>,
    sessions: BTreeMap<u64, ServerId>,
}

impl Shell {
    /// Somebody got a place. It must be one that could be given.
    fn placed(&mut self, board: &RoutingTable, server: ServerId, session: u64) {
        let seat = board.seat(server).unwrap();
        assert!(seat.is_usable(), "{server:?} was given although it cannot be used");
        assert!(seat.in_flight <= LIMIT);
        self.held.push(server);
        self.sessions.insert(session, server);
    }

    fn serve(&mut self, board: &mut RoutingTable) {
        let mut last = None;
        for placed in board.serve() {
            assert!(last < Some(placed.ticket), "served out of order");
            last = Some(placed.ticket);
            // Nobody who came earlier is left behind: all want the same model.
            assert_eq!(self.waiting.keys().next(), Some(&placed.ticket));
            let session = self.waiting.remove(&placed.ticket).unwrap();
            self.placed(board, placed.server, session);
        }
    }

    fn apply(&mut self, board: &mut RoutingTable, event: &Event) {
        match *event {
            Event::Ask { session, avoid } => {
                let want = RouteRequest { session: Some(session), avoid: vec![ServerId(avoid)] };
                let model = board.trained().unwrap();
                match board.route(model, want) {
                    RouteOutcome::Placed(server) => {
                        assert!(self.waiting.is_empty(), "somebody waited longer");
                        self.placed(board, server, session);
                    }
                    RouteOutcome::Waits(ticket) => {
                        self.waiting.insert(ticket, session);
                    }
                }
            }
            Event::GiveBack(which) if !self.held.is_empty() => {
                board.give_back(self.held.swap_remove(which % self.held.len()));
            }
            Event::Leave(which) if !self.waiting.is_empty() => {
                let which = which % self.waiting.len();
                let ticket = *self.waiting.keys().nth(which).unwrap();
                self.waiting.remove(&ticket);
                board.leave(ticket);
            }
            Event::GiveBack(_) | Event::Leave(_) => {}
            Event::Wrong(id, gone) => {
                board.went_wrong(ServerId(id), "told to", gone);
            }
            Event::Well(id) => board.went_well(ServerId(id)),
            Event::Check(id, None) => {
                board.check_passed(ServerId(id));
            }
            Event::Check(id, Some(gone)) => {
                board.check_failed(ServerId(id), "told to", gone);
            }
            Event::Duty(id, open) => {
                let duty = if open { ServerDuty::Open } else { ServerDuty::Updating };
                board.seat_mut(ServerId(id)).unwrap().duty = duty;
            }
        }
        self.serve(board);
    }
}

fn has_room(board: &RoutingTable) -> bool {
    let model = board.trained().unwrap();
    board.seats(model).any(|(_, seat)| seat.is_usable() && seat.in_flight < LIMIT)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Nobody waits while there is room, nobody is passed over, no place is given twice or lost,
    /// and everybody who waits is served in the end.
    #[test]
    fn places_are_given_in_order_and_never_lost(events in vec(event(), 1..120)) {
        let (mut board, mut shell) = (board(3), Shell::default());
        for event in &events {
            shell.apply(&mut board, event);
            prop_assert!(shell.waiting.is_empty() || !has_room(&board));
            let model = board.trained().unwrap();
            for (id, seat) in board.seats(model) {
                let held = shell.held.iter().filter(|held| **held == id).count();
                prop_assert_eq!(seat.in_flight as usize, held);
            }
        }
        for id in 1..=3 {
            shell.apply(&mut board, &Event::Duty(id, true));
            shell.apply(&mut board, &Event::Check(id, None));
        }
        while !shell.held.is_empty() {
            shell.apply(&mut board, &Event::GiveBack(0));
        }
        prop_assert!(shell.waiting.is_empty());
    }

    /// A session stays where it is while its server can be used and is not much busier.
    #[test]
    fn sessions_stay_while_they_can(events in vec(event(), 1..120), session in 0_u64..3) {
        let (mut board, mut shell) = (board(3), Shell::default());
        for event in &events {
            shell.apply(&mut board, event);
        }
        let model = board.trained().unwrap();
        let open = |board: &RoutingTable, id| {
            let seat = board.seat(id).unwrap();
            seat.is_usable() && seat.in_flight < LIMIT
        };
        let own = board.sessions.place(model, session);
        let least = board.seats(model).filter(|(id, _)| open(&board, *id));
        let least = least.map(|(_, seat)| seat.in_flight).min();
        let want = RouteRequest { session: Some(session), avoid: Vec::new() };
        if let (Some(own), Some(least)) = (own, least)
            && open(&board, own)
        {
            let busy = board.seat(own).unwrap().in_flight;
            let RouteOutcome::Placed(server) = board.route(model, want) else {
                panic!("there was room, and nobody waited")
            };
            prop_assert_eq!(server == own, busy <= least + LEAD || busy == least);
        }
    }

    /// An update of all servers ends, touches each once, and never takes so many that fewer than
    /// wanted are left, unless there were no more to begin with.
    #[test]
    fn an_update_leaves_enough_servers(
        servers in 1_u64..7,
        min_running in 0_usize..5,
        at_once in 0_usize..4,
        broken in 0_u64..3,
        order in vec(any::<usize>(), 64),
    ) {
        let mut board = board(servers);
        for id in 1..=broken.min(servers - 1) {
            board.seat_mut(ServerId(id)).unwrap().duty = ServerDuty::Broken("told to".into());
        }
        let model = board.trained().unwrap();
        let at_first = usable(&board, model);
        let all: Vec<_> = board.seats(model).map(|(id, _)| id).collect();
        let mut roll = RollingPlan::new(&board, model, all.clone(), at_once, min_running);
        let (mut under_way, mut seen) = (Vec::new(), BTreeSet::new());
        let mut order = order.into_iter().cycle();
        loop {
            match roll.next(&mut board) {
                RollingStep::Done => break,
                RollingStep::Begin(id) => {
                    prop_assert!(seen.insert(id), "twice");
                    under_way.push(id);
                }
                RollingStep::Wait => {
                    prop_assert!(!under_way.is_empty(), "stuck with all servers well");
                    let which = order.next().unwrap_or(0) % under_way.len();
                    let id = under_way.swap_remove(which);
                    board.seat_mut(id).unwrap().duty = ServerDuty::Open;
                    roll.done(id);
                }
            }
            prop_assert!(under_way.len() <= at_once.max(1));
            if at_first > min_running {
                prop_assert!(usable(&board, model) >= min_running);
            } else {
                prop_assert!(usable(&board, model) + 1 >= at_first);
            }
        }
        prop_assert_eq!(seen.len(), all.len());
    }

    /// Servers that fall ill on the way are waited for, and nothing is taken below the floor.
    #[test]
    fn an_update_waits_for_the_ill(ill in 1_u64..4) {
        let mut board = board(3);
        let model = board.trained().unwrap();
        let all: Vec<_> = board.seats(model).map(|(id, _)| id).collect();
        let mut roll = RollingPlan::new(&board, model, all, 1, 2);
        for id in (1..=3).filter(|id| *id != ill) {
            board.seat_mut(ServerId(id)).unwrap().health = Health::Unhealthy("told to".into());
        }
        prop_assert_eq!(roll.next(&mut board), RollingStep::Wait);
        for id in 1..=3 {
            board.check_passed(ServerId(id));
        }
        prop_assert!(matches!(roll.next(&mut board), RollingStep::Begin(_)));
    }
}
