//! `rollway debug`.

use serde_json::Value;

use crate::workspace::{Workspace, read};

#[test]
fn one_task_is_run_and_shown() {
    let workspace = Workspace::new();
    let ran = workspace.run("debug", &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for text in ["user", "log-prob", "reward", "timing", "text\n", "  \"<begin>\"\n", "  \"=\"\n"] {
        assert!(ran.stdout.contains(text), "no {text:?} in\n{}", ran.stdout);
    }
    let calls = ran.stdout.lines().find(|line| line.contains(" model call")).unwrap();
    assert!(calls.starts_with("  1 model call, as part of the task  "), "{calls}");
    let column = |line: &str| line.find(" ms");
    let validated = ran.stdout.lines().find(|line| line.contains("validate the job")).unwrap();
    assert_eq!(column(calls), column(validated), "{}", ran.stdout);
    // The sum of a metric that does not exist.
    assert!(!ran.stdout.contains("-0.0 ms"), "{}", ran.stdout);
    let folder = workspace.job().join("debug");
    let text = std::fs::read_to_string(folder.join("experiences.jsonl")).unwrap();
    let experience: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(experience["prompt_length"], 7, "{experience}");
    assert_eq!(experience["messages"].as_array().unwrap().len(), 2, "{experience}");
    let profile = read(&folder.join("profile.json"));
    let events = profile["traceEvents"].as_array().unwrap();
    let total: f64 = events.iter().filter_map(|event| event["dur"].as_f64()).sum();
    assert!(events.len() > 3 && total > 0.0, "{profile}");
    assert!(!workspace.job().join("ledger").exists(), "the job itself is not touched");
}

#[test]
fn failure_is_exit_code_1_with_its_message() {
    let workspace = Workspace::new();
    // The embedded model rejects this option.
    let key = "buffer.explorer_input.taskset.rollout_args={top_p: 0.5}";
    let ran = workspace.run("debug", &[key]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("top_p"), "{}", ran.stderr);
}
