//! Decisions of the synchronizer, by example and for random inputs.

use proptest::prelude::*;

use super::*;

const MEMBER_TIMEOUT: Duration = Duration::from_secs(10);
const FIRST: u64 = 1000;

fn at(seconds: u64) -> Time {
    Time::from_millis(1000 * seconds)
}

fn core() -> SyncCore {
    SyncCore::new(MEMBER_TIMEOUT, FIRST)
}

fn request(current: u64, at_least: u64) -> WeightWait {
    let timeout = Duration::from_secs(60);
    WeightWait {
        explorer: "explorer".to_owned(),
        current,
        at_least,
        publish_now: false,
        timeout,
        waited: Duration::ZERO,
    }
}

fn trainer(core: &mut SyncCore, now: Time) -> MemberId {
    core.join(now, MemberRole::Trainer, "trainer").unwrap().member
}

fn outcome(core: &mut SyncCore) -> Option<WaitOutcome> {
    let mut outcomes = core.outcomes();
    assert!(outcomes.len() <= 1, "{outcomes:?}");
    outcomes.pop().map(|(_, outcome)| outcome)
}

#[test]
fn a_wait_ends_with_weights_that_are_new_enough() {
    let mut core = core();
    let member = trainer(&mut core, at(0));
    core.wait(at(0), request(0, 2));
    assert_eq!(core.published(1), Ok(true));
    assert_eq!(outcome(&mut core), None, "the trainer can still get to 2");
    assert!(core.set_trainer_state(at(1), member, TrainerPresence::Training));
    assert_eq!(core.published(3), Ok(true));
    assert_eq!(outcome(&mut core), Some(WaitOutcome::New(3)));
    core.wait(at(2), request(0, 1));
    assert_eq!(outcome(&mut core), Some(WaitOutcome::New(3)), "they are there already");
    assert_eq!(core.published(3), Ok(false));
    assert_eq!(core.published(2), Err(JoinRefusal::Older { version: 2, newest: 3 }));
    assert_eq!(core.newest(), Some(3));
}

#[test]
fn only_a_look_after_the_wait_reports_nothing_new() {
    let mut core = core();
    let member = trainer(&mut core, at(0));
    let known = core.wait_summary().wait;
    // The trainer looks for experiences; meanwhile an explorer delivers some and waits.
    let wait = core.wait(at(1), request(0, 1));
    core.set_trainer_state(at(2), member, TrainerPresence::Idle { seen: known });
    assert_eq!(outcome(&mut core), None, "it may not have seen them");
    core.set_trainer_state(at(3), member, TrainerPresence::Idle { seen: WaitId(wait.0 + 1) });
    assert_eq!(outcome(&mut core), None, "a number of another synchronizer");
    core.set_trainer_state(at(4), member, TrainerPresence::Idle { seen: core.wait_summary().wait });
    assert_eq!(outcome(&mut core), Some(WaitOutcome::NothingNew));
    // A newer version ends the wait, although it is below the minimum.
    core.published(4).unwrap();
    core.wait(at(5), request(2, 6));
    core.set_trainer_state(at(5), member, TrainerPresence::Idle { seen: core.wait_summary().wait });
    assert_eq!(outcome(&mut core), Some(WaitOutcome::New(4)));
    // A wait for the last weights lasts until the trainer's end.
    core.wait(at(6), request(4, WeightWait::LAST));
    core.set_trainer_state(at(6), member, TrainerPresence::Idle { seen: core.wait_summary().wait });
    assert_eq!(outcome(&mut core), None);
    core.published(5).unwrap();
    core.set_trainer_state(at(7), member, TrainerPresence::Done);
    assert_eq!(outcome(&mut core), Some(WaitOutcome::TrainerDone(Some(5))));
}

#[test]
fn explorers_learn_what_others_have_submitted() {
    let mut core = core();
    assert_eq!(core.submitted("one", 8), 0);
    assert_eq!(core.submitted("two", 5), 8);
    assert_eq!(core.submitted("one", 16), 5, "the new total replaces the old one");
    assert_eq!((core.submitted_by_others("two"), core.submitted_by_others("three")), (16, 21));
}

