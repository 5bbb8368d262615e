//! Balanced counts, and metrics under stable names.

use rollway_core::metrics::PassRate;
use rollway_data::pipeline::{DroppedExperiences, OperatorOutput, PipelineError};
use rollway_experience::serialize_many;
use serde_json::json;

use crate::store::Store;
use crate::world::{
    assert_balanced, build, custom, experience, keys, no_args, payloads, pipeline, task, with_info,
};

fn dropped(operator: &str, reason: &str, count: usize) -> DroppedExperiences {
    DroppedExperiences { operator: operator.into(), reason: reason.into(), count }
}

#[test]
fn everything_dropped_is_counted_by_operator_and_reason() {
    let store = Store::default();
    let operators = vec![
        build("reward_filter", no_args()),
        build("reward_filter", json!({"threshold": 0.5})),
        build("reward_std_filter", no_args()),
        build("grpo", no_args()),
    ];
    let mut experiences = task(1, &[1.0, 0.5, -1.0, 0.25]);
    experiences.extend(task(2, &[1.0, 1.0]));
    experiences.push(experience(3, 0, None));
    let report = pipeline(operators, &store).process("1", &payloads(&experiences)).unwrap();
    assert_balanced(&report);
    assert_eq!((report.submitted, report.stored, report.known), (7, 2, 0));
    assert_eq!(
        report.dropped,
        [
            dropped("reward_filter", "below_threshold", 1),
            dropped("reward_filter", "missing_reward", 1),
            dropped("reward_filter#2", "below_threshold", 1),
            dropped("reward_std_filter", "low_std", 2),
        ]
    );
    assert_eq!(
        keys(&report),
        [
            "experience_pipeline/experience_count",
            "experience_pipeline/filtered_count",
            "experience_pipeline/group_advantages/reward_mean/max",
            "experience_pipeline/group_advantages/reward_mean/mean",
            "experience_pipeline/group_advantages/reward_mean/min",
            "experience_pipeline/group_advantages/reward_std/max",
            "experience_pipeline/group_advantages/reward_std/mean",
            "experience_pipeline/group_advantages/reward_std/min",
            "experience_pipeline/group_advantages/single_member_groups",
            "experience_pipeline/grpo/filtered_count",
            "experience_pipeline/reward_filter#2/filtered/below_threshold",
            "experience_pipeline/reward_filter#2/filtered_count",
            "experience_pipeline/reward_filter/filtered/below_threshold",
            "experience_pipeline/reward_filter/filtered/missing_reward",
            "experience_pipeline/reward_filter/filtered_count",
            "experience_pipeline/reward_std_filter/filtered/low_std",
            "experience_pipeline/reward_std_filter/filtered_count",
            "time/experience_pipeline/decode",
            "time/experience_pipeline/grpo",
            "time/experience_pipeline/reward_filter",
            "time/experience_pipeline/reward_filter#2",
            "time/experience_pipeline/reward_std_filter",
            "time/experience_pipeline/total",
            "time/experience_pipeline/write",
        ]
    );
    let metric = |name: &str| report.metrics.get(&format!("experience_pipeline/{name}"));
    assert_eq!(metric("experience_count"), Some(2.0));
    assert_eq!(metric("filtered_count"), Some(5.0));
    assert_eq!(metric("reward_filter/filtered_count"), Some(2.0));
    assert_eq!(metric("grpo/filtered_count"), Some(0.0));
}

#[test]
fn metric_names_are_never_reused() {
    let store = Store::default();
    let report = |name, keys: &'static [&'static str], value: f64| {
        custom(name, move |all| {
            let metrics = keys.iter().map(|&key| (key, value)).collect();
            Ok(OperatorOutput { metrics, ..OperatorOutput::new(all) })
        })
    };
    let operators = vec![
        report("a", &["x", "filtered_count"], 1.0),
        // The second of a name is `#2`, even if the first reports no such metric.
        report("a", &["x", "experience_pipeline/y", "time/judge"], 2.0),
        report("b", &["x", "time/judge"], 3.0),
    ];
    let report = pipeline(operators, &store).process("1", &[]).unwrap();
    for (key, value) in [
        ("experience_pipeline/x", 1.0),
        ("experience_pipeline/filtered_count", 0.0),
        ("experience_pipeline/filtered_count#2", 1.0),
        ("experience_pipeline/x#2", 2.0),
        ("experience_pipeline/y#2", 2.0),
        ("time/judge#2", 2.0),
        ("experience_pipeline/x#3", 3.0),
        ("time/judge", 3.0),
    ] {
        assert_eq!(report.metrics.get(key), Some(value), "{key}");
    }
}

