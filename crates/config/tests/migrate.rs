//! Migration reports of configurations that were written for Trinity-RFT.

#![expect(clippy::unwrap_used, reason = "tests")]

use rollway_config::{Config, MigrationOutcome, MigrationReport};

/// Names of built-in operators.
const OPERATORS: [&str; 1] = ["reward_filter"];

fn report(text: &str) -> MigrationReport {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trinity.yaml");
    std::fs::write(&path, text).unwrap();
    Config::migration_report(&path, OPERATORS).unwrap()
}

fn outcome(report: &MigrationReport, key: &str) -> MigrationOutcome {
    let found = report.keys.iter().find(|one| one.key == key);
    found.unwrap_or_else(|| panic!("{key} is not in the report")).outcome.clone()
}

const TRINITY: &str = "
project: demo
ray_namespace: demo
model:
  model_path: Qwen/Qwen2.5-0.5B-Instruct
  max_model_len: 2048
algorithm:
  repeat_times: 4
  kl_loss_fn: k2
buffer:
  explorer_input:
    default_workflow_type: async_math_workflow
    default_reward_fn_type: my_reward
explorer:
  rollout_model:
    engine_type: vllm_async
    api_key: secret-value
    engine_nun: 2
data_processor:
  experience_pipeline:
    operators:
      - name: reward_filter
        args: {threshold: 0.1}
synchronizer:
  sync_style: dynamic_by_explorer
service: {data_juicer: {auto_start: true}}
";

#[test]
fn every_key_of_a_file_is_reported() {
    let report = report(TRINITY);
    assert_eq!(outcome(&report, "project"), MigrationOutcome::Same);
    assert_eq!(outcome(&report, "algorithm.repeat_times"), MigrationOutcome::Same);
    let operator = "data_processor.experience_pipeline.operators[0].args.threshold";
    assert_eq!(outcome(&report, operator), MigrationOutcome::Same);
    let style = outcome(&report, "synchronizer.sync_style");
    let MigrationOutcome::Respelled { to, .. } = style else { panic!("{style:?}") };
    assert_eq!(to, "explorer_driven");
    for unused in ["ray_namespace", "model", "model.model_path", "algorithm.kl_loss_fn", "service"]
    {
        let found = outcome(&report, unused);
        assert!(matches!(found, MigrationOutcome::Unused { .. }), "{unused}: {found:?}");
    }
    for refused in ["explorer.rollout_model.api_key", "explorer.rollout_model.engine_nun"] {
        let found = outcome(&report, refused);
        assert!(matches!(found, MigrationOutcome::Refused { .. }), "{refused}: {found:?}");
    }
    assert!(!report.is_ready());
}

#[test]
fn names_of_code_are_reported() {
    let report = report(TRINITY);
    let notes: Vec<_> = report.names.iter().map(|one| (&*one.name, one.note.as_str())).collect();
    assert_eq!(notes[0], ("async_math_workflow", "built in"));
    assert!(notes[1].0 == "my_reward" && notes[1].1.contains("package.module:Class"));
    assert_eq!(notes[2], ("reward_filter", "built in"));
}

#[test]
fn the_text_groups_keys_with_their_lines_and_shows_no_secrets() {
    let text = report(TRINITY).to_string();
    assert!(text.contains("keys that work as they are (6)"), "{text}");
    assert!(text.contains("  line 25: synchronizer.sync_style: dynamic_by_explorer is called"));
    assert!(text.contains("keys that must be changed (2)"), "{text}");
    assert!(!text.contains("secret-value"), "{text}");
}

#[test]
fn a_file_that_is_no_yaml_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.yaml");
    std::fs::write(&path, "a: [1").unwrap();
    assert!(Config::migration_report(&path, OPERATORS).is_err());
    assert!(Config::migration_report(folder.path().join("missing.yaml"), OPERATORS).is_err());
}
