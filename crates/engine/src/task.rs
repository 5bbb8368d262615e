//! Tasks and workflow definitions of the engine.

use std::sync::Arc;

use bytes::Bytes;

/// Workflow as it is sent to workers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkflowDefinition {
    /// Encoding of the body: `name`, `cloudpickle` or the like.
    pub encoding: Arc<str>,
    /// Encoding of the task bodies: `json`, `pickle` or the like.
    pub task_encoding: Arc<str>,
    pub body: Bytes,
}

/// One dataset row; its body is opaque to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Registered name of the workflow.
    pub workflow: Arc<str>,
    /// Definition for workers that do not have the workflow. `None`: it is found by name.
    pub definition: Option<Arc<WorkflowDefinition>>,
    /// At least one.
    pub repeat_times: u32,
    pub is_eval: bool,
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

    #[must_use]
    pub fn repeat(self, repeat_times: u32) -> Self {
        Self { repeat_times, ..self }
    }

    #[must_use]
    pub fn eval(self) -> Self {
        Self { is_eval: true, ..self }
    }
}
