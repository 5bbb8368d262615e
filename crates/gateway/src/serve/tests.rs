//! Guarantees of serve mode through its public API.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use proptest::prelude::*;
use rollway_core::metrics::Metrics;
use rollway_experience::{Experience, IdPart, ModelVersions, VersionSpan, deserialize_many};
use serde_json::json;

use super::*;

/// A trainer that can fail before or after it has taken a step.
#[derive(Debug, Default)]
struct Trainer {
    taken: Mutex<BTreeMap<String, Vec<Experience>>>,
    fails_before: AtomicBool,
    fails_after: AtomicBool,
}

impl Committer for Trainer {
    fn deliver(&self, step: CommitStep) -> CommitDelivery<'_> {
        Box::pin(async move {
            if self.fails_before.load(Ordering::Relaxed) {
                return Err("no room".to_owned());
            }
            let decode = |payload| deserialize_many(payload).unwrap();
            let experiences: Vec<_> = step.payloads.into_iter().flat_map(decode).collect();
            let mut taken = self.taken.lock();
            let known = taken.entry(step.key).or_insert_with(|| experiences.clone());
            assert_eq!(*known, experiences, "a key names one content");
            if self.fails_after.load(Ordering::Relaxed) {
                return Err("the answer was lost".to_owned());
            }
            Ok(Metrics::from_iter([("stored".to_owned(), experiences.len() as f64)]))
        })
    }
}

impl Trainer {
    fn all(&self) -> Vec<Experience> {
        self.taken.lock().values().flatten().cloned().collect()
    }
}

fn turn(id: &str, prompt: &[i32], tokens: &[i32]) -> Turn {
    let run = VersionSpan { version: Some(3), tokens: u32::try_from(tokens.len()).unwrap() };
    Turn {
        id: id.to_owned(),
        model: "m".to_owned(),
        prompt: prompt.to_vec(),
        tokens: tokens.to_vec(),
        logprobs: tokens.iter().map(|token| -0.5 * *token as f32).collect(),
        versions: ModelVersions::from_spans([run]).unwrap(),
        finish_reason: Some("stop".to_owned()),
        aborted: false,
        messages: Some(json!([{ "role": "user", "content": "hello" }])),
        tools: None,
        reply: json!({ "role": "assistant", "content": "hi" }),
        sampling: None,
        agent: None,
        parent: None,
    }
}

fn feedback(ids: &[&str], reward: f64, task: impl Into<IdPart>, run: u64) -> Feedback {
    let msg_ids = ids.iter().map(|id| (*id).to_owned()).collect();
    Feedback { reward, msg_ids, task: task.into(), run }
}

fn receipt(accepted: u64, already: u64, unknown: &[&str]) -> FeedbackOutcome {
    let unknown = unknown.iter().map(|id| (*id).to_owned()).collect();
    FeedbackOutcome::Taken(FeedbackReceipt { accepted, already, unknown })
}

struct StoreFixture {
    folder: tempfile::TempDir,
    trainer: Arc<Trainer>,
}

impl StoreFixture {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), trainer: Arc::default() }
    }

    fn options(&self) -> ServeStoreOptions {
        ServeStoreOptions::new(self.folder.path().join("deep/history.db"))
    }

    async fn open(&self) -> ServeMode {
        self.open_with(self.options()).await
    }

    /// Opens the store; waits for the thread of a dropped one.
    async fn open_with(&self, options: ServeStoreOptions) -> ServeMode {
        loop {
            let committer = Arc::clone(&self.trainer) as Arc<dyn Committer>;
            match ServeMode::open(options.clone(), committer).await {
                Err(StoreError::Locked { .. }) => tokio::task::yield_now().await,
                opened => return opened.unwrap(),
            }
        }
    }
}

#[tokio::test]
async fn feedback_counts_once_and_a_commit_brings_it_to_the_trainer_once() {
    let fixture = StoreFixture::new();
    let serve = fixture.open().await;
    serve.store_turns(&[turn("a", &[1, 2], &[3]), turn("a/1", &[1, 2], &[4])]).await.unwrap();
    serve.store_turns(&[turn("b", &[9], &[8])]).await.unwrap();

    assert_eq!(serve.commit().await.unwrap().body()["status"], "empty");
    let given = serve.feedback(feedback(&["a", "x"], 1.0, "task", 2)).await.unwrap();
    assert_eq!(given, receipt(2, 0, &["x"]));
    let again = serve.feedback(feedback(&["a/1", "b"], 0.5, 7, 0)).await.unwrap();
    assert_eq!(again, receipt(1, 1, &[]));
    assert_eq!(serve.counts().ready, 3);

    let committed = serve.commit().await.unwrap();
    assert_eq!((committed.step, committed.steps, committed.experiences), (1, 1, 3));
    assert_eq!(committed.metrics.get("stored"), Some(3.0));
    let again = serve.commit().await.unwrap();
    assert_eq!((again.step, again.steps, again.experiences), (1, 0, 0));
    let late = serve.feedback(feedback(&["a", "b"], 0.0, "late", 0)).await.unwrap();
    assert_eq!(late, receipt(0, 3, &[]));

    let mut all = fixture.trainer.all();
    all.sort_by_key(|one| one.tokens.to_vec());
    let labels: Vec<_> = all.iter().map(|one| (one.eid.rid(), one.reward)).collect();
    let first = ("1/task/2".to_owned(), Some(1.0));
    assert_eq!(labels, [first.clone(), first, ("1/7/0".to_owned(), Some(0.5))]);
    let mut names: Vec<String> = all.iter().map(|one| one.eid.uid()).collect();
    names.dedup();
    assert_eq!(names.len(), 3, "{names:?}");
}

