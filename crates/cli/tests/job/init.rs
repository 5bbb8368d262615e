//! `rollway init` and the jobs that it writes; `rollway completions`.

use std::path::Path;
use std::process::{Command, Output};

use crate::workspace::read;

fn rollway(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollway"));
    command.current_dir(folder).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    format!("{stdout}{}", String::from_utf8_lossy(&output.stderr))
}

/// The template without Python is valid and trains as it was written, with fewer steps.
#[test]
fn written_job_is_valid_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let written = rollway(folder.path(), &["init", "sums", "--template", "arithmetic"]);
    assert_eq!(written.status.code(), Some(0), "{}", text(&written));
    assert!(text(&written).contains("cd sums\n"), "{}", text(&written));
    let sums = folder.path().join("sums");
    let checked = rollway(&sums, &["check", "job.yaml"]);
    assert_eq!(text(&checked), "job.yaml: valid\n");
    let ran = rollway(&sums, &["run", "job.yaml", "buffer.total_steps=2", "buffer.batch_size=4"]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran));
    let summary = read(&sums.join("checkpoints/tutorial/sums/summary.json"));
    assert_eq!((&summary["steps"], &summary["trained_steps"]), (&2.into(), &2.into()), "{summary}");
    assert_eq!(summary["evals"][0]["finished"], 200, "{summary}");
}

#[test]
fn existing_folder_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("first-job")).unwrap();
    let written = rollway(folder.path(), &["init"]);
    assert_eq!(written.status.code(), Some(2));
    assert!(text(&written).contains("first-job exists already"), "{}", text(&written));
    assert_eq!(std::fs::read_dir(folder.path().join("first-job")).unwrap().count(), 0);
}

#[test]
fn completions_name_the_commands() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = rollway(folder.path(), &["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        assert!(text(&output).contains("mock-server"), "{shell}: {}", text(&output));
    }
}
