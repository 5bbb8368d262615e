//! Validation of experiences, their JSON form, and round trips of their encoding.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod golden;

use std::collections::BTreeMap;

use bytes::Bytes;
use golden::golden;
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use rollway_experience::{
    Array, CustomField, Dtype, Eid, Experience, ExperienceFields, ExperienceKind, FieldError,
    FieldProblem, IdPart, Json, ModelVersions, PayloadError, Tensor, TruncateStatus, VersionSpan,
    deserialize, deserialize_many, payload, serialize, serialize_many,
};
use serde_json::json;

fn prompt_and_response() -> ExperienceFields {
    ExperienceFields {
        tokens: [5, 6, 7, 8, 9].into(),
        prompt_length: 2,
        ..ExperienceFields::default()
    }
}

fn refused(fields: ExperienceFields) -> (String, FieldProblem) {
    let FieldError { field, problem } = Experience::new(fields).unwrap_err();
    (field.into_owned(), problem)
}

#[test]
fn the_kind_follows_from_the_fields() {
    use ExperienceKind::{Dpo, MultiTurn, SingleTurn};
    let (mask, answer) = (Array::from([true, false, true]), Some(Array::from([1])));
    let all = Array::from([true; 3]);
    for (action_mask, chosen, rejected, expected) in [
        (None, None, None, (SingleTurn, 2, Some(all.clone()))),
        (Some(mask.clone()), None, None, (MultiTurn, 2, Some(mask))),
        (None, answer.clone(), answer.clone(), (Dpo, 5, None)),
        (None, answer, None, (SingleTurn, 2, Some(all))),
    ] {
        let fields = ExperienceFields { action_mask, chosen, rejected, ..prompt_and_response() };
        let experience = Experience::new(fields).unwrap();
        let found = (experience.kind(), experience.prompt_length, experience.action_mask.clone());
        assert_eq!(found, expected);
    }
}

#[test]
fn truncated_prompt_gets_a_false_mask() {
    let fields = ExperienceFields {
        prompt_length: 9,
        logprobs: Some([0.0].into()),
        truncate_status: Some(TruncateStatus::PromptTruncated),
        ..prompt_and_response()
    };
    let experience = Experience::new(fields).unwrap();
    assert_eq!(experience.action_mask, Some([false].into()));
    assert_eq!(experience.to_json()["response_length"], -4);
}

#[test]
fn refusals_name_the_field() {
    let base = prompt_and_response;
    assert_eq!(refused(ExperienceFields::default()), ("tokens".into(), FieldProblem::Missing));
    let no_prompt = ExperienceFields { prompt_length: 0, ..base() };
    assert_eq!(refused(no_prompt), ("prompt_length".into(), FieldProblem::NotPositive));
    let no_response = ExperienceFields { prompt_length: 5, ..base() };
    let problem = FieldProblem::NoResponse { found: 5, prompt: 5 };
    assert_eq!(refused(no_response), ("tokens".into(), problem));
    let list = ExperienceFields { info: Json::new("[]").unwrap(), ..base() };
    assert_eq!(refused(list), ("info".into(), FieldProblem::NotObject));
    let status = "cut".parse::<TruncateStatus>().unwrap_err();
    assert_eq!(status.to_string(), "truncate_status: unknown name `cut`");
}

#[test]
fn arrays_of_the_response_have_its_length_unless_the_caller_knows_better() {
    let short = || Some(Array::from([0.5_f32, 0.5]));
    let versions =
        ModelVersions::from_spans([VersionSpan { version: Some(1), tokens: 2 }]).unwrap();
    let base = prompt_and_response;
    let cases = [
        ("logprobs", ExperienceFields { logprobs: short(), ..base() }),
        ("token_level_reward", ExperienceFields { token_level_reward: short(), ..base() }),
        ("advantages", ExperienceFields { advantages: short(), ..base() }),
        ("returns", ExperienceFields { returns: short(), ..base() }),
        ("teacher_logprobs", ExperienceFields { teacher_logprobs: short(), ..base() }),
        ("action_mask", ExperienceFields { action_mask: Some([true, true].into()), ..base() }),
        ("model_versions", ExperienceFields { model_versions: Some(versions), ..base() }),
    ];
    for (field, fields) in cases {
        let lenient = Experience::lenient(fields.clone()).unwrap();
        assert_eq!(deserialize(serialize(&lenient).unwrap()).unwrap(), lenient);
        assert_eq!(refused(fields), (field.into(), FieldProblem::Length { found: 2, expected: 3 }));
    }
}

