//! Decisions of the synchronizer, by example and for random inputs.

use proptest::prelude::*;

use super::*;

const MEMBER_TIMEOUT: Duration = Duration::from_secs(10);
const FIRST: u64 = 1000;

fn at(seconds: u64) -> Time {
    Time::from_millis(1000 * seconds)
}

fn board() -> SyncCore {
    SyncCore::new(MEMBER_TIMEOUT, FIRST)
}

fn want(have: u64, at_least: u64) -> WeightWait {
    let timeout = Duration::from_secs(60);
    WeightWait {
        explorer: "explorer".to_owned(),
        have,
        at_least,
        demand: false,
        timeout,
        waited: Duration::ZERO,
    }
}

fn trainer(board: &mut SyncCore, now: Time) -> MemberId {
    board.join(now, MemberRole::Trainer, "trainer").unwrap().seat
}

fn outcome(board: &mut SyncCore) -> Option<WaitOutcome> {
    let mut outcomes = board.outcomes();
    assert!(outcomes.len() <= 1, "{outcomes:?}");
    outcomes.pop().map(|(_, outcome)| outcome)
}

#[test]
fn a_wait_ends_with_weights_that_are_new_enough() {
    let mut board = board();
    let seat = trainer(&mut board, at(0));
    board.wait(at(0), want(0, 2));
    assert_eq!(board.published(1), Ok(true));
    assert_eq!(outcome(&mut board), None, "the trainer can still get to 2");
    assert!(board.set_trainer_state(at(1), seat, TrainerPresence::Training));
    assert_eq!(board.published(3), Ok(true));
    assert_eq!(outcome(&mut board), Some(WaitOutcome::New(3)));
    board.wait(at(2), want(0, 1));
    assert_eq!(outcome(&mut board), Some(WaitOutcome::New(3)), "they are there already");
    assert_eq!(board.published(3), Ok(false));
    assert_eq!(board.published(2), Err(JoinRefusal::Older { version: 2, newest: 3 }));
    assert_eq!(board.newest(), Some(3));
}

#[test]
fn only_a_look_after_the_wait_reports_nothing_new() {
    let mut board = board();
    let seat = trainer(&mut board, at(0));
    let known = board.wait_summary().ask;
    // The trainer looks for experiences; meanwhile an explorer delivers some and waits.
    let ask = board.wait(at(1), want(0, 1));
    board.set_trainer_state(at(2), seat, TrainerPresence::Idle { seen: known });
    assert_eq!(outcome(&mut board), None, "it may not have seen them");
    board.set_trainer_state(at(3), seat, TrainerPresence::Idle { seen: WaitId(ask.0 + 1) });
    assert_eq!(outcome(&mut board), None, "a number of another synchronizer");
    board.set_trainer_state(at(4), seat, TrainerPresence::Idle { seen: board.wait_summary().ask });
    assert_eq!(outcome(&mut board), Some(WaitOutcome::NothingNew));
    // A newer version ends the wait, although it is below the minimum.
    board.published(4).unwrap();
    board.wait(at(5), want(2, 6));
    board.set_trainer_state(at(5), seat, TrainerPresence::Idle { seen: board.wait_summary().ask });
    assert_eq!(outcome(&mut board), Some(WaitOutcome::New(4)));
    // A wait for the last weights lasts until the trainer's end.
    board.wait(at(6), want(4, WeightWait::LAST));
    board.set_trainer_state(at(6), seat, TrainerPresence::Idle { seen: board.wait_summary().ask });
    assert_eq!(outcome(&mut board), None);
    board.published(5).unwrap();
    board.set_trainer_state(at(7), seat, TrainerPresence::Done);
    assert_eq!(outcome(&mut board), Some(WaitOutcome::TrainerDone(Some(5))));
}

#[test]
fn explorers_learn_what_others_have_submitted() {
    let mut board = board();
    assert_eq!(board.submitted("one", 8), 0);
    assert_eq!(board.submitted("two", 5), 8);
    assert_eq!(board.submitted("one", 16), 5, "the new total replaces the old one");
    assert_eq!((board.elsewhere("two"), board.elsewhere("three")), (16, 21));
}

#[test]
fn the_end_of_the_trainer_ends_the_waits() {
    let mut board = board();
    let seat = trainer(&mut board, at(0));
    board.published(5).unwrap();
    board.wait(at(0), want(4, 9));
    board.leave(at(1), seat, &LeaveReason::Done);
    assert_eq!(outcome(&mut board), Some(WaitOutcome::TrainerDone(Some(5))));
    board.leave(at(1), seat, &LeaveReason::TimedOut);
    board.wait(at(1), want(5, 6));
    assert_eq!(outcome(&mut board), Some(WaitOutcome::TrainerDone(None)));
    let seat = trainer(&mut board, at(2));
    board.wait(at(2), want(5, 6));
    assert_eq!(outcome(&mut board), None, "it was started again");
    board.leave(at(3), seat, &LeaveReason::Failed("out of memory".to_owned()));
    let failed = outcome(&mut board);
    assert!(
        matches!(&failed, Some(WaitOutcome::TrainerFailed(it)) if it.contains("out of memory")),
        "{failed:?}"
    );
}