#[tokio::test]
async fn feedback_can_name_one_choice() {
    let fixture = StoreFixture::new();
    let serve = fixture.open().await;
    serve.store_turns(&[turn("a", &[1], &[3]), turn("a/1", &[1], &[4])]).await.unwrap();
    let first = serve.feedback(feedback(&["a/0"], 1.0, "t", 0)).await.unwrap();
    assert_eq!(first, receipt(1, 0, &[]));
    let both = serve.feedback(feedback(&["a"], 2.0, "t", 0)).await.unwrap();
    assert_eq!(both, receipt(1, 1, &[]));
}

#[tokio::test]
async fn turns_of_one_feedback_become_one_conversation() {
    let fixture = StoreFixture::new();
    let serve = fixture.open().await;
    serve.store_turns(&[turn("a", &[1, 2], &[3])]).await.unwrap();
    serve.store_turns(&[turn("b", &[1, 2, 3, 4], &[5, 6])]).await.unwrap();
    serve.feedback(feedback(&["b", "a"], 1.0, "t", 0)).await.unwrap();
    assert_eq!(serve.commit().await.unwrap().experiences, 1);
    let all = fixture.trainer.all();
    assert_eq!(all[0].tokens.to_vec(), [1, 2, 3, 4, 5, 6]);
    let mask = all[0].action_mask.as_ref().unwrap().to_vec();
    assert_eq!(mask, [true, false, true, true]);
}

#[tokio::test]
async fn a_commit_that_fails_loses_nothing_and_counts_once() {
    let fixture = StoreFixture::new();
    let serve = fixture.open().await;
    serve.store_turns(&[turn("a", &[1], &[2]), turn("b", &[3], &[4])]).await.unwrap();
    serve.feedback(feedback(&["a"], 1.0, "t", 0)).await.unwrap();
    fixture.trainer.fails_before.store(true, Ordering::Relaxed);
    let error = serve.commit().await.unwrap_err().to_string();
    assert!(error.contains("step 1 was not delivered") && error.contains("no room"), "{error}");
    assert_eq!(serve.counts().step, 0);

    // What is given now is no part of the step that was fixed.
    serve.feedback(feedback(&["b"], 1.0, "t", 0)).await.unwrap();
    fixture.trainer.fails_before.store(false, Ordering::Relaxed);
    fixture.trainer.fails_after.store(true, Ordering::Relaxed);
    serve.commit().await.unwrap_err();
    fixture.trainer.fails_after.store(false, Ordering::Relaxed);
    let committed = serve.commit().await.unwrap();
    assert_eq!((committed.step, committed.steps, committed.experiences), (2, 2, 2));
    assert_eq!(fixture.trainer.all().len(), 2);
}

#[tokio::test]
async fn a_step_that_was_fixed_is_finished_after_a_restart() {
    let fixture = StoreFixture::new();
    let serve = fixture.open().await;
    serve.store_turns(&[turn("a", &[1], &[2])]).await.unwrap();
    serve.feedback(feedback(&["a"], 1.0, "t", 0)).await.unwrap();
    fixture.trainer.fails_after.store(true, Ordering::Relaxed);
    serve.commit().await.unwrap_err();
    drop(serve);

    fixture.trainer.fails_after.store(false, Ordering::Relaxed);
    let serve = fixture.open().await;
    assert_eq!(serve.counts().recorded, 1);
    let resumed = serve.resume().await.unwrap();
    assert_eq!((resumed.step, resumed.steps), (1, 1));
    assert_eq!(serve.commit().await.unwrap().steps, 0);
    assert_eq!(fixture.trainer.all().len(), 1);
    let committer = Arc::clone(&fixture.trainer) as Arc<dyn Committer>;
    let second = ServeMode::open(fixture.options(), committer).await.unwrap_err().to_string();
    assert!(second.contains(&format!("process {}", std::process::id())), "{second}");
}

