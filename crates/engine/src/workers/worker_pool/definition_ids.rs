//! Workflows on their way to workers.

use std::collections::HashMap;
use std::sync::Arc;

use rollway_protocol::{Definition, DefinitionId};

use crate::workers::Attempt;

/// Workflows by name, with the number under which each travels.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    known: HashMap<Arc<str>, Arc<Definition>>,
    next: u64,
}

impl Definitions {
    /// Returns the workflow of an attempt as it travels. A changed workflow of the same name gets a
    /// new number.
    pub(super) fn of(&mut self, attempt: &Attempt) -> Arc<Definition> {
        let name = &attempt.task.workflow;
        let (encoding, task_encoding, body) = match attempt.task.definition.as_deref() {
            Some(found) => {
                (found.encoding.clone(), found.task_encoding.clone(), found.body.clone())
            }
            None => ("name".into(), "bytes".into(), bytes::Bytes::new()),
        };
        if let Some(known) = self.known.get(name)
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
            Arc::new(Definition { id, name: name.clone(), encoding, task_encoding, body });
        self.known.insert(name, Arc::clone(&definition));
        definition
    }
}
