//! Conversion of columns to experiences. Arrays and texts are slices that share the memory of the
//! batch.

use std::collections::BTreeMap;
use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Float64Type, Int32Type, Int64Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array as _, ListArray, MapArray, RecordBatch, StringArray, StructArray};
use arrow_buffer::{ArrowNativeType, Buffer};
use bytes::Bytes;
use rollway_experience::{
    Array, CustomField, Dtype, Eid, Element, Experience, ExperienceFields, ExperienceKind,
    FieldError, FieldProblem, IdPart, Json, ModelVersions, Tensor, VersionSpan,
};

use super::ColumnError;
use super::schema::{expected, fits};

type Result<T, E = ColumnError> = std::result::Result<T, E>;
type FieldResult<T> = Result<T, FieldError>;

/// Reads all rows of a batch. Unknown columns are ignored.
pub fn from_batch(batch: &RecordBatch) -> Result<Vec<Experience>> {
    let rows = ArrowRows::new(batch)?;
    let read = |row| match rows.read(row) {
        Ok(experience) => rows.check_name(row, experience),
        Err(error) => Err(ColumnError::Value { row, error }),
    };
    (0..batch.num_rows()).map(read).collect()
}

/// The checked columns of a batch.
struct ArrowRows<'a> {
    batch: &'a RecordBatch,
    texts: BTreeMap<&'static str, Texts<'a>>,
    numbers: BTreeMap<&'static str, &'a [u64]>,
    ints: BTreeMap<&'static str, Lists<'a>>,
    floats: BTreeMap<&'static str, Lists<'a>>,
    versions: &'a ListArray,
    metrics: &'a MapArray,
    tensors: &'a ListArray,
    custom_fields: &'a ListArray,
}

const REQUIRED_TEXTS: [&str; 6] = ["uid", "batch", "task", "suffix", "kind", "info"];
const OPTIONAL_TEXTS: [&str; 7] = [
    "truncate_status",
    "prompt_text",
    "response_text",
    "messages",
    "tools",
    "chosen_messages",
    "rejected_messages",
];
const FLOATS: [&str; 5] =
    ["logprobs", "token_level_reward", "advantages", "returns", "teacher_logprobs"];

impl<'a> ArrowRows<'a> {
    fn new(batch: &'a RecordBatch) -> Result<Self> {
        let mut texts = BTreeMap::new();
        for name in REQUIRED_TEXTS {
            texts.insert(name, Texts::new(required(batch, name)?.as_string()));
        }
        for name in OPTIONAL_TEXTS {
            texts.insert(name, Texts::new(column(batch, name)?.as_string()));
        }
        let mut numbers = BTreeMap::new();
        for name in ["run", "step", "prompt_length"] {
            let values = required(batch, name)?.as_primitive::<UInt64Type>().values();
            numbers.insert(name, &values[..]);
        }
        for name in ["batch_is_number", "task_is_number"] {
            required(batch, name)?;
        }
        column(batch, "reward")?;
        let tokens = Lists::new::<Int32Type>("tokens", required(batch, "tokens")?)?;
        let mut ints = BTreeMap::from([("tokens", tokens)]);
        for name in ["chosen", "rejected"] {
            ints.insert(name, Lists::new::<Int32Type>(name, column(batch, name)?)?);
        }
        let mut floats = BTreeMap::new();
        for name in FLOATS {
            floats.insert(name, Lists::new::<Float32Type>(name, column(batch, name)?)?);
        }
        without_nulls("action_mask", column(batch, "action_mask")?.as_list::<i32>().values())?;
        let versions = column(batch, "model_versions")?.as_list::<i32>();
        let runs = versions.values().as_struct();
        without_nulls("model_versions", runs)?;
        without_nulls("model_versions", runs.column(1))?;
        let metrics = required(batch, "metrics")?.as_map();
        whole_struct("metrics", metrics.entries())?;
        let tensors = required(batch, "multi_modal_inputs")?.as_list::<i32>();
        let inner = tensors.values().as_struct();
        whole_struct("multi_modal_inputs", inner)?;
        without_nulls("multi_modal_inputs", inner.column(2).as_list::<i32>().values())?;
        let custom_fields = required(batch, "custom_fields")?.as_list::<i32>();
        whole_struct("custom_fields", custom_fields.values().as_struct())?;
        Ok(Self { batch, texts, numbers, ints, floats, versions, metrics, tensors, custom_fields })
    }

