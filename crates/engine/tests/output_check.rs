//! Outputs of runs that are not valid: each is a failure of its run alone, in every process life.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollway_config::Config;
use rollway_core::{BatchType, FailureKind};
use rollway_data::buffer::ReadRequest;
use rollway_data::pipeline::OperatorRegistry;
use rollway_engine::{
    BufferTarget, LocalRunners, PipelineSink, RolloutCoordinator, RunContext, RunFailure,
    RunOutput, RunnerBackend, Scheduler, Task, WithOutputCheck, WorkflowRegistry,
};
use rollway_engine::{CollectOptions, RestoreReport};
use rollway_experience::{
    Eid, Experience, ExperienceFields, IdPart, ModelVersions, VersionSpan, serialize,
};
use rollway_ledger::LedgerOptions;
use serde_json::json;

use crate::common::{SECOND, local_config};

/// Fields with the labels of the run, as an honest worker sets them.
fn fields(context: &RunContext, reward: f64) -> ExperienceFields {
    let eid = Eid {
        batch: IdPart::from(&context.batch),
        task: i64::from(context.task_id.0).into(),
        run: context.run.0.into(),
        step: 0,
        suffix: "00000a".into(),
    };
    ExperienceFields { eid, tokens: [1, 2, 3].into(), reward: Some(reward), ..Default::default() }
}

fn output(fields: ExperienceFields) -> Result<RunOutput, RunFailure> {
    let payload = serialize(&Experience::new(fields)?)?;
    Ok(RunOutput { payload: Some(payload), ..RunOutput::default() })
}

/// Returns the output that the body of the task names.
async fn returns(context: RunContext) -> Result<RunOutput, RunFailure> {
    let usual = fields(&context, f64::from(context.run.0));
    match &context.task.body[..] {
        b"good" => output(usual),
        b"huge" => output(ExperienceFields { reward: Some(1e39), ..usual }),
        b"nan" => output(ExperienceFields { reward: Some(f64::NAN), ..usual }),
        b"nan token" => {
            let token_level_reward = Some([0.5, f32::NAN].into());
            output(ExperienceFields { token_level_reward, ..usual })
        }
        b"nan metric" => {
            let metrics = [("reward", f64::NEG_INFINITY)].into_iter().collect();
            Ok(RunOutput { metrics, ..output(usual)? })
        }
        b"long name" => {
            let metrics = [("n".repeat(257), 1.0)].into_iter().collect();
            Ok(RunOutput { metrics, ..output(usual)? })
        }
        b"versions" => {
            let tokens = VersionSpan { version: Some(3 + u64::from(context.run.0)), tokens: 2 };
            let model_versions = ModelVersions::from_spans([tokens])?;
            output(ExperienceFields {
                model_versions: Some(model_versions),
                prompt_length: 1,
                ..usual
            })
        }
        b"dpo" => {
            let (chosen, rejected) = (Some([4].into()), Some([5].into()));
            output(ExperienceFields { chosen, rejected, ..usual })
        }
        b"bytes" => Ok(RunOutput { payload: Some("x".into()), ..RunOutput::default() }),
        b"nothing" => Ok(RunOutput::default()),
        b"suffix" => {
            let eid = Eid { suffix: "a\0b".into(), ..usual.eid.clone() };
            output(ExperienceFields { eid, ..usual })
        }
        b"forged" => {
            let eid = Eid { batch: 9.into(), task: 0.into(), run: 7, ..usual.eid.clone() };
            output(ExperienceFields { eid, reward: Some(50.0), ..usual })
        }
        other => panic!("{other:?}"),
    }
}

fn runners() -> LocalRunners {
    LocalRunners::new(WorkflowRegistry::default().with("returns", returns))
}

