//! Workflows in Rust: the user's code, and the list in which runners look it up by name.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use rollway_base::Secret;
use rollway_core::{BatchId, RunId, TaskId};

use crate::run::RunOutcome;
use crate::runner_status::RunStages;
use crate::task::Task;

/// What a run has to work with.
#[derive(Clone, Debug)]
pub struct RunContext {
    pub batch: BatchId,
    /// The task's id in the batch.
    pub task_id: TaskId,
    pub task: Arc<Task>,
    /// Which of the task's runs this is.
    pub run: RunId,
    /// How the run reaches the models; none if there is no gateway.
    pub model: Option<RunModel>,
    pub(crate) stages: RunStages,
}

impl RunContext {
    /// Says what the run is at from now on, for people who look at its runner.
    pub fn stage(&self, stage: &str) {
        self.stages.set(self.run, stage);
    }
}

/// The models as one run reaches them: any client of OpenAI's API takes these two.
#[derive(Clone, Debug)]
pub struct RunModel {
    /// Where the gateway is, with `/v1`.
    pub base_url: Arc<str>,
    /// What the run shows there. Its calls are recorded as its own.
    pub api_key: Secret,
}

/// A future that is a run.
pub type RunFuture<'a> = Pin<Box<dyn Future<Output = RunOutcome> + Send + 'a>>;

/// The user's code. One value serves all runs, also at the same time.
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

/// Workflows by name.
#[derive(Clone, Default)]
pub struct WorkflowRegistry(BTreeMap<Arc<str>, Arc<dyn Workflow>>);

impl WorkflowRegistry {
    /// Adds a workflow; one of the same name is replaced.
    #[must_use]
    pub fn with(mut self, name: impl Into<Arc<str>>, workflow: impl Workflow) -> Self {
        self.0.insert(name.into(), Arc::new(workflow));
        self
    }

    /// Finds a workflow.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Workflow>> {
        self.0.get(name)
    }

    /// Iterates over the names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|name| &**name)
    }
}

impl fmt::Debug for WorkflowRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
