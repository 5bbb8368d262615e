//! Where the runners of a job come from: this process for workflows in Rust, child processes for
//! those in Python.
//!
//! ```text
//! choose ──► every name is built into Rust ──► Local: tasks of this runtime ──┐
//!      └───► anything else ──────────────────► Children: workers in Python ───┴─► Gated ─► Workers
//! check ───► everything is named, spelt as it is called, and can be imported
//! ```

mod error;
mod python_check;
mod python_command;
mod referenced;
mod task_encoding;

use std::collections::BTreeMap;
use std::sync::Arc;

use rollway_base::suggest::instead;
use rollway_config::{ClusterBackend, ConcurrentMode, Config};
use rollway_engine::cluster;
use rollway_engine::{
    Concurrency, GatewayRunKeys, LocalRunners, RunnerBackend, Task, WithModelAccess,
    WorkerPoolOptions, WorkflowDefinition, WorkflowRegistry,
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

/// Where runners come from, and how tasks are told to them.
#[derive(Clone, Debug)]
pub struct WorkflowRuntime {
    runners: RuntimeKind,
    /// Workflows that do not go by name alone.
    definitions: BTreeMap<String, Arc<WorkflowDefinition>>,
    /// What all others are.
    by_name: Arc<WorkflowDefinition>,
    needs_prompts: bool,
}

#[derive(Clone, Debug)]
enum RuntimeKind {
    /// Tasks of this runtime.
    Rust(WorkflowRegistry),
    /// Workers in Python, set up as a configuration says.
    Python(WorkerPoolOptions),
    /// Processes that somebody else has described.
    Children(WorkerPoolOptions),
}

impl WorkflowRuntime {
    /// Returns runners for what a configuration names: in this process if every workflow and
    /// reward function is built into Rust, else workers in Python, which have those and all others.
    /// Nobody knows yet what rows name that name their own; that is for Python too.
    pub fn from_config(config: &Config) -> Result<Self> {
        let sets = referenced::sets(config);
        // Workers elsewhere have the built-in ones in Python.
        let is_here = config.cluster.backend == ClusterBackend::Local;
        if is_here && sets.iter().all(is_built_in) {
            return Ok(Self::rust(workflows::builtin()));
        }
        let asks = |set: &ReferencedWorkflow<'_>| {
            !set.rows_name_workflows
                && set.workflow.is_some_and(|name| workflows::PYTHON_NAMES.contains(&name))
        };
        let needs_prompts = sets.iter().all(asks);
        Ok(Self {
            needs_prompts,
            ..Self::new(RuntimeKind::Python(python_command::options(config)?))
        })
    }

    /// Returns runners in this process that have these workflows.
    pub fn rust(registry: WorkflowRegistry) -> Self {
        let needs_prompts = registry.names().all(|name| workflows::NAMES.contains(&name));
        Self { needs_prompts, ..Self::new(RuntimeKind::Rust(registry)) }
    }

    /// Returns runners in processes that are started like this. What they need to know of models is
    /// in these options, but for the gateway and [`define`](Self::define).
    pub fn processes(options: WorkerPoolOptions) -> Self {
        Self::new(RuntimeKind::Children(options))
    }

    fn new(runners: RuntimeKind) -> Self {
        let (definitions, by_name) = (BTreeMap::new(), Arc::new(task_encoding::by_name()));
        Self { runners, definitions, by_name, needs_prompts: false }
    }

    /// Adds a workflow that workers cannot find by its name. Its tasks are told as
    /// [`TASK_ENCODING`] says, whatever the definition says.
    #[must_use]
    pub fn define(mut self, workflow: impl Into<String>, definition: WorkflowDefinition) -> Self {
        let definition = WorkflowDefinition { task_encoding: TASK_ENCODING.into(), ..definition };
        self.definitions.insert(workflow.into(), Arc::new(definition));
        self
    }

    /// Tells whether rows have to have a question: workflows that come with Rollway ask it, others
    /// may read the row themselves.
    pub fn needs_prompts(&self) -> bool {
        self.needs_prompts
    }

    /// Checks before anything long is started that every workflow and reward function that a
    /// configuration names can be had: those in Python by a process of their own, which imports
    /// them and ends.
    pub async fn check(&self, config: &Config) -> Result<()> {
        let sets = referenced::sets(config);
        for set in &sets {
            if set.workflow.is_none() && !set.rows_name_workflows {
                return Err(no_workflow(&set.place));
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
                let asked = python_check::ask(options, &sets, timeout).await;
                match asked {
                    // What they need is where they are.
                    Err(error) if config.cluster.backend == ClusterBackend::Manual => {
                        tracing::warn!("not known here, and expected where workers are: {error}");
                        Ok(())
                    }
                    asked => asked,
                }
            }
            // Whoever described them knows what they have.
            RuntimeKind::Children(_) => Ok(()),
        }
    }

    /// Returns the runners, with keys to the models behind a gateway. None is started yet. Needs a
    /// tokio runtime.
    pub async fn start_backend(
        &self,
        config: &Config,
        gateway: &Gateway,
    ) -> Result<Box<dyn RunnerBackend>> {
        let keys = GatewayRunKeys::new(gateway);
        let options = match &self.runners {
            RuntimeKind::Rust(registry) => {
                let mode = config.explorer.concurrent_mode;
                let local = LocalRunners::new(registry.clone()).concurrency(concurrency(mode));
                return Ok(Box::new(WithModelAccess::new(local, keys)));
            }
            RuntimeKind::Python(options) | RuntimeKind::Children(options) => options,
        };
        let mut options = options.clone();
        options.env.push((env::GATEWAY_URL.to_owned(), format!("{}/v1", gateway.url())));
        let children = Box::pin(cluster::worker_pool(config, options)).await.map_err(|error| {
            WorkflowSetupError::new(WorkflowSetupErrorKind::Cluster, error.what, error.hint)
        })?;
        Ok(Box::new(WithModelAccess::new(children, keys)))
    }

    /// Returns a task as runners take it.
    pub fn encode_task(&self, drawn: &SelectedTask) -> Result<Task> {
        let Some(workflow) = &drawn.task.workflow else {
            let row = format!("row {} of taskset `{}`", drawn.index, drawn.source.name);
            return Err(no_workflow(&row));
        };
        let (definition, body) = match &self.runners {
            RuntimeKind::Rust(registry) => {
                if registry.get(workflow).is_none() {
                    return Err(unknown_workflow(workflow, registry));
                }
                (None, task_encoding::for_rust(drawn))
            }
            RuntimeKind::Python(_) | RuntimeKind::Children(_) => {
                let definition = self.definitions.get(&**workflow).unwrap_or(&self.by_name);
                (Some(Arc::clone(definition)), task_encoding::for_workers(drawn))
            }
        };
        Ok(Task {
            workflow: Arc::clone(workflow),
            definition,
            repeat_times: drawn.source.repeat_times,
            is_eval: drawn.source.is_eval,
            body,
        })
    }
}
/// Tells whether the tasks of a set need nothing but what Rust has.
fn is_built_in(set: &ReferencedWorkflow<'_>) -> bool {
    !set.rows_name_workflows
        && !set.rows_name_rewards
        && set.workflow.is_none_or(|name| workflows::NAMES.contains(&name))
        && set.reward_fn.is_none_or(|name| RewardFn::NAMES.contains(&name))
}

