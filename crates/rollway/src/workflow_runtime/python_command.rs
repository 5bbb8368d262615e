//! How workers in Python are started for a configuration: which program, and what it is told about
//! models. Nothing of it is code: a worker finds everything by name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollway_base::ServerKind;
use rollway_config::{Config, ModelConfig};
use rollway_engine::WorkerPoolOptions;
use rollway_engine::process::python;
use rollway_protocol::env;
use serde_json::{Value, json};

use super::referenced::sets;
use super::{Result, WorkflowSetupError, WorkflowSetupErrorKind};
use crate::gateway_options::trained_model;

/// Runs a worker.
const WORKER: &str = "from rollway.worker.process import main; main()";

/// How often a worker says that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Returns how workers are started.
pub(super) fn options(config: &Config) -> Result<WorkerPoolOptions> {
    let explorer = &config.explorer;
    let variables = explorer.env_vars.iter().map(|(name, value)| (name.clone(), value.clone()));
    let mut env: Vec<_> = variables.collect();
    env.push((env::SETUP.to_owned(), setup(config)?.to_string()));
    let (program, args) = worker_command(python::interpreter(config));
    Ok(WorkerPoolOptions {
        args,
        env,
        heartbeat: HEARTBEAT,
        runners_per_worker: explorer.runner_per_worker,
        ..WorkerPoolOptions::new(program)
    })
}

/// Returns how a worker is started with a Python: the program and its arguments.
pub fn worker_command(python: PathBuf) -> (PathBuf, Vec<String>) {
    (python, python::arguments(WORKER))
}

/// Returns what a worker is told: the models behind the gateway, how runs are executed, and where
/// modules are looked for first.
fn setup(config: &Config) -> Result<Value> {
    let explorer = &config.explorer;
    let auxiliary = explorer.auxiliary_models.iter().enumerate().map(|(index, model)| {
        let name = model.name.clone().unwrap_or_else(|| index.to_string());
        json!([served(&name, model)])
    });
    Ok(json!({
        "models": [served(&trained_model(config), &explorer.rollout_model)],
        "auxiliary": auxiliary.collect::<Vec<_>>(),
        "concurrent_mode": explorer.concurrent_mode,
        "sys_path": folders(config)?,
        "modules": modules(config),
    }))
}

/// Returns the modules that a configuration names, which may register what it calls by bare names.
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

/// Returns where modules are looked for before anywhere else: beside the configuration, and where
/// the job was started.
fn folders(config: &Config) -> Result<Vec<String>> {
    let failed = |error: std::io::Error| {
        let what = format!("the working directory cannot be told: {error}");
        WorkflowSetupError::new(
            WorkflowSetupErrorKind::Io,
            what,
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
    // Without a slash at the end, which joining nothing leaves.
    path.components().collect::<PathBuf>().to_string_lossy().into_owned()
}
