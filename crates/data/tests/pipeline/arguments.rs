//! Operators from a configuration, and what is said about mistakes in it.

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
fn mistakes_are_answered_with_a_remedy() {
    for (name, args, expected) in [
        (
            "reward_fliter",
            json!({}),
            "unknown operator `reward_fliter`; did you mean `reward_filter`?",
        ),
        (
            "reward_filter",
            json!({"treshold": 0.5}),
            "operator `reward_filter`: treshold: unknown argument (its value is 0.5); did you mean \
             `threshold`?",
        ),
        (
            "reward_filter",
            json!({"threshold": "high"}),
            "operator `reward_filter`: threshold: \"high\" where a number is expected",
        ),
        (
            "reward_std_filter",
            json!({"threshold": -1}),
            "operator `reward_std_filter`: threshold: -1 where a number, 0 or greater is expected",
        ),
        (
            "invalid_reward_filter",
            json!({"threshold": 1}),
            "operator `invalid_reward_filter`: threshold: unknown argument (its value is 1); it \
             takes no arguments",
        ),
        (
            "pass_rate_calculator",
            json!([1]),
            "operator `pass_rate_calculator`: args: [1] where keys with values are expected",
        ),
        (
            "grpo",
            json!({"std_cal_level": "task"}),
            "operator `grpo`: std_cal_level: \"task\" where one of group, batch is expected",
        ),
        (
            "grpo",
            json!({"min_group_size": 0}),
            "operator `grpo`: min_group_size: 0 where a whole number, 1 or greater is expected",
        ),
        (
            "grpo",
            json!({"duplicate_experiences": true}),
            "operator `grpo`: duplicate_experiences: true is not supported: no experience is \
             trained twice; leave it out",
        ),
        (
            "reward_shaping_mapper",
            json!({}),
            "operator `reward_shaping_mapper`: reward_shaping_configs: missing; it has no default",
        ),
        (
            "reward_shaping_mapper",
            json!({"reward_shaping_configs": [{"stats_key": "a", "op_type": "POW"}]}),
            "operator `reward_shaping_mapper`: reward_shaping_configs[0].op_type: \"POW\" where \
             one of ADD, SUB, MUL, DIV is expected",
        ),
    ] {
        assert_eq!(refused(name, args), expected);
    }
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
fn operators_of_ones_own_are_found_and_replace_nothing() {
    let mut registry = OperatorRegistry::built_in();
    registry.register("mine", |_| Ok(custom("mine", |all| Ok(OperatorOutput::new(all))))).unwrap();
    assert_eq!(registry.build("mine", &json!(null)).unwrap().name(), "mine");
    let taken =
        registry.register("grpo", |_| Ok(custom("grpo", |all| Ok(OperatorOutput::new(all)))));
    assert_eq!(taken, Err(OperatorRegistryError::Taken("grpo".into())));
}
