//! Interface and registry of workflows in Rust.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use rollway_base::Secret;
use rollway_core::{BatchId, RunId, TaskId};

use crate::run::RunOutcome;
use crate::runner_status::RunStages;
use crate::task::Task;

/// Input of one run.
#[derive(Clone, Debug)]
pub struct RunContext {
    pub batch: BatchId,
    pub task_id: TaskId,
    pub task: Arc<Task>,
    pub run: RunId,
    /// `None`: there is no gateway.
    pub model: Option<RunModel>,
    pub(crate) stages: RunStages,
}

impl RunContext {
    /// Sets the stage of the run, shown in the runner's status.
    pub fn stage(&self, stage: &str) {
        self.stages.set(self.run, stage);
    }
}

/// Model access of one run, for any client of the OpenAI API.
#[derive(Clone, Debug)]
pub struct RunModel {
    /// Base URL of the gateway, with `/v1`.
    pub base_url: Arc<str>,
    /// Key of the run: its calls are recorded under it.
    pub api_key: Secret,
}

pub type RunFuture<'a> = BoxFuture<'a, RunOutcome>;

/// A workflow. One value serves all runs, also concurrently.
pub trait Workflow: Send + Sync + 'static {
    /// Executes one run. Dropping the future cancels it.
    fn run(&self, context: RunContext) -> RunFuture<'_>;
}

impl<F, R> Workflow for F
where
    F: Fn(RunContext) -> R + Send + Sync + 'static,
    R: Future<Output = RunOutcome> + Send + 'static,
{
    fn run(&self, context: RunContext) -> RunFuture<'_> {
        Box::pin(self(context))
    }
}

#[derive(Clone, Default)]
pub struct WorkflowRegistry(BTreeMap<Arc<str>, Arc<dyn Workflow>>);

impl WorkflowRegistry {
    /// Adds or replaces a workflow.
    #[must_use]
    pub fn with(mut self, name: impl Into<Arc<str>>, workflow: impl Workflow) -> Self {
        self.0.insert(name.into(), Arc::new(workflow));
        self
    }

    pub fn get(&self, name: &str) -> Option<&Arc<dyn Workflow>> {
        self.0.get(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|name| &**name)
    }
}

impl fmt::Debug for WorkflowRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
