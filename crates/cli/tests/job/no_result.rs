//! Jobs that run to their end without a result fail.

use crate::workspace::Workspace;

#[test]
fn job_in_which_every_run_fails_is_no_success() {
    let workspace = Workspace::new();
    let keys = [
        "buffer.total_steps=1",
        "buffer.batch_size=2",
        "explorer.eval_interval=9",
        // Too small for any experience.
        "explorer.limits.payload_bytes_per_run=8",
    ];
    let ran = workspace.run("run", &keys);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    for part in ["none of 2 tasks succeeded", "as invalid_output", "WARN", "run failed: "] {
        assert!(ran.stderr.contains(part), "{part}\n{}", ran.stderr);
    }
    let summary = workspace.summary();
    assert_eq!(summary["state"], "failed");
    let causes = summary["failures"].as_array().unwrap();
    assert_eq!(causes.len(), 1, "one group: sizes in messages make no difference\n{causes:?}");
    assert_eq!(causes[0]["kind"], "invalid_output");
    let message = causes[0]["message"].as_str().unwrap();
    let expected =
        "more than 8 bytes of experiences; raise `explorer.limits.payload_bytes_per_run`";
    assert!(message.contains(expected), "{message}");
    // Long lines are cut.
    let shown = "failures 16 × invalid_output: the run's ";
    assert!(ran.stderr.contains(shown), "no {shown:?} at the end\n{}", ran.stderr);
    assert!(summary["error"].as_str().unwrap().contains("none of 2 tasks succeeded"));
}
