//! Ends of runs: success, failure, retry, cancel, abort.

use rollway_core::BatchType;
use rollway_telemetry::history::{RunHistory, recorded_view};
use rollway_telemetry::view::{self, BiasReport, JobState, RunKey, RunQuery, RunSort, RunState};

use crate::help::{all, live, local, options, tasks, until};

fn key(batch: &str, task: u32, run: u32) -> RunKey {
    RunKey { batch: batch.to_owned(), task, run }
}

#[tokio::test]
async fn every_run_is_listed_once_with_its_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let history = RunHistory::open(&options(folder.path())).unwrap();
    let (coordinator, view) = (local(&history).await, live(&history));

    // One run of each kind.
    coordinator.submit_batch(1, tasks("whimsical", 1, 4), BatchType::Train, None).await.unwrap();
    until(&*view, RunState::Running, 1).await;
    until(&*view, RunState::Failed, 1).await;
    until(&*view, RunState::Succeeded, 2).await;
    let runs = all(&*view);
    assert_eq!(runs["1/0/0"].state, RunState::Succeeded);
    assert_eq!((runs["1/0/1"].state, runs["1/0/1"].attempts), (RunState::Succeeded, 2));
    assert_eq!((runs["1/0/2"].state, runs["1/0/2"].attempts), (RunState::Failed, 2));
    assert_eq!(runs["1/0/2"].message.as_deref(), Some("never"));
    assert_eq!((runs["1/0/3"].state, runs["1/0/3"].end), (RunState::Running, None));
    assert_eq!((runs["1/0/1"].reward, runs["1/0/1"].tokens), (Some(1.0), Some(3)));

    let detail = view.run(&key("1", 0, 1)).unwrap();
    let outcomes: Vec<&str> = detail.attempts.iter().map(|one| one.outcome.as_str()).collect();
    assert_eq!(outcomes, ["failed", "succeeded"]);
    assert_eq!(detail.attempts[0].message.as_deref(), Some("not at the first time"));
    assert!(detail.attempts.iter().all(|one| one.began.is_some() && one.ended >= one.began));
    let experience = &detail.experiences[0];
    assert_eq!((experience.tokens.len(), experience.prompt_length), (5, 2));
    assert_eq!(experience.logprobs.as_deref(), Some(&[-0.5, -1.0, -0.25][..]));
    assert_eq!(experience.mask, [true; 3]);
    let hanging = view.run(&key("1", 0, 3)).unwrap();
    assert_eq!(hanging.attempts[0].outcome, "running");

    // The stuck run is first and can be cancelled.
    let runners = view.runners().await;
    assert_eq!((runners[0].state.as_str(), runners[0].run), ("busy", Some(3)));
    let done = view.cancel_run(&key("1", 0, 3)).await;
    assert!(done.done, "{}", done.message);
    coordinator.finalize_train_batch(1, None).await.unwrap();
    let runs = all(&*view);
    assert_eq!(runs["1/0/3"].state, RunState::Cancelled);
    let again = view.cancel_run(&key("1", 0, 3)).await;
    assert!(!again.done, "{}", again.message);

    let overview = view.overview();
    assert_eq!((overview.runs.submitted, overview.runs.succeeded), (4, 2));
    assert_eq!(overview.runs.failed["workflow"], 1);
    assert_eq!(overview.runs.cancelled.values().sum::<u64>(), 1);
    assert_eq!((overview.runs.pending, overview.runs.running), (0, 0));
    assert_eq!(overview.waste.retried["workflow"], 2);
    assert!(overview.waste.seconds_lost.contains_key("workflow"));
    let batches = view.batches();
    assert_eq!((batches[0].state.as_str(), batches[0].reward), ("finalized", Some(0.5)));
    assert!(batches[0].ended.is_some());

    // The record has the same runs.
    let before = all(&*view);
    history.close(JobState::Finished, None);
    let recorded = recorded_view(folder.path()).unwrap();
    assert_eq!(all(&*recorded), before);
    assert_eq!(recorded.run(&key("1", 0, 1)), Some(detail));
    assert_eq!(recorded.overview().runs, overview.runs);
    assert_eq!(recorded.overview().waste.retried, overview.waste.retried);
    assert_eq!((recorded.job().state, recorded.job().name.as_str()), (JobState::Finished, "test"));
}

