//! Ctrl-C, a closed terminal, a second process in the same folder, and a log that is not read.

use std::fs::File;
use std::io::Write;

use crate::workspace::Workspace;

const KEYS: [&str; 3] = ["buffer.total_steps=6", "buffer.batch_size=4", "explorer.eval_interval=6"];

#[test]
fn ctrl_c_stops_gracefully_and_the_same_command_resumes() {
    let workspace = Workspace::new();
    let mut running = workspace.start(&KEYS);
    running.wait_for("step_done");
    // A second process in the same folder is refused.
    let second = workspace.run("run", &KEYS);
    assert_eq!(second.code, Some(2), "{}", second.stderr);
    assert!(second.stderr.contains("is already running (process "), "{}", second.stderr);
    running.signal("INT");
    let (code, events) = running.finish();
    assert_eq!(code, Some(130));
    let last = events.last().unwrap();
    assert_eq!((&last["event"], &last["outcome"]), (&"ended".into(), &"stopped".into()));
    let summary = workspace.summary();
    assert_eq!(summary["state"], "stopped", "{summary:#}");
    assert!(summary["steps"].as_u64().unwrap() < 6, "{summary:#}");

    let ran = workspace.run("run", &KEYS);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let summary = workspace.summary();
    assert_eq!((&summary["state"], &summary["steps"]), (&"finished".into(), &6.into()));
    assert_eq!(summary["tasks_submitted"], 6 * 4);
    assert_eq!(summary["experiences_delivered"], 6 * 4 * 8);
    assert_eq!((&summary["trained_steps"], &summary["restarts"]), (&6.into(), &1.into()));
}

#[test]
fn a_closed_terminal_stops_the_job_gracefully() {
    let workspace = Workspace::new();
    let mut running = workspace.start(&KEYS);
    running.wait_for("step_done");
    running.signal("HUP");
    let (code, events) = running.finish();
    assert_eq!(code, Some(130), "{events:#?}");
    assert_eq!(events.last().unwrap()["outcome"], "stopped");
    assert_eq!(workspace.summary()["state"], "stopped");
}

#[test]
fn output_that_takes_nothing_does_not_stop_the_job() {
    let workspace = Workspace::new();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for format in ["plain", "json"] {
        let mut command = workspace.command("run", &["buffer.total_steps=1"]);
        let ran = command.args(["--log", format]).stdout(full()).stderr(full()).status().unwrap();
        assert!(ran.success(), "{format}: {ran}");
        assert_eq!(workspace.summary()["state"], "finished", "{format}");
    }
}

#[test]
fn unread_log_does_not_block_the_job() {
    let workspace = Workspace::new();
    let (unread, mut full) = std::io::pipe().unwrap();
    // Fill the pipe, so that nothing the job writes fits.
    full.write_all(&[b'.'; 64 << 10]).unwrap();
    let mut command = workspace.command("run", &["buffer.total_steps=2"]);
    let status = command.args(["--log", "json"]).stderr(full).status().unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(workspace.summary()["state"], "finished");
    drop(unread);
}
