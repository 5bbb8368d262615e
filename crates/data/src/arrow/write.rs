//! Conversion of experiences to columns. Arrays are copied as blocks.

use std::sync::Arc;

use arrow_array::types::{ArrowPrimitiveType, Float32Type, Int32Type};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Float64Array, Int64Array, ListArray, MapArray,
    PrimitiveArray, RecordBatch, StringArray, StructArray, UInt32Array, UInt64Array,
};
use arrow_buffer::{BooleanBuffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Fields as Columns};
use bytes::Bytes;
use rollway_experience::{Array, Experience, IdPart, Json, Tensor};

use super::ColumnError;
use super::schema::{custom_field, entry, entry_fields, item, schema, tensor, version_span};

type Result<T> = std::result::Result<T, ColumnError>;

/// Converts experiences to one batch.
pub fn to_batch(experiences: &[Experience]) -> Result<RecordBatch> {
    let all = experiences;
    for (row, experience) in all.iter().enumerate() {
        experience.check().map_err(|error| ColumnError::Value { row, error })?;
    }
    let is_number = |part: &IdPart| matches!(part, IdPart::Number(_));
    let flags = |flag: &dyn Fn(&Experience) -> bool| -> ArrayRef {
        let bits = BooleanBuffer::collect_bool(all.len(), |row| flag(&all[row]));
        Arc::new(BooleanArray::new(bits, None))
    };
    let numbers = |number: fn(&Experience) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(all.iter().map(number)))
    };
    let rewards: Float64Array = all.iter().map(|experience| experience.reward).collect();
    let columns = vec![
        owned("uid", all, |it| it.eid.uid())?,
        owned("batch", all, |it| it.eid.batch.to_string())?,
        flags(&|it| is_number(&it.eid.batch)),
        owned("task", all, |it| it.eid.task.to_string())?,
        flags(&|it| is_number(&it.eid.task)),
        numbers(|it| it.eid.run),
        numbers(|it| it.eid.step),
        texts("suffix", all, |it| Some(it.eid.suffix.as_bytes()))?,
        texts("kind", all, |it| Some(it.kind().name().as_bytes()))?,
        list::<Int32Type>("tokens", all, |it| Some(it.tokens.bytes()))?,
        numbers(|it| it.prompt_length as u64),
        list::<Float32Type>("logprobs", all, |it| bytes(&it.logprobs))?,
        Arc::new(rewards),
        list::<Float32Type>("token_level_reward", all, |it| bytes(&it.token_level_reward))?,
        list::<Float32Type>("advantages", all, |it| bytes(&it.advantages))?,
        list::<Float32Type>("returns", all, |it| bytes(&it.returns))?,
        list::<Float32Type>("teacher_logprobs", all, |it| bytes(&it.teacher_logprobs))?,
        boolean_column("action_mask", all, |it| bytes(&it.action_mask))?,
        list::<Int32Type>("chosen", all, |it| bytes(&it.chosen))?,
        list::<Int32Type>("rejected", all, |it| bytes(&it.rejected))?,
        texts("truncate_status", all, |it| Some(it.truncate_status?.name().as_bytes()))?,
        versions(all)?,
        texts("info", all, |it| Some(it.info.bytes()))?,
        metrics(all)?,
        texts("prompt_text", all, |it| it.prompt_text.as_deref().map(str::as_bytes))?,
        texts("response_text", all, |it| it.response_text.as_deref().map(str::as_bytes))?,
        texts("messages", all, |it| json(&it.messages))?,
        texts("tools", all, |it| json(&it.tools))?,
        texts("chosen_messages", all, |it| json(&it.chosen_messages))?,
        texts("rejected_messages", all, |it| json(&it.rejected_messages))?,
        tensors(all)?,
        custom_fields(all)?,
    ];
    Ok(RecordBatch::try_new(schema(), columns)?)
}

fn bytes<T: rollway_experience::Element>(array: &Option<Array<T>>) -> Option<&Bytes> {
    array.as_ref().map(Array::bytes)
}

fn json(json: &Option<Json>) -> Option<&[u8]> {
    json.as_ref().map(|json| &json.bytes()[..])
}

