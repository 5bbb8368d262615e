//! Drives the plan of an explorer through every style, with crashes anywhere and results in any
//! order, and compares it with an independent record.

#[path = "explore/drive.rs"]
mod drive;

use drive::Drive;
use proptest::prelude::*;
use rollway_core::explore::{
    Plan, PlanAction, PlanConfig, PlanInput, PlanProgress, PlanStyle, SyncResult,
};

const STYLES: [PlanStyle; 4] =
    [PlanStyle::Fixed, PlanStyle::ExplorerDriven, PlanStyle::TrainerDriven, PlanStyle::FullyAsync];

fn config(style: PlanStyle) -> PlanConfig {
    PlanConfig {
        style,
        sync_interval: 2,
        sync_offset: 0,
        max_inflight: 2,
        max_staleness: None,
        step_experiences: 8,
        train_batch_size: 8,
        eval_interval: Some(2),
        eval_on_startup: true,
        eval_at_end: true,
        eval_single_version: true,
        total_steps: 4,
    }
}

/// All configurations that differ in a relevant way.
fn configs() -> Vec<PlanConfig> {
    let mut configs = Vec::new();
    for (style, eval_single_version) in STYLES.iter().flat_map(|it| [(*it, true), (*it, false)]) {
        for (sync_interval, sync_offset) in [(1, 0), (1, 1), (2, 0), (2, 1), (3, 2)] {
            for eval_interval in [None, Some(1), Some(2), Some(3)] {
                for (eval_on_startup, eval_at_end) in [(true, true), (false, true), (true, false)] {
                    for total_steps in [0, 1, 5] {
                        configs.push(PlanConfig {
                            sync_interval,
                            sync_offset,
                            eval_interval,
                            eval_on_startup,
                            eval_at_end,
                            eval_single_version,
                            total_steps,
                            max_staleness: Some(sync_offset),
                            ..config(style)
                        });
                    }
                }
            }
        }
    }
    configs
}

#[test]
fn a_crash_after_any_input_changes_nothing() {
    for config in configs() {
        let mut complete = Drive::new(config.clone());
        complete.finish();
        complete.ended();
        for crash in 0..=complete.facts {
            let mut drive = Drive::new(config.clone());
            for _ in 0..crash {
                drive.answer(0);
            }
            drive.crash();
            drive.finish();
            drive.ended();
            assert_eq!(drive.plan.progress(), complete.plan.progress(), "{config:?} after {crash}");
        }
    }
}

#[test]
fn a_period_begins_together_and_is_finalized_in_order() {
    let mut drive = Drive::new(config(PlanStyle::Fixed));
    let mut actions = Vec::new();
    while let Some(order) = drive.open.first() {
        actions.push(format!("{order:?}"));
        drive.answer(0);
    }
    let expected = [
        "Evaluate(0)",
        "FinishEval(0)",
        "BeginStep(1)",
        "BeginStep(2)",
        "Evaluate(2)",
        "FinalizeStep(1)",
        "FinalizeStep(2)",
        "FinishEval(2)",
        "Sync { step: 2, at_least: 2 }",
        "BeginStep(3)",
        "BeginStep(4)",
        "FinalizeStep(3)",
        "FinalizeStep(4)",
        "FinishTraining",
        "Evaluate(4)",
        "FinishEval(4)",
    ];
    assert_eq!(actions, expected);
}

#[test]
fn steps_begin_during_the_first_evaluation() {
    let mut drive = Drive::new(config(PlanStyle::Fixed));
    drive.answer(0);
    assert_eq!(drive.open, [PlanAction::FinishEval(0), PlanAction::BeginStep(1)]);
    drive.answer(1);
    drive.answer(1);
    drive.answer(1);
    assert_eq!(drive.open, [PlanAction::FinishEval(0), PlanAction::FinalizeStep(1)]);
}

