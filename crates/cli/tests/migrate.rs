//! `rollway migrate` on configurations of Trinity-RFT.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::process::{Command, Output};

fn migrate(text: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trinity.yaml");
    std::fs::write(&path, text).unwrap();
    Command::new(env!("CARGO_BIN_EXE_rollway")).arg("migrate").arg(path).output().unwrap()
}

#[test]
fn the_report_goes_to_standard_output() {
    let done =
        migrate("algorithm: {repeat_times: 4, policy_loss_fn: ppo}\nexplorer: {runner_num: 2}\n");
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(
        text.contains("keys that work as they are (1)\n  line 1: algorithm.repeat_times"),
        "{text}"
    );
    assert!(text.contains("line 2: explorer.runner_num: the number of runners is"), "{text}");
}

#[test]
fn keys_that_must_be_changed_are_an_input_error() {
    let done = migrate("explorer: {rollout_model: {max_prompt_tokens: 10}}\n");
    assert_eq!(done.status.code(), Some(2));
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains("keys that must be changed (1)"), "{text}");
}
