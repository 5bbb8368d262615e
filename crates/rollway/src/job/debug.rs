//! `rollway debug`: runs one task of a job once and profiles it.

use std::collections::{BTreeMap, HashMap};
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
use rollway_net::tls::TlsIdentity;
use rollway_tasksets::{SelectedTask, TasksetOpener};
use serde_json::{Value, json};

use super::preflight_error::PreflightError;
use super::{JobError, preflight};
use crate::client::Client;
use crate::explorer::{ExplorerError, ModelStack};
use crate::workflow_runtime::WorkflowRuntime;

/// Maximum time for the runner to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Result of one task.
#[derive(Debug)]
pub struct DebugReport {
    pub task: Value,
    pub status: Arc<Status>,
    pub experiences: Vec<Experience>,
    /// Texts of the tokens of all experiences, as far as the server of the model tells them.
    pub token_texts: HashMap<i32, String>,
    pub phases: Vec<DebugPhase>,
    pub calls: DebugCalls,
    /// Folder of `experiences.jsonl` and `profile.json`.
    pub folder: PathBuf,
}

#[derive(Clone, Debug)]
pub struct DebugPhase {
    pub name: &'static str,
    /// Time since the start.
    pub begin: Duration,
    pub took: Duration,
}

/// Model calls as measured by the gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DebugCalls {
    pub count: u64,
    /// Total duration.
    pub seconds: f64,
    /// Part of the duration spent in the gateway.
    pub gateway_seconds: f64,
}

/// Runs the first task of a resolved configuration once, without retries. Of the job only its
/// folder `debug` is changed.
///
/// # Errors
/// If the task could not be run. A failed run is no error.
pub async fn debug(config: &Config) -> Result<DebugReport, JobError> {
    let mut config = config.clone();
    config.explorer.runner_per_worker = 1;
    // The task runs on this machine, also if the job uses a cluster.
    config.cluster.backend = ClusterBackend::Local;
    config.explorer.max_retry_times = 0;
    let mut clock = Clock::new();
    let errors = preflight::before_debug(&config).await;
    if !errors.is_empty() {
        return Err(JobError::NotStarted(errors));
    }
    clock.end_phase("validate the job");
    let runtime = WorkflowRuntime::from_config(&config).map_err(PreflightError::from)?;
    let selected = first(&config, runtime.needs_prompts()).await?;
    clock.end_phase("read the task");
    let served = ModelStack::start(&config, &None, &RunObservers::default()).await?;
    clock.end_phase("start the gateway");
    let ran = run(&config, &runtime, &served, &selected, &mut clock).await;
    let calls = calls(&served).await;
    let token_texts = match &ran {
        Ok((_, experiences)) => token_texts(&served, experiences).await,
        Err(_) => HashMap::new(),
    };
    served.stop().await;
    clock.end_phase("close");
    let (status, experiences) = ran?;
    let folder = config.job_dir().join("debug");
    let debugged = DebugReport {
        task: Value::Object(selected.fields()),
        status,
        experiences,
        token_texts,
        phases: clock.phases,
        calls,
        folder,
    };
    write(&debugged).map_err(|error| JobError::Summary {
        path: debugged.folder.clone(),
        message: error.to_string(),
    })?;
    Ok(debugged)
}

/// Reads the first train task, or else the first eval task.
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
    let selected =
        read.map_err(|error: rollway_tasksets::TasksetError| PreflightError::from(error))?;
    selected.ok_or_else(|| {
        PreflightError::new(
            "there is no task",
            "give their path in `buffer.explorer_input.taskset`",
        )
    })
}

/// Runs a task on a single runner.
async fn run(
    config: &Config,
    runtime: &WorkflowRuntime,
    served: &ModelStack,
    selected: &SelectedTask,
    clock: &mut Clock,
) -> Result<(Arc<Status>, Vec<Experience>), JobError> {
    let failed = |error: rollway_engine::Error| JobError::Explorer(ExplorerError::Engine(error));
    let fleet_failed = |error| JobError::Explorer(ExplorerError::Workflow(error));
    let mut task = runtime.encode_task(selected).map_err(fleet_failed)?;
    (task.repeat_times, task.is_eval) = (1, false);
    let workers = runtime.start_backend(config, served.gateway()).await.map_err(fleet_failed)?;
    let scheduler = Scheduler::new(config.to_core(1), workers);
    if let (0, wanted) = scheduler.start().await.map_err(failed)? {
        return Err(ExplorerError::NoRunner { wanted }.into());
    }
    clock.end_phase("start a runner");
    scheduler.schedule(vec![task], "debug").await.map_err(failed)?;
    let collected = scheduler.get_payload_results("debug", CollectOptions::default()).await;
    clock.end_phase("run the task");
    let stopped = scheduler.stop(SHUTDOWN_TIMEOUT).await;
    clock.end_phase("end the runner");
    let collected = collected.map_err(failed)?;
    stopped.map_err(failed)?;
    let status = collected.statuses.into_iter().next().map(|(_, status)| status);
    let mut experiences = Vec::new();
    for payload in collected.payloads {
        let decoded = payload::deserialize_many(payload);
        let decoded = decoded.map_err(|error| {
            let message = format!("the experiences of the workflow cannot be read: {error}");
            JobError::Explorer(ExplorerError::Pipeline(message))
        })?;
        experiences.extend(decoded);
    }
    Ok((status.unwrap_or_default(), experiences))
}

/// Returns the texts of all tokens; none if the server does not tell them.
async fn token_texts(served: &ModelStack, experiences: &[Experience]) -> HashMap<i32, String> {
    let tokens = experiences.iter().flat_map(|experience| experience.tokens.iter()).collect();
    let texts = served.gateway().handle().token_texts(tokens).await;
    texts.unwrap_or_else(|error| {
        tracing::warn!(error = error.message, "tokens are shown without text");
        HashMap::new()
    })
}

/// Reads the call durations from the metrics of the gateway.
async fn calls(served: &ModelStack) -> DebugCalls {
    let url = format!("{}/metrics", served.gateway().url());
    let fingerprint = served.gateway().identity().map(TlsIdentity::fingerprint);
    let Ok(client) = Client::of(&url, fingerprint) else { return DebugCalls::default() };
    let Ok(answer) = client.call(&url, served.key().reveal(), None).await else {
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
        gateway_seconds: sum("overhead_seconds_sum"),
    }
}

/// Stopwatch of consecutive phases.
struct Clock {
    begin: Instant,
    last: Duration,
    phases: Vec<DebugPhase>,
}

impl Clock {
    fn new() -> Self {
        Self { begin: Instant::now(), last: Duration::ZERO, phases: Vec::new() }
    }

    /// Ends a phase.
    fn end_phase(&mut self, name: &'static str) {
        let now = self.begin.elapsed();
        self.phases.push(DebugPhase { name, begin: self.last, took: now - self.last });
        self.last = now;
    }
}

/// Writes experiences and profile.
fn write(debugged: &DebugReport) -> Result<(), Box<dyn std::error::Error>> {
    let folder = &debugged.folder;
    // Files of an earlier call.
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    fs::create_dir_all(folder)?;
    let samples = debugged.experiences.iter().map(Sample::new).collect::<Result<_, _>>()?;
    let mut writer = JsonlBuffer::open(folder.join("experiences.jsonl"))?.writer("debug")?;
    writer.write(&WriteBatch { key: "debug".into(), samples })?;
    writer.close()?;
    Ok(profile(&folder.join("profile.json"), debugged)?)
}

/// Writes the profile in the Chrome trace format, with times in microseconds.
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
