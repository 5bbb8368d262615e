//! Encoding of tasks for runners.

use bytes::Bytes;
use rollway_engine::WorkflowDefinition;
use rollway_tasksets::SelectedTask;
use serde_json::{Map, Value};

/// Encoding of tasks for workers: the fields of a Python task as JSON.
pub const TASK_ENCODING: &str = "fields";

/// Returns the definition of a workflow that workers find by its name.
pub(super) fn by_name() -> WorkflowDefinition {
    let (encoding, task_encoding) = ("name".into(), TASK_ENCODING.into());
    WorkflowDefinition { encoding, task_encoding, body: Bytes::new() }
}

/// Encodes a task for workers, which build the messages from the row.
pub(super) fn for_workers(selected: &SelectedTask) -> Bytes {
    written(selected.fields())
}

/// Encodes a task for workflows in Rust, with messages, response and tools of the row.
pub(super) fn for_rust(selected: &SelectedTask) -> Bytes {
    let mut fields = selected.fields();
    let row = &selected.task;
    fields.insert("messages".to_owned(), row.messages.clone().into());
    for (name, value) in [("response", &row.response), ("tools", &row.tools)] {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value.clone());
        }
    }
    written(fields)
}

fn written(fields: Map<String, Value>) -> Bytes {
    Value::Object(fields).to_string().into()
}