#[test]
fn the_expected_version_depends_on_the_style() {
    let syncs = |style: PlanStyle, sync_offset, lost| {
        let config =
            PlanConfig { sync_offset, eval_interval: None, total_steps: 8, ..config(style) };
        let mut drive = Drive::new(config);
        drive.lost = lost;
        let mut syncs = Vec::new();
        while let Some(order) = drive.open.first() {
            if let PlanAction::Sync { step, at_least } = *order {
                syncs.push((step, at_least));
            }
            drive.answer(0);
        }
        syncs
    };
    assert_eq!(syncs(PlanStyle::Fixed, 0, 0), [(2, 2), (4, 4), (6, 6)]);
    assert_eq!(syncs(PlanStyle::Fixed, 1, 0), [(3, 2), (5, 4), (7, 6)], "one step ahead");
    assert_eq!(syncs(PlanStyle::Fixed, 0, 1), [(2, 0), (4, 2), (6, 4)], "seven of eight arrived");
    assert_eq!(syncs(PlanStyle::ExplorerDriven, 0, 0), [(2, 1), (4, 3), (6, 5)], "anything newer");
    assert_eq!(
        syncs(PlanStyle::ExplorerDriven, 0, 7),
        [(2, 0), (4, 0), (6, 0)],
        "too few for a step"
    );
    assert_eq!(syncs(PlanStyle::TrainerDriven, 0, 0), [(2, 0), (4, 0), (6, 0)]);
    assert_eq!(syncs(PlanStyle::FullyAsync, 0, 0), [], "no side waits");
}

#[test]
fn published_weights_wait_for_the_evaluation_and_the_next_one_for_them() {
    let mut drive =
        Drive::new(PlanConfig { eval_interval: Some(1), ..config(PlanStyle::FullyAsync) });
    drive.answer(0);
    assert_eq!(drive.open, [PlanAction::FinishEval(0), PlanAction::BeginStep(1)]);
    drive.apply(PlanInput::Published(1));
    drive.answer(1);
    let open = [PlanAction::FinishEval(0), PlanAction::FinalizeStep(1), PlanAction::BeginStep(2)];
    assert_eq!(drive.open, open, "step 1 is evaluated with the new weights");
    drive.answer(2);
    assert_eq!(drive.open, [PlanAction::FinishEval(0), PlanAction::FinalizeStep(1)]);
    drive.answer(0);
    assert_eq!(drive.open, [PlanAction::FinalizeStep(1), PlanAction::Load]);
    drive.apply(PlanInput::Loaded(1));
    assert!(drive.open.contains(&PlanAction::Evaluate(1)), "{:?}", drive.open);
}

#[test]
fn an_evaluation_delays_neither_published_weights_nor_the_next_period() {
    let mut drive =
        Drive::new(PlanConfig { eval_single_version: false, ..config(PlanStyle::FullyAsync) });
    drive.answer(0);
    drive.apply(PlanInput::Published(1));
    let open = [PlanAction::FinishEval(0), PlanAction::BeginStep(1), PlanAction::Load];
    assert_eq!(drive.open, open);
    drive.finish();
    drive.ended();

    let mut drive =
        Drive::new(PlanConfig { eval_single_version: false, ..config(PlanStyle::Fixed) });
    let finishes_eval = |order: &PlanAction| matches!(order, PlanAction::FinishEval(_));
    while let Some(at) = drive.open.iter().position(|order| !finishes_eval(order)) {
        drive.answer(at);
    }
    assert_eq!(drive.synced, [2, 4], "with the evaluation of step 0 active");
    assert_eq!(drive.open, [PlanAction::FinishEval(0)], "the job ends with its evaluations");
    drive.finish();
    drive.ended();
}

#[test]
fn evaluations_that_never_end_are_not_joined_by_more() {
    for style in STYLES {
        let config = PlanConfig {
            eval_interval: Some(1),
            eval_single_version: false,
            total_steps: 30,
            ..config(style)
        };
        let mut drive = Drive::new(config);
        let finishes_eval = |order: &PlanAction| matches!(order, PlanAction::FinishEval(_));
        while let Some(at) = drive.open.iter().position(|order| !finishes_eval(order)) {
            drive.answer(at);
        }
        let active = drive.submitted.difference(&drive.finished).count();
        assert!((2..=4).contains(&active), "{style:?}: {active}");
        drive.finish();
        drive.ended();
    }
}