#[tokio::test]
async fn old_choices_are_removed_and_queued_ones_stay() {
    let fixture = StoreFixture::new();
    let options = ServeStoreOptions { max_rows: 4, ..fixture.options() };
    let serve = fixture.open_with(options).await;
    for id in ["a", "b", "c"] {
        serve.store_turns(&[turn(id, &[1], &[2])]).await.unwrap();
    }
    serve.feedback(feedback(&["a"], 1.0, "t", 0)).await.unwrap();
    serve.commit().await.unwrap();
    serve.feedback(feedback(&["b"], 1.0, "t", 0)).await.unwrap();
    for id in ["d", "e", "f"] {
        serve.store_turns(&[turn(id, &[1], &[2])]).await.unwrap();
    }
    // `a` was committed, `c` had no feedback, `b` waits.
    let ServeStoreCounts { rows, forgotten, expired, recorded, .. } = serve.counts();
    assert_eq!((rows, forgotten, expired, recorded), (4, 1, 1, 6));
    let given = serve.feedback(feedback(&["a", "b", "c", "d"], 1.0, "t", 0)).await.unwrap();
    assert_eq!(given, receipt(1, 1, &["a", "c"]));
    drop(serve);

    let old = ServeStoreOptions { max_age: Duration::ZERO, ..fixture.options() };
    let serve = fixture.open_with(old).await;
    assert_eq!(serve.counts().expired, 1);
    tokio::time::sleep(Duration::from_millis(2)).await;
    serve.store_turns(&[]).await.unwrap();
    assert_eq!(serve.counts().expired, 3);
    assert_eq!(serve.commit().await.unwrap().experiences, 2);
}

#[tokio::test]
async fn feedback_is_refused_when_too_much_waits_for_a_commit() {
    let fixture = StoreFixture::new();
    let serve =
        fixture.open_with(ServeStoreOptions { max_queued_bytes: 1, ..fixture.options() }).await;
    serve.store_turns(&[turn("a", &[1], &[2]), turn("b", &[1], &[2])]).await.unwrap();
    serve.feedback(feedback(&["a"], 1.0, "t", 0)).await.unwrap();
    let refused = serve.feedback(feedback(&["b"], 1.0, "t", 0)).await.unwrap();
    assert!(matches!(refused, FeedbackOutcome::Full { limit: 1, .. }), "{refused:?}");
    serve.commit().await.unwrap();
    let taken = serve.feedback(feedback(&["b"], 1.0, "t", 0)).await.unwrap();
    assert_eq!(taken, receipt(1, 0, &[]));
}

#[tokio::test]
async fn concurrent_responses_are_all_stored() {
    let fixture = StoreFixture::new();
    let options = ServeStoreOptions { max_waiting: 4, max_waiting_bytes: 1, ..fixture.options() };
    let serve = fixture.open_with(options).await;
    let stores = (0..200).map(|number| {
        let serve = serve.clone();
        tokio::spawn(
            async move { serve.store_turns(&[turn(&format!("m{number}"), &[1], &[2])]).await },
        )
    });
    for kept in stores.collect::<Vec<_>>() {
        kept.await.unwrap().unwrap();
    }
    assert_eq!(serve.counts().recorded, 200);
}

#[derive(Clone, Debug)]
enum Event {
    Keep(u8),
    Feedback(Vec<u8>),
    Commit { before: bool, after: bool },
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    let ids = proptest::collection::vec(0..12_u8, 1..4);
    prop_oneof![
        4 => (0..12_u8).prop_map(Event::Keep),
        4 => ids.prop_map(Event::Feedback),
        2 => (any::<bool>(), any::<bool>())
            .prop_map(|(before, after)| Event::Commit { before, after }),
        1 => Just(Event::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_choice_is_trained_at_most_once(
        events in proptest::collection::vec(event(), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async move {
            let fixture = StoreFixture::new();
            let mut serve = fixture.open().await;
            let (mut kept, mut given) = (Vec::new(), Vec::new());
            for event in events {
                match event {
                    Event::Keep(id) => {
                        let turn = turn(&id.to_string(), &[id.into()], &[1]);
                        serve.store_turns(&[turn]).await.unwrap();
                        if !kept.contains(&id) { kept.push(id) }
                    }
                    Event::Feedback(mut ids) => {
                        ids.sort_unstable();
                        ids.dedup();
                        let names: Vec<String> = ids.iter().map(u8::to_string).collect();
                        let names: Vec<&str> = names.iter().map(String::as_str).collect();
                        let taken = serve.feedback(feedback(&names, 1.0, "t", 0)).await.unwrap();
                        let FeedbackOutcome::Taken(taken) = taken else { panic!() };
                        let known = ids.iter().filter(|id| kept.contains(id));
                        let (old, new): (Vec<u8>, Vec<u8>) =
                            known.partition(|id| given.contains(*id));
                        assert_eq!(taken.accepted, new.len() as u64);
                        assert_eq!(taken.already, old.len() as u64);
                        given.extend(new);
                    }
                    Event::Commit { before, after } => {
                        fixture.trainer.fails_before.store(before, Ordering::Relaxed);
                        fixture.trainer.fails_after.store(after, Ordering::Relaxed);
                        let _ = serve.commit().await;
                    }
                    Event::Restart => {
                        drop(serve);
                        serve = fixture.open().await;
                    }
                }
            }
            fixture.trainer.fails_before.store(false, Ordering::Relaxed);
            fixture.trainer.fails_after.store(false, Ordering::Relaxed);
            serve.commit().await.unwrap();
            let mut trained: Vec<i32> =
                fixture.trainer.all().iter().map(|one| one.tokens.to_vec()[0]).collect();
            trained.sort_unstable();
            given.sort_unstable();
            assert_eq!(trained, given.into_iter().map(i32::from).collect::<Vec<_>>());
        });
    }
}
