//! The embedded trainer with the synchronizer, in every style and method, with two explorers of
//! different speed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollway_config::SyncMethod;
use rollway_data::buffer::Buffer as _;
use rollway_data::buffer::queue::{self, ExperienceQueue};
use rollway_sync::{
    PublishedWeights, Synchronizer, SynchronizerOptions as SyncOptions, WeightLocation,
    WeightRequest, WeightWaitResult, weight_folder,
};
use rollway_tiny::trainer::{
    FolderPublisher, SyncPublisher, TinyTrainer, TinyTrainerError, TinyTrainerOptions,
};
use rollway_tiny_model::{ModelWeights, SeededRng, arithmetic};
use tokio::sync::Semaphore;

use crate::sums::{experiences, lot, problems};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

/// Experiences of a step of an explorer and of the trainer.
const BATCH: usize = 8;
/// Steps of every explorer.
const STEPS: u64 = 3;

/// Publication of weights in a synchronization style.
#[derive(Clone, Copy, Debug)]
struct Style {
    interval: u64,
    demand: bool,
    /// Explorers wait for weights after every step.
    waits: bool,
}

const STYLES: [(&str, Style); 4] = [
    ("fixed", Style { interval: 1, demand: false, waits: true }),
    ("explorer_driven", Style { interval: 1, demand: true, waits: true }),
    ("trainer_driven", Style { interval: 2, demand: false, waits: true }),
    ("fully_async", Style { interval: 1, demand: false, waits: false }),
];

async fn open(job: &Path, method: SyncMethod) -> Synchronizer {
    let memory_root = job.to_owned();
    let options = SyncOptions { method, memory_root, ..SyncOptions::new(job) };
    Synchronizer::open_with(options).await.unwrap()
}

fn request(current: u64, at_least: u64) -> WeightRequest {
    WeightRequest {
        explorer: "explorer".to_owned(),
        current,
        at_least,
        publish_now: false,
        timeout: LONG,
    }
}

async fn start(
    synchronizer: &Synchronizer,
    job: &Path,
    queue: &ExperienceQueue,
    options: TinyTrainerOptions,
) -> TinyTrainer {
    let folder = FolderPublisher::new(job, 2);
    let publisher = SyncPublisher::enter(synchronizer, "trainer", folder).await.unwrap();
    let reader = queue.reader("trainer").unwrap();
    let (weights, _) = arithmetic();
    TinyTrainer::start_with(options, weights, reader, Box::new(publisher), |_| {}).unwrap()
}

/// Loads weights and returns their version.
fn load(published: &PublishedWeights) -> u64 {
    let WeightLocation::Folder(path) = &published.location else { panic!("{published:?}") };
    ModelWeights::load(&path.join(weight_folder::MODEL)).unwrap();
    published.version
}

/// An explorer that takes a step per permit of `may_step` and returns the versions it loaded.
async fn explore(
    synchronizer: Synchronizer,
    name: &'static str,
    queue: Arc<ExperienceQueue>,
    style: Style,
    may_step: Arc<Semaphore>,
    stepped: Arc<Semaphore>,
) -> Vec<u64> {
    let membership = synchronizer.join_explorer(name).await.unwrap();
    let (weights, vocabulary) = arithmetic();
    let mut writer = queue.writer(name).unwrap();
    let mut versions = vec![0];
    let base = if name == "quick" { 0 } else { 1000 };
    for step in 0..STEPS {
        may_step.acquire().await.unwrap().forget();
        let problems = problems(&mut SeededRng::new(base + step), 2);
        let batch = experiences(&weights, &vocabulary, &problems, 4, base + step);
        assert_eq!(batch.len(), BATCH);
        writer.write(&lot(base + step, &batch)).unwrap();
        let have = versions[versions.len() - 1];
        let timeout = if style.waits { LONG } else { Duration::ZERO };
        let demand = style.demand;
        let explorer = name.to_owned();
        match synchronizer
            .wait(WeightRequest {
                explorer,
                publish_now: demand,
                timeout,
                ..request(have, have + 1)
            })
            .await
        {
            WeightWaitResult::New(published) => versions.push(load(&published)),
            WeightWaitResult::NothingNew if style.interval > 1 => {}
            WeightWaitResult::TimedOut(_) if !style.waits => {}
            other => panic!("{name}, step {step}: {other:?}"),
        }
        stepped.add_permits(1);
    }
    writer.close().unwrap();
    let have = versions[versions.len() - 1];
    let explorer = name.to_owned();
    let last = WeightRequest { explorer, ..request(have, WeightRequest::LAST) };
    match synchronizer.wait(last).await {
        WeightWaitResult::TrainerDone(Some(published)) => versions.push(load(&published)),
        WeightWaitResult::TrainerDone(None) => {}
        other => panic!("{name}, at the end: {other:?}"),
    }
    membership.done().await.unwrap();
    versions
}

