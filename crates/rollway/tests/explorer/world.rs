//! A test job in its own folder: tasks, workflow, and the events of the job.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rollway::config::Config;
use rollway::explorer::{
    ExploreSummary, Explorer, ExplorerError, ExplorerOptions, JobEvent, JobObserver, JobObservers,
    JobWait,
};
use rollway::synchronizer::{NewWeightsMessage, Synchronizer};
use rollway::workflow_runtime::WorkflowRuntime;
use rollway::{RunContext, RunFailure, RunOutput, WorkflowRegistry};
use rollway_core::FailureKind;
use rollway_data::buffer::{Buffer as _, ReadRequest, SqliteBuffer, sql};
use rollway_experience::{Eid, Experience, ExperienceFields, IdPart, serialize_many};
use rollway_tiny_model::arithmetic;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Notify, mpsc};

/// Behaviour of a run, by its batch, its task and the number of earlier runs of the task.
pub(crate) type Rule = Arc<dyn Fn(&str, u64, u32) -> TestRun + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestRun {
    Succeeds,
    /// Succeeds with an experience without a reward.
    Unrewarded,
    Delayed,
    Fails,
    Hangs,
}

/// All runs succeed, except for those of task 7 in the batch of a step (not in reruns).
pub(crate) fn except_task_7(behaviour: TestRun) -> impl Fn(&str, u64, u32) -> TestRun {
    move |batch, n, _| if n == 7 && !batch.contains('/') { behaviour } else { TestRun::Succeeds }
}

pub(crate) struct World {
    pub(crate) folder: TempDir,
    pub(crate) rule: Rule,
    /// Tasks of all runs, by batch.
    pub(crate) ran: Arc<Mutex<BTreeMap<String, Vec<u64>>>>,
}

/// Configuration of all jobs; tests override keys.
const BASE: &str = "
mode: both
name: job
algorithm: {repeat_times: 2}
buffer:
  batch_size: 3
  total_steps: 4
  explorer_input:
    default_workflow_type: work
    taskset: {name: sums, path: FOLDER/tasks.jsonl, data_selector: {selector_type: shuffle}}
    eval_tasksets: [{name: held, path: FOLDER/held.jsonl}]
  trainer_input: {experience_buffer: {storage_type: sql, path: 'sqlite:///FOLDER/buffer.db'}}
checkpoint_root_dir: FOLDER
explorer:
  runner_per_model: 4
  eval_interval: 2
  eval_single_version: true
  max_timeout: 5
  max_retry_times: 0
  rollout_model: {engine_type: tiny}
synchronizer: {sync_method: memory, sync_timeout: 20}
monitor: {monitor_type: none}
";

impl World {
    pub(crate) fn new() -> Self {
        Self::with(|_, _, _| TestRun::Succeeds)
    }

    /// Returns a job with this behaviour of runs.
    pub(crate) fn with(rule: impl Fn(&str, u64, u32) -> TestRun + Send + Sync + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let rows = |count: u64| -> String {
            (0..count).map(|n| json!({ "n": n, "prompt": "1+1=" }).to_string() + "\n").collect()
        };
        std::fs::write(folder.path().join("tasks.jsonl"), rows(10)).unwrap();
        std::fs::write(folder.path().join("held.jsonl"), rows(2)).unwrap();
        Self { folder, rule: Arc::new(rule), ran: Arc::default() }
    }

    pub(crate) fn config(&self, overrides: &[&str]) -> Config {
        let text = BASE.replace("FOLDER", self.folder.path().to_str().unwrap());
        let config = Config::from_yaml(&text, "job.yaml").unwrap_or_else(|error| panic!("{error}"));
        let config = config.with_overrides(overrides).unwrap_or_else(|error| panic!("{error}"));
        config.resolve().unwrap_or_else(|error| panic!("{error}")).config
    }

    pub(crate) fn job_dir(&self) -> PathBuf {
        self.config(&[]).job_dir()
    }