#[test]
fn a_step_that_would_be_stale_waits_for_weights() {
    let config =
        PlanConfig { max_staleness: Some(1), eval_interval: None, ..config(PlanStyle::FullyAsync) };
    let mut drive = Drive::new(config);
    drive.answer(0);
    drive.answer(1);
    assert_eq!(drive.open, [PlanAction::FinalizeStep(1)], "the window is full");
    drive.answer(0);
    assert_eq!(drive.open, [PlanAction::FinalizeStep(2)], "the third would be two versions behind");
    drive.apply(PlanInput::Published(1));
    assert_eq!(drive.open, [PlanAction::FinalizeStep(2), PlanAction::Load]);
    drive.apply(PlanInput::Loaded(1));
    assert!(drive.open.contains(&PlanAction::BeginStep(3)), "{:?}", drive.open);
    drive.finish();
    drive.ended();
    assert_eq!(drive.plan.forced(), 0);
}

#[test]
fn the_bound_is_exceeded_only_for_a_waiting_trainer() {
    let config =
        PlanConfig { max_staleness: Some(0), eval_interval: None, ..config(PlanStyle::FullyAsync) };
    let mut drive = Drive::new(config.clone());
    drive.finish();
    drive.ended();
    assert_eq!(drive.plan.forced(), 0, "complete batches are trained on at once");
    let mut drive = Drive::new(config);
    drive.lost = 1;
    drive.finish();
    drive.ended();
    assert!(drive.plan.forced() > 0, "seven experiences make no train step");
}

#[test]
fn experiences_of_other_explorers_make_steps_staler() {
    let config =
        PlanConfig { max_staleness: Some(1), eval_interval: None, ..config(PlanStyle::FullyAsync) };
    let actions = |facts: &[PlanInput]| {
        let mut plan = Plan::new(config.clone(), PlanProgress::default());
        plan.apply(PlanInput::OthersSubmitted(0));
        facts.iter().for_each(|fact| plan.apply(fact.clone()));
        plan.actions()
    };
    assert_eq!(actions(&[]), [PlanAction::BeginStep(1)]);
    assert_eq!(actions(&[PlanInput::OthersSubmitted(8)]), [PlanAction::BeginStep(1)]);
    let sync = [PlanAction::Sync { step: 0, at_least: 1 }];
    assert_eq!(
        actions(&[PlanInput::OthersSubmitted(9)]),
        sync,
        "its last is in the third train step"
    );
    assert_eq!(
        actions(&[PlanInput::OthersSubmitted(9), PlanInput::Loaded(1)]),
        [PlanAction::BeginStep(1)]
    );
    // The experiences of these versions came from other explorers.
    let mut plan = Plan::new(config, PlanProgress::default());
    plan.apply(PlanInput::Loaded(5));
    assert_eq!(plan.actions(), [PlanAction::BeginStep(1)]);
    plan.apply(PlanInput::Begun(1));
    assert_eq!(plan.actions(), [PlanAction::FinalizeStep(1), PlanAction::BeginStep(2)]);
    assert_eq!(plan.forced(), 0);
}

/// Returns the smallest `max_staleness` that one explorer can keep with complete batches.
fn least_staleness(step: u64, batch: u64) -> u64 {
    // Before a step begins, the trainer has less than a batch left; this is the largest rest.
    let left = batch - common_divisor(step, batch);
    (left + step - 1) / batch
}

fn common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[test]
fn the_least_staleness_can_be_kept_and_a_smaller_one_cannot() {
    for (step_experiences, train_batch_size) in [(8, 8), (8, 16), (16, 8), (6, 4), (7, 3), (3, 7)] {
        let config = PlanConfig {
            step_experiences,
            train_batch_size,
            eval_interval: None,
            total_steps: 30,
            ..config(PlanStyle::FullyAsync)
        };
        let forced = |max_staleness| {
            let mut drive = Drive::new(PlanConfig { max_staleness, ..config.clone() });
            drive.finish();
            drive.ended();
            drive.plan.forced()
        };
        let least = least_staleness(step_experiences, train_batch_size);
        assert_eq!(forced(Some(least)), 0, "{step_experiences} / {train_batch_size}: {least}");
        let less = least.checked_sub(1);
        assert!(less.is_none() || forced(less) > 0, "{step_experiences} / {train_batch_size}");
    }
}

