//! `grpo`. The numbers were taken from NumPy: `(r - r.mean()) / (r.std(ddof=1) + 1e-6)` in
//! float64, then rounded to float32.

use rollway_data::pipeline::OperatorOutput;
use rollway_experience::{Array, Experience, ExperienceFields};
use serde_json::json;

use crate::world::{apply, experience, no_args, reasons, runs, task};

const FIRST: [f64; 4] = [1.0, 0.0, 0.5, 0.25];
const SECOND: [f64; 3] = [2.0, -1.0, 3.5];

/// Interleaved runs of two tasks.
fn two_tasks() -> Vec<Experience> {
    let (first, second) = (task(1, &FIRST), task(2, &SECOND));
    let mut mixed = Vec::new();
    for at in 0..4 {
        mixed.extend(first.get(at).cloned());
        mixed.extend(second.get(at).cloned());
    }
    mixed
}

/// The advantages of a task's own tokens.
fn advantages(outcome: &OperatorOutput, task: i64) -> Vec<f32> {
    let of_task = outcome.experiences.iter().filter(|one| one.eid.task == task.into());
    let own = |one: &Experience| {
        let advantages = one.advantages.as_ref().expect("advantages").to_vec();
        assert_eq!(advantages[1], 0.0, "a token that the model did not make");
        assert_eq!(one.returns.as_ref().map(Array::to_vec), Some(advantages.clone()));
        advantages[0]
    };
    of_task.map(own).collect()
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= expected.abs() * f32::EPSILON, "{found} {expected}");
    }
}

#[test]
fn advantages_are_those_of_numpy() {
    let outcome = apply("grpo", no_args(), two_tasks());
    assert_close(&advantages(&outcome, 1), &[1.317_462, -1.024_692_7, 0.146_384_67, -0.439_154]);
    assert_close(&advantages(&outcome, 2), &[0.218_217_79, -1.091_089, 0.872_871_16]);
    assert_eq!(outcome.experiences.len(), 7);
    assert_eq!(runs(&outcome), [0, 0, 1, 1, 2, 2, 3], "the order is kept");
    for (key, expected) in [
        ("group_advantages/reward_mean/mean", 0.96875),
        ("group_advantages/reward_mean/max", 1.5),
        ("group_advantages/reward_mean/min", 0.4375),
        ("group_advantages/reward_std/mean", 1.359_122_064_696_451_5),
        ("group_advantages/reward_std/max", 2.291_287_847_477_92),
        ("group_advantages/reward_std/min", 0.426_956_281_914_983_25),
        ("group_advantages/single_member_groups", 0.0),
    ] {
        let found = outcome.metrics.get(key).unwrap();
        assert!((found - expected).abs() < 1e-12, "{key}: {found}");
    }
    assert_eq!(outcome.metrics.len(), 7);
}

#[test]
fn the_deviation_can_be_that_of_the_batch() {
    let outcome = apply("grpo", json!({"std_cal_level": "batch"}), two_tasks());
    assert_close(
        &advantages(&outcome, 1),
        &[0.382_405_97, -0.297_426_88, 0.042_489_55, -0.127_468_66],
    );
    assert_close(&advantages(&outcome, 2), &[0.339_916_4, -1.699_582_1, 1.359_665_6]);
}

#[test]
fn equal_rewards_have_no_advantage() {
    // Summed and divided, three times 0.1 is not 0.1 and deviates from itself.
    let outcome = apply("grpo", json!({"epsilon": 0}), task(1, &[0.1; 3]));
    assert_eq!(advantages(&outcome, 1), [0.0; 3]);
    assert_eq!(outcome.metrics.get("group_advantages/reward_std/max"), Some(0.0));
    let outcome = apply("grpo", json!({"std_threshold": 0}), task(1, &[0.1; 3]));
    assert_eq!(reasons(&outcome), [("low_std", 3)]);
}

#[test]
fn a_reward_alone_is_compared_with_nothing() {
    let outcome = apply("grpo", no_args(), task(1, &[0.75]));
    assert_close(&advantages(&outcome, 1), &[0.749_999_2]);
    assert_eq!(outcome.metrics.get("group_advantages/single_member_groups"), Some(1.0));
    assert_eq!(outcome.metrics.get("group_advantages/reward_std/mean"), None);
    for args in [json!({"std_threshold": 0.1}), json!({"min_group_size": 2})] {
        let outcome = apply("grpo", args, task(1, &[0.75]));
        assert_eq!(reasons(&outcome), [("group_too_small", 1)]);
        assert!(outcome.experiences.is_empty());
    }
}

#[test]
fn groups_that_lost_members_can_be_dropped() {
    let outcome = apply("grpo", json!({"min_group_size": 4}), two_tasks());
    assert_eq!(reasons(&outcome), [("group_too_small", 3)]);
    assert_eq!(advantages(&outcome, 1).len(), 4);
}

#[test]
fn what_has_no_reward_does_not_spoil_its_group() {
    let mut experiences = task(1, &FIRST);
    experiences.push(experience(1, 4, None));
    experiences.push(experience(1, 5, Some(f64::NAN)));
    experiences.push(experience(1, 6, Some(f64::INFINITY)));
    experiences.push(experience(2, 0, None));
    let outcome = apply("grpo", no_args(), experiences);
    let alone = apply("grpo", no_args(), task(1, &FIRST));
    assert_eq!(advantages(&outcome, 1), advantages(&alone, 1));
    assert_eq!(
        reasons(&outcome),
        [("infinite_reward", 1), ("missing_reward", 2), ("nan_reward", 1)]
    );
}

#[test]
fn an_experience_without_an_advantage_is_dropped_alone() {
    let dpo = Experience::new(ExperienceFields {
        eid: experience(1, 9, None).eid.clone(),
        tokens: [1, 2].into(),
        chosen: Some([3].into()),
        rejected: Some([4].into()),
        reward: Some(1.0),
        ..ExperienceFields::default()
    })
    .unwrap();
    let (alone, honest) = (task(2, &[1e39]), task(1, &[1.0, 2.0, 3.0]));
    let mut huge = task(3, &[0.0, 1.0, f64::MAX]);
    let expected = apply("grpo", no_args(), honest.clone());
    let mut all = honest;
    all.extend(alone);
    all.push(dpo);
    all.append(&mut huge);
    let outcome = apply("grpo", no_args(), all);
    assert_eq!(reasons(&outcome), [("infinite_reward", 2), ("no_action_mask", 1)]);
    // The members of the group of a dropped experience are compared without it.
    assert_eq!(advantages(&outcome, 1), advantages(&expected, 1));
    assert_close(&advantages(&outcome, 3), &[-0.707_105_76, 0.707_105_76]);
    // The mean of a group and the deviation of the batch may differ by a large factor.
    let far = [task(1, &[3e38, 3e38, -3e38]), task(2, &[1.0])].concat();
    let outcome = apply("grpo", json!({"epsilon": 1e-6}), far);
    assert_eq!(outcome.experiences.len(), 4);
    let outcome = apply("grpo", json!({"epsilon": 0.0}), task(2, &[1e-30, 2e-30]));
    assert_eq!(outcome.experiences.len(), 2);
}