#[test]
fn the_end_of_the_trainer_ends_the_waits() {
    let mut core = core();
    let member = trainer(&mut core, at(0));
    core.published(5).unwrap();
    core.wait(at(0), request(4, 9));
    core.leave(at(1), member, &LeaveReason::Done);
    assert_eq!(outcome(&mut core), Some(WaitOutcome::TrainerDone(Some(5))));
    core.leave(at(1), member, &LeaveReason::TimedOut);
    core.wait(at(1), request(5, 6));
    assert_eq!(outcome(&mut core), Some(WaitOutcome::TrainerDone(None)));
    let member = trainer(&mut core, at(2));
    core.wait(at(2), request(5, 6));
    assert_eq!(outcome(&mut core), None, "it was started again");
    core.leave(at(3), member, &LeaveReason::Failed("out of memory".to_owned()));
    let failed = outcome(&mut core);
    assert!(
        matches!(&failed, Some(WaitOutcome::TrainerFailed(it)) if it.contains("out of memory")),
        "{failed:?}"
    );
}

#[test]
fn a_trainer_without_heartbeats_fails_unless_it_joins_again() {
    let mut core = core();
    let first = trainer(&mut core, at(0));
    core.wait(at(0), request(0, 1));
    assert_eq!(core.next_deadline(), Some(at(10)));
    core.tick(at(10));
    assert_eq!(core.view().trainer.unwrap().state, TrainerPresence::Lost);
    assert_eq!(outcome(&mut core), None, "it may be started again");
    let entered = core.join(at(15), MemberRole::Trainer, "trainer").unwrap();
    assert!(entered.takes_over);
    assert_eq!(core.heartbeat(at(16), first), HeartbeatReply::Replaced);
    assert!(!core.set_trainer_state(at(16), first, TrainerPresence::Done));
    assert_eq!(core.heartbeat(at(20), entered.member), HeartbeatReply::Known);
    assert_eq!(core.next_deadline(), Some(at(30)));
    let mut absent = core.clone();
    core.tick(at(30));
    assert_eq!(core.next_deadline(), Some(at(40)));
    assert_eq!(core.heartbeat(at(39), entered.member), HeartbeatReply::Known, "it was only slow");
    core.tick(at(40));
    assert_eq!(outcome(&mut core), None);
    absent.tick(at(30));
    absent.tick(at(40));
    let failed = outcome(&mut absent);
    assert!(matches!(failed, Some(WaitOutcome::TrainerFailed(_))), "{failed:?}");
    assert_eq!(absent.heartbeat(at(41), entered.member), HeartbeatReply::Unknown);
    assert_eq!(
        absent.heartbeat(at(41), MemberId(FIRST)),
        HeartbeatReply::Unknown,
        "of another synchronizer"
    );
    assert_eq!(absent.next_deadline(), None);
}

