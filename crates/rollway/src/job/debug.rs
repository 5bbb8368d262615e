//! One task of a job, run once, with everything that can be seen of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollway_config::{ClusterBackend, Config};
use rollway_core::Status;
use rollway_data::buffer::{Buffer as _, JsonlBuffer};
use rollway_data::{Sample, WriteBatch};
use rollway_engine::events::RunObservers;
use rollway_engine::{CollectOptions, Scheduler};
use rollway_experience::{Experience, payload};
use rollway_tasksets::{SelectedTask, TasksetOpener};
use serde_json::{Value, json};

use super::preflight_error::PreflightError;
use super::{JobError, preflight};
use crate::client::Client;
use crate::explorer::{ExplorerError, ModelStack};
use crate::workflow_runtime::WorkflowRuntime;

/// How long a runner may take to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// What came of one task.
#[derive(Debug)]
pub struct DebugReport {
    /// The task, as it was read.
    pub task: Value,
    /// How it ended.
    pub status: Arc<Status>,
    /// What it yielded.
    pub experiences: Vec<Experience>,
    /// What was done, and how long it took, in order.
    pub phases: Vec<DebugPhase>,
    /// What the gateway says about the calls of the model: seconds in all, its own share, calls.
    pub calls: DebugCalls,
    /// Where the rest is.
    pub folder: PathBuf,
}

/// Something that was done.
#[derive(Clone, Debug)]
pub struct DebugPhase {
    pub name: &'static str,
    /// When, since the beginning.
    pub begin: Duration,
    pub took: Duration,
}

/// The calls of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DebugCalls {
    pub count: u64,
    /// How long they took together, in seconds.
    pub seconds: f64,
    /// How much of that was the gateway's own.
    pub gateway_seconds: f64,
}

/// Runs the first task of a resolved configuration once, without a second try. Nothing of the job
/// is touched but its folder `debug`.
///
/// # Errors
/// If there is nothing to run, or nothing to run it with. That the task failed is no error.
pub async fn debug(config: &Config) -> Result<DebugReport, JobError> {
    let mut config = config.clone();
    config.explorer.runner_per_worker = 1;
    // One task is run here, whoever is to run the others.
    config.cluster.backend = ClusterBackend::Local;
    config.explorer.max_retry_times = 0;
    let mut clock = Clock::new();
    let troubles = preflight::before_debug(&config).await;
    if !troubles.is_empty() {
        return Err(JobError::NotStarted(troubles));
    }
    clock.lap("look at everything");
    let fleet = WorkflowRuntime::from_config(&config).map_err(PreflightError::from)?;
    let drawn = first(&config, fleet.needs_prompts()).await?;
    clock.lap("read the task");
    let served = ModelStack::start(&config, &None, &RunObservers::default()).await?;
    clock.lap("start the gateway");
    let ran = run(&config, &fleet, &served, &drawn, &mut clock).await;
    let calls = calls(&served).await;
    served.stop().await;
    clock.lap("close");
    let (status, experiences) = ran?;
    let folder = config.job_dir().join("debug");
    let debugged = DebugReport {
        task: Value::Object(drawn.fields()),
        status,
        experiences,
        phases: clock.phases,
        calls,
        folder,
    };
    write(&debugged)
        .map_err(|message| JobError::Summary { path: debugged.folder.clone(), message })?;
    Ok(debugged)
}

/// Reads the first task to train on, or else to evaluate on.
async fn first(config: &Config, needs_prompts: bool) -> Result<SelectedTask, PreflightError> {
    let buffer = config.buffer.clone();
    let read = move || {
        let opener = TasksetOpener::new(&buffer);
        let opener = if needs_prompts { opener } else { opener.without_prompts() };
        if buffer.explorer_input.train_tasksets().next().is_some() {
            return Ok(opener.train()?.next_batch(1)?.and_then(|batch| batch.into_iter().next()));
        }
        let Some(mut tasks) = opener.evals()?.into_iter().next() else { return Ok(None) };
        Ok(tasks.next_batch(1)?.and_then(|batch| batch.into_iter().next()))
    };
    let read = tokio::task::spawn_blocking(read).await;
    let read = read.map_err(|error| PreflightError::new(format!("tasksets: {error}"), ""))?;
    let drawn =
        read.map_err(|error: rollway_tasksets::TasksetError| PreflightError::from(error))?;
    drawn.ok_or_else(|| {
        PreflightError::new(
            "there is no task",
            "say where tasks are: `buffer.explorer_input.taskset`",
        )
    })
}

