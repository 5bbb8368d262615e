//! Checks before anything expensive starts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rollway_base::suggest::nearest;
use rollway_config::{Config, Mode, TrainerType};
use rollway_data::buffer::{BufferError, BufferStorage};
use rollway_data::pipeline::OperatorRegistry;
use rollway_engine::BufferTarget;
use rollway_gateway::models::{ReachError, ServerCapabilities, ServerSpec, reach};
use rollway_tasksets::{TasksetError, TasksetErrorKind, TasksetOpener};

use super::preflight_error::PreflightError;
use crate::explorer::{check_checkpoint, checkpoints_of};
use crate::workflow_runtime::WorkflowRuntime;

/// Maximum time for a server to respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of files that are compared with a misspelled name.
const MAX_LISTED: usize = 1000;

/// Checks files, workflows and programs on this machine, and returns all problems.
pub async fn check_local(
    config: &Config,
    operators: &Arc<OperatorRegistry>,
) -> Vec<PreflightError> {
    let mut errors = Vec::new();
    if matches!(config.mode, Mode::Both | Mode::Explore | Mode::Bench) {
        errors.extend(workflows(config).await);
    }
    if matches!(config.mode, Mode::Both | Mode::Explore | Mode::Train) {
        errors.extend(buffer(config).err());
    }
    if matches!(config.mode, Mode::Both | Mode::Explore | Mode::Serve) {
        errors.extend(pipeline(config, operators).await);
    }
    if matches!(config.mode, Mode::Both | Mode::Train) {
        errors.extend(program(config));
    }
    errors
}

/// Checks also the folder of the job, checkpoints, monitors and servers.
pub(super) async fn check_all(
    config: &Config,
    operators: &Arc<OperatorRegistry>,
) -> Vec<PreflightError> {
    let mut errors: Vec<PreflightError> = writable(config).err().into_iter().collect();
    if config.mode == Mode::Bench {
        errors.extend(checkpoints(config));
    }
    errors.extend(check_local(config, operators).await);
    let problems = rollway_telemetry::monitors::check(config).await;
    errors.extend(problems.into_iter().map(|(message, hint)| PreflightError::new(message, hint)));
    if matches!(config.mode, Mode::Both | Mode::Explore | Mode::Bench) {
        errors.extend(servers(config).await);
    }
    errors
}

/// Checks the requirements of a single task.
pub(super) async fn before_debug(config: &Config) -> Vec<PreflightError> {
    let mut errors = workflows(config).await;
    errors.extend(writable(config).err());
    errors.extend(servers(config).await);
    errors
}

/// Checks workflows, reward functions and tasksets.
async fn workflows(config: &Config) -> Vec<PreflightError> {
    let runtime = match WorkflowRuntime::from_config(config) {
        Ok(runtime) => runtime,
        Err(error) => return vec![error.into()],
    };
    let needs_prompts = runtime.needs_prompts();
    let mut errors = tasksets(config, needs_prompts).await;
    if let Err(error) = runtime.check(config).await {
        errors.push(error.into());
    }
    errors
}

/// Opens all tasksets, on a thread for blocking calls.
async fn tasksets(config: &Config, needs_prompts: bool) -> Vec<PreflightError> {
    let (mode, buffer) = (config.mode, config.buffer.clone());
    let folder = config.folder().map(Path::to_owned);
    let open = move || {
        let opener = TasksetOpener::new(&buffer);
        let opener = if needs_prompts { opener } else { opener.without_prompts() };
        let mut errors = Vec::new();
        if mode != Mode::Bench
            && let Err(error) =
                opener.train().and_then(|mut tasks| tasks.next_batch(buffer.batch_size))
        {
            errors.push(taskset_error(error, folder.as_deref()));
        }
        if let Err(error) = opener.evals() {
            errors.push(taskset_error(error, folder.as_deref()));
        }
        errors
    };
    let opened = tokio::task::spawn_blocking(open).await;
    opened.unwrap_or_else(|error| vec![PreflightError::new(format!("tasksets: {error}"), "")])
}

/// Returns the error of a taskset. A file that is beside the configuration, and not in the current
/// folder, is named: data paths are relative to the current folder.
fn taskset_error(error: TasksetError, folder: Option<&Path>) -> PreflightError {
    let path = Path::new(&error.location);
    let is_missing = error.kind == TasksetErrorKind::Missing && path.is_relative();
    match folder.filter(|folder| is_missing && folder.join(path).exists()) {
        Some(folder) => {
            let hint = format!(
                "it is beside the configuration, but paths are relative to the current folder: run \
                 the command in {}, or give the full path",
                folder.display()
            );
            PreflightError::new(format!("{}: {}", error.location, error.what), hint)
        }
        None => PreflightError::from(error),
    }
}

