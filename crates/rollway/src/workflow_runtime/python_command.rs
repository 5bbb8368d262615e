//! Start command and setup of Python workers. The setup is data only: workers find code by name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollway_base::ServerKind;
use rollway_config::secrets::secret_variables;
use rollway_config::{Config, ModelConfig, SandboxConfig};
use rollway_engine::WorkerPoolOptions;
use rollway_engine::process::python;
use rollway_protocol::env;
use serde_json::{Value, json};

use super::referenced::sets;
use super::{Result, WorkflowSetupError, WorkflowSetupErrorKind};
use crate::gateway_options::trained_model;

const WORKER: &str = "from rollway.worker.process import main; main()";

/// Folder of the leases of sandboxes in that of the job.
const LEASES: &str = "sandboxes";

/// Heartbeat interval of workers.
const HEARTBEAT: Duration = Duration::from_secs(1);

pub(super) fn options(config: &Config) -> Result<WorkerPoolOptions> {
    let explorer = &config.explorer;
    let variables = explorer.env_vars.iter().map(|(name, value)| (name.clone(), value.clone()));
    let mut env: Vec<_> = variables.collect();
    env.push((env::SETUP_JSON.to_owned(), setup(config)?.to_string()));
    let (program, args) = worker_command(python::interpreter(config));
    Ok(WorkerPoolOptions {
        args,
        env,
        removed_env: secret_variables(config),
        heartbeat: HEARTBEAT,
        runners_per_worker: explorer.runner_per_worker,
        ..WorkerPoolOptions::new(program)
    })
}

/// Returns the program and the arguments of a worker.
pub fn worker_command(python: PathBuf) -> (PathBuf, Vec<String>) {
    (python, python::arguments(WORKER))
}

/// Returns the setup of a worker: models of the gateway, execution mode, module search path.
fn setup(config: &Config) -> Result<Value> {
    let explorer = &config.explorer;
    let auxiliary =
        explorer.named_auxiliary_models().map(|(name, model)| json!([served(&name, model)]));
    Ok(json!({
        "models": [served(&trained_model(config), &explorer.rollout_model)],
        "auxiliary": auxiliary.collect::<Vec<_>>(),
        "concurrent_mode": explorer.concurrent_mode,
        "settings": { "sandbox": sandbox(config), "stages": explorer.stages },
        "sys_path": folders(config)?,
        "modules": modules(config),
    }))
}

/// Returns the settings of sandboxes; their leases are in the folder of the job.
fn sandbox(config: &Config) -> SandboxConfig {
    let mut settings = config.explorer.sandbox.clone();
    let folder = config.job_dir().join(LEASES);
    settings.folder.get_or_insert_with(|| folder.display().to_string());
    settings
}

/// Returns the modules that a configuration names; they may register names without a module.
fn modules(config: &Config) -> BTreeSet<&str> {
    let sets = sets(config);
    let names = sets.iter().flat_map(|set| [set.workflow, set.reward_fn]).flatten();
    names.filter_map(|name| Some(name.split_once(':')?.0)).collect()
}

fn served(name: &str, model: &ModelConfig) -> Value {
    // Embedded models have the API of vLLM.
    let kind = model.engine_type.server_kind().unwrap_or(ServerKind::Vllm);
    json!({ "name": name, "engine": kind.name() })
}

/// Returns the first folders of the module search path: that of the configuration, and the working
/// directory.
fn folders(config: &Config) -> Result<Vec<String>> {
    let failed = |error: std::io::Error| {
        let message = format!("the working directory is unknown: {error}");
        WorkflowSetupError::new(
            WorkflowSetupErrorKind::Io,
            message,
            "start the job in a folder that exists",
        )
    };
    let here = std::env::current_dir().map_err(failed)?;
    let beside = here.join(config.folder().unwrap_or_else(|| Path::new("")));
    let mut folders = vec![shown(&beside), shown(&here)];
    folders.dedup();
    Ok(folders)
}

fn shown(path: &Path) -> String {
    // Removes the final slash of a join with an empty path.
    path.components().collect::<PathBuf>().to_string_lossy().into_owned()
}
