//! Schema of the columns.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};

/// Version of the columns, in the schema metadata under [`VERSION_KEY`].
const VERSION: &str = "1";
const VERSION_KEY: &str = "rollway.columns";

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let required = |name: &str, kind| Field::new(name, kind, false);
    let optional = |name: &str, kind| Field::new(name, kind, true);
    let text = || DataType::Utf8;
    let floats = || list(DataType::Float32);
    let fields = vec![
        required("uid", text()),
        required("batch", text()),
        required("batch_is_number", DataType::Boolean),
        required("task", text()),
        required("task_is_number", DataType::Boolean),
        required("run", DataType::UInt64),
        required("step", DataType::UInt64),
        required("suffix", text()),
        required("kind", text()),
        required("tokens", list(DataType::Int32)),
        required("prompt_length", DataType::UInt64),
        optional("logprobs", floats()),
        optional("reward", DataType::Float64),
        optional("token_level_reward", floats()),
        optional("advantages", floats()),
        optional("returns", floats()),
        optional("teacher_logprobs", floats()),
        optional("action_mask", list(DataType::Boolean)),
        optional("chosen", list(DataType::Int32)),
        optional("rejected", list(DataType::Int32)),
        optional("truncate_status", text()),
        optional("model_versions", list(DataType::Struct(version_run()))),
        required("info", text()),
        required("metrics", map(DataType::Float64)),
        optional("prompt_text", text()),
        optional("response_text", text()),
        optional("messages", text()),
        optional("tools", text()),
        optional("chosen_messages", text()),
        optional("rejected_messages", text()),
        required("multi_modal_inputs", list(DataType::Struct(tensor()))),
        required("custom_fields", list(DataType::Struct(custom_field()))),
    ];
    let version = HashMap::from([(VERSION_KEY.to_owned(), VERSION.to_owned())]);
    Arc::new(Schema::new_with_metadata(fields, version))
});

/// Returns the schema of experiences.
pub fn schema() -> SchemaRef {
    SCHEMA.clone()
}

/// Returns the type of a column.
pub(super) fn expected(column: &'static str) -> DataType {
    let field = SCHEMA.field_with_name(column);
    field.map_or(DataType::Null, |field| field.data_type().clone())
}

/// Returns the item field of a list.
pub(super) fn item(kind: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", kind, false))
}

/// Returns the entry field of a map with text keys.
pub(super) fn entry(value: DataType) -> Arc<Field> {
    Arc::new(Field::new("entries", DataType::Struct(entry_fields(value)), false))
}

pub(super) fn entry_fields(value: DataType) -> Fields {
    [Field::new("key", DataType::Utf8, false), Field::new("value", value, false)]
        .into_iter()
        .collect()
}

pub(super) fn version_run() -> Fields {
    [Field::new("version", DataType::Int64, true), Field::new("tokens", DataType::UInt32, false)]
        .into_iter()
        .collect()
}

pub(super) fn tensor() -> Fields {
    [
        Field::new("name", DataType::Utf8, false),
        Field::new("dtype", DataType::Utf8, false),
        Field::new("shape", list(DataType::UInt64), false),
        Field::new("data", DataType::Binary, false),
    ]
    .into_iter()
    .collect()
}

pub(super) fn custom_field() -> Fields {
    ["source_field", "destination_field", "dtype"]
        .map(|name| Field::new(name, DataType::Utf8, false))
        .into_iter()
        .collect()
}

fn list(kind: DataType) -> DataType {
    DataType::List(item(kind))
}

fn map(value: DataType) -> DataType {
    DataType::Map(entry(value), false)
}

/// Returns whether a column can be read as another: names of list items and map entries and
/// nullability may differ.
pub(super) fn fits(found: &DataType, expected: &DataType) -> bool {
    match (found, expected) {
        (DataType::List(found), DataType::List(expected)) => {
            fits(found.data_type(), expected.data_type())
        }
        (DataType::Map(found, _), DataType::Map(expected, _)) => {
            match (found.data_type(), expected.data_type()) {
                (DataType::Struct(found), DataType::Struct(expected)) => {
                    found.len() == expected.len()
                        && found
                            .iter()
                            .zip(expected)
                            .all(|(found, expected)| fits(found.data_type(), expected.data_type()))
                }
                _ => false,
            }
        }
        (DataType::Struct(found), DataType::Struct(expected)) => {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(found, expected)| {
                    found.name() == expected.name() && fits(found.data_type(), expected.data_type())
                })
        }
        _ => found == expected,
    }
}
