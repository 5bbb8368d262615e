//! Where the runners of a job come from: this process for workflows in Rust, child processes for
//! those in Python.
//!
//! ```text
//! choose ──► every name is built into Rust ──► Local: tasks of this runtime ──┐
//!      └───► anything else ──────────────────► Children: workers in Python ───┴─► Gated ─► Workers
//! check ───► everything is named, spelt as it is called, and can be imported
//! ```

mod body;
mod error;
mod named;
mod preflight;
mod python;

use std::collections::BTreeMap;
use std::sync::Arc;

use rollway_base::suggest::instead;
use rollway_gateway::gateway::Gateway;
use rollway_protocol::env;

pub use self::body::TASK_ENCODING;
pub use self::error::{FleetError, FleetErrorKind};
use self::named::Named;
pub use self::python::worker_command;
use crate::cluster;
use crate::config::{Backend, ConcurrentMode, Config};
use crate::taskset::Drawn;
use crate::workflows::{self, Reward};
use crate::{
    ChildOptions, Concurrency, Definition, Gated, GatewayKeys, Local, Registry, Task, Workers,
};

type Result<T> = std::result::Result<T, FleetError>;

/// Returns the Python of a job, for whatever else is done in Python.
pub(crate) fn python(config: &Config) -> std::path::PathBuf {
    python::program(config)
}

/// Where runners come from, and how tasks are told to them.
#[derive(Clone, Debug)]
pub struct Fleet {
    runners: Runners,
    /// Workflows that do not go by name alone.
    definitions: BTreeMap<String, Arc<Definition>>,
    /// What all others are.
    by_name: Arc<Definition>,
    needs_prompts: bool,
}

#[derive(Clone, Debug)]
enum Runners {
    /// Tasks of this runtime.
    Rust(Registry),
    /// Workers in Python, set up as a configuration says.
    Python(ChildOptions),
    /// Processes that somebody else has described.
    Children(ChildOptions),
}