/// Converts lengths to offsets.
fn offsets(
    column: &'static str,
    lengths: impl IntoIterator<Item = usize>,
) -> Result<OffsetBuffer<i32>> {
    let mut end = 0_i32;
    let mut offsets = vec![end];
    for length in lengths {
        let length = i32::try_from(length).ok();
        let next = length.and_then(|length| end.checked_add(length));
        end = next.ok_or(ColumnError::TooLarge { column })?;
        offsets.push(end);
    }
    Ok(OffsetBuffer::new(offsets.into()))
}

fn nulls(present: impl IntoIterator<Item = bool>) -> Option<NullBuffer> {
    let present: NullBuffer = present.into_iter().collect();
    Some(present).filter(|present| present.null_count() > 0)
}

fn joined<'a>(parts: impl Iterator<Item = &'a [u8]> + Clone) -> MutableBuffer {
    let mut all = MutableBuffer::with_capacity(parts.clone().map(<[u8]>::len).sum());
    parts.for_each(|part| all.extend_from_slice(part));
    all
}

/// Builds a text column; checks UTF-8 again.
fn strings(column: &'static str, parts: &[Option<&[u8]>]) -> Result<StringArray> {
    let offsets = offsets(column, parts.iter().map(|part| part.map_or(0, <[u8]>::len)))?;
    let data = joined(parts.iter().copied().flatten());
    let nulls = nulls(parts.iter().map(Option::is_some));
    Ok(StringArray::try_new(offsets, data.into(), nulls)?)
}

fn texts(
    column: &'static str,
    all: &[Experience],
    text: fn(&Experience) -> Option<&[u8]>,
) -> Result<ArrayRef> {
    let parts: Vec<_> = all.iter().map(text).collect();
    Ok(Arc::new(strings(column, &parts)?))
}

fn owned(
    column: &'static str,
    all: &[Experience],
    text: fn(&Experience) -> String,
) -> Result<ArrayRef> {
    let owned: Vec<String> = all.iter().map(text).collect();
    let parts: Vec<_> = owned.iter().map(|text| Some(text.as_bytes())).collect();
    Ok(Arc::new(strings(column, &parts)?))
}

fn list<T: ArrowPrimitiveType>(
    column: &'static str,
    all: &[Experience],
    array: fn(&Experience) -> Option<&Bytes>,
) -> Result<ArrayRef> {
    let size = size_of::<T::Native>();
    let arrays: Vec<_> = all.iter().map(array).collect();
    let lengths = arrays.iter().map(|array| array.map_or(0, |array| array.len() / size));
    let offsets = offsets(column, lengths)?;
    let data = joined(arrays.iter().flatten().map(|array| &array[..]));
    let elements = data.len() / size;
    let values = PrimitiveArray::<T>::new(ScalarBuffer::new(data.into(), 0, elements), None);
    let nulls = nulls(arrays.iter().map(Option::is_some));
    Ok(Arc::new(ListArray::try_new(item(T::DATA_TYPE), offsets, Arc::new(values), nulls)?))
}

fn boolean_column(
    column: &'static str,
    all: &[Experience],
    array: fn(&Experience) -> Option<&Bytes>,
) -> Result<ArrayRef> {
    let arrays: Vec<_> = all.iter().map(array).collect();
    let offsets = offsets(column, arrays.iter().map(|array| array.map_or(0, |array| array.len())))?;
    let data = joined(arrays.iter().flatten().map(|array| &array[..]));
    let data = data.as_slice();
    let bits = BooleanBuffer::collect_bool(data.len(), |index| data[index] != 0);
    let nulls = nulls(arrays.iter().map(Option::is_some));
    let values = Arc::new(BooleanArray::new(bits, None));
    Ok(Arc::new(ListArray::try_new(item(DataType::Boolean), offsets, values, nulls)?))
}