/// Checks what an earlier process of the job may have left: the checkpoint with the state of its
/// tasksets, and the owner of the buffer. An unowned buffer then belongs to the job, which has to
/// have passed all other checks and to hold its locks.
pub(super) async fn check_resume(config: &Config) -> Result<(), PreflightError> {
    if matches!(config.mode, Mode::Both | Mode::Explore) {
        let checked = check_checkpoint(config).await;
        checked.map_err(|error| PreflightError::new(error.to_string(), ""))?;
    }
    if config.mode == Mode::Bench {
        return Ok(());
    }
    let Some(target) = buffer(config)? else { return Ok(()) };
    let open = move || match target.address().storage() {
        // It belongs to this process.
        BufferStorage::Queue => Ok(()),
        BufferStorage::Database | BufferStorage::Files => target.open().map(drop),
    };
    let opened = tokio::task::spawn_blocking(open).await;
    let opened = opened.map_err(|error| PreflightError::new(format!("buffer: {error}"), ""))?;
    opened.map_err(|error| {
        let hint = match &error {
            BufferError::Unavailable { .. } => {
                "start the database, or correct `buffer.trainer_input.experience_buffer.path`"
            }
            _ => "",
        };
        PreflightError::new(rollway_base::error_chain(&error), hint)
    })
}

/// Returns the buffer, which is opened later. `None`: the one of another process.
fn buffer(config: &Config) -> Result<Option<BufferTarget>, PreflightError> {
    let path = config.buffer.trainer_input.experience_buffer.path.as_deref();
    if path.is_some_and(|path| path.starts_with("rollway")) && config.mode == Mode::Train {
        return Ok(None);
    }
    let target = BufferTarget::of_experiences(config);
    target.map(Some).map_err(|error| PreflightError::new(error.to_string(), ""))
}

/// Checks names and arguments of the pipeline operators, on a thread for blocking calls: operators
/// may be user code.
async fn pipeline(config: &Config, operators: &Arc<OperatorRegistry>) -> Option<PreflightError> {
    let listed = config.data_processor.experience_pipeline.operators.iter().map(|one| &one.name);
    let mut named = listed.chain(&config.algorithm.advantage_fn);
    let is_known = |name: &String| operators.names().any(|known| *known == **name);
    if let Some(name) = named.find(|name| name.contains(':') && !is_known(name)) {
        return Some(PreflightError::new(
            format!("operator `{name}` is in Python, which this program does not contain"),
            "run the job with the command `rollway` of the Python package",
        ));
    }
    let (config, operators) = (config.clone(), Arc::clone(operators));
    let check = move || rollway_engine::check_operators(&config, &operators);
    let checked = tokio::task::spawn_blocking(check).await;
    let message = match checked {
        Ok(checked) => checked.err()?.to_string(),
        Err(error) => format!("operators: {error}"),
    };
    Some(PreflightError::new(message, ""))
}

/// Checks that the program of the trainer exists.
fn program(config: &Config) -> Option<PreflightError> {
    let trainer = &config.trainer;
    let name = trainer.command.first().filter(|_| trainer.trainer_type == TrainerType::Command)?;
    if is_installed(name) {
        return missing_script(&trainer.command);
    }
    let message = format!("trainer.command: program `{name}` not found");
    Some(PreflightError::new(message, "give its full path, or add its folder to PATH"))
}

/// Checks that the script of a Python interpreter exists.
fn missing_script(command: &[String]) -> Option<PreflightError> {
    let [program, script, ..] = command else { return None };
    let program = Path::new(program).file_name()?.to_str()?;
    let is_script = program.starts_with("python") && script.ends_with(".py");
    if !is_script || Path::new(script).exists() {
        return None;
    }
    let here = std::env::current_dir().unwrap_or_default();
    let message = format!("trainer.command: there is no script `{script}`");
    let folder = Path::new(script).parent().map(Path::to_owned).unwrap_or_default();
    let near = similar_name(&here.join(&folder), script);
    let near = near.map(|near| format!("did you mean `{}`? ", folder.join(near).display()));
    let hint = format!(
        "{}the path is relative to {}, the current folder",
        near.unwrap_or_default(),
        here.display()
    );
    Some(PreflightError::new(message, hint))
}

