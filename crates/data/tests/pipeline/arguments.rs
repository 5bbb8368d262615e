//! Operators from a configuration, and errors in it.

use rollway_data::pipeline::{OperatorOutput, OperatorRegistry, OperatorRegistryError};
use serde_json::{Value, json};

use crate::world::custom;

fn refused(name: &str, args: Value) -> String {
    match OperatorRegistry::built_in().build(name, &args) {
        Ok(_) => panic!("{name} accepts {args}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn names_are_the_documented_ones() {
    let registry = OperatorRegistry::built_in();
    assert_eq!(
        registry.names().collect::<Vec<_>>(),
        [
            "grpo",
            "invalid_reward_filter",
            "pass_rate_calculator",
            "reward_filter",
            "reward_shaping_mapper",
            "reward_std_filter",
        ]
    );
    for name in registry.names().filter(|name| *name != "reward_shaping_mapper") {
        assert_eq!(registry.build(name, &json!(null)).unwrap().name(), name);
        assert_eq!(registry.build(name, &json!({})).unwrap().name(), name);
    }
}

#[test]
fn errors_contain_a_remedy() {
    for (name, key, value, problem) in [
        ("reward_filter", "threshold", json!("high"), "\"high\" where a number is expected"),
        (
            "reward_std_filter",
            "threshold",
            json!(-1),
            "-1 where a number, 0 or greater is expected",
        ),
        ("grpo", "std_cal_level", json!("task"), "\"task\" where one of group, batch is expected"),
        ("grpo", "min_group_size", json!(0), "0 where a whole number, 1 or greater is expected"),
    ] {
        assert_eq!(
            refused(name, json!({key: value})),
            format!("operator `{name}`: {key}: {problem}")
        );
    }
    let rule = json!({"reward_shaping_configs": [{"stats_key": "a", "op_type": "POW"}]});
    let unknown = |key| format!("{key}: unknown argument (its value is 1)");
    let twice = "duplicate_experiences: true is not supported: no experience is trained twice";
    let operation = "reward_shaping_configs[0].op_type: \"POW\"";
    for (name, args, problem, remedy) in [
        (
            "reward_filter",
            json!({"treshold": 1}),
            &*unknown("treshold"),
            "; did you mean `threshold`?",
        ),
        ("invalid_reward_filter", json!({"x": 1}), &unknown("x"), "; it takes no arguments"),
        ("pass_rate_calculator", json!([1]), "args: [1]", " where keys with values are expected"),
        ("grpo", json!({"duplicate_experiences": true}), twice, "; leave it out"),
        (
            "reward_shaping_mapper",
            json!({}),
            "reward_shaping_configs: missing",
            "; it has no default",
        ),
        ("reward_shaping_mapper", rule, operation, " where one of ADD, SUB, MUL, DIV is expected"),
    ] {
        assert_eq!(refused(name, args), format!("operator `{name}`: {problem}{remedy}"));
    }
    let expected = "unknown operator `reward_fliter`; did you mean `reward_filter`?";
    assert_eq!(refused("reward_fliter", json!({})), expected);
    assert!(refused("summarize", json!({})).ends_with(
        "there is grpo, invalid_reward_filter, pass_rate_calculator, reward_filter, \
         reward_shaping_mapper, reward_std_filter"
    ));
}

#[test]
fn arguments_that_ask_for_nothing_are_accepted() {
    let args = json!({
        "epsilon": 1e-6, "std_threshold": null, "duplicate_experiences": false,
        "rank_penalty": null, "std_cal_level": "group",
    });
    assert!(OperatorRegistry::built_in().build("grpo", &args).is_ok());
}

#[test]
fn custom_operators_are_found_and_replace_nothing() {
    let mut registry = OperatorRegistry::built_in();
    registry.register("mine", |_| Ok(custom("mine", |all| Ok(OperatorOutput::new(all))))).unwrap();
    assert_eq!(registry.build("mine", &json!(null)).unwrap().name(), "mine");
    let taken =
        registry.register("grpo", |_| Ok(custom("grpo", |all| Ok(OperatorOutput::new(all)))));
    assert_eq!(taken, Err(OperatorRegistryError::Taken("grpo".into())));
}
