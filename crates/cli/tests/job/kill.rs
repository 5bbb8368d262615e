//! `kill -9` at ten points of a job: every task is trained exactly once.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::workspace::Workspace;

const STEPS: u64 = 24;
const TASKS: u64 = 4;
const RUNS: u64 = 8;

/// Event and its count after which each process is killed.
const KILL_POINTS: [(&str, usize); 10] = [
    ("began", 1),
    ("step_begun", 1),
    ("evaluated", 1),
    ("step_done", 2),
    ("trained", 1),
    ("synced", 3),
    ("step_begun", 3),
    ("trained", 3),
    ("step_done", 1),
    ("evaluated", 1),
];

#[test]
fn ten_kills_lose_no_task_and_train_none_twice() {
    let workspace = Workspace::new();
    let rows = workspace.path().join("rows.jsonl");
    let (steps, path) =
        (format!("buffer.total_steps={STEPS}"), format!("{BUFFER}.path={}", rows.display()));
    let keys = [
        &*steps,
        &*path,
        "buffer.trainer_input.experience_buffer.storage_type=file",
        "buffer.batch_size=4",
        "explorer.eval_interval=4",
    ];
    let mut done = BTreeSet::new();
    for (kind, count) in KILL_POINTS {
        let mut process = workspace.start(&keys);
        for _ in 0..count {
            let event = process.wait_for(kind);
            done.extend(event["step"].as_u64().filter(|_| kind == "step_done"));
        }
        process.kill();
    }
    let (code, events) = workspace.start(&keys).finish();
    assert_eq!(code, Some(0), "{events:#?}");

    let summary = workspace.summary();
    assert_eq!((&summary["state"], &summary["steps"]), (&"finished".into(), &STEPS.into()));
    assert_eq!(summary["restarts"], KILL_POINTS.len());
    assert_eq!(summary["tasks_submitted"], STEPS * TASKS);
    assert_eq!(summary["tasks_finished"], STEPS * TASKS);
    assert_eq!(summary["experiences_delivered"], STEPS * TASKS * RUNS);
    assert_eq!(summary["trained_steps"], STEPS);
    let (first, last) = (summary["first_eval"].as_f64(), summary["last_eval"].as_f64());
    assert!(last > first, "{first:?} became {last:?}");

    // Every run of every task is in the buffer once, and the trainer has read all of it.
    let text = std::fs::read_to_string(&rows).unwrap();
    let mut names = BTreeSet::new();
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let eid = &row["eid"];
        let name = ["batch", "task", "run"].map(|part| eid[part].to_string());
        assert!(names.insert(name), "twice: {eid}");
    }
    assert_eq!(names.len() as u64, STEPS * TASKS * RUNS);
    let meta = crate::workspace::read(&workspace.job().join("trainer_meta.json"));
    assert_eq!(meta["latest_iteration"], STEPS);
    // Batches are as large as steps: so many steps have read so many rows.
    let tasks: BTreeSet<&[String]> = names.iter().map(|name| &name[..2]).collect();
    assert_eq!(tasks.len() as u64, STEPS * TASKS);
}

/// Between its last delivery and its exit a job loads and evaluates the last weights.
#[test]
fn job_that_ends_during_the_last_evaluation_finishes_when_it_is_started_again() {
    for signal in ["KILL", "INT"] {
        let workspace = Workspace::new();
        let long_evaluation = format!(
            "buffer.explorer_input.eval_tasksets=[{{name: held_out, path: {}, repeat_times: 30, \
             format: {{prompt_key: question, response_key: answer}}}}]",
            workspace.held_out().display()
        );
        let keys = [
            "buffer.total_steps=3",
            "buffer.batch_size=4",
            "explorer.eval_interval=3",
            &long_evaluation,
            // A trainer that waits for an end of data that never comes fails after this time.
            &format!("{BUFFER}.max_read_timeout=60"),
        ];
        let mut process = workspace.start(&keys);
        while process.wait_for("synced")["step"] != 3 {}
        process.signal(signal);
        let (code, events) = process.finish();
        assert_ne!(code, Some(0), "the job ended before the signal: {events:#?}");
        let (code, events) = workspace.start(&keys).finish();
        assert_eq!(code, Some(0), "{signal}: {events:#?}");
        let summary = workspace.summary();
        assert_eq!((&summary["state"], &summary["steps"]), (&"finished".into(), &3.into()));
        assert_eq!(summary["trained_steps"], 3);
    }
}

const BUFFER: &str = "buffer.trainer_input.experience_buffer";
