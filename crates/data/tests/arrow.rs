//! Experiences as columns: lossless, with named errors.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use rollway_data::arrow::{ColumnError, from_batch, schema, to_batch, to_ipc};
use rollway_experience::{
    Array, CustomField, Dtype, Eid, Experience, ExperienceFields, IdPart, Json, ModelVersions,
    Tensor, TruncateStatus, VersionSpan, serialize_many,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_conversion_is_lossless(experiences in vec(experience(), 0..5), skip in 0..3_usize) {
        let batch = to_batch(&experiences).unwrap();
        prop_assert_eq!(batch.schema(), schema());
        let read = from_batch(&batch).unwrap();
        // As bytes, because NaN equals nothing.
        prop_assert_eq!(serialize_many(&read), serialize_many(&experiences));

        // A part of a batch begins in the middle of its memory.
        let skip = skip.min(experiences.len());
        let part = from_batch(&batch.slice(skip, experiences.len() - skip)).unwrap();
        prop_assert_eq!(serialize_many(&part), serialize_many(&experiences[skip..]));
    }

    #[test]
    fn an_ipc_stream_contains_the_same_batch(experiences in vec(experience(), 0..4)) {
        let bytes = to_ipc(&experiences).unwrap();
        let stream = arrow_ipc::reader::StreamReader::try_new(&bytes[..], None).unwrap();
        let batches: Vec<RecordBatch> = stream.collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(batches.len(), 1);
        let read = from_batch(&batches[0]).unwrap();
        prop_assert_eq!(serialize_many(&read), serialize_many(&experiences));
    }
}

#[test]
fn a_wrong_column_is_named_with_the_expected_type() {
    let batch = to_batch(&[plain()]).unwrap();
    for field in schema().fields() {
        let name = field.name().as_str();
        let message = |changed: &RecordBatch| from_batch(changed).unwrap_err().to_string();

        let missing = message(&without(&batch, name));
        let expected = format!("no column `{name}`; {} is expected", field.data_type());
        assert_eq!(missing, expected);

        let dates = Arc::new(arrow_array::Date32Array::from(vec![Some(1)]));
        let wrong = message(&with(&batch, name, dates));
        let expected = format!("column `{name}` holds Date32; {} is expected", field.data_type());
        assert_eq!(wrong, expected);

        if !field.is_nullable() {
            let absent = arrow_array::new_null_array(field.data_type(), 1);
            let absent = message(&with(&batch, name, absent));
            assert!(absent.starts_with(&format!("column `{name}` has 1 absent")), "{absent}");
        }
    }
}

#[test]
fn an_invalid_value_is_named_with_its_row() {
    let batch = to_batch(&[plain()]).unwrap();
    let text = |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![text])) };
    for (column, value, expected) in [
        ("kind", "three_turn", "row 0: kind: unknown name `three_turn`"),
        ("info", "[1]", "row 0: info: not a JSON object"),
        ("truncate_status", "cut", "row 0: truncate_status: unknown name `cut`"),
        ("batch", "7a", "row 0: batch: unknown name `7a`"),
        ("uid", "x", "row 0: column `uid` says `x`; the columns of its parts say `7/t/0/0/`"),
    ] {
        let error = from_batch(&with(&batch, column, text(value))).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let json = from_batch(&with(&batch, "messages", text("{"))).unwrap_err();
    assert!(json.to_string().starts_with("row 0: messages: not acceptable as JSON"), "{json}");
}

#[test]
fn absent_entries_of_lists_are_refused() {
    let batch = to_batch(&[plain()]).unwrap();
    let field = Arc::new(Field::new("element", DataType::Int32, true));
    let items = Arc::new(Int32Array::from(vec![Some(1), None]));
    let offsets = arrow_buffer::OffsetBuffer::from_lengths([2]);
    let list = arrow_array::ListArray::new(field, offsets, items, None);
    let error = from_batch(&with(&batch, "tokens", Arc::new(list))).unwrap_err();
    assert!(matches!(error, ColumnError::Null { column: "tokens", found: 1 }), "{error}");
}

#[test]
fn unknown_columns_are_ignored() {
    let batch = to_batch(&[plain()]).unwrap();
    let more = with(&batch, "weight", Arc::new(Int64Array::from(vec![1])));
    assert_eq!(from_batch(&more).unwrap(), [plain()]);
}

fn without(batch: &RecordBatch, column: &str) -> RecordBatch {
    let kept: Vec<usize> =
        (0..batch.num_columns()).filter(|&at| batch.schema().field(at).name() != column).collect();
    batch.project(&kept).unwrap()
}