/// Runs a task on the one runner there is.
async fn run(
    config: &Config,
    fleet: &WorkflowRuntime,
    served: &ModelStack,
    drawn: &SelectedTask,
    clock: &mut Clock,
) -> Result<(Arc<Status>, Vec<Experience>), JobError> {
    let failed = |error: rollway_engine::Error| JobError::Explorer(ExplorerError::Engine(error));
    let fleet_failed = |error| JobError::Explorer(ExplorerError::Fleet(error));
    let mut task = fleet.encode_task(drawn).map_err(fleet_failed)?;
    (task.repeat_times, task.is_eval) = (1, false);
    let workers = fleet.start_backend(config, served.gateway()).await.map_err(fleet_failed)?;
    let scheduler = Scheduler::new(config.to_core(1), workers);
    if let (0, wanted) = scheduler.start().await.map_err(failed)? {
        return Err(ExplorerError::NoRunner { wanted }.into());
    }
    clock.lap("start a runner");
    scheduler.schedule(vec![task], "debug").await.map_err(failed)?;
    let collected = scheduler.get_payload_results("debug", CollectOptions::default()).await;
    clock.lap("run the task");
    let stopped = scheduler.stop(SHUTDOWN_TIMEOUT).await;
    clock.lap("end the runner");
    let collected = collected.map_err(failed)?;
    stopped.map_err(failed)?;
    let status = collected.statuses.into_iter().next().map(|(_, status)| status);
    let mut experiences = Vec::new();
    for payload in collected.payloads {
        let decoded = payload::deserialize_many(payload);
        let decoded = decoded.map_err(|error| {
            let what = format!("what the workflow returned cannot be read: {error}");
            JobError::Explorer(ExplorerError::Pipeline(what))
        })?;
        experiences.extend(decoded);
    }
    Ok((status.unwrap_or_default(), experiences))
}

/// Asks the gateway how long calls took.
async fn calls(served: &ModelStack) -> DebugCalls {
    let url = format!("{}/metrics", served.gateway().url());
    let Ok(answer) = Client::default().call(&url, served.key().reveal(), None).await else {
        return DebugCalls::default();
    };
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let sum = |name: &str| -> f64 {
        let lines = text.lines().filter(|line| line.contains(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    DebugCalls {
        count: sum("call_seconds_count") as u64,
        seconds: sum("call_seconds_sum"),
        gateway_seconds: sum("added_seconds_sum"),
    }
}

/// Measures what follows what.
struct Clock {
    begin: Instant,
    last: Duration,
    phases: Vec<DebugPhase>,
}

impl Clock {
    fn new() -> Self {
        Self { begin: Instant::now(), last: Duration::ZERO, phases: Vec::new() }
    }

    /// Says what was done since the last time.
    fn lap(&mut self, name: &'static str) {
        let now = self.begin.elapsed();
        self.phases.push(DebugPhase { name, begin: self.last, took: now - self.last });
        self.last = now;
    }
}

/// Writes experiences and profile.
fn write(debugged: &DebugReport) -> Result<(), String> {
    let folder = &debugged.folder;
    let words = |error: &dyn std::fmt::Display| error.to_string();
    // What an earlier call has left.
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(words(&error)),
        _ => {}
    }
    fs::create_dir_all(folder).map_err(|error| words(&error))?;
    let samples: Result<Vec<Sample>, _> = debugged.experiences.iter().map(Sample::new).collect();
    let lot = WriteBatch { key: "debug".into(), samples: samples.map_err(|error| words(&error))? };
    let buffer =
        JsonlBuffer::open(folder.join("experiences.jsonl")).map_err(|error| words(&error))?;
    let mut writer = buffer.writer("debug").map_err(|error| words(&error))?;
    writer.write(&lot).map_err(|error| words(&error))?;
    writer.close().map_err(|error| words(&error))?;
    profile(&folder.join("profile.json"), debugged).map_err(|error| words(&error))
}

/// Writes the profile as tracing tools read it: times in microseconds.
fn profile(path: &Path, debugged: &DebugReport) -> std::io::Result<()> {
    let micros = |time: Duration| time.as_nanos() as f64 / 1000.0;
    let event = |phase: &DebugPhase| {
        json!({
            "name": phase.name, "ph": "X", "pid": 1, "tid": 1, "cat": "debug",
            "ts": micros(phase.begin), "dur": micros(phase.took),
        })
    };
    let events: Vec<Value> = debugged.phases.iter().map(event).collect();
    let DebugCalls { count, seconds, gateway_seconds } = debugged.calls;
    let calls = BTreeMap::from([
        ("model_calls", json!(count)),
        ("model_call_seconds", json!(seconds)),
        ("gateway_seconds", json!(gateway_seconds)),
    ]);
    let profile = json!({ "traceEvents": events, "otherData": calls });
    fs::write(path, serde_json::to_string_pretty(&profile)?)
}
