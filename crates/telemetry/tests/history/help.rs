//! A coordinator with local runners and a history.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rollway_core::metrics::Metrics;
use rollway_core::{CoreConfig, FailureKind, FailurePolicy};
use rollway_engine::events::RunObservers;
use rollway_engine::{
    BatchDelivery, DeliveryResult, LocalRunners, RolloutCoordinator, RunContext, RunFailure,
    RunOutcome, RunOutput, RunnerBackend, Sink, Task, WorkflowRegistry,
};
use rollway_experience::{Array, Experience, ExperienceFields, serialize};
use rollway_telemetry::history::{HistoryOptions, RunHistory, live_view};
use rollway_telemetry::view::{ConfigReport, JobView, RunQuery, RunRow, RunState};
use serde_json::json;

pub(crate) const MB: u64 = 1 << 20;

/// Discards all deliveries.
struct NullSink;

impl Sink for NullSink {
    fn deliver(
        &self,
        _: BatchDelivery,
    ) -> Pin<Box<dyn Future<Output = DeliveryResult> + Send + '_>> {
        Box::pin(std::future::ready(Ok(Metrics::new())))
    }

    fn process(&self, _: Vec<Bytes>) -> Pin<Box<dyn Future<Output = DeliveryResult> + Send + '_>> {
        Box::pin(std::future::ready(Ok(Metrics::new())))
    }
}

/// Two prompt tokens and three completion tokens.
pub(crate) fn experience(reward: f64) -> Bytes {
    let fields = ExperienceFields {
        tokens: Array::from(vec![1, 2, 3, 4, 5]),
        prompt_length: 2,
        logprobs: Some(Array::from(vec![-0.5, -1.0, -0.25])),
        reward: Some(reward),
        response_text: Some("a b c".to_owned()),
        ..ExperienceFields::default()
    };
    serialize(&Experience::new(fields).unwrap()).unwrap()
}

/// Runs 0 to 3 of a task: success, success after a failure, failure, no end.
async fn whimsical(context: RunContext, is_first: bool) -> RunOutcome {
    match context.run.0 {
        1 if is_first => return Err(failed("not at the first time")),
        0 | 1 => {}
        2 => return Err(failed("never")),
        _ => std::future::pending().await,
    }
    let reward = f64::from(context.run.0);
    let metrics = [("reward", reward)].into_iter().collect();
    Ok(RunOutput { payload: Some(experience(reward)), metrics })
}

fn failed(message: &str) -> RunFailure {
    RunFailure::new(FailureKind::Workflow, message)
}

async fn succeeds(_: RunContext) -> RunOutcome {
    Ok(RunOutput { payload: Some(experience(1.0)), metrics: Metrics::new() })
}

pub(crate) fn registry() -> WorkflowRegistry {
    let seen: Mutex<HashSet<(String, u32, u32)>> = Mutex::default();
    let whimsical = move |context: RunContext| {
        let run = (context.batch.to_string(), context.task_id.0, context.run.0);
        whimsical(context, seen.lock().unwrap().insert(run))
    };
    WorkflowRegistry::default().with("whimsical", whimsical).with("well", succeeds)
}

pub(crate) fn options(dir: &Path) -> HistoryOptions {
    HistoryOptions {
        dir: dir.join("history"),
        name: "test".to_owned(),
        project: "history".to_owned(),
        mode: "explore".to_owned(),
        job_dir: dir.to_owned(),
        max_runs: 1_000_000,
        max_trajectory_bytes: 64 * MB,
        config: ConfigReport { config: json!({"mode": "explore"}), changed: vec!["mode".into()] },
    }
}

pub(crate) fn config(runners: u32, retries: u32) -> CoreConfig {
    let failures = FailurePolicy::with_retries(retries);
    let max_timeout = Duration::from_secs(3600);
    CoreConfig {
        runners,
        failures,
        max_timeout,
        default_timeout: max_timeout,
        ..CoreConfig::default()
    }
}

pub(crate) async fn coordinator(
    config: CoreConfig,
    workers: impl RunnerBackend,
    history: &Arc<RunHistory>,
) -> RolloutCoordinator {
    let sink = Some(Arc::new(NullSink) as Arc<dyn Sink>);
    let observers = RunObservers::new(vec![Arc::clone(history) as _]);
    let coordinator = RolloutCoordinator::new(config, workers, sink).with_observers(observers);
    coordinator.prepare().await.unwrap();
    history.follow(&coordinator);
    coordinator
}

/// A coordinator with one runner for every run.
pub(crate) async fn local(history: &Arc<RunHistory>) -> RolloutCoordinator {
    coordinator(config(4, 1), LocalRunners::new(registry()), history).await
}

pub(crate) fn tasks(workflow: &str, count: usize, runs: u32) -> Vec<Task> {
    vec![Task::new(workflow, "").repeat(runs); count]
}

/// Returns all runs by name.
pub(crate) fn all(view: &dyn JobView) -> BTreeMap<String, RunRow> {
    let page = view.runs(&RunQuery { limit: 1000, ..RunQuery::default() });
    let count = page.runs.len();
    let named =
        page.runs.into_iter().map(|run| (format!("{}/{}/{}", run.batch, run.task, run.run), run));
    let runs: BTreeMap<String, RunRow> = named.collect();
    assert_eq!((runs.len(), runs.len() as u64), (count, page.total), "no duplicates");
    runs
}

/// Waits until a number of runs is in a state.
pub(crate) async fn until(view: &dyn JobView, state: RunState, count: u64) {
    let query = RunQuery { state: Some(state), ..RunQuery::default() };
    while view.runs(&query).total < count {
        tokio::task::yield_now().await;
    }
}

pub(crate) fn live(history: &Arc<RunHistory>) -> Arc<dyn JobView> {
    live_view(Arc::clone(history))
}