fn tasks(bodies: &[&'static str]) -> Vec<Task> {
    bodies.iter().map(|body| Task::new("returns", *body).repeat(2)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_invalid_output_is_retried_and_fails_its_run_alone() {
    let scheduler = Scheduler::new(local_config(), WithOutputCheck::new(runners()));
    scheduler.start().await.unwrap();
    for (body, expected) in [
        ("huge", "experience 0 (single_turn): reward 1e39 is not a finite 32-bit number"),
        ("nan", "experience 0 (single_turn): reward NaN is not a finite 32-bit number"),
        (
            "nan token",
            "experience 0 (single_turn): token_level_reward is NaN at 1: it is not finite",
        ),
        ("nan metric", "metric `reward` -inf is not a finite 32-bit number"),
        ("bytes", "the payload of 1 bytes is not readable: 1 bytes are too few for a payload"),
        (
            "long name",
            "the name of metric `nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn…` has 257 bytes",
        ),
        ("nothing", "the run returned no experience"),
        ("suffix", "experience 0 (single_turn): eid.suffix \"a\\0b\" contains a control character"),
    ] {
        let before = scheduler.counters().await.unwrap();
        scheduler.schedule(tasks(&["good", body]), body).await.unwrap();
        let got = scheduler.get_payload_results(body, CollectOptions::default()).await.unwrap();
        assert_eq!(got.payloads.len(), 2, "{body}");
        let (_, status) = &got.statuses[1];
        let failure = status.first_error.as_ref().expect(body);
        assert_eq!(failure.kind, FailureKind::InvalidOutput, "{body}");
        assert!(failure.message.starts_with(expected), "{body}: {}", failure.message);
        let after = scheduler.counters().await.unwrap();
        let retried =
            after.retries[FailureKind::InvalidOutput] - before.retries[FailureKind::InvalidOutput];
        assert_eq!(retried, 4, "{body}: two runs, two retries each");
    }
    // An evaluation needs no experience, but a finite reward, and what it returns is readable.
    let eval = ["good", "nothing", "nan metric", "bytes", "huge"]
        .map(|body| Task::new("returns", body).eval());
    scheduler.schedule(eval.to_vec(), "eval").await.unwrap();
    let got = scheduler.get_payload_results("eval", CollectOptions::default()).await.unwrap();
    let ok: Vec<bool> = got.statuses.iter().map(|(_, status)| status.ok()).collect();
    assert_eq!(ok, [true, true, false, false, false]);
    // The same among training tasks of one batch.
    let mixed = [Task::new("returns", "good"), Task::new("returns", "bytes").eval()];
    scheduler.schedule(mixed.to_vec(), "mixed").await.unwrap();
    let got = scheduler.get_payload_results("mixed", CollectOptions::default()).await.unwrap();
    let ok: Vec<bool> = got.statuses.iter().map(|(_, status)| status.ok()).collect();
    assert_eq!(ok, [true, false]);
}

#[tokio::test(start_paused = true)]
async fn versions_that_the_gateway_did_not_record_fail_their_run() {
    let checked = |recorded: Option<BTreeSet<u64>>| {
        let lookup = Arc::new(move |_, _| recorded.clone());
        Scheduler::new(local_config(), WithOutputCheck::new(runners()).recorded_versions(lookup))
    };
    for (recorded, good) in [(None, 2), (Some(BTreeSet::from([3, 7])), 1)] {
        let scheduler = checked(recorded);
        scheduler.start().await.unwrap();
        scheduler.schedule(tasks(&["versions", "good"]), 1).await.unwrap();
        let got = scheduler.get_payload_results(1, CollectOptions::default()).await.unwrap();
        assert_eq!(got.payloads.len(), good + 2);
        let failure = got.statuses[0].1.first_error.as_ref();
        assert_eq!(failure.is_none(), good == 2);
        let expected = "model version 4 is not among those that the gateway recorded";
        assert!(failure.is_none_or(|it| it.message.contains(expected)), "{failure:?}");
    }
}

fn job(folder: &Path) -> Config {
    let buffer = json!({"trainer_input": {"experience_buffer": {"storage_type": "sql"}}});
    let config = json!({"checkpoint_root_dir": folder, "name": "poisoned", "buffer": buffer});
    Config::from_value(&config).expect("a configuration")
}

async fn coordinator(
    config: &Config,
    workers: impl RunnerBackend,
) -> (RolloutCoordinator, Arc<PipelineSink>, RestoreReport) {
    let sink = PipelineSink::new(config, &OperatorRegistry::built_in()).expect("a sink");
    let sink = Arc::new(sink);
    let folder = config.job_dir().join("ledger");
    let options = LedgerOptions::new("poisoned");
    let given = Some(Arc::clone(&sink) as _);
    let opened =
        RolloutCoordinator::with_ledger(local_config(), workers, given, &folder, options).await;
    let (coordinator, restored) = opened.expect("a ledger");
    coordinator.prepare().await.expect("runners");
    (coordinator, sink, restored)
}

fn stored(config: &Config) -> Vec<Experience> {
    let buffer = BufferTarget::of_experiences(config).expect("a buffer").open().expect("a buffer");
    let ask = ReadRequest { count: 99, timeout: Duration::ZERO, min_model_version: 0, keep: false };
    let read = buffer.reader("test").expect("a buffer").read(&ask).expect("a buffer");
    read.samples.iter().map(|sample| sample.decode().expect("a buffer")).collect()
}

#[tokio::test]
async fn a_run_cannot_enter_the_group_of_another_task() {
    let folder = tempfile::tempdir().unwrap();
    let config = job(folder.path());
    let (coordinator, sink, _) = coordinator(&config, WithOutputCheck::new(runners())).await;
    let all = tasks(&["good", "forged", "huge", "dpo"]);
    coordinator.submit_batch(1, all, BatchType::Train, None).await.unwrap();
    let result = coordinator.finalize_train_batch(1, None).await.unwrap();
    assert_eq!((result.tasks.ok, result.tasks.failed), (3, 1));
    let no_mask = "experience_pipeline/grpo/filtered/no_action_mask";
    assert_eq!(result.sink_metrics.get(no_mask), Some(2.0));
    coordinator.shutdown(SECOND).await.unwrap();
    sink.close().await.unwrap();
    let label = |one: &Experience| (one.eid.rid(), one.info.get("sub_task"));
    let mut labels: Vec<_> = stored(&config).iter().map(label).collect();
    labels.sort_by(|a, b| a.0.cmp(&b.0));
    let expected =
        [("1/0/0", None), ("1/0/1", None), ("1/1/0", Some(json!(0))), ("1/1/1", Some(json!(0)))];
    assert_eq!(labels, expected.map(|(id, sub_task)| (id.to_owned(), sub_task)));
    for one in stored(&config).iter().filter(|one| one.eid.task == 0.into()) {
        let advantage = one.advantages.as_ref().unwrap().to_vec()[0];
        assert_eq!(advantage > 0.0, one.reward == Some(1.0), "compared with its own task only");
    }
}

#[tokio::test]
async fn invalid_outputs_of_an_older_ledger_do_not_block_their_batch() {
    let folder = tempfile::tempdir().unwrap();
    let config = job(folder.path());
    // A program without the check has accepted the outputs and ended before their delivery.
    let (unchecked, sink, _) = coordinator(&config, runners()).await;
    let all = tasks(&["good", "huge", "dpo", "bytes"]);
    unchecked.submit_batch(1, all, BatchType::Train, None).await.unwrap();
    while unchecked.counters().await.unwrap().payloads_held < 8 {
        tokio::task::yield_now().await;
    }
    unchecked.shutdown(SECOND).await.unwrap();
    drop((unchecked, sink));
    let (restarted, sink, restored) = coordinator(&config, WithOutputCheck::new(runners())).await;
    assert_eq!(restored.batches.len(), 1);
    let result = restarted.finalize_train_batch(1, None).await.unwrap();
    for (name, count) in [
        ("decode/filtered/invalid", 2.0),
        ("grpo/filtered/no_action_mask", 2.0),
        ("grpo/filtered/infinite_reward", 2.0),
    ] {
        let name = format!("experience_pipeline/{name}");
        assert_eq!(result.sink_metrics.get(&name), Some(count), "{name}");
    }
    restarted.shutdown(SECOND).await.unwrap();
    sink.close().await.unwrap();
}
