//! Workflows that come with the engine, and where the runners of a job come from.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use std::collections::BTreeSet;

use rollway::workflow_runtime::{TASK_ENCODING, WorkflowRuntime, WorkflowSetupErrorKind};
use rollway_base::ServerKind;
use rollway_core::FailureKind;
use rollway_core::metrics::Metrics;
use rollway_experience::{Experience, deserialize_many};
use serde_json::{Value, json};

use crate::world::{World, drawn, failed, run};

const SIMPLE: &str = "default_workflow_type: simple_workflow, default_reward_fn_type: exact_match,";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_python_asks_judges_and_labels() {
    let world = World::new();
    for mode in ["sequential", "asynchronous", "multi-threading"] {
        let config = world.config(SIMPLE, &format!("concurrent_mode: {mode},"));
        let fleet = WorkflowRuntime::from_config(&config).unwrap();
        fleet.check(&config).await.unwrap();
        assert!(fleet.needs_prompts());
        let gateway = world.gateway(&config, ServerKind::Vllm).await;
        let (train, _) = drawn(&config);
        let tasks = train.iter().map(|one| fleet.encode_task(one).unwrap()).collect();
        let collected = run(&fleet, &config, &gateway, tasks).await;
        let mut runs = BTreeSet::new();
        let mut rewards = [0.0; 2];
        for payload in &collected.payloads {
            let experiences: Vec<Experience> = deserialize_many(payload.clone()).unwrap();
            assert_eq!(experiences.len(), 1);
            let one = &experiences[0];
            let row: usize = one.eid.task.to_string().parse().unwrap();
            assert_eq!(one.eid.batch.to_string(), "7");
            runs.insert((row, one.eid.run));
            let said = one.response_text.as_deref().unwrap();
            let is_right = said.trim() == train[row].task.response.as_ref().unwrap();
            assert_eq!(one.reward, Some(f64::from(u8::from(is_right))), "{said}");
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
async fn an_eval_yields_rewards_and_no_payloads() {
    let world = World::new();
    let input = "default_workflow_type: simple_workflow, default_reward_fn_type: contains,";
    let config = world.config(input, "");
    let fleet = WorkflowRuntime::from_config(&config).unwrap();
    let gateway = world.gateway(&config, ServerKind::Vllm).await;
    let (_, evals) = drawn(&config);
    let tasks = evals.iter().map(|one| {
        let mut one = one.clone();
        // Whatever it says, it is made of digits.
        let is_first = one.index == 0;
        one.task.response = Some(if is_first { json!("") } else { json!("no digit") });
        fleet.encode_task(&one).unwrap()
    });
    let tasks: Vec<_> = tasks.collect();
    assert!(tasks.iter().all(|task| task.is_eval && task.repeat_times == 2));
    let collected = run(&fleet, &config, &gateway, tasks).await;
    assert!(collected.payloads.is_empty());
    for ((_, status), reward) in collected.statuses.iter().zip([1.0, 0.0]) {
        assert!(status.ok(), "{:?}", status.message());
        let metrics = status.metrics(rollway_core::BatchType::Eval);
        assert_eq!(metrics.get("reward/mean@2"), Some(reward), "{metrics:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_machinery_does_wrong_is_no_reward() {
    let world = World::new();
    let config = world.config(SIMPLE, "");
    let fleet = WorkflowRuntime::from_config(&config).unwrap();
    let (train, _) = drawn(&config);
    let tasks: Vec<_> = train.iter().map(|one| fleet.encode_task(one).unwrap()).collect();

    // A server that tells no token ids: its answers cannot be recorded.
    let gateway = world.gateway(&config, ServerKind::Openai).await;
    let collected = run(&fleet, &config, &gateway, tasks.clone()).await;
    assert!(collected.payloads.is_empty());
    assert_eq!(failed(&collected, FailureKind::InvalidOutput), 6, "{:?}", collected.statuses);

    // No server at all, and no retries of what that costs.
    let config = world.config(SIMPLE, "failures: {model_unavailable: {retries: 0}},");
    let gateway = world.gateway(&config, ServerKind::Vllm).await;
    world.server.stop().await;
    let collected = run(&fleet, &config, &gateway, tasks).await;
    assert!(collected.payloads.is_empty());
    assert_eq!(failed(&collected, FailureKind::ModelUnavailable), 6, "{:?}", collected.statuses);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nobody_expects_fails_the_run() {
    let world = World::new();
    let config = world.config(SIMPLE, "");
    let fleet = WorkflowRuntime::from_config(&config).unwrap();
    let gateway = world.gateway(&config, ServerKind::Vllm).await;
    let (mut train, _) = drawn(&config);
    train[0].task.response = None;
    train[1].task.messages.clear();
    let tasks = train.iter().map(|one| fleet.encode_task(one).unwrap()).collect();
    let collected = run(&fleet, &config, &gateway, tasks).await;
    assert_eq!(failed(&collected, FailureKind::Workflow), 6);
    let words: Vec<_> = collected.statuses.iter().map(|(_, one)| one.message().unwrap()).collect();
    assert!(words[0].contains("format.response_key"), "{words:?}");
    assert!(words[1].contains("the task asks nothing"), "{words:?}");
}

#[tokio::test]
async fn a_name_that_nothing_is_behind_is_said_before_anything_starts() {
    let world = World::new();
    for (input, explorer, kind, words) in [
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
        let fleet = WorkflowRuntime::from_config(&config).unwrap();
        let error = fleet.check(&config).await.unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    // What only a row names.
    let config = world.config(SIMPLE, "");
    let fleet = WorkflowRuntime::from_config(&config).unwrap();
    let (mut train, _) = drawn(&config);
    train[0].task.workflow = Some("simpel_workflow".into());
    train[1].task.workflow = None;
    let unknown = fleet.encode_task(&train[0]).unwrap_err().to_string();
    assert!(unknown.contains("did you mean `simple_workflow`?"), "{unknown}");
    let missing = fleet.encode_task(&train[1]).unwrap_err().to_string();
    assert!(missing.contains("default_workflow_type"), "{missing}");
}

#[tokio::test]
async fn what_a_set_asks_for_is_checked() {
    let world = World::new();
    let mut config = world.config(SIMPLE, "");
    let set = config.buffer.explorer_input.taskset.as_mut().unwrap();
    set.reward_fn_args.insert("pattern".to_owned(), "(".into());
    let given = config.clone();
    let error = WorkflowRuntime::from_config(&config).unwrap().check(&config).await.unwrap_err();
    assert_eq!(error.kind, WorkflowSetupErrorKind::Arguments);
    let words = error.to_string();
    assert!(words.contains("buffer.explorer_input.taskset"), "{words}");
    // And what a workflow would leave out.
    let mut config = given;
    let set = config.buffer.explorer_input.taskset.as_mut().unwrap();
    set.format.image_key = Some("level".to_owned());
    let error = WorkflowRuntime::from_config(&config).unwrap().check(&config).await.unwrap_err();
    assert!(error.to_string().contains("not with images"), "{error}");
}

#[tokio::test]
async fn tasks_for_workers_say_everything_that_a_task_has() {
    let world = World::new();
    let input = "default_workflow_type: my.package:solve, default_reward_fn_type: exact_match,";
    let config = world.config(input, "");
    let fleet = WorkflowRuntime::from_config(&config).unwrap();
    assert!(!fleet.needs_prompts());
    let (train, _) = drawn(&config);
    let task = fleet.encode_task(&train[1]).unwrap();
    assert_eq!((&*task.workflow, task.repeat_times, task.is_eval), ("my.package:solve", 3, false));
    let definition = task.definition.unwrap();
    assert_eq!((&*definition.encoding, &*definition.task_encoding), ("name", TASK_ENCODING));
    let told: Value = serde_json::from_slice(&task.body).unwrap();
    assert_eq!(told, Value::Object(train[1].fields()));
    assert_eq!(told["raw_task"]["level"], 2);
    assert_eq!(told["reward_fn"], "exact_match");
}
