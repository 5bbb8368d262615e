//! Numbers of workflow definitions.

use std::collections::HashMap;
use std::sync::Arc;

use rollway_protocol::{DefinitionId, WorkflowDefinition};

use crate::workers::AttemptSpec;

/// Current definition of each workflow.
#[derive(Debug, Default)]
pub(super) struct DefinitionIds {
    ids: HashMap<Arc<str>, Arc<WorkflowDefinition>>,
    next: u64,
}

impl DefinitionIds {
    /// Returns the definition of an attempt's workflow. A changed definition gets a new number.
    pub(super) fn of(&mut self, attempt: &AttemptSpec) -> Arc<WorkflowDefinition> {
        let name = &attempt.task.workflow;
        let (encoding, task_encoding, body) = match attempt.task.definition.as_deref() {
            Some(found) => {
                (found.encoding.clone(), found.task_encoding.clone(), found.body.clone())
            }
            None => ("name".into(), "bytes".into(), bytes::Bytes::new()),
        };
        if let Some(known) = self.ids.get(name)
            && known.body == body
            && known.encoding == encoding
            && known.task_encoding == task_encoding
        {
            return Arc::clone(known);
        }
        let id = DefinitionId(self.next);
        self.next += 1;
        let name = Arc::clone(name);
        let definition =
            Arc::new(WorkflowDefinition { id, name: name.clone(), encoding, task_encoding, body });
        self.ids.insert(name, Arc::clone(&definition));
        definition
    }
}