    pub(crate) fn runtime(&self) -> WorkflowRuntime {
        let (rule, ran) = (Arc::clone(&self.rule), Arc::clone(&self.ran));
        let counts: Arc<Mutex<HashMap<(String, u64), u32>>> = Arc::default();
        let work = move |context: RunContext| {
            let n = number(&context);
            let batch = context.batch.to_string();
            let times = {
                let mut counts = counts.lock().unwrap();
                let times = counts.entry((batch.clone(), n)).or_default();
                *times += 1;
                *times - 1
            };
            ran.lock().unwrap().entry(batch.clone()).or_default().push(n);
            let behaviour = rule(&batch, n, times);
            async move {
                match behaviour {
                    TestRun::Succeeds => Ok(success(&context, n, Some(1.0))),
                    TestRun::Unrewarded => Ok(success(&context, n, None)),
                    TestRun::Delayed => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        Ok(success(&context, n, Some(1.0)))
                    }
                    TestRun::Fails => Err(RunFailure::new(FailureKind::Workflow, "not today")),
                    TestRun::Hangs => std::future::pending().await,
                }
            }
        };
        WorkflowRuntime::rust(WorkflowRegistry::default().with("work", work))
    }

    pub(crate) async fn prepare(&self, overrides: &[&str], seen: &EventLog) -> Explorer {
        let opened = self.try_prepare(overrides, seen).await;
        opened.unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) async fn try_prepare(
        &self,
        overrides: &[&str],
        seen: &EventLog,
    ) -> Result<Explorer, ExplorerError> {
        Box::pin(self.open(&self.config(overrides), seen)).await
    }

    /// Opens an explorer of a configuration with the workflow of this job.
    pub(crate) async fn open(
        &self,
        config: &Config,
        seen: &EventLog,
    ) -> Result<Explorer, ExplorerError> {
        let watchers = JobObservers::new(vec![Arc::new(seen.clone())]);
        let runtime = Some(self.runtime());
        let options = ExplorerOptions { runtime, watchers, ..ExplorerOptions::default() };
        Explorer::prepare(config, options).await
    }

    /// Explores with a trainer that publishes after every step, and closes the explorer.
    pub(crate) async fn explore(&self, overrides: &[&str]) -> (ExploreSummary, EventLog) {
        let seen = EventLog::default();
        let mut explorer = Box::pin(self.prepare(overrides, &seen)).await;
        let trainer = Trainer::start(&explorer, &seen).await;
        let explored = explorer.explore().await.unwrap_or_else(|error| panic!("{error}"));
        drop(trainer);
        explorer.shutdown().await.unwrap();
        (explored, seen)
    }

    /// Returns the tasks of every step in the buffer, sorted, one for each experience. Tasks that
    /// were run again have the batch `STEP/again_N`.
    pub(crate) fn delivered(&self) -> BTreeMap<String, Vec<u64>> {
        let path = self.folder.path().join("buffer.db");
        let options = sql::SqlOptions { table: "experience".into(), ..sql::SqlOptions::default() };
        let buffer = SqliteBuffer::open(path.to_str().unwrap(), options).unwrap();
        let mut reader = buffer.reader("test").unwrap();
        let request =
            ReadRequest { count: 1000, timeout: Duration::ZERO, min_model_version: 0, keep: false };
        let mut all: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for sample in reader.read(&request).unwrap().samples {
            let experience = sample.decode().unwrap();
            let n = u64::try_from(experience.tokens.iter().next().unwrap()).unwrap();
            let step = match &experience.eid.batch {
                IdPart::Number(step) => step.to_string(),
                IdPart::Text(batch) => batch.split_once("/again_").unwrap().0.to_owned(),
            };
            all.entry(step).or_default().push(n);
        }
        all.values_mut().for_each(|tasks| tasks.sort_unstable());
        all
    }
}

fn number(context: &RunContext) -> u64 {
    let fields: Value = serde_json::from_slice(&context.task.body).unwrap();
    fields["raw_task"]["n"].as_u64().unwrap()
}

/// Returns an experience whose first token is its task.
fn success(context: &RunContext, n: u64, reward: Option<f64>) -> RunOutput {
    static EXECUTIONS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let execution = EXECUTIONS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    // Reruns belong to the same step.
    let step = context.batch.to_string();
    let step: i64 = step.split('/').next().unwrap().parse().unwrap();
    let eid = Eid {
        batch: IdPart::Number(step),
        task: IdPart::Number(context.task_id.0.into()),
        run: context.run.0.into(),
        step: 0,
        suffix: format!("{execution}"),
    };
    let tokens = vec![i32::try_from(n).unwrap(), 2, 3].into();
    let fields =
        ExperienceFields { eid, tokens, prompt_length: 1, reward, ..ExperienceFields::default() };
    let payload = serialize_many(&[Experience::new(fields).unwrap()]).unwrap();
    let payload = (!context.task.is_eval).then_some(payload);
    RunOutput { payload, metrics: reward.map(|reward| ("reward", reward)).into_iter().collect() }
}

