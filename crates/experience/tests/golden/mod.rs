//! Two experiences in which every field is set once.

use bytes::Bytes;
use rollway_experience::{
    Array, CustomField, Dtype, Eid, Experience, ExperienceFields, Json, ModelVersions, Tensor,
    TruncateStatus, VersionSpan,
};

/// Content of the golden payload: every field is set in one of the two.
pub(crate) fn golden() -> [Experience; 2] {
    let json = |text: &'static str| Json::new(text).expect("JSON");
    let floats = |first: f32| Some(Array::from([first, -0.0]));
    let run = |version, tokens| VersionSpan { version, tokens };
    let pixels = Tensor::new(Dtype::Bf16, vec![1, 3], Bytes::from_static(&[1, 2, 3, 4, 5, 6]));
    let first = ExperienceFields {
        eid: Eid { batch: 12.into(), task: "3".into(), run: 1, step: 2, suffix: "0a1b2c".into() },
        tokens: [1, -1, i32::MAX].into(),
        prompt_length: 1,
        logprobs: floats(-0.5),
        reward: Some(0.25),
        token_level_reward: floats(1.0),
        advantages: floats(2.0),
        returns: floats(3.0),
        teacher_logprobs: floats(4.0),
        action_mask: Some([true, false].into()),
        truncate_status: Some(TruncateStatus::ResponseTruncated),
        model_versions: ModelVersions::from_spans([run(Some(4), 1), run(None, 1)]).ok(),
        info: json(r#"{"model_version":4}"#),
        metrics: [("accuracy".to_owned(), 0.5)].into(),
        prompt_text: Some("2+2?".to_owned()),
        response_text: Some("é".to_owned()),
        messages: Some(json(r#"[{"role":"user"}]"#)),
        tools: Some(json("[]")),
        multi_modal_inputs: pixels
            .map(|pixels| [("pixels".to_owned(), pixels)].into())
            .expect("it fits"),
        custom_fields: vec![CustomField {
            source_field: "a".into(),
            destination_field: "b".into(),
            dtype: Dtype::F16,
        }],
        ..ExperienceFields::default()
    };
    let second = ExperienceFields {
        eid: Eid { batch: "7/eval".into(), task: 0.into(), ..Eid::default() },
        tokens: [1, 2].into(),
        chosen: Some([3].into()),
        rejected: Some([4, 5, 6].into()),
        chosen_messages: Some(json("[1]")),
        rejected_messages: Some(json("[2]")),
        ..ExperienceFields::default()
    };
    [first, second].map(|fields| Experience::new(fields).expect("fields that keep to the rules"))
}
