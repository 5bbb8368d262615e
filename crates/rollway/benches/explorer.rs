//! Share of runner time spent in workflows: 64 runners, 100 ms per run, and a trainer that
//! publishes at once, so that the rest is overhead of the explorer. Figures of one run.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rollway::config::Config;
use rollway::explorer::{Explorer, ExplorerOptions, JobEvent, JobObserver, JobObservers};
use rollway::synchronizer::{NewWeightsMessage, Synchronizer};
use rollway::workflow_runtime::WorkflowRuntime;
use rollway::{RunContext, RunOutput, WorkflowRegistry};
use rollway_experience::{Eid, Experience, ExperienceFields, IdPart, serialize_many};
use rollway_tiny_model::arithmetic;
use tokio::sync::mpsc;

const RUNNERS: u32 = 64;
const RUN: Duration = Duration::from_millis(100);

const JOB: &str = "
mode: both
name: job
algorithm: {repeat_times: 8}
buffer:
  batch_size: 64
  total_steps: 12
  explorer_input:
    default_workflow_type: work
    taskset: {path: FOLDER/tasks.jsonl}
  trainer_input: {experience_buffer: {storage_type: sql, path: 'sqlite:///FOLDER/buffer.db'}}
checkpoint_root_dir: FOLDER
explorer: {runner_per_model: 64, max_repeat_times_per_runner: 1, rollout_model: {engine_type: tiny}}
synchronizer: {sync_method: memory, sync_timeout: 60}
monitor: {monitor_type: none}
";

/// Records the start of the loop and the end of steps.
#[derive(Debug)]
struct Clock {
    began: Mutex<Option<Instant>>,
    done: mpsc::UnboundedSender<u64>,
    last: Mutex<Option<Instant>>,
}

impl JobObserver for Clock {
    fn on_event(&self, event: &JobEvent) {
        match event {
            JobEvent::Began { .. } => *self.began.lock().expect("no panic") = Some(Instant::now()),
            JobEvent::StepDone { step, .. } => {
                *self.last.lock().expect("no panic") = Some(Instant::now());
                let _ = self.done.send(*step);
            }
            _ => {}
        }
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("threads can be started");
    println!("time of {RUNNERS} runners spent in runs of {} ms", RUN.as_millis());
    for (name, style) in [
        ("fixed, weights after every step", "fixed"),
        ("fixed, weights after every fourth step", "fixed"),
        ("fully async, two steps in flight", "fully_async"),
    ] {
        let interval = if name.contains("fourth") { 4 } else { 1 };
        let (share, runs, seconds) = runtime.block_on(explore(style, interval));
        println!("{name:<42} {:5.1} %   {runs} runs in {seconds:.2} s", share * 100.0);
    }
}

/// Returns the share of runner time in runs, the number of runs, and the duration in seconds.
async fn explore(style: &str, interval: u64) -> (f64, u64, f64) {
    let folder = tempfile::tempdir().expect("there is a folder");
    let spent = Arc::new(AtomicU64::new(0));
    let runs = Arc::new(AtomicU64::new(0));
    let (done, finished) = mpsc::unbounded_channel();
    let clock = Arc::new(Clock { began: Mutex::default(), done, last: Mutex::default() });
    let watcher: Arc<dyn JobObserver> = Arc::<Clock>::clone(&clock);
    let options = ExplorerOptions {
        runtime: Some(runtime(Arc::clone(&spent), Arc::clone(&runs))),
        watchers: JobObservers::new(vec![watcher]),
        ..ExplorerOptions::default()
    };
    let config = config(folder.path(), style, interval);
    let mut explorer = Explorer::prepare(&config, options).await.expect("everything opens");
    let synchronizer = explorer.synchronizer().expect("it meets a trainer").clone();
    let training = tokio::spawn(train(synchronizer, finished, interval, 12));
    explorer.explore().await.expect("it explores");
    training.abort();
    explorer.shutdown().await.expect("it closes");
    let instant =
        |of: &Mutex<Option<Instant>>| of.lock().expect("no panic").expect("the event was recorded");
    let seconds = (instant(&clock.last) - instant(&clock.began)).as_secs_f64();
    let spent = spent.load(Ordering::Relaxed) as f64 / 1e9;
    let share = spent / (f64::from(RUNNERS) * seconds);
    (share, runs.load(Ordering::Relaxed), seconds)
}

fn config(folder: &Path, style: &str, interval: u64) -> Config {
    let rows: String = (0..64).map(|_| "{\"prompt\": \"1+1=\"}\n").collect();
    std::fs::write(folder.join("tasks.jsonl"), rows).expect("the tasks are written");
    let text = JOB.replace("FOLDER", &folder.display().to_string());
    let config = Config::from_yaml(&text, "job.yaml").expect("the keys are right");
    let overrides = [
        format!("synchronizer.sync_style={style}"),
        format!("synchronizer.sync_interval={interval}"),
    ];
    let config = config.with_overrides(&overrides).expect("the keys are right");
    config.resolve().expect("the keys go together").config
}

fn runtime(spent: Arc<AtomicU64>, runs: Arc<AtomicU64>) -> WorkflowRuntime {
    let work = move |context: RunContext| {
        let (spent, runs) = (Arc::clone(&spent), Arc::clone(&runs));
        async move {
            let began = Instant::now();
            tokio::time::sleep(RUN).await;
            spent.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
            let number = runs.fetch_add(1, Ordering::Relaxed);
            let step = context.batch.to_string().parse().unwrap_or_default();
            let eid = Eid {
                batch: IdPart::Number(step),
                task: IdPart::Number(context.task_id.0.into()),
                run: context.run.0.into(),
                step: 0,
                suffix: number.to_string(),
            };
            let tokens = vec![1, 2, 3].into();
            let fields = ExperienceFields {
                eid,
                tokens,
                prompt_length: 1,
                reward: Some(1.0),
                ..ExperienceFields::default()
            };
            let payload = serialize_many(&[Experience::new(fields)?])?;
            let metrics = [("reward", 1.0)].into_iter().collect();
            Ok(RunOutput { payload: Some(payload), metrics })
        }
    };
    WorkflowRuntime::rust(WorkflowRegistry::default().with("work", work))
}

/// Publishes the same weights after every sync interval.
async fn train(
    synchronizer: Synchronizer,
    mut finished: mpsc::UnboundedReceiver<u64>,
    interval: u64,
    last: u64,
) {
    let membership = synchronizer.join_trainer("trainer").await.expect("the trainer can join");
    let weights: bytes::Bytes = arithmetic().0.to_bytes().into();
    while let Some(step) = finished.recv().await {
        if step.is_multiple_of(interval) {
            let published =
                synchronizer.publish(step, NewWeightsMessage::Bytes(weights.clone())).await;
            published.expect("weights are taken");
        }
        if step == last {
            break;
        }
    }
    let _ = membership.done().await;
}