/// Returns the name of a file in a folder that a path probably means.
fn similar_name(folder: &Path, path: &str) -> Option<String> {
    let name = Path::new(path).file_name()?.to_str()?;
    let entries = fs::read_dir(folder).ok()?.take(MAX_LISTED).flatten();
    let names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    nearest(name, names.iter().map(String::as_str)).map(str::to_owned)
}

fn is_installed(name: &str) -> bool {
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

/// Creates the folder of the job.
pub(super) fn create_folder(config: &Config) -> Result<PathBuf, PreflightError> {
    config.create_job_dir().map_err(|error| {
        let folder = config.job_dir();
        let message = format!("the job's folder {} is not usable: {error}", folder.display());
        PreflightError::new(message, "set `checkpoint_root_dir` or `name` to another folder")
    })
}

/// Checks that the folder of the job is writable.
fn writable(config: &Config) -> Result<(), PreflightError> {
    let job = create_folder(config)?;
    // The file is created under a random name, so that no link is followed.
    let write = || tempfile::Builder::new().prefix(".writable").tempfile_in(&job)?.close();
    write().map_err(|error: std::io::Error| {
        let message = format!("the job's folder {} cannot be written to: {error}", job.display());
        PreflightError::new(message, "set `checkpoint_root_dir` to a writable folder")
    })
}

/// Checks that there are checkpoints to evaluate.
fn checkpoints(config: &Config) -> Option<PreflightError> {
    let job = config.job_dir();
    let explorer = &config.explorer;
    // A server has weights of its own to evaluate; the untrained embedded model is not worth it.
    let is_server = explorer.rollout_model.engine_type.is_server();
    let begins = explorer.eval_on_startup && !explorer.bench_on_latest_checkpoint;
    if !checkpoints_of(&job).is_empty() || (is_server && begins) {
        return None;
    }
    let message = format!("there are no checkpoints (global_step_…) in {}", job.display());
    Some(PreflightError::new(
        message,
        "train first (`mode: both`), or set `project`, `name` and `checkpoint_root_dir` to those \
         of the job that has them",
    ))
}

/// Checks that every server responds.
async fn servers(config: &Config) -> Vec<PreflightError> {
    let servers = match crate::gateway_options::options(config) {
        Ok((_, servers)) => servers,
        Err(error) => return vec![PreflightError::new(error.to_string(), "")],
    };
    let checks = servers.iter().map(async |server| (server, reach(server, RESPONSE_TIMEOUT).await));
    let results = join_all(checks).await;
    let error = |(server, reached): (&ServerSpec, Result<ServerCapabilities, ReachError>)| {
        let key = if server.trained { "rollout_model" } else { "auxiliary_models" };
        let server_name = format!("the server of `{}` at {}", server.model, server.url);
        match reached {
            Err(error) => {
                let message = format!("{server_name}: {error}");
                Some(PreflightError::new(message, reach_hint(&error, key)))
            }
            Ok(capabilities) if server.trained && config.mode == Mode::Both => {
                let reason = cannot_update(config, &capabilities)?;
                let message = format!("{server_name} cannot update its weights: {reason}");
                let hint = "or use `mode: explore` or `mode: bench`, with fixed weights";
                Some(PreflightError::new(message, hint))
            }
            Ok(_) => None,
        }
    };
    results.into_iter().filter_map(error).collect()
}

/// Returns the remedy for a server that cannot be used; `key` is its section of `explorer`.
fn reach_hint(error: &ReachError, key: &str) -> String {
    match error {
        ReachError::Down(_) => format!(
            "start it, or correct `explorer.{key}.base_url`; without a GPU, `rollway mock-server` \
             stands in for one"
        ),
        ReachError::Address(_) => format!(
            "see that an inference server listens there, and correct `explorer.{key}.base_url`"
        ),
        ReachError::Key(_) => format!(
            "name the variable of the environment that has the server's key in \
             `explorer.{key}.api_key_env`, and check its value"
        ),
        ReachError::Model(_) => format!("correct `explorer.{key}.model_path`"),
    }
}

/// Returns why a server cannot take the weights of the job's trainer, if so.
fn cannot_update(config: &Config, capabilities: &ServerCapabilities) -> Option<String> {
    if config.synchronizer.sync_method.uses_group() {
        capabilities.cannot_transfer()
    } else {
        capabilities.cannot_load_folder()
    }
}
