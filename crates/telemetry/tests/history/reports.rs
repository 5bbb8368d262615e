//! Failures by message, tasks with their runs, metrics and configuration; live and recorded.

use std::sync::Arc;
use std::time::Duration;

use rollway_core::BatchType;
use rollway_core::metrics::Metrics;
use rollway_engine::job_event::{JobEvent, JobObserver as _};
use rollway_telemetry::history::{RunHistory, recorded_view};
use rollway_telemetry::view::{JobState, JobView, RunKey, RunQuery, RunState, TaskQuery, TaskSort};
use serde_json::json;

use crate::help::{live, local, options, tasks, until};

fn check_failures(view: &dyn JobView) {
    let failures = view.failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    let group = &failures[0];
    assert_eq!(
        (group.kind.as_str(), group.message.as_str(), group.count),
        ("workflow", "never", 3)
    );
    let newest = group.run.clone().unwrap();
    let run = view.run(&newest).unwrap().run;
    assert_eq!((run.state, run.end), (RunState::Failed, Some(group.at)));
    assert_eq!(view.overview().failures, failures);
}

fn check_tasks(view: &dyn JobView) {
    let query = TaskQuery {
        batch: "1".to_owned(),
        sort: TaskSort::Reward,
        desc: true,
        ..TaskQuery::default()
    };
    let page = view.tasks(&query).unwrap();
    assert_eq!((page.total, page.tasks.len()), (3, 3));
    let first = &page.tasks[0];
    assert_eq!((first.runs.succeeded, first.runs.failed), (2, 1));
    assert_eq!((first.reward, first.min, first.max), (Some(0.5), Some(0.0), Some(1.0)));
    assert_eq!(first.tokens, Some(3.0));
    let last = view.tasks(&TaskQuery { offset: 2, limit: 5, ..query.clone() }).unwrap();
    assert_eq!((last.total, last.tasks.len()), (3, 1));
    assert_eq!(view.tasks(&TaskQuery { batch: "nowhere".to_owned(), ..query }), None);

    let task = view.task("1", 2).unwrap();
    assert_eq!((task.row.task, task.members.len(), task.more), (2, 3, 0));
    let messages = |run: usize| {
        let all = task.members[run].messages.iter();
        all.map(|it| format!("{}: {}", it.role, it.text)).collect::<Vec<_>>()
    };
    assert_eq!(messages(0), ["response: a b c"]);
    assert!(messages(2).is_empty(), "a failed run has no experience");
    assert_eq!(task.members[2].row.message.as_deref(), Some("never"));
    assert_eq!(view.task("1", 3), None);
}

#[tokio::test]
async fn failures_and_tasks_are_the_same_live_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let history = RunHistory::open(&options(folder.path())).unwrap();
    let (coordinator, view) = (local(&history).await, live(&history));
    coordinator.submit_batch(1, tasks("whimsical", 3, 3), BatchType::Train, None).await.unwrap();
    coordinator.finalize_train_batch(1, None).await.unwrap();
    check_failures(&*view);
    check_tasks(&*view);
    let rewarded = |min_reward, max_reward| {
        view.runs(&RunQuery { min_reward, max_reward, ..RunQuery::default() }).total
    };
    assert_eq!((rewarded(None, None), rewarded(Some(0.0), None)), (9, 6));
    assert_eq!((rewarded(Some(0.5), None), rewarded(None, Some(0.5))), (3, 3));
    assert_eq!(rewarded(Some(0.2), Some(0.8)), 0);
    history.close(JobState::Finished, None);
    let recorded = recorded_view(folder.path()).unwrap();
    check_failures(&*recorded);
    check_tasks(&*recorded);
}

#[tokio::test]
async fn attempts_of_runners_are_counted_from_one() {
    let folder = tempfile::tempdir().unwrap();
    let history = RunHistory::open(&options(folder.path())).unwrap();
    let (coordinator, view) = (local(&history).await, live(&history));
    coordinator.submit_batch(1, tasks("whimsical", 1, 4), BatchType::Train, None).await.unwrap();
    until(&*view, RunState::Running, 1).await;
    until(&*view, RunState::Succeeded, 2).await;
    let runners = view.runners().await;
    let busy = runners.iter().find(|runner| runner.run == Some(3)).unwrap();
    assert_eq!(busy.attempt, Some(1));
    view.cancel_run(&RunKey { batch: "1".to_owned(), task: 0, run: 3 }).await;
}

fn metrics(values: &[(&str, f64)]) -> Metrics {
    values.iter().map(|(name, value)| (*name, *value)).collect()
}

fn check_metrics(view: &dyn JobView) {
    let rows = view.metrics();
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["eval/quiz/mean", "rollout/tool_calls/mean", "trainer/loss"]);
    assert_eq!((rows[1].count, rows[1].first, rows[1].last, rows[1].step), (2, 3.0, 1.5, 2));
    let series = view.series(&["rollout/tool_calls/mean".to_owned(), "unknown".to_owned()]);
    assert_eq!(series.len(), 1);
    assert_eq!(series[0].points, [(1, 3.0), (2, 1.5)]);
    let evals = &view.timeline().lanes[1].spans;
    assert_eq!((evals[0].detail.as_str(), evals[0].state.as_str()), ("score 0.208", "done"));
}

#[tokio::test]
async fn metrics_and_configuration_are_the_same_live_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let history = RunHistory::open(&options(folder.path())).unwrap();
    let (coordinator, view) = (local(&history).await, live(&history));
    coordinator.submit_batch("2/quiz", tasks("well", 1, 1), BatchType::Eval, None).await.unwrap();
    let result = coordinator.finalize_eval_batch("2/quiz", None).await.unwrap();
    let step_done = |step, calls| JobEvent::StepDone {
        step,
        result: Arc::clone(&result),
        metrics: metrics(&[("rollout/tool_calls/mean", calls), ("rollout/bad", f64::NAN)]),
        waited: Duration::ZERO,
    };
    history.on_event(&step_done(1, 3.0));
    history.on_event(&step_done(2, 1.5));
    let loss = metrics(&[("trainer/loss", 0.25)]);
    history.on_event(&JobEvent::Trained { step: 1, metrics: loss });
    history.on_event(&JobEvent::Evaluated {
        step: 2,
        version: 1,
        set: "quiz".into(),
        score: Some(0.208_333_333_333_333_34),
        result: Arc::clone(&result),
        metrics: metrics(&[("eval/quiz/mean", 0.5)]),
    });
    check_metrics(&*view);
    assert_eq!(view.config().config, json!({"mode": "explore"}));
    history.close(JobState::Finished, None);
    let recorded = recorded_view(folder.path()).unwrap();
    check_metrics(&*recorded);
    assert_eq!(recorded.config(), view.config());
    assert_eq!(recorded.config().changed, ["mode"]);
}
