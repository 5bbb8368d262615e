//! A handful of seeds in every test run; `rollway-sim --seeds` runs many.

use rollway_sim::checkers::Checkers;
use rollway_sim::mutants::{MUTANTS, hunt};
use rollway_sim::{To, repeats, run_seed};

#[test]
fn worlds_come_to_a_good_end() {
    for seed in 0..50 {
        let outcome = run_seed(seed, To::Nowhere);
        let violation = outcome.violation.map(|violation| violation.to_string());
        assert_eq!(violation, None, "replay: rollway-sim --seed {seed} --trace");
    }
}

#[test]
fn a_seed_means_one_world() {
    for seed in 0..10 {
        assert!(repeats(seed, None).is_ok(), "seed {seed} does not repeat itself");
    }
    assert_ne!(repeats(0, None), repeats(1, None), "two seeds mean one world");
}

#[test]
fn every_checker_notices_a_planted_bug() {
    for checker in Checkers::names() {
        let mut planted = MUTANTS.iter().filter(|mutant| mutant.checker == checker);
        let noticed = planted.any(|mutant| hunt(mutant, 0, 20).caught.is_some());
        assert!(noticed, "{checker} notices none of the bugs that were planted for it");
    }
}