    fn read(&self, row: usize) -> FieldResult<Experience> {
        let eid = Eid {
            batch: self.id_part(row, "batch", "batch_is_number")?,
            task: self.id_part(row, "task", "task_is_number")?,
            run: self.numbers["run"][row],
            step: self.numbers["step"][row],
            suffix: self.text(row, "suffix").to_owned(),
        };
        let status = self.optional(row, "truncate_status").map(str::parse);
        let rewards = self.batch["reward"].as_primitive::<Float64Type>();
        let prompt_length = self.numbers["prompt_length"][row];
        let fields = ExperienceFields {
            eid,
            tokens: self.ints["tokens"].get(row, "tokens")?.unwrap_or_default(),
            prompt_length: usize::try_from(prompt_length)
                .map_err(|_| FieldProblem::TooLarge(prompt_length).at("prompt_length"))?,
            logprobs: self.floats(row, "logprobs")?,
            reward: rewards.is_valid(row).then(|| rewards.value(row)),
            token_level_reward: self.floats(row, "token_level_reward")?,
            advantages: self.floats(row, "advantages")?,
            returns: self.floats(row, "returns")?,
            teacher_logprobs: self.floats(row, "teacher_logprobs")?,
            action_mask: self.action_mask(row),
            chosen: self.ints["chosen"].get(row, "chosen")?,
            rejected: self.ints["rejected"].get(row, "rejected")?,
            truncate_status: status.transpose()?,
            model_versions: self.model_versions(row)?,
            info: self.json(row, "info")?.unwrap_or_else(Json::object),
            metrics: self.metrics(row),
            prompt_text: self.optional(row, "prompt_text").map(str::to_owned),
            response_text: self.optional(row, "response_text").map(str::to_owned),
            messages: self.json(row, "messages")?,
            tools: self.json(row, "tools")?,
            chosen_messages: self.json(row, "chosen_messages")?,
            rejected_messages: self.json(row, "rejected_messages")?,
            multi_modal_inputs: self.multi_modal_inputs(row)?,
            custom_fields: self.custom_fields(row)?,
        };
        Experience::with_kind(kind(self.text(row, "kind"))?, fields)
    }

    fn check_name(&self, row: usize, experience: Experience) -> Result<Experience> {
        let (found, expected) = (self.text(row, "uid"), experience.eid.uid());
        if found == expected {
            return Ok(experience);
        }
        Err(ColumnError::Name { row, found: found.to_owned(), expected })
    }

    fn text(&self, row: usize, column: &'static str) -> &str {
        self.texts[column].array.value(row)
    }

    fn optional(&self, row: usize, column: &'static str) -> Option<&str> {
        self.texts[column].array.is_valid(row).then(|| self.text(row, column))
    }

    fn json(&self, row: usize, column: &'static str) -> FieldResult<Option<Json>> {
        let text = self.texts[column].bytes(row);
        text.map(Json::new).transpose().map_err(|problem| problem.at(column))
    }

    fn id_part(
        &self,
        row: usize,
        column: &'static str,
        is_number: &'static str,
    ) -> FieldResult<IdPart> {
        let text = self.text(row, column);
        if !self.batch[is_number].as_boolean().value(row) {
            return Ok(IdPart::Text(text.to_owned()));
        }
        let unknown = |_| FieldProblem::UnknownName(text.to_owned()).at(column);
        text.parse().map(IdPart::Number).map_err(unknown)
    }

    fn floats(&self, row: usize, column: &'static str) -> FieldResult<Option<Array<f32>>> {
        self.floats[column].get(row, column)
    }

    fn action_mask(&self, row: usize) -> Option<Array<bool>> {
        let lists = self.batch["action_mask"].as_list::<i32>();
        let range = entries(lists, row)?;
        let bits = lists.values().as_boolean().values();
        Some(bits.slice(range.start, range.len()).iter().collect())
    }

    fn model_versions(&self, row: usize) -> FieldResult<Option<ModelVersions>> {
        let Some(range) = entries(self.versions, row) else { return Ok(None) };
        let runs = self.versions.values().as_struct();
        let versions = runs.column(0).as_primitive::<Int64Type>();
        let tokens = runs.column(1).as_primitive::<UInt32Type>();
        let at = |problem: FieldProblem| problem.at("model_versions");
        let run = |index| {
            let version = versions.is_valid(index).then(|| versions.value(index));
            let unsigned = |version| {
                u64::try_from(version).map_err(|_| FieldProblem::NegativeVersion(version))
            };
            let version = version.map(unsigned).transpose().map_err(at)?;
            Ok(VersionSpan { version, tokens: tokens.value(index) })
        };
        let runs = range.map(run).collect::<FieldResult<Vec<_>>>()?;
        ModelVersions::from_spans(runs).map(Some).map_err(at)
    }

    fn metrics(&self, row: usize) -> BTreeMap<String, f64> {
        let entries = self.metrics.value(row);
        let names = entries.column(0).as_string::<i32>();
        let values = entries.column(1).as_primitive::<Float64Type>();
        (0..entries.len()).map(|at| (names.value(at).to_owned(), values.value(at))).collect()
    }