/// Events of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventLog(Arc<EventLogInner>);

#[derive(Debug, Default)]
struct EventLogInner {
    events: Mutex<Vec<JobEvent>>,
    changed: Notify,
}

impl JobObserver for EventLog {
    fn on_event(&self, event: &JobEvent) {
        self.0.events.lock().unwrap().push(event.clone());
        self.0.changed.notify_waiters();
    }
}

impl EventLog {
    pub(crate) fn events(&self) -> MutexGuard<'_, Vec<JobEvent>> {
        self.0.events.lock().unwrap()
    }

    /// Returns short descriptions of the events.
    pub(crate) fn messages(&self) -> Vec<String> {
        let describe = |event: &JobEvent| match event {
            JobEvent::StepBegun { step, .. } => Some(format!("begin {step}")),
            JobEvent::StepDone { step, .. } => Some(format!("done {step}")),
            JobEvent::Evaluated { step, version, .. } => Some(format!("eval {step} v{version}")),
            JobEvent::Synced { step, version, .. } => Some(format!("sync {step} v{version}")),
            _ => None,
        };
        self.events().iter().filter_map(describe).collect()
    }

    /// Returns the waits that have begun.
    pub(crate) fn waits(&self) -> Vec<JobWait> {
        let begun = |event: &JobEvent| match event {
            JobEvent::WaitBegun(wait) => Some(wait.clone()),
            _ => None,
        };
        self.events().iter().filter_map(begun).collect()
    }

    /// Waits until a wait of a kind has begun.
    pub(crate) async fn until_wait(&self, name: &str) -> JobWait {
        loop {
            let changed = self.0.changed.notified();
            let mut waits = self.waits();
            if let Some(at) = waits.iter().position(|wait| wait.reason.name() == name) {
                return waits.swap_remove(at);
            }
            changed.await;
        }
    }

    /// Waits for an event with this description.
    pub(crate) async fn until(&self, description: &str) {
        loop {
            let changed = self.0.changed.notified();
            if self.messages().iter().any(|it| it == description) {
                return;
            }
            changed.await;
        }
    }

    /// Waits for the end of a step, in this process or an earlier one.
    async fn until_done(&self, of: u64) {
        let is_done = |event: &JobEvent| match event {
            JobEvent::StepDone { step, .. } => *step >= of,
            JobEvent::Began { done_steps, .. } => *done_steps >= of,
            _ => false,
        };
        loop {
            let changed = self.0.changed.notified();
            if self.events().iter().any(is_done) {
                return;
            }
            changed.await;
        }
    }

    /// Returns a metric of a step.
    pub(crate) fn metric(&self, of: u64, key: &str) -> Option<f64> {
        self.events().iter().find_map(|event| match event {
            JobEvent::StepDone { step, metrics, .. } if *step == of => metrics.get(key),
            _ => None,
        })
    }
}

/// A trainer that publishes a version after every finished step.
pub(crate) struct Trainer(tokio::task::JoinHandle<()>);

impl Trainer {
    pub(crate) async fn start(explorer: &Explorer, seen: &EventLog) -> Self {
        let last = u64::from(explorer.config().buffer.total_steps.unwrap());
        Self::until(explorer, seen, last).await
    }

    /// Starts a trainer that ends after step `last`.
    pub(crate) async fn until(explorer: &Explorer, seen: &EventLog, last: u64) -> Self {
        let synchronizer = explorer.synchronizer().unwrap().clone();
        let membership = synchronizer.join_trainer("trainer").await.unwrap();
        let first = explorer.version();
        let (sender, mut done) = mpsc::unbounded_channel();
        let seen = seen.clone();
        tokio::spawn(async move {
            for step in first + 1..=last {
                seen.until_done(step).await;
                let _ = sender.send(step);
            }
        });
        Self(tokio::spawn(async move {
            if first > 0 {
                // The version that it had published before the restart.
                publish(&synchronizer, first).await;
            }
            while let Some(step) = done.recv().await {
                publish(&synchronizer, step).await;
            }
            // The synchronizer may be gone after a kill.
            let _ = membership.done().await;
        }))
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) async fn publish(synchronizer: &Synchronizer, version: u64) {
    let bytes = arithmetic().0.to_bytes();
    let _ = synchronizer.publish(version, NewWeightsMessage::Bytes(bytes.into())).await;
}
