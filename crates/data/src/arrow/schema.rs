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
    let utf8 = || DataType::Utf8;
    let floats = || list(DataType::Float32);
    let fields = vec![
        required("uid", utf8()),
        required("batch", utf8()),
        required("batch_is_number", DataType::Boolean),
        required("task", utf8()),
        required("task_is_number", DataType::Boolean),
        required("run", DataType::UInt64),
        required("step", DataType::UInt64),
        required("suffix", utf8()),
        required("kind", utf8()),
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
        optional("truncate_status", utf8()),
        optional("model_versions", list(DataType::Struct(version_span()))),
        required("info", utf8()),
        required("metrics", map(DataType::Float64)),
        optional("prompt_text", utf8()),
        optional("response_text", utf8()),
        optional("messages", utf8()),
        optional("tools", utf8()),
        optional("chosen_messages", utf8()),
        optional("rejected_messages", utf8()),
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
    Fields::from(vec![text("key"), Field::new("value", value, false)])
}

pub(super) fn version_span() -> Fields {
    let version = Field::new("version", DataType::Int64, true);
    Fields::from(vec![version, Field::new("tokens", DataType::UInt32, false)])
}

pub(super) fn tensor() -> Fields {
    let shape = Field::new("shape", list(DataType::UInt64), false);
    let data = Field::new("data", DataType::Binary, false);
    Fields::from(vec![text("name"), text("dtype"), shape, data])
}

pub(super) fn custom_field() -> Fields {
    Fields::from(["source_field", "destination_field", "dtype"].map(text).to_vec())
}

fn text(name: &str) -> Field {
    Field::new(name, DataType::Utf8, false)
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
    let all_fit = |found: &Fields, expected: &Fields, named: bool| {
        found.len() == expected.len()
            && found.iter().zip(expected).all(|(found, expected)| {
                (!named || found.name() == expected.name())
                    && fits(found.data_type(), expected.data_type())
            })
    };
    match (found, expected) {
        (DataType::List(found), DataType::List(expected)) => {
            fits(found.data_type(), expected.data_type())
        }
        (DataType::Map(found, _), DataType::Map(expected, _)) => {
            match (found.data_type(), expected.data_type()) {
                (DataType::Struct(found), DataType::Struct(expected)) => {
                    all_fit(found, expected, false)
                }
                _ => false,
            }
        }
        (DataType::Struct(found), DataType::Struct(expected)) => all_fit(found, expected, true),
        _ => found == expected,
    }
}