#[test]
fn a_timeout_has_a_message_and_leaves_no_state() {
    let mut core = core();
    core.wait(at(0), WeightWait { publish_now: true, ..request(3, 3) });
    assert_eq!(core.wait_summary().demanded, Some(4), "its own version does not help");
    core.tick(at(60));
    match outcome(&mut core) {
        Some(WaitOutcome::TimedOut(message)) => {
            assert!(
                message.contains("no trainer joined") && message.contains("60.0 s"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
    let empty = WaitSummary { waiting: 0, demanded: None, ..core.wait_summary() };
    assert_eq!((core.wait_summary(), core.next_deadline()), (empty, None));
    let wait = core.wait(at(61), WeightWait { publish_now: true, ..request(0, 1) });
    core.published(1).unwrap();
    core.abandon(wait);
    assert_eq!(outcome(&mut core), None);
    trainer(&mut core, at(62));
    let wait = core.wait(at(62), WeightWait { publish_now: true, ..request(1, 2) });
    core.abandon(wait);
    assert_eq!((core.wait_summary().waiting, core.wait_summary().demanded), (0, None));
}

#[test]
fn there_is_one_trainer_and_explorers_are_identified_by_name() {
    let mut core = core();
    trainer(&mut core, at(0));
    let refused = core.join(at(1), MemberRole::Trainer, "other").unwrap_err();
    assert_eq!(refused, JoinRefusal::OtherTrainer("trainer".to_owned()));
    core.join(at(10), MemberRole::Trainer, "other").expect("the first is lost");
    assert!(!core.explorers_left(), "none joined yet");
    let first = core.join(at(0), MemberRole::Explorer, "a").unwrap();
    let second = core.join(at(0), MemberRole::Explorer, "b").unwrap();
    core.leave(at(1), first.member, &LeaveReason::Done);
    assert!(!core.explorers_left());
    core.leave(at(1), second.member, &LeaveReason::TimedOut);
    core.tick(at(5));
    assert!(!core.explorers_left(), "it may come again");
    core.tick(at(11));
    assert!(core.explorers_left());
    assert!(core.join(at(12), MemberRole::Explorer, "b").unwrap().takes_over);
    assert!(!core.explorers_left());
}

/// One event of a random test.
#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Wait { current: u64, at_least: u64, publish_now: bool, timeout: u64 },
    Abandon(usize),
    Publish(u64),
    Join(bool),
    Heartbeat,
    TrainerState(u8),
    Leave(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = (0..6u64, 0..8u64, any::<bool>(), 0..40u64).prop_map(
        |(current, at_least, publish_now, timeout)| Step::Wait {
            current,
            at_least,
            publish_now,
            timeout,
        },
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
    core: SyncCore,
    now: Time,
    member: Option<MemberId>,
    open: BTreeMap<WaitId, (WeightWait, Time)>,
    /// Last unsuccessful look of the trainer.
    checked: Option<WaitId>,
}

impl World {
    fn act(&mut self, step: Step) {
        let Self { core, now, .. } = self;
        match step {
            Step::Pass(seconds) => *now = now.after(Duration::from_secs(seconds)),
            Step::Wait { current, at_least, publish_now, timeout } => {
                let timeout = Duration::from_secs(timeout);
                let request = WeightWait { publish_now, timeout, ..request(current, at_least) };
                let wait = core.wait(*now, request.clone());
                self.open.insert(wait, (request, now.after(timeout)));
            }
            Step::Abandon(which) => {
                if let Some(wait) = self.open.keys().nth(which).copied() {
                    self.open.remove(&wait);
                    core.abandon(wait);
                }
            }
            Step::Publish(version) => {
                let newest = core.newest();
                let taken = core.published(version);
                assert_eq!(taken.is_err(), newest.is_some_and(|newest| version < newest));
            }
            Step::Join(is_trainer) => {
                let role = if is_trainer { MemberRole::Trainer } else { MemberRole::Explorer };
                let entered = core.join(*now, role, "member").unwrap();
                if is_trainer {
                    self.member = Some(entered.member);
                    self.checked = None;
                }
            }
            Step::Heartbeat => {
                self.member = self
                    .member
                    .filter(|member| core.heartbeat(*now, *member) == HeartbeatReply::Known)
            }
            Step::TrainerState(state) => {
                let Some(member) = self.member else { return };
                let seen = WaitId(core.wait_summary().wait.0 - u64::from(state / 2));
                let is_idle = state > 0;
                let idle = TrainerPresence::Idle { seen };
                let state = if is_idle { idle } else { TrainerPresence::Training };
                assert!(core.set_trainer_state(*now, member, state));
                self.checked = self.checked.max(is_idle.then_some(seen));
            }
            Step::Leave(reason) => {
                let Some(member) = self.member else { return };
                let reasons =
                    [LeaveReason::Done, LeaveReason::Failed("x".to_owned()), LeaveReason::TimedOut];
                core.leave(*now, member, &reasons[reason]);
            }
        }
    }

    fn check(&mut self) {
        self.core.tick(self.now);
        for (wait, outcome) in self.core.outcomes() {
            let (request, until) = self.open.remove(&wait).expect("every wait ends once");
            match outcome {
                WaitOutcome::New(version) | WaitOutcome::TrainerDone(Some(version)) => {
                    assert_eq!(Some(version), self.core.newest());
                    assert!(version > request.current);
                }
                WaitOutcome::NothingNew => {
                    assert!(self.checked.is_some_and(|checked| checked >= wait), "{wait:?}");
                    assert!(self.core.newest().is_none_or(|newest| newest <= request.current));
                }
                WaitOutcome::TimedOut(_) => assert!(until <= self.now),
                WaitOutcome::TrainerDone(None) | WaitOutcome::TrainerFailed(_) => {
                    assert!(self.core.view().trainer.is_some());
                }
            }
        }
        let waits = self.core.wait_summary();
        assert_eq!(waits.waiting, self.open.len());
        assert_eq!(
            waits.demanded.is_some(),
            self.open.values().any(|(request, _)| request.publish_now)
        );
        assert!(self.open.values().all(|(_, until)| *until > self.now));
        assert!(self.core.next_deadline().is_none_or(|deadline| deadline > self.now));
    }
}

proptest! {
    #[test]
    fn every_wait_ends_once_and_in_time(steps in steps()) {
        let (now, open) = (Time::ZERO, BTreeMap::new());
        let mut world = World { core: core(), now, member: None, open, checked: None };
        for step in steps {
            world.act(step);
            world.check();
        }
        while let Some(deadline) = world.core.next_deadline() {
            world.now = deadline;
            world.check();
        }
        prop_assert!(world.open.is_empty());
    }
}