async fn job(style: Style, method: SyncMethod) {
    let folder = tempfile::tempdir().unwrap();
    let host = open(folder.path(), method).await;
    let other = open(folder.path(), method).await;
    let queue = ExperienceQueue::open(queue::QueueOptions::default()).unwrap();
    let options = TinyTrainerOptions {
        batch_size: BATCH,
        publish_interval: style.interval,
        on_demand: style.demand,
        full_interval: Some(4),
        ..TinyTrainerOptions::new(folder.path())
    };
    // Both writers are open before the buffer can finish.
    let writers = [queue.writer("quick").unwrap(), queue.writer("slow").unwrap()];
    let trainer = start(&other, folder.path(), &queue, options).await;
    // The slow explorer starts after two steps of the quick one.
    let (quick, slow) = (Arc::new(Semaphore::new(100)), Arc::new(Semaphore::new(0)));
    let wait_for_quick = Arc::new(Semaphore::new(0));
    let spawn =
        |synchronizer: &Synchronizer, name: &'static str, may_step: &Arc<Semaphore>, stepped| {
            let (synchronizer, queue) = (synchronizer.clone(), Arc::clone(&queue));
            tokio::spawn(explore(synchronizer, name, queue, style, Arc::clone(may_step), stepped))
        };
    let explorers = [
        spawn(&host, "quick", &quick, Arc::clone(&wait_for_quick)),
        spawn(&other, "slow", &slow, Arc::new(Semaphore::new(0))),
    ];
    wait_for_quick.acquire_many(2).await.unwrap().forget();
    slow.add_permits(100);
    for explorer in explorers {
        let versions = explorer.await.unwrap();
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
        assert_eq!(versions.last(), Some(&(2 * STEPS)), "the last weights: {versions:?}");
    }
    drop(writers);
    assert!(host.explorers_left(LONG).await);
    let summary = tokio::task::spawn_blocking(move || trainer.join()).await.unwrap().unwrap();
    assert_eq!(summary.steps, 2 * STEPS);
    assert_eq!(summary.experiences, 2 * STEPS * BATCH as u64, "each once");
    let full = weight_folder::directory(folder.path(), 4);
    assert!(full.join(weight_folder::FULL).exists(), "it stays in the job's folder");
    let exists = weight_folder::directory(folder.path(), 2 * STEPS).exists();
    assert_eq!(exists, method == SyncMethod::Checkpoint);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_style_works_with_every_method() {
    for method in [SyncMethod::Checkpoint, SyncMethod::Memory] {
        for (name, style) in STYLES {
            tokio::time::timeout(LONG, job(style, method)).await.expect(name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_trainer_reports_its_error_to_waiting_explorers() {
    let folder = tempfile::tempdir().unwrap();
    let host = open(folder.path(), SyncMethod::Memory).await;
    let queue = ExperienceQueue::open(queue::QueueOptions::default()).unwrap();
    let _writer = queue.writer("explorer").unwrap();
    let options = TinyTrainerOptions {
        read_timeout: Duration::from_millis(1),
        ..TinyTrainerOptions::new(folder.path())
    };
    let trainer = start(&host, folder.path(), &queue, options).await;
    let waited = host.wait(request(0, WeightRequest::LAST)).await;
    let WeightWaitResult::TrainerFailed(message) = waited else { panic!("{waited:?}") };
    assert!(message.contains("needs 256 experiences, but only 0 came"), "{message}");
    let ended = tokio::task::spawn_blocking(move || trainer.join()).await.unwrap();
    assert!(matches!(ended, Err(TinyTrainerError::NoExperiences { .. })), "{ended:?}");
}