fn with(batch: &RecordBatch, column: &str, array: ArrayRef) -> RecordBatch {
    let rest = without(batch, column);
    let mut fields = rest.schema().fields().to_vec();
    fields.push(Arc::new(Field::new(column, array.data_type().clone(), true)));
    let columns = rest.columns().iter().cloned().chain([array]).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

fn plain() -> Experience {
    Experience::new(ExperienceFields {
        eid: Eid { batch: 7.into(), task: "t".into(), ..Eid::default() },
        tokens: [1, 2, 3].into(),
        truncate_status: Some(TruncateStatus::ResponseTruncated),
        messages: Json::new("[]").ok(),
        ..ExperienceFields::default()
    })
    .unwrap()
}

fn experience() -> impl Strategy<Value = Experience> {
    let arrays = (
        (vec(any::<i32>(), 1..5).prop_map(Array::from), 1..6_usize),
        [floats(), floats(), floats(), floats(), floats()],
        of(vec(any::<bool>(), 0..12).prop_map(Array::from)),
        (of(ints()), of(ints())),
        of(any::<u64>().prop_map(f64::from_bits)),
    );
    (eid(), arrays, status(), of(versions()), text_columns(), media()).prop_filter_map(
        "the rules of experiences",
        |(eid, arrays, truncate_status, model_versions, texts, media)| {
            let ((tokens, prompt_length), floats, action_mask, answers, reward) = arrays;
            let [logprobs, token_level_reward, advantages, returns, teacher_logprobs] = floats;
            let (info, metrics, [prompt_text, response_text], json) = texts;
            let [messages, tools, chosen_messages, rejected_messages] = json;
            let fields = ExperienceFields {
                eid,
                tokens,
                prompt_length,
                logprobs,
                reward,
                token_level_reward,
                advantages,
                returns,
                teacher_logprobs,
                action_mask,
                chosen: answers.0,
                rejected: answers.1,
                truncate_status,
                model_versions,
                info,
                metrics,
                prompt_text,
                response_text,
                messages,
                tools,
                chosen_messages,
                rejected_messages,
                multi_modal_inputs: media.0,
                custom_fields: media.1,
            };
            Experience::lenient(fields).ok()
        },
    )
}

fn eid() -> impl Strategy<Value = Eid> {
    let id = || prop_oneof![any::<i64>().prop_map(IdPart::Number), ".{0,4}".prop_map(IdPart::Text)];
    (id(), id(), any::<u64>(), any::<u64>(), ".{0,3}")
        .prop_map(|(batch, task, run, step, suffix)| Eid { batch, task, run, step, suffix })
}

/// Floats of any bits: NaN of all kinds, both zeros.
fn floats() -> impl Strategy<Value = Option<Array<f32>>> {
    of(vec(any::<u32>().prop_map(f32::from_bits), 0..4).prop_map(Array::from))
}

fn ints() -> impl Strategy<Value = Array<i32>> {
    vec(any::<i32>(), 0..4).prop_map(Array::from)
}

fn status() -> impl Strategy<Value = Option<TruncateStatus>> {
    of(prop_oneof![Just(TruncateStatus::PromptTruncated), Just(TruncateStatus::ResponseTruncated)])
}

fn versions() -> impl Strategy<Value = ModelVersions> {
    let run = (of(0..=i64::MAX as u64), 1..9_u32);
    vec(run.prop_map(|(version, tokens)| VersionSpan { version, tokens }), 0..4)
        .prop_map(|runs| ModelVersions::from_spans(runs).unwrap())
}

type TextColumns = (Json, BTreeMap<String, f64>, [Option<String>; 2], [Option<Json>; 4]);

fn text_columns() -> impl Strategy<Value = TextColumns> {
    let json = || {
        of(prop_oneof![Just("[]"), Just("null"), Just("[ {\"é\": 1e3} ]")])
            .prop_map(|text| text.map(|text| Json::new(text).unwrap()))
    };
    let info = prop_oneof![Just("{}"), Just(r#"{"model_version": 4}"#)];
    let info = info.prop_map(|text| Json::new(text).unwrap());
    let metrics = btree_map(".{0,3}", any::<u64>().prop_map(f64::from_bits), 0..3);
    (info, metrics, [of(".{0,5}"), of(".{0,5}")], [json(), json(), json(), json()])
}

fn media() -> impl Strategy<Value = (BTreeMap<String, Tensor>, Vec<CustomField>)> {
    let dtype = || proptest::sample::select(Dtype::ALL.to_vec());
    let tensor = (dtype(), vec(0..3_usize, 0..3)).prop_map(|(dtype, shape)| {
        let bytes = dtype.size() * shape.iter().product::<usize>();
        Tensor::new(dtype, shape, Bytes::from(vec![1; bytes])).unwrap()
    });
    let field =
        (".{0,3}", ".{0,3}", dtype()).prop_map(|(source_field, destination_field, dtype)| {
            CustomField { source_field, destination_field, dtype }
        });
    (btree_map(".{0,3}", tensor, 0..3), vec(field, 0..3))
}
