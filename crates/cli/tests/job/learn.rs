//! The first command of the README: learning, resuming, comparing checkpoints.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::workspace::{Workspace, read};

/// The example with fewer steps.
const SHORT: [&str; 4] = [
    "buffer.total_steps=8",
    "buffer.batch_size=16",
    "explorer.eval_interval=4",
    "trainer.save_interval=4",
];

fn scores(summary: &Value) -> Vec<(u64, f64)> {
    let evals = summary["evals"].as_array().unwrap().iter();
    evals.map(|eval| (eval["step"].as_u64().unwrap(), eval["score"].as_f64().unwrap())).collect()
}

#[test]
fn job_learns_resumes_and_compares_checkpoints() {
    let workspace = Workspace::new();
    let ran = workspace.run("run", &SHORT);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(!ran.stderr.contains("lacks endpoints"), "{}", ran.stderr);
    let mode = std::fs::metadata(workspace.job()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "conversations and results are not for other users");
    let summary = workspace.summary();
    let expected = [
        ("mode", "both".into()),
        ("state", "finished".into()),
        ("error", Value::Null),
        ("steps", 8.into()),
        ("total_steps", 8.into()),
        ("trained_steps", 8.into()),
        ("version", 8.into()),
        ("tasks_submitted", (8 * 16).into()),
        ("tasks_finished", (8 * 16).into()),
        ("tasks_failed", 0.into()),
        ("experiences_delivered", (8 * 16 * 8).into()),
        ("restarts", 0.into()),
    ];
    for (key, value) in expected {
        assert_eq!(summary[key], value, "{key} in {summary:#}");
    }
    assert!(summary["seconds"].as_f64().unwrap() > 0.0);
    let curve = scores(&summary);
    let steps: Vec<u64> = curve.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [0, 4, 8]);
    let (first, last) = (curve[0].1, curve[2].1);
    assert_eq!(summary["first_eval"].as_f64(), Some(first));
    assert_eq!(summary["last_eval"].as_f64(), Some(last));
    assert!(first < 0.4 && last > first + 0.1, "{curve:?}");

    // A finished job prints the next commands.
    let again = workspace.run("run", &SHORT);
    assert_eq!(again.code, Some(0));
    assert!(again.stderr.contains("is finished: 8 steps"), "{}", again.stderr);
    assert!(again.stderr.contains("buffer.total_steps=16"), "{}", again.stderr);
    assert_eq!(workspace.summary(), summary, "nothing has happened");

    // More steps resume the job.
    let more = workspace.run("run", &[&["buffer.total_steps=9"], &SHORT[1..]].concat());
    assert_eq!(more.code, Some(0), "{}", more.stderr);
    let summary = workspace.summary();
    assert_eq!(summary["steps"], 9);
    assert_eq!(summary["restarts"], 1);
    assert_eq!(summary["experiences_delivered"], 9 * 16 * 8);

    // Mode `bench` compares checkpoints.
    let bench = workspace.run("run", &["mode=bench"]);
    assert_eq!(bench.code, Some(0), "{}", bench.stderr);
    let rows: Vec<Vec<&str>> =
        bench.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["checkpoint", "held_out"], "{}", bench.stdout);
    let checkpoints: Vec<&str> = rows[1..].iter().map(|row| row[0]).collect();
    assert_eq!(checkpoints, ["0", "4", "5", "6", "7", "8", "9"], "0 and 4 stay");
    let gain: f64 = rows[7].last().unwrap().parse().unwrap();
    assert!(gain > 10.0, "{}", bench.stdout);
    assert_eq!(workspace.summary(), summary, "the job's own summary stays");
    let benched = read(&workspace.job().join("bench_summary.json"));
    assert_eq!((&benched["mode"], &benched["state"]), (&"bench".into(), &"finished".into()));
    assert_eq!(scores(&benched).len(), 7);
}

#[test]
fn same_seed_gives_the_same_scores() {
    let curve = |seed: &str| {
        let workspace = Workspace::new();
        let seed = format!("explorer.rollout_model.seed={seed}");
        let ran = workspace.run(
            "run",
            &["buffer.total_steps=3", "buffer.batch_size=4", "explorer.eval_interval=1", &seed],
        );
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        scores(&workspace.summary())
    };
    let first = curve("1");
    assert_eq!(first, curve("1"));
    assert_ne!(first, curve("2"));
}
