//! Everything that can be known to be wrong before anything long is started.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use rollway_config::{Config, Mode, TrainerType};
use rollway_engine::BufferTarget;
use rollway_gateway::models::reach;
use rollway_tasksets::TasksetOpener;

use super::preflight_error::PreflightError;
use crate::workflow_runtime::WorkflowRuntime;

/// How long a server has to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// What directories of checkpoints begin with.
const CHECKPOINT: &str = "global_step_";

/// Looks at what a configuration names on this machine: files, workflows, programs. Returns
/// everything that is wrong.
pub async fn check_local(config: &Config) -> Vec<PreflightError> {
    let mut troubles = Vec::new();
    if matches!(config.mode, Mode::Both | Mode::Explore | Mode::Bench) {
        troubles.extend(workflows(config).await);
    }
    if matches!(config.mode, Mode::Both | Mode::Explore | Mode::Train) {
        troubles.extend(buffer(config));
    }
    if matches!(config.mode, Mode::Both | Mode::Train) {
        troubles.extend(program(config));
    }
    troubles
}

/// Looks at the rest: the folder of the job, checkpoints, servers.
pub(super) async fn check_all(config: &Config) -> Vec<PreflightError> {
    let mut troubles: Vec<PreflightError> = writable(&config.job_dir()).err().into_iter().collect();
    if config.mode == Mode::Bench {
        troubles.extend(checkpoints(config));
    }
    troubles.extend(check_local(config).await);
    let wrong = rollway_telemetry::monitors::check(config).await;
    troubles.extend(wrong.into_iter().map(|(what, hint)| PreflightError::new(what, hint)));
    if matches!(config.mode, Mode::Both | Mode::Explore | Mode::Bench) {
        troubles.extend(servers(config).await);
    }
    troubles
}

/// Looks at what one task needs.
pub(super) async fn before_debug(config: &Config) -> Vec<PreflightError> {
    let mut troubles = workflows(config).await;
    troubles.extend(writable(&config.job_dir()).err());
    troubles.extend(servers(config).await);
    troubles
}

/// Tells whether workflows and reward functions can be had, and opens the tasksets.
async fn workflows(config: &Config) -> Vec<PreflightError> {
    let fleet = match WorkflowRuntime::from_config(config) {
        Ok(fleet) => fleet,
        Err(error) => return vec![error.into()],
    };
    let needs_prompts = fleet.needs_prompts();
    let mut troubles = tasksets(config, needs_prompts).await;
    if let Err(error) = fleet.check(config).await {
        troubles.push(error.into());
    }
    troubles
}

/// Opens every taskset. Blocks elsewhere.
async fn tasksets(config: &Config, needs_prompts: bool) -> Vec<PreflightError> {
    let (mode, buffer) = (config.mode, config.buffer.clone());
    let open = move || {
        let opener = TasksetOpener::new(&buffer);
        let opener = if needs_prompts { opener } else { opener.without_prompts() };
        let mut troubles = Vec::new();
        if mode != Mode::Bench
            && let Err(error) =
                opener.train().and_then(|mut tasks| tasks.next_batch(buffer.batch_size))
        {
            troubles.push(PreflightError::from(error));
        }
        if let Err(error) = opener.evals() {
            troubles.push(PreflightError::from(error));
        }
        troubles
    };
    let opened = tokio::task::spawn_blocking(open).await;
    opened.unwrap_or_else(|error| vec![PreflightError::new(format!("tasksets: {error}"), "")])
}

/// Tells whether the buffer is described well. It is opened later, by whoever uses it.
fn buffer(config: &Config) -> Option<PreflightError> {
    let path = config.buffer.trainer_input.experience_buffer.path.as_deref();
    if path.is_some_and(|path| path.starts_with("rollway")) && config.mode == Mode::Train {
        return None;
    }
    BufferTarget::of_experiences(config)
        .err()
        .map(|error| PreflightError::new(error.to_string(), ""))
}

/// Looks for the program of the trainer.
fn program(config: &Config) -> Option<PreflightError> {
    let trainer = &config.trainer;
    let name = trainer.command.first().filter(|_| trainer.trainer_type == TrainerType::Command)?;
    if found(name) {
        return None;
    }
    let what = format!("trainer.command: there is no program `{name}` that could be started");
    Some(PreflightError::new(what, "give its whole path, or install it where PATH leads"))
}

fn found(name: &str) -> bool {
    let is_program = |path: &Path| {
        let meta = fs::metadata(path);
        meta.is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return is_program(Path::new(name));
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| is_program(&folder.join(name)))
}

/// Tells whether the folder of the job can be written to.
fn writable(job: &Path) -> Result<(), PreflightError> {
    let probe = job.join(format!(".writable.{}", std::process::id()));
    let write = || {
        fs::create_dir_all(job)?;
        fs::write(&probe, b"")?;
        fs::remove_file(&probe)
    };
    write().map_err(|error: std::io::Error| {
        let what = format!("the job's folder {} cannot be written to: {error}", job.display());
        PreflightError::new(what, "set `checkpoint_root_dir` to a folder that can")
    })
}

/// Tells whether there is anything to evaluate.
fn checkpoints(config: &Config) -> Option<PreflightError> {
    let job = config.job_dir();
    let explorer = &config.explorer;
    // A server elsewhere has weights of its own, which are worth a look; the embedded model has
    // those that everybody knows.
    let is_elsewhere = explorer.rollout_model.engine_type.is_server();
    let begins = explorer.eval_on_startup && !explorer.bench_on_latest_checkpoint;
    if !steps(&job).is_empty() || (is_elsewhere && begins) {
        return None;
    }
    let what = format!("there are no checkpoints ({CHECKPOINT}…) in {}", job.display());
    Some(PreflightError::new(
        what,
        "train first (`mode: both`), or set `project`, `name` and `checkpoint_root_dir` to those \
         of the job that has them",
    ))
}

/// Returns the steps of the checkpoints in a folder, in order.
pub(super) fn steps(job: &Path) -> Vec<u64> {
    let entries = fs::read_dir(job).into_iter().flatten().flatten();
    let step = |name: PathBuf| name.to_str()?.strip_prefix(CHECKPOINT)?.parse().ok();
    let mut steps: Vec<u64> = entries.filter_map(|entry| step(entry.file_name().into())).collect();
    steps.sort_unstable();
    steps
}

/// Asks every server whether it is there.
async fn servers(config: &Config) -> Vec<PreflightError> {
    let servers = match crate::gateway_options::options(config) {
        Ok((_, servers)) => servers,
        Err(error) => return vec![PreflightError::new(error.to_string(), "")],
    };
    let ask = servers.iter().map(async |server| (server, reach(server, ANSWER).await));
    let asked = join_all(ask).await;
    let trouble =
        |(server, reached): (&rollway_gateway::models::ServerSpec, Result<(), String>)| {
            let key = if server.trained { "rollout_model" } else { "auxiliary_models" };
            let what =
                format!("the server of `{}` at {}: {}", server.model, server.url, reached.err()?);
            let hint = format!(
                "start it, or correct `explorer.{key}`: `base_url`, `api_key_env`; without a GPU, \
             `rollway mock-server` stands in for one"
            );
            Some(PreflightError::new(what, hint))
        };
    asked.into_iter().filter_map(trouble).collect()
}