impl Fleet {
    /// Returns runners for what a configuration names: in this process if every workflow and
    /// reward function is built into Rust, else workers in Python, which have those and all others.
    /// Nobody knows yet what rows name that name their own; that is for Python too.
    pub fn choose(config: &Config) -> Result<Self> {
        let sets = named::sets(config);
        // Workers elsewhere have the built-in ones in Python.
        let is_here = config.cluster.backend == Backend::Local;
        if is_here && sets.iter().all(is_built_in) {
            return Ok(Self::rust(workflows::builtin()));
        }
        let asks = |set: &Named<'_>| {
            !set.rows_name_workflows
                && set.workflow.is_some_and(|name| workflows::PYTHON_NAMES.contains(&name))
        };
        let needs_prompts = sets.iter().all(asks);
        Ok(Self { needs_prompts, ..Self::new(Runners::Python(python::options(config)?)) })
    }

    /// Returns runners in this process that have these workflows.
    pub fn rust(registry: Registry) -> Self {
        let needs_prompts = registry.names().all(|name| workflows::NAMES.contains(&name));
        Self { needs_prompts, ..Self::new(Runners::Rust(registry)) }
    }

    /// Returns runners in processes that are started like this. What they need to know of models is
    /// in these options, but for the gateway and [`define`](Self::define).
    pub fn children(options: ChildOptions) -> Self {
        Self::new(Runners::Children(options))
    }

    fn new(runners: Runners) -> Self {
        let (definitions, by_name) = (BTreeMap::new(), Arc::new(body::by_name()));
        Self { runners, definitions, by_name, needs_prompts: false }
    }

    /// Adds a workflow that workers cannot find by its name. Its tasks are told as
    /// [`TASK_ENCODING`] says, whatever the definition says.
    #[must_use]
    pub fn define(mut self, workflow: impl Into<String>, definition: Definition) -> Self {
        let definition = Definition { task_encoding: TASK_ENCODING.into(), ..definition };
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
        let sets = named::sets(config);
        for set in &sets {
            if set.workflow.is_none() && !set.rows_name_workflows {
                return Err(no_workflow(&set.place));
            }
            check_media(set)?;
        }
        match &self.runners {
            Runners::Rust(registry) => sets.iter().try_for_each(|set| check_rust(registry, set)),
            Runners::Python(options) => {
                preflight::spelling(&sets)?;
                let timeout = config.explorer.supervision.start_timeout.into();
                let asked = preflight::ask(options, &sets, timeout).await;
                match asked {
                    // What they need is where they are.
                    Err(error) if config.cluster.backend == Backend::Manual => {
                        tracing::warn!("not known here, and expected where workers are: {error}");
                        Ok(())
                    }
                    asked => asked,
                }
            }
            // Whoever described them knows what they have.
            Runners::Children(_) => Ok(()),
        }
    }

    /// Returns the runners, with keys to the models behind a gateway. None is started yet. Needs a
    /// tokio runtime.
    pub async fn workers(&self, config: &Config, gateway: &Gateway) -> Result<Box<dyn Workers>> {
        let keys = GatewayKeys::new(gateway);
        let options = match &self.runners {
            Runners::Rust(registry) => {
                let mode = config.explorer.concurrent_mode;
                let local = Local::new(registry.clone()).concurrency(concurrency(mode));
                return Ok(Box::new(Gated::new(local, keys)));
            }
            Runners::Python(options) | Runners::Children(options) => options,
        };
        let mut options = options.clone();
        options.env.push((env::MODELS.to_owned(), format!("{}/v1", gateway.url())));
        let children = Box::pin(cluster::children(config, options))
            .await
            .map_err(|error| FleetError::new(FleetErrorKind::Cluster, error.what, error.hint))?;
        Ok(Box::new(Gated::new(children, keys)))
    }

    /// Returns a task as runners take it.
    pub fn task(&self, drawn: &Drawn) -> Result<Task> {
        let Some(workflow) = &drawn.task.workflow else {
            let row = format!("row {} of taskset `{}`", drawn.index, drawn.source.name);
            return Err(no_workflow(&row));
        };
        let (definition, body) = match &self.runners {
            Runners::Rust(registry) => {
                if registry.get(workflow).is_none() {
                    return Err(unknown_workflow(workflow, registry));
                }
                (None, body::for_rust(drawn))
            }
            Runners::Python(_) | Runners::Children(_) => {
                let definition = self.definitions.get(&**workflow).unwrap_or(&self.by_name);
                (Some(Arc::clone(definition)), body::for_workers(drawn))
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
fn is_built_in(set: &Named<'_>) -> bool {
    !set.rows_name_workflows
        && !set.rows_name_rewards
        && set.workflow.is_none_or(|name| workflows::NAMES.contains(&name))
        && set.reward_fn.is_none_or(|name| Reward::NAMES.contains(&name))
}

/// Refuses to leave out what a task would be another without.
fn check_media(set: &Named<'_>) -> Result<()> {
    match set.workflow.filter(|name| workflows::PYTHON_NAMES.contains(name)) {
        Some(name) if set.has_media => {
            let what = format!("{}: `{name}` asks with text, not with images or videos", set.place);
            let hint = "write a workflow that shows them to the model, and name it \
                        `package.module:name`";
            Err(FleetError::new(FleetErrorKind::Arguments, what, hint))
        }
        _ => Ok(()),
    }
}

fn check_rust(registry: &Registry, set: &Named<'_>) -> Result<()> {
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
        return Err(FleetError::new(FleetErrorKind::Missing, what, hint));
    };
    Reward::named(name, set.reward_fn_args).map(drop).map_err(|mut error| {
        error.what = format!("{}: {}", set.place, error.what);
        error
    })
}

fn no_workflow(place: &str) -> FleetError {
    let hint = "name one with `default_workflow_type`: a built-in one such as `simple_workflow`, \
                or `package.module:name`";
    FleetError::new(FleetErrorKind::Missing, format!("{place}: no workflow is named"), hint)
}

fn unknown_workflow(name: &str, registry: &Registry) -> FleetError {
    let names: Vec<&str> = registry.names().collect();
    let hint = instead(name, names.iter().copied());
    FleetError::new(FleetErrorKind::Unknown, format!("no workflow is called `{name}`"), hint)
}

const fn concurrency(mode: ConcurrentMode) -> Concurrency {
    match mode {
        ConcurrentMode::Sequential => Concurrency::Sequential,
        ConcurrentMode::Asynchronous => Concurrency::Asynchronous,
        ConcurrentMode::MultiThreading => Concurrency::MultiThreading,
    }
}