#[test]
fn a_trainer_without_heartbeats_fails_unless_it_joins_again() {
    let mut board = board();
    let first = trainer(&mut board, at(0));
    board.wait(at(0), want(0, 1));
    assert_eq!(board.next_deadline(), Some(at(10)));
    board.tick(at(10));
    assert_eq!(board.view().trainer.unwrap().state, TrainerPresence::Lost);
    assert_eq!(outcome(&mut board), None, "it may be started again");
    let entered = board.join(at(15), MemberRole::Trainer, "trainer").unwrap();
    assert!(entered.takes_over);
    assert_eq!(board.heartbeat(at(16), first), HeartbeatReply::Replaced);
    assert!(!board.set_trainer_state(at(16), first, TrainerPresence::Done));
    assert_eq!(board.heartbeat(at(20), entered.seat), HeartbeatReply::Known);
    assert_eq!(board.next_deadline(), Some(at(30)));
    let mut never_back = board.clone();
    board.tick(at(30));
    assert_eq!(board.next_deadline(), Some(at(40)));
    assert_eq!(board.heartbeat(at(39), entered.seat), HeartbeatReply::Known, "it was only slow");
    board.tick(at(40));
    assert_eq!(outcome(&mut board), None);
    never_back.tick(at(30));
    never_back.tick(at(40));
    let failed = outcome(&mut never_back);
    assert!(matches!(failed, Some(WaitOutcome::TrainerFailed(_))), "{failed:?}");
    assert_eq!(never_back.heartbeat(at(41), entered.seat), HeartbeatReply::Unknown);
    assert_eq!(
        never_back.heartbeat(at(41), MemberId(FIRST)),
        HeartbeatReply::Unknown,
        "of another synchronizer"
    );
    assert_eq!(never_back.next_deadline(), None);
}

