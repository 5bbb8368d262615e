//! What runners are told of a task.

use bytes::Bytes;
use rollway_engine::WorkflowDefinition;
use rollway_tasksets::SelectedTask;
use serde_json::{Map, Value};

/// How the bodies of tasks are written for workers: the fields of a task in Python, as JSON.
pub const TASK_ENCODING: &str = "fields";

/// Returns a workflow that goes by its name alone.
pub(super) fn by_name() -> WorkflowDefinition {
    let (encoding, task_encoding) = ("name".into(), TASK_ENCODING.into());
    WorkflowDefinition { encoding, task_encoding, body: Bytes::new() }
}

/// Returns a task for workers. They make messages of the row themselves, as workflows that are
/// called from Python do.
pub(super) fn for_workers(drawn: &SelectedTask) -> Bytes {
    written(drawn.fields())
}

/// Returns a task for workflows in Rust: the same with what was made of the row.
pub(super) fn for_rust(drawn: &SelectedTask) -> Bytes {
    let mut fields = drawn.fields();
    let row = &drawn.task;
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
