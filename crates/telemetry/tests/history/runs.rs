//! Runs that end well, badly, after a retry, by a cancel and by an abort.

use rollway_core::BatchType;
use rollway_telemetry::history::{RunHistory, recorded_view};
use rollway_telemetry::view::{self, BiasReport, JobState, RunKey, RunQuery, RunSort, RunState};

use crate::help::{all, live, local, options, tasks, until};

fn key(batch: &str, task: u32, run: u32) -> RunKey {
    RunKey { batch: batch.to_owned(), task, run }
}

#[tokio::test]
async fn every_run_is_there_once_with_what_became_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let history = RunHistory::open(&options(folder.path())).unwrap();
    let (coordinator, scene) = (local(&history).await, live(&history));

    // One run of each sort.
    coordinator.submit_batch(1, tasks("whimsical", 1, 4), BatchType::Train, None).await.unwrap();
    until(&*scene, RunState::Running, 1).await;
    until(&*scene, RunState::Failed, 1).await;
    until(&*scene, RunState::Succeeded, 2).await;
    let runs = all(&*scene);
    assert_eq!(runs["1/0/0"].state, RunState::Succeeded);
    assert_eq!((runs["1/0/1"].state, runs["1/0/1"].attempts), (RunState::Succeeded, 2));
    assert_eq!((runs["1/0/2"].state, runs["1/0/2"].attempts), (RunState::Failed, 2));
    assert_eq!(runs["1/0/2"].message.as_deref(), Some("never"));
    assert_eq!((runs["1/0/3"].state, runs["1/0/3"].end), (RunState::Running, None));
    assert_eq!((runs["1/0/1"].reward, runs["1/0/1"].tokens), (Some(1.0), Some(3)));

    let detail = scene.run(&key("1", 0, 1)).unwrap();
    let outcomes: Vec<&str> = detail.attempts.iter().map(|one| one.outcome.as_str()).collect();
    assert_eq!(outcomes, ["failed", "succeeded"]);
    assert_eq!(detail.attempts[0].message.as_deref(), Some("not at the first time"));
    assert!(detail.attempts.iter().all(|one| one.began.is_some() && one.ended >= one.began));
    let experience = &detail.experiences[0];
    assert_eq!((experience.tokens.len(), experience.prompt_length), (5, 2));
    assert_eq!(experience.logprobs.as_deref(), Some(&[-0.5, -1.0, -0.25][..]));
    assert_eq!(experience.mask, [true; 3]);
    let hanging = scene.run(&key("1", 0, 3)).unwrap();
    assert_eq!(hanging.attempts[0].outcome, "running");

    // The one that hangs is at the top, and can be cancelled there.
    let runners = scene.runners().await;
    assert_eq!((runners[0].state.as_str(), runners[0].run), ("busy", Some(3)));
    let done = scene.cancel_run(&key("1", 0, 3)).await;
    assert!(done.done, "{}", done.message);
    coordinator.finalize_train_batch(1, None).await.unwrap();
    let runs = all(&*scene);
    assert_eq!(runs["1/0/3"].state, RunState::Cancelled);
    let again = scene.cancel_run(&key("1", 0, 3)).await;
    assert!(!again.done, "{}", again.message);

    let overview = scene.overview();
    assert_eq!((overview.runs.submitted, overview.runs.succeeded), (4, 2));
    assert_eq!(overview.runs.failed["workflow"], 1);
    assert_eq!(overview.runs.cancelled.values().sum::<u64>(), 1);
    assert_eq!((overview.runs.pending, overview.runs.running), (0, 0));
    assert_eq!(overview.waste.retried["workflow"], 2);
    assert!(overview.waste.seconds_lost.contains_key("workflow"));
    let batches = scene.batches();
    assert_eq!((batches[0].state.as_str(), batches[0].reward), ("finalized", Some(0.5)));
    assert!(batches[0].ended.is_some());

    // The same, from what is in the folder.
    let before = all(&*scene);
    history.close(JobState::Finished, None);
    let told = recorded_view(folder.path()).unwrap();
    assert_eq!(all(&*told), before);
    assert_eq!(told.run(&key("1", 0, 1)), Some(detail));
    assert_eq!(told.overview().runs, overview.runs);
    assert_eq!(told.overview().waste.retried, overview.waste.retried);
    assert_eq!((told.job().state, told.job().name.as_str()), (JobState::Finished, "test"));
}