#[test]
fn unexplained_drops_are_counted() {
    let store = Store::default();
    let silent = custom("silent", |mut all| {
        all.truncate(1);
        Ok(OperatorOutput::new(all))
    });
    let experiences = task(1, &[1.0, 2.0, 3.0]);
    let report = pipeline(vec![silent], &store).process("1", &payloads(&experiences)).unwrap();
    assert_eq!(report.dropped, [dropped("silent", "unexplained", 2)]);
    assert_balanced(&report);

    let loud = custom("loud", |all| {
        Ok(OperatorOutput { dropped: [("x".into(), 1)].into(), ..OperatorOutput::new(all) })
    });
    let error = pipeline(vec![loud], &store).process("2", &payloads(&experiences)).unwrap_err();
    assert!(matches!(error, PipelineError::Miscounted { explained: 1, found: 0, .. }), "{error}");
}

#[test]
fn derived_experiences_are_counted_and_need_new_ids() {
    let store = Store::default();
    let copies = |suffix: &'static str| {
        custom("copies", move |mut all| {
            let copy = |one: &rollway_experience::Experience| {
                let mut copy = one.clone();
                copy.eid.suffix.push_str(suffix);
                copy
            };
            all.extend(all.iter().map(copy).collect::<Vec<_>>());
            Ok(OperatorOutput::new(all))
        })
    };
    let experiences = task(1, &[1.0, -1.0]);
    let operators = vec![copies("-copy"), build("reward_filter", no_args())];
    let report = pipeline(operators, &store).process("1", &payloads(&experiences)).unwrap();
    assert_eq!((report.submitted, report.added, report.stored), (2, 2, 2));
    assert_balanced(&report);

    let error =
        pipeline(vec![copies("")], &store).process("2", &payloads(&experiences)).unwrap_err();
    assert!(matches!(&error, PipelineError::DuplicateId { id, .. } if id == "1/1/0/0/00000a"));
    assert_eq!(store.ids().len(), 2);
}

#[test]
fn duplicate_ids_count_once() {
    let store = Store::default();
    let experiences = task(1, &[1.0, 2.0]);
    let payload = serialize_many(&experiences).unwrap();
    let twice = [payload.clone(), bytes::Bytes::new(), payload];
    let report = pipeline(vec![], &store).process("1", &twice).unwrap();
    assert_eq!((report.submitted, report.stored), (4, 2));
    assert_eq!(report.dropped, [dropped("decode", "duplicate_id", 2)]);
    assert_balanced(&report);
}

#[test]
fn selectors_learn_of_a_task_once() {
    let store = Store::default();
    let index = json!({"task_index": {"taskset_id": 0, "index": 3}, "bonus": 1});
    let experiences = vec![with_info(experience(1, 0, Some(1.0)), &index)];
    let shaping = json!({"reward_shaping_configs": [{"stats_key": "bonus", "op_type": "ADD"}]});
    let operators = vec![
        build("pass_rate_calculator", no_args()),
        build("reward_shaping_mapper", shaping),
        build("pass_rate_calculator", no_args()),
    ];
    let report = pipeline(operators, &store).process("1", &payloads(&experiences)).unwrap();
    let expected = PassRate { taskset_id: 0, index: 3, value: 1.0, count: 1 };
    assert_eq!(report.selector.iter().collect::<Vec<_>>(), [&expected]);
    let ignored = "experience_pipeline/pass_rate_calculator#2/ignored_pass_rates";
    assert_eq!(report.metrics.get(ignored), Some(1.0));
    assert_eq!(report.metrics.get("experience_pipeline/selection/<1_ratio"), Some(0.0));
    assert_eq!(report.metrics.get("experience_pipeline/selection/<1_ratio#2"), Some(0.0));
}

#[test]
fn experiences_from_which_nothing_is_learned_are_counted() {
    let store = Store::default();
    let with_token_reward = {
        let mut one = experience(1, 2, None);
        one.token_level_reward = Some([0.0, 1.0].into());
        one
    };
    let experiences = [experience(1, 0, None), experience(1, 1, Some(0.0)), with_token_reward];
    let report = pipeline(Vec::new(), &store).process("1", &payloads(&experiences)).unwrap();
    assert_eq!(report.metrics.get("experience_pipeline/experience_count"), Some(3.0));
    assert_eq!(report.metrics.get("experience_pipeline/unrewarded_count"), Some(1.0));
}
