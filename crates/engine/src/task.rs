//! Tasks as the engine carries them.

use std::sync::Arc;

use bytes::Bytes;

/// A workflow as it travels to a worker, once, however many tasks refer to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkflowDefinition {
    /// What the body is: `name`, `cloudpickle` or the like.
    pub encoding: Arc<str>,
    /// What the bodies of its tasks are: `json`, `pickle` or the like.
    pub task_encoding: Arc<str>,
    /// The workflow.
    pub body: Bytes,
}

/// One item of work. What it says is opaque to the engine and goes to the runner as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The name under which the workflow is registered where it runs.
    pub workflow: Arc<str>,
    /// The workflow itself, for workers that do not have it; none: the name says it all.
    pub definition: Option<Arc<WorkflowDefinition>>,
    /// How many runs are wanted; at least one.
    pub repeat_times: u32,
    /// Whether it is evaluated instead of trained on.
    pub is_eval: bool,
    /// Whatever the workflow needs to know.
    pub body: Bytes,
}

impl Task {
    /// Returns a train task with one run.
    pub fn new(workflow: impl Into<Arc<str>>, body: impl Into<Bytes>) -> Self {
        Self {
            workflow: workflow.into(),
            definition: None,
            repeat_times: 1,
            is_eval: false,
            body: body.into(),
        }
    }

    /// Sets how many runs are wanted.
    #[must_use]
    pub fn repeat(self, repeat_times: u32) -> Self {
        Self { repeat_times, ..self }
    }

    /// Makes it an eval task.
    #[must_use]
    pub fn eval(self) -> Self {
        Self { is_eval: true, ..self }
    }
}