#[tokio::test]
async fn an_aborted_batch_leaves_no_run_open() {
    let folder = tempfile::tempdir().unwrap();
    let history = RunHistory::open(&options(folder.path())).unwrap();
    let (coordinator, scene) = (local(&history).await, live(&history));
    // More runs than runners: some are never begun.
    coordinator.submit_batch(7, tasks("whimsical", 10, 4), BatchType::Train, None).await.unwrap();
    until(&*scene, RunState::Running, 4).await;
    let done = scene.abort_batch("7", false).await;
    assert!(done.done, "{}", done.message);
    let runs = all(&*scene);
    assert_eq!(runs.len(), 40);
    let is_over = |state| !matches!(state, RunState::Pending | RunState::Running);
    assert!(runs.values().all(|run| is_over(run.state)), "{runs:?}");
    let count = |state| runs.values().filter(|run| run.state == state).count() as u64;
    let overview = scene.overview();
    assert_eq!(overview.runs.cancelled["aborted"], count(RunState::Cancelled));
    assert_eq!(overview.runs.succeeded, count(RunState::Succeeded));
    assert!(runs.values().any(|run| run.attempts == 0 && run.begin.is_none()));
    assert_eq!(scene.batches()[0].state, "aborted");
    assert!(!scene.abort_batch("8", false).await.done);

    // Nothing of it is trained on.
    let BiasReport { fields, groups } = scene.bias();
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
    let (coordinator, scene) = (local(&history).await, live(&history));
    coordinator.submit_batch(3, tasks("well", 20, 2), BatchType::Train, None).await.unwrap();
    coordinator
        .submit_batch("3/quiz", tasks("whimsical", 2, 3), BatchType::Eval, None)
        .await
        .unwrap();
    coordinator.finalize_train_batch(3, None).await.unwrap();
    coordinator.finalize_eval_batch("3/quiz", None).await.unwrap();

    let ask = |change: &dyn Fn(&mut RunQuery)| {
        let mut query = RunQuery::default();
        change(&mut query);
        let page = scene.runs(&query);
        let name = |run: &view::RunRow| format!("{}/{}/{}", run.batch, run.task, run.run);
        (page.total, page.runs.iter().map(name).collect::<Vec<_>>())
    };
    assert_eq!(ask(&|_| {}).0, 46);
    assert_eq!(ask(&|query| query.kind = Some("eval".to_owned())).0, 6);
    assert_eq!(ask(&|query| query.batch = Some("3".to_owned())).0, 40);
    assert_eq!(ask(&|query| query.state = Some(RunState::Failed)).0, 2);
    assert_eq!(ask(&|query| query.text = Some("QUIZ".to_owned())).0, 6);
    assert_eq!(ask(&|query| query.text = Some("never".to_owned())).0, 2);
    assert_eq!(ask(&|query| query.text = Some("whims".to_owned())).0, 6);
    assert_eq!(
        ask(&|query| query.text = Some("3/17/1".to_owned())),
        (1, vec!["3/17/1".to_owned()])
    );
    assert_eq!(ask(&|query| query.text = Some("nowhere".to_owned())).0, 0);
    let (total, page) = ask(&|query| {
        (query.sort, query.desc, query.offset, query.limit) = (RunSort::Order, true, 1, 2);
    });
    assert_eq!((total, page), (46, vec!["3/quiz/1/1".to_owned(), "3/quiz/1/0".to_owned()]));
    let (_, page) =
        ask(&|query| (query.sort, query.desc, query.limit) = (RunSort::Attempts, true, 4));
    assert_eq!(page, ["3/quiz/0/1", "3/quiz/0/2", "3/quiz/1/1", "3/quiz/1/2"]);
}