#[tokio::test]
async fn an_aborted_batch_leaves_no_run_open() {
    let folder = tempfile::tempdir().unwrap();
    let history = RunHistory::open(&options(folder.path())).unwrap();
    let (coordinator, view) = (local(&history).await, live(&history));
    // More runs than runners: some have no attempt.
    coordinator.submit_batch(7, tasks("whimsical", 10, 4), BatchType::Train, None).await.unwrap();
    until(&*view, RunState::Running, 4).await;
    let done = view.abort_batch("7", false).await;
    assert!(done.done, "{}", done.message);
    let runs = all(&*view);
    assert_eq!(runs.len(), 40);
    let is_over = |state| !matches!(state, RunState::Pending | RunState::Running);
    assert!(runs.values().all(|run| is_over(run.state)), "{runs:?}");
    let count = |state| runs.values().filter(|run| run.state == state).count() as u64;
    let overview = view.overview();
    assert_eq!(overview.runs.cancelled["aborted"], count(RunState::Cancelled));
    assert_eq!(overview.runs.succeeded, count(RunState::Succeeded));
    assert!(runs.values().any(|run| run.attempts == 0 && run.begin.is_none()));
    assert_eq!(view.batches()[0].state, "aborted");
    assert!(!view.abort_batch("8", false).await.done);

    // Nothing of it is trained on.
    let BiasReport { fields, groups } = view.bias();
    assert_eq!(fields, ["tokens", "seconds"]);
    let seconds = &groups["seconds"];
    assert_eq!(seconds["trained"].count, 0);
    let given = seconds["dispatched"].count;
    assert_eq!(given, seconds["failed"].count + seconds["cancelled"].count);
    let counted: u64 = seconds["dispatched"].histogram.iter().map(|bin| bin.count).sum();
    assert_eq!((given > 0, counted), (true, given));
}

#[tokio::test]
async fn runs_are_found_and_sorted() {
    let folder = tempfile::tempdir().unwrap();
    let history = RunHistory::open(&options(folder.path())).unwrap();
    let (coordinator, view) = (local(&history).await, live(&history));
    coordinator.submit_batch(3, tasks("well", 20, 2), BatchType::Train, None).await.unwrap();
    coordinator
        .submit_batch("3/quiz", tasks("whimsical", 2, 3), BatchType::Eval, None)
        .await
        .unwrap();
    coordinator.finalize_train_batch(3, None).await.unwrap();
    coordinator.finalize_eval_batch("3/quiz", None).await.unwrap();

    let query_runs = |change: &dyn Fn(&mut RunQuery)| {
        let mut query = RunQuery::default();
        change(&mut query);
        let page = view.runs(&query);
        let name = |run: &view::RunRow| format!("{}/{}/{}", run.batch, run.task, run.run);
        (page.total, page.runs.iter().map(name).collect::<Vec<_>>())
    };
    assert_eq!(query_runs(&|_| {}).0, 46);
    assert_eq!(query_runs(&|query| query.kind = Some("eval".to_owned())).0, 6);
    assert_eq!(query_runs(&|query| query.batch = Some("3".to_owned())).0, 40);
    assert_eq!(query_runs(&|query| query.state = Some(RunState::Failed)).0, 2);
    assert_eq!(query_runs(&|query| query.text = Some("QUIZ".to_owned())).0, 6);
    assert_eq!(query_runs(&|query| query.text = Some("never".to_owned())).0, 2);
    assert_eq!(query_runs(&|query| query.text = Some("whims".to_owned())).0, 6);
    assert_eq!(
        query_runs(&|query| query.text = Some("3/17/1".to_owned())),
        (1, vec!["3/17/1".to_owned()])
    );
    assert_eq!(query_runs(&|query| query.text = Some("nowhere".to_owned())).0, 0);
    // Runs whose model has said it, also with another filter.
    let said = Some("A b C".to_owned());
    let succeeded = query_runs(&|query| query.state = Some(RunState::Succeeded)).0;
    assert_eq!(query_runs(&|query| query.text.clone_from(&said)).0, succeeded);
    let (_, page) = query_runs(&|query| {
        (query.kind, query.min_reward) = (Some("eval".to_owned()), Some(0.5));
        query.text.clone_from(&said);
    });
    assert_eq!(page, ["3/quiz/0/1", "3/quiz/1/1"]);
    let (total, page) = query_runs(&|query| {
        (query.sort, query.desc, query.offset, query.limit) = (RunSort::Order, true, 1, 2);
    });
    assert_eq!((total, page), (46, vec!["3/quiz/1/1".to_owned(), "3/quiz/1/0".to_owned()]));
    let (_, page) =
        query_runs(&|query| (query.sort, query.desc, query.limit) = (RunSort::Attempts, true, 4));
    assert_eq!(page, ["3/quiz/0/1", "3/quiz/0/2", "3/quiz/1/1", "3/quiz/1/2"]);
}