fn structs(
    offsets: OffsetBuffer<i32>,
    fields: Columns,
    columns: Vec<ArrayRef>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef> {
    let values = StructArray::try_new(fields.clone(), columns, None)?;
    let item = item(DataType::Struct(fields));
    Ok(Arc::new(ListArray::try_new(item, offsets, Arc::new(values), nulls)?))
}

fn versions(all: &[Experience]) -> Result<ArrayRef> {
    let runs =
        |it: &Experience| it.model_versions.as_ref().map_or(0, |versions| versions.spans().len());
    let offsets = offsets("model_versions", all.iter().map(runs))?;
    let flat = || all.iter().filter_map(|it| it.model_versions.as_ref()).flat_map(|it| it.spans());
    // A version is never above `i64::MAX`.
    let version = |version: u64| i64::try_from(version).unwrap_or(i64::MAX);
    let versions: Int64Array = flat().map(|run| run.version.map(version)).collect();
    let tokens = UInt32Array::from_iter_values(flat().map(|run| run.tokens));
    let nulls = nulls(all.iter().map(|it| it.model_versions.is_some()));
    structs(offsets, version_span(), vec![Arc::new(versions), Arc::new(tokens)], nulls)
}

fn metrics(all: &[Experience]) -> Result<ArrayRef> {
    let offsets = offsets("metrics", all.iter().map(|it| it.metrics.len()))?;
    let flat = || all.iter().flat_map(|it| &it.metrics);
    let names: Vec<_> = flat().map(|(name, _)| Some(name.as_bytes())).collect();
    let names = strings("metrics", &names)?;
    let values = Float64Array::from_iter_values(flat().map(|(_, &value)| value));
    let fields = entry_fields(DataType::Float64);
    let entries = StructArray::try_new(fields, vec![Arc::new(names), Arc::new(values)], None)?;
    let entry = entry(DataType::Float64);
    Ok(Arc::new(MapArray::try_new(entry, offsets, entries, None, false)?))
}

fn tensors(all: &[Experience]) -> Result<ArrayRef> {
    const COLUMN: &str = "multi_modal_inputs";
    let outer = offsets(COLUMN, all.iter().map(|it| it.multi_modal_inputs.len()))?;
    let flat: Vec<(&String, &Tensor)> = all.iter().flat_map(|it| &it.multi_modal_inputs).collect();
    let names: Vec<_> = flat.iter().map(|(name, _)| Some(name.as_bytes())).collect();
    let dtypes: Vec<_> =
        flat.iter().map(|(_, tensor)| Some(tensor.dtype().name().as_bytes())).collect();
    let ranks = offsets(COLUMN, flat.iter().map(|(_, tensor)| tensor.shape().len()))?;
    let sizes = flat.iter().flat_map(|(_, tensor)| tensor.shape()).map(|&size| size as u64);
    let sizes = Arc::new(UInt64Array::from_iter_values(sizes));
    let shapes = ListArray::try_new(item(DataType::UInt64), ranks, sizes, None)?;
    let ends = offsets(COLUMN, flat.iter().map(|(_, tensor)| tensor.data().len()))?;
    let data = joined(flat.iter().map(|(_, tensor)| &tensor.data()[..]));
    let data = BinaryArray::try_new(ends, data.into(), None)?;
    let columns: Vec<ArrayRef> = vec![
        Arc::new(strings(COLUMN, &names)?),
        Arc::new(strings(COLUMN, &dtypes)?),
        Arc::new(shapes),
        Arc::new(data),
    ];
    structs(outer, tensor(), columns, None)
}

fn custom_fields(all: &[Experience]) -> Result<ArrayRef> {
    const COLUMN: &str = "custom_fields";
    let offsets = offsets(COLUMN, all.iter().map(|it| it.custom_fields.len()))?;
    let flat = || all.iter().flat_map(|it| &it.custom_fields);
    let sources: Vec<_> = flat().map(|field| Some(field.source_field.as_bytes())).collect();
    let targets: Vec<_> = flat().map(|field| Some(field.destination_field.as_bytes())).collect();
    let dtypes: Vec<_> = flat().map(|field| Some(field.dtype.name().as_bytes())).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(strings(COLUMN, &sources)?),
        Arc::new(strings(COLUMN, &targets)?),
        Arc::new(strings(COLUMN, &dtypes)?),
    ];
    structs(offsets, custom_field(), columns, None)
}