#[test]
fn missing_tasks_and_a_trainer_that_is_done_end_the_job_in_order() {
    for style in STYLES {
        let config = PlanConfig { total_steps: 100, ..config(style) };
        let mut drive = Drive::new(config.clone());
        drive.tasks = 6;
        drive.finish();
        drive.ended();
        assert_eq!(drive.finalized, 6, "{style:?}");
        assert!(drive.closed);

        let mut drive = Drive::new(config.clone());
        drive.train_steps = 4;
        drive.finish();
        drive.ended();
        if style != PlanStyle::FullyAsync {
            assert_eq!(drive.finalized, 4, "{style:?}");
        }

        let mut drive = Drive::new(config);
        drive.answer(0);
        drive.answer(1);
        drive.apply(PlanInput::TrainerDone);
        drive.finish();
        drive.ended();
        assert!(drive.finalized <= 2, "{style:?}: {}", drive.finalized);
    }
}

#[test]
fn a_stop_waits_only_for_open_submissions() {
    let mut drive = Drive::new(config(PlanStyle::Fixed));
    drive.answer(0);
    drive.apply(PlanInput::Stopped);
    assert!(!drive.plan.is_over(), "step 1 is being submitted");
    drive.answer(1);
    assert!(drive.plan.is_over());
    let progress = drive.plan.progress().clone();
    assert_eq!((progress.begun, progress.evals.as_slice()), (1, [0].as_slice()));
    drive.stopped = false;
    drive.crash();
    assert_eq!(drive.open, [PlanAction::FinishEval(0), PlanAction::BeginStep(2)]);
    drive.finish();
    drive.ended();
}

#[test]
fn a_half_submitted_step_is_submitted_again_in_any_case() {
    for style in STYLES {
        let mut plan = Plan::new(config(style), PlanProgress::default());
        assert_eq!(plan.actions(), [PlanAction::Evaluate(0)]);
        let mut plan = Plan::new(config(style), plan.progress().clone());
        plan.apply(PlanInput::Published(3));
        assert_eq!(
            plan.actions(),
            [PlanAction::Evaluate(0)],
            "with the weights of the first attempt"
        );
        plan.apply(PlanInput::EvalBegun(0));
        assert_eq!(plan.actions(), [PlanAction::FinishEval(0), PlanAction::BeginStep(1)]);
        let mut plan = Plan::new(config(style), plan.progress().clone());
        plan.apply(PlanInput::TrainerDone);
        assert_eq!(
            plan.actions(),
            [PlanAction::FinishEval(0), PlanAction::BeginStep(1)],
            "{style:?}"
        );
        plan.apply(PlanInput::Begun(1));
        assert_eq!(plan.actions(), [PlanAction::FinalizeStep(1)], "{style:?}");
    }
}

#[test]
fn an_extended_job_continues() {
    for style in STYLES {
        let mut drive = Drive::new(config(style));
        drive.finish();
        drive.ended();
        drive.config.total_steps = 7;
        drive.closed = false;
        drive.trainer_done = false;
        drive.crash();
        drive.finish();
        assert!(drive.plan.is_over());
        assert_eq!((drive.finalized, drive.finished.last()), (7, Some(&7)), "{style:?}");
    }
}

fn any_config() -> impl Strategy<Value = PlanConfig> {
    let steps = (1..4u64, 0..3u64, 1..4u64, 0..12u64);
    let evals = (prop::option::of(1..4u64), any::<bool>(), any::<bool>(), any::<bool>());
    let sizes = (prop::option::of(0..3u64), 1..20u64, 1..20u64);
    (prop::sample::select(STYLES.to_vec()), steps, evals, sizes).prop_map(
        |(style, steps, evals, sizes)| PlanConfig {
            style,
            sync_interval: steps.0,
            sync_offset: steps.1,
            max_inflight: steps.2,
            max_staleness: sizes.0,
            step_experiences: sizes.1,
            train_batch_size: sizes.2,
            eval_interval: evals.0,
            eval_on_startup: evals.1,
            eval_at_end: evals.2,
            eval_single_version: evals.3,
            total_steps: steps.3,
        },
    )
}

