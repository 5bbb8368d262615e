//! Runners of a job: tasks of this process if all workflows are built into Rust, else Python
//! workers.
//!
//! `from_config` chooses, `check` verifies that all names exist and can be imported.

mod error;
mod python_check;
mod python_command;
mod referenced;
mod task_encoding;

use std::collections::BTreeMap;
use std::sync::Arc;

use rollway_base::suggest::instead;
use rollway_config::{BUILT_IN_WORKFLOWS, ClusterBackend, ConcurrentMode, Config};
use rollway_engine::cluster;
use rollway_engine::{
    Concurrency, GatewayRunKeys, LocalRunners, RunnerBackend, Task, WithModelAccess,
    WithOutputCheck, WorkerPoolOptions, WorkflowDefinition, WorkflowRegistry,
};
use rollway_gateway::gateway::Gateway;
use rollway_protocol::env;
use rollway_tasksets::SelectedTask;

pub use self::error::{WorkflowSetupError, WorkflowSetupErrorKind};
pub use self::python_command::worker_command;
use self::referenced::ReferencedWorkflow;
pub use self::task_encoding::TASK_ENCODING;
use crate::workflows::{self, RewardFn};

type Result<T> = std::result::Result<T, WorkflowSetupError>;

/// Source of runners, and encoding of their tasks.
#[derive(Clone, Debug)]
pub struct WorkflowRuntime {
    runners: RuntimeKind,
    /// Workflows that workers cannot find by name.
    definitions: BTreeMap<String, Arc<WorkflowDefinition>>,
    /// Definition of all other workflows.
    by_name: Arc<WorkflowDefinition>,
    needs_prompts: bool,
}

#[derive(Clone, Debug)]
enum RuntimeKind {
    /// Tasks of this process.
    Rust(WorkflowRegistry),
    /// Python workers of the configuration.
    Python(WorkerPoolOptions),
    /// Worker processes with options of the caller.
    Custom(WorkerPoolOptions),
}

impl WorkflowRuntime {
    /// Returns the runtime of a configuration: this process if all workflows and reward functions
    /// are built into Rust, else Python workers, also if rows may name their own.
    pub fn from_config(config: &Config) -> Result<Self> {
        let sets = referenced::sets(config);
        // Workers on other machines use the Python package.
        let is_local = config.cluster.backend == ClusterBackend::Local;
        if is_local && sets.iter().all(is_built_in) {
            return Ok(Self::rust(workflows::builtin()));
        }
        let is_builtin = |set: &ReferencedWorkflow<'_>| {
            !set.rows_name_workflows
                && set.workflow.is_some_and(|name| BUILT_IN_WORKFLOWS.contains(&name))
        };
        let needs_prompts = sets.iter().all(is_builtin);
        Ok(Self {
            needs_prompts,
            ..Self::new(RuntimeKind::Python(python_command::options(config)?))
        })
    }

    /// Returns a runtime for these workflows in this process.
    pub fn rust(registry: WorkflowRegistry) -> Self {
        let needs_prompts = registry.names().all(|name| workflows::NAMES.contains(&name));
        Self { needs_prompts, ..Self::new(RuntimeKind::Rust(registry)) }
    }

    /// Returns a runtime of worker processes with these options, which include the setup of models
    /// but not the address of the gateway.
    pub fn processes(options: WorkerPoolOptions) -> Self {
        Self::new(RuntimeKind::Custom(options))
    }

    fn new(runners: RuntimeKind) -> Self {
        let (definitions, by_name) = (BTreeMap::new(), Arc::new(task_encoding::by_name()));
        Self { runners, definitions, by_name, needs_prompts: false }
    }

    /// Adds a workflow that workers cannot find by its name. The encoding of its tasks is always
    /// [`TASK_ENCODING`].
    #[must_use]
    pub fn define(mut self, workflow: impl Into<String>, definition: WorkflowDefinition) -> Self {
        let definition = WorkflowDefinition { task_encoding: TASK_ENCODING.into(), ..definition };
        self.definitions.insert(workflow.into(), Arc::new(definition));
        self
    }

    /// Tells whether rows need a prompt: built-in workflows do, others may read the row themselves.
    pub fn needs_prompts(&self) -> bool {
        self.needs_prompts
    }

    /// Checks that all configured workflows and reward functions exist; a short-lived process
    /// imports those in Python.
    pub async fn check(&self, config: &Config) -> Result<()> {
        let sets = referenced::sets(config);
        for set in &sets {
            if set.workflow.is_none() && !set.rows_name_workflows {
                return Err(no_workflow(&set.key_path));
            }
            check_media(set)?;
        }
        match &self.runners {
            RuntimeKind::Rust(registry) => {
                sets.iter().try_for_each(|set| check_rust(registry, set))
            }
            RuntimeKind::Python(options) => {
                python_check::spelling(&sets)?;
                let timeout = config.explorer.supervision.start_timeout.into();
                let checked = python_check::run_check(options, &sets, timeout).await;
                match checked {
                    // Manual workers may have packages that this machine lacks.
                    Err(error) if config.cluster.backend == ClusterBackend::Manual => {
                        tracing::warn!(
                            "not found on this machine; the workers must have it: {error}"
                        );
                        Ok(())
                    }
                    checked => checked,
                }
            }
            // The caller is responsible for their workflows.
            RuntimeKind::Custom(_) => Ok(()),
        }
    }

    /// Returns the runner backend with keys of the gateway; no runner is started yet. Needs a tokio
    /// runtime.
    pub async fn start_backend(
        &self,
        config: &Config,
        gateway: &Gateway,
    ) -> Result<Box<dyn RunnerBackend>> {
        let keys = GatewayRunKeys::new(gateway);
        let recorded = keys.recorded_versions();
        let name_bytes = config.explorer.limits.metric_name_bytes as usize;
        let options = match &self.runners {
            RuntimeKind::Rust(registry) => {
                let mode = config.explorer.concurrent_mode;
                let local = LocalRunners::new(registry.clone()).concurrency(concurrency(mode));
                let workers = WithOutputCheck::new(WithModelAccess::new(local, keys));
                let workers = workers.metric_name_bytes(name_bytes);
                return Ok(Box::new(workers.recorded_versions(recorded)));
            }
            RuntimeKind::Python(options) | RuntimeKind::Custom(options) => options,
        };
        let mut options = options.clone();
        options.env.push((env::GATEWAY_URL.to_owned(), format!("{}/v1", gateway.url())));
        if let Some(identity) = gateway.identity() {
            let certificate = identity.certificate().to_owned();
            options.env.push((env::GATEWAY_CERTIFICATE.to_owned(), certificate));
        }
        let children = Box::pin(cluster::worker_pool(config, options)).await.map_err(|error| {
            WorkflowSetupError::new(WorkflowSetupErrorKind::Cluster, error.what, error.hint)
        })?;
        let workers = WithOutputCheck::new(WithModelAccess::new(children, keys));
        Ok(Box::new(workers.metric_name_bytes(name_bytes).recorded_versions(recorded)))
    }

    pub fn encode_task(&self, selected: &SelectedTask) -> Result<Task> {
        let Some(workflow) = &selected.task.workflow else {
            let row = format!("row {} of taskset `{}`", selected.index, selected.source.name);
            return Err(no_workflow(&row));
        };
        let (definition, body) = match &self.runners {
            RuntimeKind::Rust(registry) => {
                if registry.get(workflow).is_none() {
                    return Err(unknown_workflow(workflow, registry));
                }
                (None, task_encoding::for_rust(selected))
            }
            RuntimeKind::Python(_) | RuntimeKind::Custom(_) => {
                let definition = self.definitions.get(&**workflow).unwrap_or(&self.by_name);
                (Some(Arc::clone(definition)), task_encoding::for_workers(selected))
            }
        };
        Ok(Task {
            workflow: Arc::clone(workflow),
            definition,
            repeat_times: selected.source.repeat_times,
            is_eval: selected.source.is_eval,
            body,
        })
    }
}