    fn multi_modal_inputs(&self, row: usize) -> FieldResult<BTreeMap<String, Tensor>> {
        let tensors = self.tensors.values().as_struct();
        let names = tensors.column(0).as_string::<i32>();
        let dtypes = tensors.column(1).as_string::<i32>();
        let shapes = tensors.column(2).as_list::<i32>();
        let sizes = shapes.values().as_primitive::<UInt64Type>().values();
        let data = tensors.column(3).as_binary::<i32>();
        let tensor = |at: usize| {
            let name = names.value(at);
            let field = |problem: FieldProblem| problem.at(format!("multi_modal_inputs.{name}"));
            let size = |&size: &u64| {
                usize::try_from(size).map_err(|_| field(FieldProblem::TooLarge(size)))
            };
            let shape = entries(shapes, at).unwrap_or_default();
            let shape = sizes[shape].iter().map(size).collect::<FieldResult<_>>()?;
            let ends = data.value_offsets();
            let bytes = owned(data.values()).slice(ends[at].as_usize()..ends[at + 1].as_usize());
            let tensor = Tensor::new(dtypes.value(at).parse()?, shape, bytes).map_err(field)?;
            Ok((name.to_owned(), tensor))
        };
        entries(self.tensors, row).unwrap_or_default().map(tensor).collect()
    }

    fn custom_fields(&self, row: usize) -> FieldResult<Vec<CustomField>> {
        let fields = self.custom_fields.values().as_struct();
        let text = |column: usize, at: usize| fields.column(column).as_string::<i32>().value(at);
        let field = |at: usize| {
            Ok(CustomField {
                source_field: text(0, at).to_owned(),
                destination_field: text(1, at).to_owned(),
                dtype: text(2, at).parse::<Dtype>()?,
            })
        };
        entries(self.custom_fields, row).unwrap_or_default().map(field).collect()
    }
}

fn kind(name: &str) -> FieldResult<ExperienceKind> {
    let known = [ExperienceKind::SingleTurn, ExperienceKind::MultiTurn, ExperienceKind::Dpo];
    let found = known.into_iter().find(|kind| kind.name() == name);
    found.ok_or_else(|| FieldProblem::UnknownName(name.to_owned()).at("kind"))
}

/// Text column whose values are returned as slices.
struct Texts<'a> {
    array: &'a StringArray,
    data: Bytes,
}

impl<'a> Texts<'a> {
    fn new(array: &'a StringArray) -> Self {
        Self { array, data: owned(array.values()) }
    }

    fn bytes(&self, row: usize) -> Option<Bytes> {
        let ends = self.array.value_offsets();
        let range = ends[row].as_usize()..ends[row + 1].as_usize();
        self.array.is_valid(row).then(|| self.data.slice(range))
    }
}

/// Numeric list column whose values are returned as slices.
struct Lists<'a> {
    lists: &'a ListArray,
    data: Bytes,
}

impl<'a> Lists<'a> {
    fn new<T: ArrowPrimitiveType>(
        name: &'static str,
        column: &'a dyn arrow_array::Array,
    ) -> Result<Self> {
        let lists = column.as_list::<i32>();
        without_nulls(name, lists.values())?;
        Ok(Self { lists, data: owned(lists.values().as_primitive::<T>().values().inner()) })
    }

    fn get<T: Element>(&self, row: usize, column: &'static str) -> FieldResult<Option<Array<T>>> {
        let Some(range) = entries(self.lists, row) else { return Ok(None) };
        let size = T::DTYPE.size();
        let data = self.data.slice(range.start * size..range.end * size);
        Array::from_bytes(data).map(Some).map_err(|problem| problem.at(column))
    }
}

fn owned(buffer: &Buffer) -> Bytes {
    Bytes::from_owner(buffer.clone())
}

/// Returns the range of a row's entries. `None`: null.
fn entries(lists: &ListArray, row: usize) -> Option<Range<usize>> {
    let ends = lists.value_offsets();
    lists.is_valid(row).then(|| ends[row].as_usize()..ends[row + 1].as_usize())
}

/// Returns a column of the expected type.
fn column<'a>(batch: &'a RecordBatch, name: &'static str) -> Result<&'a dyn arrow_array::Array> {
    let expected = expected(name);
    let Some(column) = batch.column_by_name(name) else {
        return Err(ColumnError::Missing { column: name, expected });
    };
    let found = column.data_type();
    if !fits(found, &expected) {
        return Err(ColumnError::Type { column: name, found: found.clone(), expected });
    }
    Ok(column)
}

/// Returns a column without nulls.
fn required<'a>(batch: &'a RecordBatch, name: &'static str) -> Result<&'a dyn arrow_array::Array> {
    let column = column(batch, name)?;
    without_nulls(name, column)?;
    Ok(column)
}

fn without_nulls(column: &'static str, array: &dyn arrow_array::Array) -> Result<()> {
    match array.logical_null_count() {
        0 => Ok(()),
        found => Err(ColumnError::Null { column, found }),
    }
}

fn whole_struct(column: &'static str, array: &StructArray) -> Result<()> {
    without_nulls(column, array)?;
    array.columns().iter().try_for_each(|part| without_nulls(column, part))
}
