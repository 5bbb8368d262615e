//! Filter operators.

use serde_json::json;

use crate::world::{apply, experience, no_args, reasons, runs, task};

/// Rewards of every kind, run by run.
fn odd_experiences() -> Vec<rollway_experience::Experience> {
    let rewards = [Some(0.5), None, Some(f64::NAN), Some(-0.5), Some(f64::INFINITY), Some(0.0)];
    (0..).zip(rewards).map(|(run, reward)| experience(1, run, reward)).collect()
}

#[test]
fn reward_filter_keeps_the_threshold_and_more() {
    let outcome = apply("reward_filter", no_args(), odd_experiences());
    assert_eq!(runs(&outcome), [0, 4, 5]);
    assert_eq!(
        reasons(&outcome),
        [("below_threshold", 1), ("missing_reward", 1), ("nan_reward", 1)]
    );
    let outcome = apply("reward_filter", json!({"threshold": -0.5}), odd_experiences());
    assert_eq!(runs(&outcome), [0, 3, 4, 5]);
}

#[test]
fn invalid_reward_filter_drops_what_is_no_number() {
    let outcome = apply("invalid_reward_filter", no_args(), odd_experiences());
    assert_eq!(runs(&outcome), [0, 3, 5]);
    assert_eq!(
        reasons(&outcome),
        [("infinite_reward", 1), ("missing_reward", 1), ("nan_reward", 1)]
    );
}

#[test]
fn reward_std_filter_drops_tasks_whose_runs_went_alike() {
    let mut experiences = task(1, &[1.0, 0.0]);
    experiences.extend(task(2, &[0.1; 3]));
    experiences.extend(task(3, &[1.0]));
    let outcome = apply("reward_std_filter", no_args(), experiences.clone());
    assert_eq!(outcome.experiences, task(1, &[1.0, 0.0]));
    assert_eq!(reasons(&outcome), [("group_too_small", 1), ("low_std", 3)]);
    // The deviation is over n: that of 1 and 0 is exactly 0.5, and must be exceeded.
    let outcome = apply("reward_std_filter", json!({"threshold": 0.5}), experiences);
    assert_eq!(reasons(&outcome), [("group_too_small", 1), ("low_std", 5)]);
}

#[test]
fn reward_std_filter_judges_a_task_by_its_valid_rewards() {
    let outcome = apply("reward_std_filter", no_args(), odd_experiences());
    assert_eq!(runs(&outcome), [0, 3, 5]);
    let left = vec![experience(1, 0, None), experience(1, 1, Some(1.0))];
    let outcome = apply("reward_std_filter", no_args(), left);
    assert_eq!(reasons(&outcome), [("group_too_small", 1), ("missing_reward", 1)]);
}

#[test]
fn empty_batches_stay_empty() {
    for name in ["reward_filter", "invalid_reward_filter", "reward_std_filter", "grpo"] {
        let outcome = apply(name, no_args(), Vec::new());
        assert!(outcome.experiences.is_empty() && outcome.dropped.is_empty(), "{name}");
    }
}
