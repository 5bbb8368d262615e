//! Errors of the input: one message with a remedy, before anything is started.

use std::fs::File;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use rollway_mock_server::{MockServer, MockServerOptions};

use crate::workspace::Workspace;

/// Runs the example with overrides and returns standard error.
fn refused(workspace: &Workspace, keys: &[&str]) -> String {
    let ran = workspace.run("run", keys);
    assert_eq!(ran.code, Some(2), "{keys:?}: {}", ran.stderr);
    assert!(!workspace.job().join("ledger").exists(), "{keys:?}: something was started");
    ran.stderr
}

#[test]
fn every_input_error_has_its_message_and_code_2() {
    let workspace = Workspace::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("synchronizer.address={}", listener.local_addr().unwrap());
    let server = [
        "mode=explore",
        "explorer.rollout_model.engine_type=vllm",
        "explorer.rollout_model.base_url=http://127.0.0.1:1/v1",
    ];
    let operator = "data_processor.experience_pipeline.operators=[{name: reward_fliter}]";
    let argument =
        "data_processor.experience_pipeline.operators=[{name: reward_filter, args: {x: 1}}]";
    let python = "data_processor.experience_pipeline.operators=[{name: flows:Judge}]";
    let long = format!("name={}", "x".repeat(300));
    let database = [
        "buffer.trainer_input.experience_buffer.storage_type=sql",
        "buffer.trainer_input.experience_buffer.path=postgresql://me@127.0.0.1:1/db",
    ];
    let cases: [(&[&str], &[&str]); 15] = [
        (&[&long], &["name: 300 bytes", "at most 200 bytes"]),
        (&database, &["127.0.0.1", "is not available", "start the database, or correct `buffer."]),
        (&["explorer.max_timout=3"], &["max_timout", "did you mean `max_timeout`?"]),
        (&["buffer.explorer_input.taskset.path=nowhere.jsonl"], &["nowhere.jsonl", "relative to "]),
        (
            &["buffer.explorer_input.default_workflow_type=simple_workflo"],
            &["simple_workflo", "hint"],
        ),
        (&["buffer.explorer_input.default_reward_fn_type=exact"], &["exact", "hint"]),
        (&server, &["http://127.0.0.1:1", "no connection", "start it"]),
        (&[&address], &[&address["synchronizer.address=".len()..], "another port"]),
        (
            &["trainer.command=[no-such-program]"],
            &["program `no-such-program` not found", "give its full path"],
        ),
        (&["algorithm.algorithm_type=gpro"], &["algorithm_type", "did you mean `grpo`?"]),
        (&["algorithm.advantage_fn=grop"], &["advantage_fn", "did you mean `grpo`?"]),
        (&[operator], &["operators[0]", "did you mean `reward_filter`?"]),
        (&[argument], &["`reward_filter`: x: unknown argument"]),
        (&[python], &["`flows:Judge` is in Python", "of the Python package"]),
        (&["mode=bench"], &["no checkpoints", "train first"]),
    ];
    for (keys, expected) in cases {
        let stderr = refused(&workspace, keys);
        for text in expected {
            assert!(stderr.contains(text), "{keys:?}: no {text:?} in\n{stderr}");
        }
        assert_eq!(stderr.matches("error: ").count(), 1, "{keys:?}: one message\n{stderr}");
    }
}

#[test]
fn operators_of_mode_serve_are_checked() {
    let workspace = Workspace::new();
    let model = "explorer.rollout_model={engine_type: vllm, base_url: 'http://127.0.0.1:1/v1'}";
    let operator = "data_processor.experience_pipeline.operators=[{name: reward_fliter}]";
    let serve = ["mode=serve", model, operator];
    let checked = workspace.run("check", &serve);
    assert_eq!(checked.code, Some(2), "{}", checked.stderr);
    assert!(checked.stderr.contains("did you mean `reward_filter`?"), "{}", checked.stderr);
}

#[test]
fn error_names_the_folder_that_cannot_be_created() {
    let workspace = Workspace::new();
    std::fs::write(workspace.path().join("file"), "").unwrap();
    let root = format!("checkpoint_root_dir={}", workspace.path().join("file").display());
    let stderr = refused(&workspace, &[&root]);
    assert!(stderr.contains("is not usable") && stderr.contains("hint"), "{stderr}");
}

#[test]
fn check_reports_all_errors_without_creating_files() {
    let workspace = Workspace::new();
    let valid = workspace.run("check", &[]);
    assert_eq!((valid.code, valid.stderr.trim()), (Some(0), "examples/arithmetic.yaml: valid"));
    let wrong = [
        "buffer.explorer_input.taskset.path=nowhere.jsonl",
        "buffer.explorer_input.default_reward_fn_type=exact",
    ];
    let checked = workspace.run("check", &wrong);
    assert_eq!(checked.code, Some(2));
    assert!(checked.stderr.contains("nowhere.jsonl"), "{}", checked.stderr);
    assert!(checked.stderr.contains("exact"), "all at once: {}", checked.stderr);
    assert!(!workspace.job().exists(), "no file is created");
}

#[test]
fn closed_standard_output_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollway"));
    let ran = command.arg("schema").stdout(writer).output().unwrap();
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert_eq!((ran.status.code(), &*stderr), (Some(0), ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn server_without_the_model_is_an_input_error() {
    let server = MockServer::start(MockServerOptions::default()).unwrap();
    let workspace = Workspace::new();
    let url = format!("explorer.rollout_model.base_url={}/v1", server.url());
    let kind = "explorer.rollout_model.engine_type=vllm";
    let path = "explorer.rollout_model.model_path=Qwen/Qwen3-8B";
    let keys = ["mode=explore", kind, &url, path];
    let stderr = tokio::task::block_in_place(|| refused(&workspace, &keys));
    assert!(stderr.contains("it has no model `Qwen/Qwen3-8B`"), "{stderr}");
    assert!(stderr.contains("available: "), "the models of the server: {stderr}");
}

#[test]
fn hints_of_a_finished_job_repeat_the_overrides() {
    let workspace = Workspace::new();
    let keys = ["buffer.total_steps=1", "buffer.batch_size=2", "name=p1"];
    let ran = workspace.run("run", &keys);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("buffer.batch_size=2 name=p1 mode=bench"), "{}", ran.stderr);
    let again = workspace.run("run", &keys);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    let expected = "buffer.batch_size=2 name=p1 buffer.total_steps=2";
    assert!(again.stderr.contains(expected), "{}", again.stderr);
}

#[test]
fn full_standard_output_is_an_error_without_a_panic() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollway"));
    let ran = command.arg("schema").stdout(full).output().unwrap();
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code().is_some_and(|code| code != 101), "{:?}: {stderr}", ran.status);
    assert!(!stderr.contains("panicked"), "{stderr}");
}

#[test]
fn too_few_open_files_are_an_error_with_a_remedy() {
    let workspace = Workspace::new();
    let job = workspace.command("run", &["buffer.total_steps=2"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", r#"ulimit -n 64; exec "$0" "$@""#]).arg(job.get_program());
    limited.args(job.get_args()).current_dir(job.get_current_dir().unwrap());
    let ran = limited.stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(!stderr.contains("panicked"), "{stderr}");
    if ran.status.code() != Some(0) {
        assert!(stderr.contains("error: "), "{stderr}");
        assert!(stderr.contains("raise the limit of open files (`ulimit -n`)"), "{stderr}");
    }
    // What was begun continues with more of them.
    let ran = workspace.run("run", &["buffer.total_steps=2"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}