/// Refuses to leave out what a task would be another without.
fn check_media(set: &ReferencedWorkflow<'_>) -> Result<()> {
    match set.workflow.filter(|name| workflows::PYTHON_NAMES.contains(name)) {
        Some(name) if set.has_media => {
            let what = format!("{}: `{name}` asks with text, not with images or videos", set.place);
            let hint = "write a workflow that shows them to the model, and name it \
                        `package.module:name`";
            Err(WorkflowSetupError::new(WorkflowSetupErrorKind::Arguments, what, hint))
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
    // What others do with a reward function is their own business.
    if set.workflow.is_none_or(|name| !workflows::NAMES.contains(&name)) {
        return Ok(());
    }
    let Some(name) = set.reward_fn else {
        let what = format!("{}: there is no reward function to judge answers by", set.place);
        let hint = "name one with `default_reward_fn_type`, such as `exact_match`";
        return Err(WorkflowSetupError::new(WorkflowSetupErrorKind::Missing, what, hint));
    };
    RewardFn::named(name, set.reward_fn_args).map(drop).map_err(|error| {
        let mut error = WorkflowSetupError::from(error);
        error.what = format!("{}: {}", set.place, error.what);
        error
    })
}

fn no_workflow(place: &str) -> WorkflowSetupError {
    let hint = "name one with `default_workflow_type`: a built-in one such as `simple_workflow`, \
                or `package.module:name`";
    WorkflowSetupError::new(
        WorkflowSetupErrorKind::Missing,
        format!("{place}: no workflow is named"),
        hint,
    )
}

fn unknown_workflow(name: &str, registry: &WorkflowRegistry) -> WorkflowSetupError {
    let names: Vec<&str> = registry.names().collect();
    let hint = instead(name, names.iter().copied());
    WorkflowSetupError::new(
        WorkflowSetupErrorKind::Unknown,
        format!("no workflow is called `{name}`"),
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