#[test]
fn json_has_everything_but_arrays_and_only_what_is_set() {
    let bare = Experience::new(prompt_and_response()).unwrap();
    let eid = json!({"batch": "", "task": "", "run": 0, "step": 0, "suffix": ""});
    let expected = json!({
        "eid": eid,
        "type": "single_turn",
        "prompt_length": 2,
        "response_length": 3,
        "info": {},
        "metrics": {},
    });
    assert_eq!(bare.to_json(), expected);

    let full = everything().to_json();
    assert_eq!(full["eid"]["batch"], 12);
    assert_eq!(full["eid"]["task"], "3");
    assert_eq!(full["type"], "multi_turn");
    assert_eq!(full["info"], json!({"model_version": 4}));
    assert_eq!(full["metrics"], json!({"accuracy": 0.5, "huge": null}));
    assert_eq!(full["messages"], json!([{"role": "user"}]));
    assert_eq!(full["reward"], 0.25);
    assert_eq!(full["truncate_status"], "response_truncated");
    assert_eq!(full.as_object().unwrap().len(), 14);
}

#[test]
fn deserialize_requires_exactly_one() {
    let one = Experience::new(prompt_and_response()).unwrap();
    assert_eq!(deserialize(serialize(&one).unwrap()).unwrap(), one);
    for number in [0, 2] {
        let bytes = serialize_many(&vec![one.clone(); number]).unwrap();
        assert_eq!(payload::count(&bytes), Ok(number as u64));
        assert_eq!(deserialize(bytes), Err(PayloadError::NotOne(number as u64)));
    }
    assert_eq!(deserialize_many(serialize_many(&[]).unwrap()), Ok(vec![]));
}

#[test]
fn serialization_validates_changed_fields() {
    let mut bad = Experience::new(prompt_and_response()).unwrap();
    bad.prompt_length = 7;
    let error = serialize_many(&[everything(), bad]).unwrap_err();
    let expected = "item 1: tokens: 5 tokens, but there must be more than the 7 of the prompt";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn arrays_and_json_are_aligned_slices_of_the_payload() {
    let bytes = serialize_many(&vec![everything(); 3]).unwrap();
    let range = bytes.as_ptr_range();
    for experience in deserialize_many(bytes).unwrap() {
        let fields = &experience;
        let floats = [&fields.logprobs, &fields.advantages, &fields.returns];
        let mut arrays: Vec<&Bytes> = floats.into_iter().flatten().map(Array::bytes).collect();
        arrays.push(fields.tokens.bytes());
        arrays.push(fields.action_mask.as_ref().unwrap().bytes());
        arrays.extend(fields.multi_modal_inputs.values().map(Tensor::data));
        for array in arrays.iter().filter(|array| !array.is_empty()) {
            assert!(range.contains(&array.as_ptr()));
            assert_eq!((array.as_ptr() as usize - range.start as usize) % payload::ALIGNMENT, 0);
        }
        for text in [fields.info.bytes(), fields.messages.as_ref().unwrap().bytes()] {
            assert!(range.contains(&text.as_ptr()));
        }
    }
}

#[test]
fn unaligned_payloads_are_decoded() {
    let bytes = serialize(&everything()).unwrap();
    for shift in 0..8 {
        let shifted = Bytes::from([&vec![0; shift][..], &bytes].concat()).slice(shift..);
        assert_eq!(deserialize(shifted).unwrap(), everything());
    }
}

/// An experience in which every field is set.
fn everything() -> Experience {
    let [mut experience, dpo] = golden();
    experience.metrics.insert("huge".to_owned(), f64::INFINITY);
    experience.chosen = Some([].into());
    experience.rejected.clone_from(&dpo.rejected);
    experience.chosen_messages.clone_from(&dpo.chosen_messages);
    experience.rejected_messages = Some(Json::new("null").unwrap());
    experience
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|value| json!(value)),
        any::<i64>().prop_map(|value| json!(value)),
        any::<f64>().prop_map(|value| json!(value)),
        ".{0,8}".prop_map(|value| json!(value)),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|values| json!(values)),
            btree_map(".{0,4}", inner, 0..4).prop_map(|entries| json!(entries)),
        ]
    })
    .prop_map(|value| Json::from_value(&value).unwrap())
}

fn any_info() -> impl Strategy<Value = Json> {
    btree_map(".{0,4}", any_json(), 0..4).prop_map(|entries| {
        let entries: BTreeMap<_, _> =
            entries.iter().map(|(key, json)| (key.clone(), json.value())).collect();
        Json::from_value(&json!(entries)).unwrap()
    })
}

fn any_tensor() -> impl Strategy<Value = Tensor> {
    (proptest::sample::select(&Dtype::ALL[..]), vec(0..4_usize, 0..4)).prop_flat_map(
        |(dtype, shape)| {
            let bytes = dtype.size() * shape.iter().product::<usize>();
            let byte = if dtype == Dtype::Bool { 0..=1_u8 } else { 0..=255_u8 };
            vec(byte, bytes)
                .prop_map(move |data| Tensor::new(dtype, shape.clone(), data.into()).unwrap())
        },
    )
}