#[test]
fn a_timeout_has_a_message_and_leaves_no_state() {
    let mut board = board();
    board.wait(at(0), WeightWait { demand: true, ..want(3, 3) });
    assert_eq!(board.wait_summary().wanted, Some(4), "its own version does not help");
    board.tick(at(60));
    match outcome(&mut board) {
        Some(WaitOutcome::TimedOut(message)) => {
            assert!(
                message.contains("no trainer joined") && message.contains("60.0 s"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
    let empty = WaitSummary { waiting: 0, wanted: None, ..board.wait_summary() };
    assert_eq!((board.wait_summary(), board.next_deadline()), (empty, None));
    let ask = board.wait(at(61), WeightWait { demand: true, ..want(0, 1) });
    board.published(1).unwrap();
    board.abandon(ask);
    assert_eq!(outcome(&mut board), None);
    trainer(&mut board, at(62));
    let ask = board.wait(at(62), WeightWait { demand: true, ..want(1, 2) });
    board.abandon(ask);
    assert_eq!((board.wait_summary().waiting, board.wait_summary().wanted), (0, None));
}

#[test]
fn there_is_one_trainer_and_explorers_are_identified_by_name() {
    let mut board = board();
    trainer(&mut board, at(0));
    let refused = board.join(at(1), MemberRole::Trainer, "other").unwrap_err();
    assert_eq!(refused, JoinRefusal::OtherTrainer("trainer".to_owned()));
    board.join(at(10), MemberRole::Trainer, "other").expect("the first is lost");
    assert!(!board.explorers_left(), "none joined yet");
    let first = board.join(at(0), MemberRole::Explorer, "a").unwrap();
    let second = board.join(at(0), MemberRole::Explorer, "b").unwrap();
    board.leave(at(1), first.seat, &LeaveReason::Done);
    assert!(!board.explorers_left());
    board.leave(at(1), second.seat, &LeaveReason::TimedOut);
    board.tick(at(5));
    assert!(!board.explorers_left(), "it may come again");
    board.tick(at(11));
    assert!(board.explorers_left());
    assert!(board.join(at(12), MemberRole::Explorer, "b").unwrap().takes_over);
    assert!(!board.explorers_left());
}

/// One event of a random test.
#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Wait { have: u64, at_least: u64, demand: bool, timeout: u64 },
    Abandon(usize),
    Publish(u64),
    Join(bool),
    Heartbeat,
    TrainerState(u8),
    Leave(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = (0..6u64, 0..8u64, any::<bool>(), 0..40u64).prop_map(
        |(have, at_least, demand, timeout)| Step::Wait { have, at_least, demand, timeout },
    );
    let step = prop_oneof![
        (0..15u64).prop_map(Step::Pass),
        wait,
        (0..5usize).prop_map(Step::Abandon),
        (0..8u64).prop_map(Step::Publish),
        any::<bool>().prop_map(Step::Join),
        Just(Step::Heartbeat),
        (0..3u8).prop_map(Step::TrainerState),
        (0..3usize).prop_map(Step::Leave),
    ];
    prop::collection::vec(step, 0..60)
}

/// A synchronizer and the expected state.
struct World {
    board: SyncCore,
    now: Time,
    seat: Option<MemberId>,
    open: BTreeMap<WaitId, (WeightWait, Time)>,
    /// Last unsuccessful look of the trainer.
    looked: Option<WaitId>,
}

impl World {
    fn act(&mut self, step: Step) {
        let Self { board, now, .. } = self;
        match step {
            Step::Pass(seconds) => *now = now.after(Duration::from_secs(seconds)),
            Step::Wait { have, at_least, demand, timeout } => {
                let timeout = Duration::from_secs(timeout);
                let want = WeightWait { demand, timeout, ..want(have, at_least) };
                let ask = board.wait(*now, want.clone());
                self.open.insert(ask, (want, now.after(timeout)));
            }
            Step::Abandon(which) => {
                if let Some(ask) = self.open.keys().nth(which).copied() {
                    self.open.remove(&ask);
                    board.abandon(ask);
                }
            }
            Step::Publish(version) => {
                let newest = board.newest();
                let taken = board.published(version);
                assert_eq!(taken.is_err(), newest.is_some_and(|newest| version < newest));
            }
            Step::Join(is_trainer) => {
                let role = if is_trainer { MemberRole::Trainer } else { MemberRole::Explorer };
                let entered = board.join(*now, role, "member").unwrap();
                if is_trainer {
                    self.seat = Some(entered.seat);
                    self.looked = None;
                }
            }
            Step::Heartbeat => {
                self.seat =
                    self.seat.filter(|seat| board.heartbeat(*now, *seat) == HeartbeatReply::Known)
            }
            Step::TrainerState(state) => {
                let Some(seat) = self.seat else { return };
                let seen = WaitId(board.wait_summary().ask.0 - u64::from(state / 2));
                let is_idle = state > 0;
                let idle = TrainerPresence::Idle { seen };
                let state = if is_idle { idle } else { TrainerPresence::Training };
                assert!(board.set_trainer_state(*now, seat, state));
                self.looked = self.looked.max(is_idle.then_some(seen));
            }
            Step::Leave(reason) => {
                let Some(seat) = self.seat else { return };
                let reasons =
                    [LeaveReason::Done, LeaveReason::Failed("x".to_owned()), LeaveReason::TimedOut];
                board.leave(*now, seat, &reasons[reason]);
            }
        }
    }

    fn check(&mut self) {
        self.board.tick(self.now);
        for (ask, outcome) in self.board.outcomes() {
            let (want, until) = self.open.remove(&ask).expect("every wait ends once");
            match outcome {
                WaitOutcome::New(version) | WaitOutcome::TrainerDone(Some(version)) => {
                    assert_eq!(Some(version), self.board.newest());
                    assert!(version > want.have);
                }
                WaitOutcome::NothingNew => {
                    assert!(self.looked.is_some_and(|looked| looked >= ask), "{ask:?}");
                    assert!(self.board.newest().is_none_or(|newest| newest <= want.have));
                }
                WaitOutcome::TimedOut(_) => assert!(until <= self.now),
                WaitOutcome::TrainerDone(None) | WaitOutcome::TrainerFailed(_) => {
                    assert!(self.board.view().trainer.is_some());
                }
            }
        }
        let asked = self.board.wait_summary();
        assert_eq!(asked.waiting, self.open.len());
        assert_eq!(asked.wanted.is_some(), self.open.values().any(|(want, _)| want.demand));
        assert!(self.open.values().all(|(_, until)| *until > self.now));
        assert!(self.board.next_deadline().is_none_or(|deadline| deadline > self.now));
    }
}

proptest! {
    #[test]
    fn every_wait_ends_once_and_in_time(steps in steps()) {
        let (now, open) = (Time::ZERO, BTreeMap::new());
        let mut world = World { board: board(), now, seat: None, open, looked: None };
        for step in steps {
            world.act(step);
            world.check();
        }
        while let Some(deadline) = world.board.next_deadline() {
            world.now = deadline;
            world.check();
        }
        prop_assert!(world.open.is_empty());
    }
}