/// One event of a random test.
#[derive(Clone, Copy, Debug)]
enum Move {
    Answer(usize),
    Publish,
    OthersSubmitted(u64),
    TrainerDone,
    Crash,
    Stop,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        40 => (0..4usize).prop_map(Move::Answer),
        6 => Just(Move::Publish),
        2 => (1..20u64).prop_map(Move::OthersSubmitted),
        6 => Just(Move::Crash),
        1 => Just(Move::Stop),
        1 => Just(Move::TrainerDone),
    ];
    prop::collection::vec(one, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn everything_happens_exactly_once(
        config in any_config(),
        moves in moves(),
        lost in 0..3u64,
        tasks in prop_oneof![Just(u64::MAX), 0..8u64],
        train_steps in prop_oneof![Just(u64::MAX), 1..8u64],
    ) {
        let mut drive = Drive::new(config);
        (drive.lost, drive.tasks, drive.train_steps) = (lost, tasks, train_steps);
        for one in moves {
            match one {
                Move::Answer(choice) if !drive.open.is_empty() => drive.answer(choice),
                Move::Publish if drive.config.style == PlanStyle::FullyAsync => {
                    // Known versions are not announced again.
                    let reached = drive.reached();
                    drive.plan.apply(PlanInput::Published(reached));
                    drive.take();
                }
                Move::OthersSubmitted(more) => {
                    drive.apply(PlanInput::OthersSubmitted(drive.submitted_by_others + more));
                }
                Move::TrainerDone if drive.plan.progress().last.is_none() => {
                    drive.apply(PlanInput::TrainerDone);
                }
                Move::Crash => drive.crash(),
                Move::Stop => {
                    drive.apply(PlanInput::Stopped);
                    while let Some(at) = drive.open.iter().position(|order| {
                        matches!(order, PlanAction::BeginStep(_) | PlanAction::Evaluate(_))
                    }) {
                        drive.answer(at);
                    }
                    prop_assert!(drive.plan.is_over());
                    drive.stopped = false;
                    drive.crash();
                }
                Move::Answer(_) | Move::Publish | Move::TrainerDone => {}
            }
        }
        drive.finish();
        drive.ended();
    }

    #[test]
    fn invalid_inputs_are_counted_and_change_nothing(
        config in any_config(),
        progress in any_progress(),
        facts in prop::collection::vec(any_fact(), 0..40),
    ) {
        let mut plan = Plan::new(config, progress);
        for fact in facts {
            let (before, ignored) = (plan.progress().clone(), plan.ignored());
            plan.apply(fact);
            prop_assert!(plan.ignored() == ignored || *plan.progress() == before);
            let _ = plan.actions();
            prop_assert!(plan.progress().version >= before.version);
            prop_assert!(plan.progress().finalized <= plan.progress().begun);
        }
    }
}

fn any_progress() -> impl Strategy<Value = PlanProgress> {
    let number = prop_oneof![19 => 0..12u64, 1 => Just(u64::MAX)];
    let numbers = prop::collection::vec(number, 8);
    let evals = prop::collection::vec(0..12u64, 0..4);
    let options = (prop::option::of(0..12u64), prop::option::of(0..12u64));
    (numbers, evals, options).prop_map(|(numbers, evals, (last, closed))| PlanProgress {
        begun: numbers[0],
        beginning: last,
        evaluating: closed,
        finalized: numbers[1],
        ahead: evals.clone(),
        evals,
        evaluated: closed.and(last),
        evaluated_version: numbers[2],
        synced: numbers[3],
        delivered: numbers[4],
        submitted_by_others: numbers[5],
        version: numbers[6],
        last,
        closed,
    })
}

fn any_fact() -> impl Strategy<Value = PlanInput> {
    let step = || prop_oneof![9 => 0..12u64, 1 => Just(u64::MAX)];
    prop_oneof![
        step().prop_map(PlanInput::Begun),
        Just(PlanInput::Exhausted),
        (step(), step()).prop_map(|(step, delivered)| PlanInput::Finalized { step, delivered }),
        step().prop_map(PlanInput::EvalBegun),
        step().prop_map(PlanInput::EvalFinished),
        step().prop_map(|version| PlanInput::Synced(SyncResult::Version(version))),
        Just(PlanInput::Synced(SyncResult::NothingNew)),
        step().prop_map(|version| PlanInput::Synced(SyncResult::TrainerDone(version))),
        step().prop_map(PlanInput::Published),
        step().prop_map(PlanInput::Loaded),
        step().prop_map(PlanInput::OthersSubmitted),
        Just(PlanInput::TrainerDone),
        Just(PlanInput::Stopped),
    ]
}
