//! Built-in workflows and workflow runtimes.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod world;

use std::collections::BTreeSet;

use rollway::workflow_runtime::{TASK_ENCODING, WorkflowRuntime, WorkflowSetupErrorKind};
use rollway_base::ServerKind;
use rollway_core::FailureKind;
use rollway_core::metrics::Metrics;
use rollway_experience::{Experience, deserialize_many};
use serde_json::{Value, json};

use crate::world::{World, failed, run, selected};

const SIMPLE: &str = "default_workflow_type: simple_workflow, default_reward_fn_type: exact_match,";

#[tokio::test(flavor = "multi_thread")]
async fn rust_workflow_calls_rewards_and_labels() {
    let world = World::new();
    for mode in ["sequential", "asynchronous", "multi-threading"] {
        let config = world.config(SIMPLE, &format!("concurrent_mode: {mode},"));
        let runtime = WorkflowRuntime::from_config(&config).unwrap();
        runtime.check(&config).await.unwrap();
        assert!(runtime.needs_prompts());
        let gateway = world.gateway(&config, ServerKind::Vllm).await;
        let (train, _) = selected(&config);
        let tasks = train.iter().map(|one| runtime.encode_task(one).unwrap()).collect();
        let collected = run(&runtime, &config, &gateway, tasks).await;
        let mut runs = BTreeSet::new();
        let mut rewards = [0.0; 2];
        for payload in &collected.payloads {
            let experiences: Vec<Experience> = deserialize_many(payload.clone()).unwrap();
            assert_eq!(experiences.len(), 1);
            let one = &experiences[0];
            let row: usize = one.eid.task.to_string().parse().unwrap();
            assert_eq!(one.eid.batch.to_string(), "7");
            runs.insert((row, one.eid.run));
            let text = one.response_text.as_deref().unwrap();
            let is_right = text.trim() == train[row].task.response.as_ref().unwrap();
            assert_eq!(one.reward, Some(f64::from(u8::from(is_right))), "{text}");
            rewards[row] += one.reward.unwrap();
            assert_eq!(one.info.get("task_index"), Some(train[row].task_index()));
            assert_eq!(one.info.get("use_count"), Some(json!(0)));
            let versions: Vec<_> = one.model_versions.as_ref().unwrap().iter().collect();
            assert!(!versions.is_empty() && versions.iter().all(|one| *one == Some(0)));
            assert_eq!(versions.len(), one.logprobs.as_ref().unwrap().len());
        }
        assert_eq!(runs, (0..2).flat_map(|row| (0..3).map(move |run| (row, run))).collect());
        for (row, (_, status)) in collected.statuses.iter().enumerate() {
            assert!(status.ok(), "{:?}", status.message());
            let metrics: Metrics = status.metrics(rollway_core::BatchType::Train);
            assert_eq!(metrics.get("reward"), Some(rewards[row] / 3.0), "{metrics:?}");
            assert_eq!(metrics.get("turns"), Some(1.0), "{metrics:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eval_yields_rewards_and_no_payloads() {
    let world = World::new();
    let input = "default_workflow_type: simple_workflow, default_reward_fn_type: contains,";
    let config = world.config(input, "");
    let runtime = WorkflowRuntime::from_config(&config).unwrap();
    let gateway = world.gateway(&config, ServerKind::Vllm).await;
    let (_, evals) = selected(&config);
    let tasks = evals.iter().map(|one| {
        let mut one = one.clone();
        // The completion consists of digits.
        let is_first = one.index == 0;
        one.task.response = Some(if is_first { json!("") } else { json!("no digit") });
        runtime.encode_task(&one).unwrap()
    });
    let tasks: Vec<_> = tasks.collect();
    assert!(tasks.iter().all(|task| task.is_eval && task.repeat_times == 2));
    let collected = run(&runtime, &config, &gateway, tasks).await;
    assert!(collected.payloads.is_empty());
    for ((_, status), reward) in collected.statuses.iter().zip([1.0, 0.0]) {
        assert!(status.ok(), "{:?}", status.message());
        let metrics = status.metrics(rollway_core::BatchType::Eval);
        assert_eq!(metrics.get("reward/mean@2"), Some(reward), "{metrics:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_failures_fail_the_run_without_a_reward() {
    let world = World::new();
    let config = world.config(SIMPLE, "");
    let runtime = WorkflowRuntime::from_config(&config).unwrap();
    let (train, _) = selected(&config);
    let tasks: Vec<_> = train.iter().map(|one| runtime.encode_task(one).unwrap()).collect();

    // A server without token ids cannot be recorded.
    let gateway = world.gateway(&config, ServerKind::Openai).await;
    let collected = run(&runtime, &config, &gateway, tasks.clone()).await;
    assert!(collected.payloads.is_empty());
    assert_eq!(failed(&collected, FailureKind::InvalidOutput), 6, "{:?}", collected.statuses);

    // No server, and no retries.
    let config = world.config(SIMPLE, "failures: {model_unavailable: {retries: 0}},");
    let gateway = world.gateway(&config, ServerKind::Vllm).await;
    world.server.stop().await;
    let collected = run(&runtime, &config, &gateway, tasks).await;
    assert!(collected.payloads.is_empty());
    assert_eq!(failed(&collected, FailureKind::ModelUnavailable), 6, "{:?}", collected.statuses);
}

#[tokio::test(flavor = "multi_thread")]
async fn row_without_expected_answer_or_prompt_fails_the_run() {
    let world = World::new();
    let config = world.config(SIMPLE, "");
    let runtime = WorkflowRuntime::from_config(&config).unwrap();
    let gateway = world.gateway(&config, ServerKind::Vllm).await;
    let (mut train, _) = selected(&config);
    train[0].task.response = None;
    train[1].task.messages.clear();
    let tasks = train.iter().map(|one| runtime.encode_task(one).unwrap()).collect();
    let collected = run(&runtime, &config, &gateway, tasks).await;
    assert_eq!(failed(&collected, FailureKind::Workflow), 6);
    let message: Vec<_> =
        collected.statuses.iter().map(|(_, one)| one.message().unwrap()).collect();
    assert!(message[0].contains("format.response_key"), "{message:?}");
    assert!(message[1].contains("the task has no prompt"), "{message:?}");
}

#[tokio::test]
async fn unknown_names_are_refused_before_start() {
    let world = World::new();
    for (input, explorer, kind, message) in [
        ("", "", WorkflowSetupErrorKind::Missing, "default_workflow_type"),
        (
            "default_workflow_type: simple_workflow,",
            "",
            WorkflowSetupErrorKind::Missing,
            "default_reward_fn_type",
        ),
        (
            "default_workflow_type: simple_workfow,",
            "python: /no/such/python,",
            WorkflowSetupErrorKind::Unknown,
            "did you mean `simple_workflow`?",
        ),
        (
            "default_workflow_type: math_workflow, default_reward_fn_type: mathreward,",
            "python: /no/such/python,",
            WorkflowSetupErrorKind::Unknown,
            "did you mean `math_reward`?",
        ),
        (
            "default_workflow_type: my.package:solve,",
            "python: /no/such/python,",
            WorkflowSetupErrorKind::NoPython,
            "explorer.python",
        ),
        (
            "default_workflow_type: my.package:solve,",
            "python: /bin/false,",
            WorkflowSetupErrorKind::NoPackage,
            "exit status: 1",
        ),
    ] {
        let config = world.config(input, explorer);
        let runtime = WorkflowRuntime::from_config(&config).unwrap();
        let error = runtime.check(&config).await.unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
    // Names in rows.
    let config = world.config(SIMPLE, "");
    let runtime = WorkflowRuntime::from_config(&config).unwrap();
    let (mut train, _) = selected(&config);
    train[0].task.workflow = Some("simpel_workflow".into());
    train[1].task.workflow = None;
    let unknown = runtime.encode_task(&train[0]).unwrap_err().to_string();
    assert!(unknown.contains("did you mean `simple_workflow`?"), "{unknown}");
    let missing = runtime.encode_task(&train[1]).unwrap_err().to_string();
    assert!(missing.contains("default_workflow_type"), "{missing}");
}

#[tokio::test]
async fn arguments_and_media_of_tasksets_are_checked() {
    let world = World::new();
    let mut config = world.config(SIMPLE, "");
    let set = config.buffer.explorer_input.taskset.as_mut().unwrap();
    set.reward_fn_args.insert("pattern".to_owned(), "(".into());
    let given = config.clone();
    let error = WorkflowRuntime::from_config(&config).unwrap().check(&config).await.unwrap_err();
    assert_eq!(error.kind, WorkflowSetupErrorKind::Arguments);
    let message = error.to_string();
    assert!(message.contains("buffer.explorer_input.taskset"), "{message}");
    // Images, which the workflow would leave out.
    let mut config = given;
    let set = config.buffer.explorer_input.taskset.as_mut().unwrap();
    set.format.image_key = Some("level".to_owned());
    let error = WorkflowRuntime::from_config(&config).unwrap().check(&config).await.unwrap_err();
    assert!(error.to_string().contains("not images"), "{error}");
}

#[tokio::test]
async fn tasks_for_workers_have_all_fields() {
    let world = World::new();
    let input = "default_workflow_type: my.package:solve, default_reward_fn_type: exact_match,";
    let config = world.config(input, "");
    let runtime = WorkflowRuntime::from_config(&config).unwrap();
    assert!(!runtime.needs_prompts());
    let (train, _) = selected(&config);
    let task = runtime.encode_task(&train[1]).unwrap();
    assert_eq!((&*task.workflow, task.repeat_times, task.is_eval), ("my.package:solve", 3, false));
    let definition = task.definition.unwrap();
    assert_eq!((&*definition.encoding, &*definition.task_encoding), ("name", TASK_ENCODING));
    let reply: Value = serde_json::from_slice(&task.body).unwrap();
    assert_eq!(reply, Value::Object(train[1].fields()));
    assert_eq!(reply["raw_task"]["level"], 2);
    assert_eq!(reply["reward_fn"], "exact_match");
}