/// Tells whether a taskset needs only workflows and reward functions in Rust.
fn is_built_in(set: &ReferencedWorkflow<'_>) -> bool {
    !set.rows_name_workflows
        && !set.rows_name_rewards
        && set.workflow.is_none_or(|name| workflows::NAMES.contains(&name))
        && set.reward_fn.is_none_or(|name| RewardFn::NAMES.contains(&name))
}

/// Refuses images and videos for built-in workflows, which send only text.
fn check_media(set: &ReferencedWorkflow<'_>) -> Result<()> {
    match set.workflow.filter(|name| BUILT_IN_WORKFLOWS.contains(name)) {
        Some(name) if set.has_media => {
            let message = format!("{}: `{name}` supports text, not images or videos", set.key_path);
            let hint = "write a workflow that sends them to the model, and name it \
                        `package.module:name`";
            Err(WorkflowSetupError::new(WorkflowSetupErrorKind::Arguments, message, hint))
        }
        _ => Ok(()),
    }
}

fn check_rust(registry: &WorkflowRegistry, set: &ReferencedWorkflow<'_>) -> Result<()> {
    if let Some(workflow) = set.workflow
        && registry.get(workflow).is_none()
    {
        return Err(unknown_workflow(workflow, registry));
    }
    // Other workflows need no reward function.
    if set.workflow.is_none_or(|name| !workflows::NAMES.contains(&name)) {
        return Ok(());
    }
    let Some(name) = set.reward_fn else {
        let message = format!("{}: no reward function is configured", set.key_path);
        let hint = "name one with `default_reward_fn_type`, such as `exact_match`";
        return Err(WorkflowSetupError::new(WorkflowSetupErrorKind::Missing, message, hint));
    };
    RewardFn::named(name, set.reward_fn_args).map(drop).map_err(|error| {
        let mut error = WorkflowSetupError::from(error);
        error.message = format!("{}: {}", set.key_path, error.message);
        error
    })
}

fn no_workflow(key_path: &str) -> WorkflowSetupError {
    let hint = "name one with `default_workflow_type`: a built-in one such as `simple_workflow`, \
                or `package.module:name`";
    WorkflowSetupError::new(
        WorkflowSetupErrorKind::Missing,
        format!("{key_path}: no workflow is configured"),
        hint,
    )
}

fn unknown_workflow(name: &str, registry: &WorkflowRegistry) -> WorkflowSetupError {
    let names: Vec<&str> = registry.names().collect();
    let hint = instead(name, names.iter().copied());
    WorkflowSetupError::new(
        WorkflowSetupErrorKind::Unknown,
        format!("unknown workflow `{name}`"),
        hint,
    )
}

const fn concurrency(mode: ConcurrentMode) -> Concurrency {
    match mode {
        ConcurrentMode::Sequential => Concurrency::Sequential,
        ConcurrentMode::Asynchronous => Concurrency::Asynchronous,
        ConcurrentMode::MultiThreading => Concurrency::MultiThreading,
    }
}