fn any_eid() -> impl Strategy<Value = Eid> {
    let part =
        || prop_oneof![any::<i64>().prop_map(IdPart::Number), ".{0,9}".prop_map(IdPart::Text)];
    (part(), part(), any::<u64>(), any::<u64>(), any::<[u8; 3]>()).prop_map(
        |(batch, task, run, step, random)| Eid {
            batch,
            task,
            run,
            step,
            suffix: Eid::suffix_of(random),
        },
    )
}

fn any_versions() -> impl Strategy<Value = ModelVersions> {
    let run = (of(0..=i64::MAX as u64), 1..1_000_u32)
        .prop_map(|(version, tokens)| VersionSpan { version, tokens });
    vec(run, 0..4).prop_map(|runs| ModelVersions::from_spans(runs).unwrap())
}

fn any_floats() -> impl Strategy<Value = Option<Array<f32>>> {
    of(vec(any::<u32>().prop_map(f32::from_bits), 0..9).prop_map(Array::from))
}

fn any_ints() -> impl Strategy<Value = Option<Array<i32>>> {
    of(vec(any::<i32>(), 0..9).prop_map(Array::from))
}

prop_compose! {
    fn any_arrays()(
        tokens in vec(any::<i32>(), 1..20),
        prompt_length in 1..20_usize,
        (logprobs, token_level_reward, advantages) in (any_floats(), any_floats(), any_floats()),
        (returns, teacher_logprobs) in (any_floats(), any_floats()),
        (chosen, rejected) in (any_ints(), any_ints()),
        action_mask in of(vec(any::<bool>(), 0..20)),
        model_versions in of(any_versions()),
        multi_modal_inputs in btree_map(".{0,4}", any_tensor(), 0..3),
    ) -> ExperienceFields {
        ExperienceFields {
            tokens: tokens.into(),
            prompt_length,
            logprobs,
            token_level_reward,
            advantages,
            returns,
            teacher_logprobs,
            action_mask: action_mask.map(Array::from),
            chosen,
            rejected,
            model_versions,
            multi_modal_inputs,
            ..ExperienceFields::default()
        }
    }
}

prop_compose! {
    fn any_experience()(
        arrays in any_arrays(),
        eid in any_eid(),
        reward in of(-1e300..1e300),
        prompt_truncated in any::<bool>(),
        info in any_info(),
        metrics in btree_map(".{0,4}", -1e300..1e300, 0..4),
        (prompt_text, response_text) in (of(".{0,20}"), of(".{0,20}")),
        (messages, tools) in (of(any_json()), of(any_json())),
        (chosen_messages, rejected_messages) in (of(any_json()), of(any_json())),
        custom_fields in vec((".{0,4}", ".{0,4}", proptest::sample::select(&Dtype::ALL[..])), 0..3),
    ) -> Experience {
        // A prompt as long as all tokens is legal only if it was truncated.
        let truncated = prompt_truncated || arrays.prompt_length >= arrays.tokens.len();
        let custom_fields = custom_fields.into_iter().map(|(source, destination, dtype)| {
            CustomField { source_field: source, destination_field: destination, dtype }
        });
        Experience::lenient(ExperienceFields {
            eid,
            reward,
            truncate_status: truncated.then_some(TruncateStatus::PromptTruncated),
            info,
            metrics,
            prompt_text,
            response_text,
            messages,
            tools,
            chosen_messages,
            rejected_messages,
            custom_fields: custom_fields.collect(),
            ..arrays
        })
        .unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn encoding_round_trips(experiences in vec(any_experience(), 0..5)) {
        let bytes = serialize_many(&experiences).unwrap();
        let header = payload::verify(&bytes).unwrap();
        prop_assert_eq!(header.items, experiences.len() as u64);
        prop_assert_eq!(header.payload_bytes(), bytes.len() as u64);
        let kinds: Vec<ExperienceKind> = experiences.iter().map(Experience::kind).collect();
        let read = deserialize_many(bytes.clone()).unwrap();
        prop_assert_eq!(read.iter().map(Experience::kind).collect::<Vec<_>>(), kinds);
        prop_assert_eq!(&read, &experiences);
        prop_assert_eq!(serialize_many(&read).unwrap(), bytes);
    }

    #[test]
    fn concat_equals_encoding_the_joined_lists(
        lists in vec(vec(any_experience(), 0..3), 0..4),
    ) {
        let payloads: Vec<Bytes> = lists.iter().map(|list| serialize_many(list).unwrap()).collect();
        let joined = payload::concat(&payloads).unwrap();
        prop_assert_eq!(joined, serialize_many(&lists.concat()).unwrap());
    }
}
