//! `reward_shaping_mapper` and `pass_rate_calculator`.

use std::collections::BTreeMap;

use rollway_core::metrics::PassRate;
use rollway_experience::Experience;
use serde_json::json;

use crate::world::{apply, experience, no_args, with_info};

fn rewards(experiences: &[Experience]) -> Vec<Option<f64>> {
    experiences.iter().map(|experience| experience.reward).collect()
}

#[test]
fn rules_apply_in_order() {
    let args = json!({"reward_shaping_configs": [
        {"stats_key": "length", "op_type": "SUB", "weight": 0.5},
        {"stats_key": "passed", "op_type": "MUL"},
        {"stats_key": "length", "op_type": "DIV", "weight": 2},
        {"stats_key": "length", "op_type": "ADD", "weight": 10},
    ]});
    let experiences = vec![
        with_info(experience(1, 0, Some(1.0)), &json!({"length": 4, "passed": true})),
        // Missing entries, non-numbers and divisions by zero are skipped.
        with_info(experience(1, 1, Some(1.0)), &json!({"length": 0.0, "passed": "yes"})),
        with_info(experience(1, 2, Some(3.0)), &json!({})),
        with_info(experience(1, 3, None), &json!({"length": 4, "passed": true})),
    ];
    let outcome = apply("reward_shaping_mapper", args, experiences);
    let expected = (1.0 - 2.0) / 8.0 + 40.0;
    assert_eq!(rewards(&outcome.experiences), [Some(expected), Some(1.0), Some(3.0), None]);
    assert!(outcome.dropped.is_empty());
    for (key, value) in [
        ("reward_diff/mean", (expected - 1.0) / 3.0),
        ("reward_diff/min", 0.0),
        ("reward_diff/max", expected - 1.0),
        ("reward_shaping/missing_reward_count", 1.0),
        ("reward_shaping/missing_stats_count", 5.0),
        ("reward_shaping/division_by_zero_count", 1.0),
    ] {
        assert_eq!(outcome.metrics.get(key), Some(value), "{key}");
    }
}

#[test]
fn shaping_nothing_has_no_difference() {
    let args = json!({"reward_shaping_configs": []});
    for experiences in [vec![], vec![experience(1, 0, None)]] {
        let outcome = apply("reward_shaping_mapper", args.clone(), experiences);
        assert_eq!(outcome.metrics.get("reward_diff/mean"), None);
    }
    let outcome = apply("reward_shaping_mapper", args, vec![experience(1, 0, Some(f64::NAN))]);
    assert!(outcome.metrics.get("reward_diff/max").unwrap().is_nan(), "a broken reward shows");
}

#[test]
fn pass_rates_are_means_by_task_of_a_taskset() {
    let of = |taskset: u64, index: u64, run, reward| {
        let info = json!({"task_index": {"taskset_id": taskset, "index": index}});
        with_info(experience(index as i64, run, reward), &info)
    };
    let experiences = vec![
        of(1, 7, 0, Some(1.0)),
        of(0, 9, 0, Some(0.0)),
        of(0, 9, 1, Some(1.0)),
        of(0, 9, 2, None),
        of(0, 9, 3, Some(f64::NAN)),
        of(0, 3, 0, Some(0.0)),
        of(0, 4, 0, Some(1.0 / 16.0)),
        experience(5, 0, Some(1.0)),
        with_info(experience(6, 0, Some(1.0)), &json!({"task_index": {"index": 6}})),
    ];
    let outcome = apply("pass_rate_calculator", no_args(), experiences.clone());
    assert_eq!(rewards(&outcome.experiences).len(), experiences.len());
    let rate = |taskset_id, index, value, count| PassRate { taskset_id, index, value, count };
    let expected =
        [rate(0, 3, 0.0, 1), rate(0, 4, 0.0625, 1), rate(0, 9, 0.5, 2), rate(1, 7, 1.0, 1)];
    assert_eq!(outcome.selector.iter().copied().collect::<Vec<_>>(), expected);
    assert_eq!(
        outcome.selector.by_taskset(),
        BTreeMap::from([(0, (vec![3, 4, 9], vec![0.0, 0.0625, 0.5])), (1, (vec![7], vec![1.0])),])
    );
    let found: Vec<_> = outcome.metrics.iter().map(|(key, value)| (&**key, value)).collect();
    assert_eq!(
        found,
        [
            ("selection/<15_16_ratio", 0.75),
            ("selection/<1_ratio", 0.75),
            ("selection/>0_ratio", 0.75),
            ("selection/>1_16_ratio", 0.5),
            ("selection/missing_index_count", 2.0),
            ("selection/missing_reward_count", 2.0),
            ("selection/strict_valid_ratio", 0.25),
            ("selection/valid_ratio", 0.5),
        ]
    );
}

#[test]
fn a_share_of_no_tasks_is_not_reported() {
    let outcome = apply("pass_rate_calculator", no_args(), vec![experience(1, 0, Some(1.0))]);
    assert!(outcome.selector.is_empty());
    assert_eq!(outcome.metrics.len(), 2);
}
