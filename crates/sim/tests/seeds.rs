//! A handful of seeds in every test run; `rollway-sim --seeds` runs many.

use rollway_sim::checkers::Checkers;
use rollway_sim::mutants::{MUTANTS, find_seed};
use rollway_sim::{TraceTarget, explore, repeats, run_seed};

#[test]
fn worlds_end_without_a_violation() {
    for seed in 0..50 {
        let outcome = run_seed(seed, TraceTarget::Nowhere);
        let violation = outcome.violation.map(|violation| violation.to_string());
        assert_eq!(violation, None, "replay: rollway-sim --seed {seed} --trace");
    }
}

#[test]
fn a_seed_gives_one_world() {
    for seed in 0..10 {
        assert!(repeats(seed, None).is_ok(), "seed {seed} does not repeat itself");
    }
    assert_ne!(repeats(0, None), repeats(1, None), "two seeds give one world");
}

#[test]
fn every_checker_reports_a_planted_bug() {
    for checker in Checkers::names() {
        let mut planted = MUTANTS.iter().filter(|mutant| mutant.checker == checker);
        let reported = planted.any(|mutant| find_seed(mutant, 0, 20).is_some());
        assert!(reported, "{checker} reports none of its planted bugs");
    }
}

#[test]
fn explorers_end_without_a_violation() {
    for seed in 0..300 {
        let outcome = explore::run_seed(seed, TraceTarget::Nowhere);
        let violation = outcome.violation.map(|violation| violation.to_string());
        assert_eq!(violation, None, "replay: rollway-sim --explorers --seed {seed} --trace");
    }
}

#[test]
fn a_seed_gives_one_world_of_explorers() {
    for seed in 0..10 {
        assert!(
            explore::mutants::repeats(seed, None).is_ok(),
            "seed {seed} does not repeat itself"
        );
    }
}

#[test]
fn every_bug_planted_in_explorers_is_reported() {
    for mutant in explore::mutants::MUTANTS {
        let reported = explore::mutants::find_seed(mutant, 0, 1000).is_some();
        assert!(reported, "{mutant:?} is not reported");
    }
    for checker in explore::checkers::ExploreCheckers::names() {
        let mut planted = explore::mutants::MUTANTS.iter();
        assert!(planted.any(|mutant| mutant.checker == checker), "no bug for {checker}");
    }
}
