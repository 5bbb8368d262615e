//! Recorder: experiences of turns, limits and failures.

mod conversations;
mod retries;

use std::collections::BTreeMap;

use bytes::Bytes;
use rollway_experience::{Experience, ExperienceKind, ModelVersions, TruncateStatus, VersionSpan};
use rollway_model_api::replay::SavedResponse;
use rollway_model_api::{CallLabels, ResponseChoice};
use serde_json::{Value, json};

use super::*;

fn chat(messages: Value) -> ModelCall {
    let Value::Object(body) = json!({"messages": messages, "tools": [{"type": "function"}]}) else {
        unreachable!()
    };
    let kind = rollway_model_api::CallKind::Chat;
    ModelCall {
        kind,
        body,
        stream: false,
        choices: 1,
        text_tools: Vec::new(),
        labels: CallLabels::default(),
        previous: None,
    }
}

fn versions(version: u64, tokens: usize) -> ModelVersions {
    let tokens = u32::try_from(tokens).unwrap();
    let runs = (tokens > 0).then_some(VersionSpan { version: Some(version), tokens });
    ModelVersions::from_spans(runs).unwrap()
}

fn choice(tokens: &[i32], text: &str) -> ResponseChoice {
    ResponseChoice {
        tokens: Some(tokens.to_vec()),
        logprobs: Some(tokens.iter().map(|&token| -(token as f32)).collect()),
        versions: versions(3, tokens.len()),
        finish_reason: Some("stop".to_owned()),
        reply: json!({"role": "assistant", "content": text}),
    }
}

fn response(id: &str, prompt: &[i32], choices: Vec<ResponseChoice>) -> ModelResponse {
    let (id, model) = (id.to_owned(), "m".to_owned());
    ModelResponse { id, model, prompt: Some(prompt.to_vec()), choices, end: ResponseEnd::Complete }
}

fn saved(text: &str) -> SavedResponse {
    SavedResponse { stream: false, parts: vec![Bytes::copy_from_slice(text.as_bytes())] }
}

fn retry() -> RetryHeaders {
    RetryHeaders { is_retry: true, ..RetryHeaders::default() }
}

/// Begins a call that must be new.
fn begin(
    recorder: &mut Recorder,
    body_number: u8,
    call: &ModelCall,
    attempted: &RetryHeaders,
) -> CallNumber {
    match recorder.begin_as([body_number; 32], call, attempted) {
        Ok(CallDecision::New(number)) => number,
        other => panic!("not new: {other:?}"),
    }
}

/// Makes a call that succeeds.
fn record_call(recorder: &mut Recorder, call: &ModelCall, response: ModelResponse) {
    let body_number = u8::try_from(recorder.turns()).unwrap();
    let number = begin(recorder, body_number, call, &RetryHeaders::default());
    recorder.answered(number, response, saved("")).unwrap();
    recorder.delivered(number);
}

fn actions(experience: &Experience) -> Vec<i32> {
    let mask = experience.action_mask.as_ref().unwrap();
    let response = experience.tokens.iter().skip(experience.prompt_length);
    response.zip(mask.iter()).filter(|(_, is_action)| *is_action).map(|(token, _)| token).collect()
}

#[test]
fn a_chat_becomes_one_experience_with_a_mask() {
    let mut recorder = Recorder::new(RecorderLimits::default());
    let user = |text: &str| json!({"role": "user", "content": text});
    let first = json!([user("hi")]);
    record_call(
        &mut recorder,
        &chat(first),
        response("a", &[1, 2], vec![choice(&[5, 6], "hello")]),
    );
    let reply = json!({"role": "assistant", "content": "hello"});
    let second = json!([user("hi"), reply, user("more")]);
    let mut last = choice(&[9], "bye");
    last.versions = versions(2, 1);
    last.finish_reason = Some("length".to_owned());
    record_call(&mut recorder, &chat(second), response("b", &[1, 2, 5, 6, 7, 8], vec![last]));

    let experiences = recorder.experiences(0).unwrap();
    let [experience] = &experiences[..] else { panic!("{experiences:?}") };
    assert_eq!(experience.kind(), ExperienceKind::MultiTurn);
    assert_eq!(experience.tokens.to_vec(), [1, 2, 5, 6, 7, 8, 9]);
    assert_eq!(experience.prompt_length, 2);
    let mask = experience.action_mask.as_ref().unwrap();
    assert_eq!(mask.to_vec(), [true, true, false, false, true]);
    assert_eq!(experience.logprobs.as_ref().unwrap().to_vec(), [-5., -6., 0., 0., -9.]);
    let each: Vec<_> = experience.model_versions.as_ref().unwrap().iter().collect();
    assert_eq!(each, [Some(3), Some(3), None, None, Some(2)]);
    assert_eq!(experience.truncate_status, Some(TruncateStatus::ResponseTruncated));
    assert_eq!(experience.response_text.as_deref(), Some("bye"));
    assert_eq!(experience.messages.as_ref().unwrap().value().as_array().unwrap().len(), 4);
    assert_eq!(experience.tools.as_ref().unwrap().value(), json!([{"type": "function"}]));
    let info = experience.info.value();
    let expected = json!({
        "model": "m", "model_version": 2, "finish_reason": "length", "turns": 2,
        "message_ids": ["a", "b"],
    });
    assert_eq!(info, expected);
    assert_eq!(recorder.experiences(1).unwrap()[0].prompt_length, 6);
    let merged = MergeCounts { continued: 1, ..MergeCounts::default() };
    let counts = RecorderCounts { calls: 2, turns: 2, merged, ..RecorderCounts::default() };
    assert_eq!(recorder.counts(), counts);
}

#[test]
fn branches_and_drift_are_experiences_of_their_own() {
    let mut recorder = Recorder::new(RecorderLimits::default());
    let none = || chat(json!([]));
    let n = vec![choice(&[5, 6], "x"), choice(&[5, 7], "y")];
    record_call(&mut recorder, &none(), response("a", &[1, 2], n));
    // Each of the two choices is continued, the first one twice.
    record_call(&mut recorder, &none(), response("b", &[1, 2, 5, 6, 8], vec![choice(&[10], "")]));
    record_call(&mut recorder, &none(), response("c", &[1, 2, 5, 7, 8], vec![choice(&[11], "")]));
    record_call(&mut recorder, &none(), response("d", &[1, 2, 5, 6, 9], vec![choice(&[12], "")]));
    // Into the response, but not to its end; and another prompt, which is no drift.
    record_call(&mut recorder, &none(), response("e", &[1, 2, 5, 9, 9], vec![choice(&[13], "")]));
    record_call(&mut recorder, &none(), response("f", &[1, 3], vec![choice(&[14], "")]));
    let trained: Vec<_> = recorder.experiences(0).unwrap().iter().map(actions).collect();
    assert_eq!(trained, [vec![5, 6, 10], vec![5, 7, 11], vec![12], vec![13], vec![14]]);
    let counts = recorder.counts().merged;
    assert_eq!((counts.continued, counts.branches, counts.drift), (2, 1, 1));
}

#[test]
fn experiences_of_a_run_have_the_configured_weights() {
    let mut recorder = Recorder::new(RecorderLimits::default());
    let none = || chat(json!([]));
    let mut title = none();
    title.labels = CallLabels { agent: Some("title".to_owned()), parent: None };
    record_call(&mut recorder, &none(), response("a", &[1, 2], vec![choice(&[5, 6], "x")]));
    record_call(&mut recorder, &none(), response("b", &[1, 2, 5, 6, 8], vec![choice(&[10], "")]));
    record_call(&mut recorder, &none(), response("c", &[1, 2, 5, 6, 9], vec![choice(&[11], "")]));
    record_call(&mut recorder, &title, response("d", &[3], vec![choice(&[12], "")]));
    let agents = BTreeMap::from([("title".to_owned(), 0.5)]);
    let weights = ExperienceWeights { per_run: true, branch: 0.5, drift: 1.0, agents };
    let weighted = recorder.weighted_experiences(0, &weights).unwrap();
    let found: Vec<_> = weighted.iter().map(|one| one.info.get("weight").unwrap()).collect();
    assert_eq!(found, [json!(0.5), json!(0.25), json!(0.25)]);
    let unweighted = recorder.experiences(0).unwrap();
    assert!(unweighted.iter().all(|one| one.info.get("weight").is_none()));
}

#[test]
fn messages_that_go_on_while_tokens_do_not_are_drift() {
    let mut recorder = Recorder::new(RecorderLimits::default());
    let user = json!({"role": "user", "content": "hi"});
    let first = chat(json!([user]));
    record_call(&mut recorder, &first, response("a", &[1, 2], vec![choice(&[5, 6, 7], "hello")]));
    // A template that leaves out what the model thought: the first token differs already.
    let reply = json!({"role": "assistant", "content": "hello"});
    let second = chat(json!([user, reply, user]));
    record_call(&mut recorder, &second, response("b", &[1, 2, 7, 1, 2], vec![choice(&[8], "")]));
    assert_eq!(recorder.counts().merged.drift, 1);
    // The same beginning without an answer of the model is another prompt.
    let third = chat(json!([user, user]));
    record_call(&mut recorder, &third, response("c", &[1, 2, 1, 2], vec![choice(&[9], "")]));
    assert_eq!(recorder.counts().merged.drift, 1);
    assert_eq!(recorder.experiences(0).unwrap().len(), 3);
}

#[test]
fn a_recording_beyond_its_limits_fails_for_good() {
    let limits = RecorderLimits { max_bytes: 40_000, ..RecorderLimits::default() };
    let mut recorder = Recorder::new(limits);
    let call = chat(json!([]));
    let mut prompt = vec![1; 10];
    let error = loop {
        let number = match recorder.begin_as([0; 32], &call, &RetryHeaders::default()) {
            Ok(CallDecision::New(number)) => number,
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        };
        let response = response("a", &prompt, vec![choice(&[2; 100], "")]);
        match recorder.answered(number, response, saved(&"x".repeat(5000))) {
            Ok(()) => assert!(recorder.bytes() <= 40_000),
            Err(error) => break error,
        }
        recorder.delivered(number);
        prompt.extend([3; 500]);
    };
    let expected = "the run's recording takes more than 40000 bytes; raise \
                    `explorer.gateway.recorded_bytes_per_run`, or shorten the run";
    assert_eq!(error.to_string(), expected);
    assert!(recorder.counts().dropped > 0, "kept answers go first");
    assert_eq!(recorder.experiences(0), Err(error.clone()));
    assert_eq!(recorder.begin_as([1; 32], &call, &RetryHeaders::default()), Err(error));

    let mut recorder = Recorder::new(RecorderLimits { max_turns: 2, ..RecorderLimits::default() });
    let number = begin(&mut recorder, 0, &call, &RetryHeaders::default());
    let three = response("a", &[1], vec![choice(&[2], ""), choice(&[3], ""), choice(&[4], "")]);
    let error = recorder.answered(number, three, saved("")).unwrap_err();
    let expected =
        "the run's recording takes more than 2 turns; end the run after fewer model calls";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn memory_of_long_chats_grows_with_new_content_only() {
    let mut recorder = Recorder::new(RecorderLimits { max_kept: 0, ..RecorderLimits::default() });
    let mut messages = Vec::new();
    let mut prompt = Vec::new();
    let mut sizes = vec![0];
    for turn in 0..200 {
        messages.push(json!({"role": "user", "content": "w".repeat(400)}));
        prompt.extend((0..100).map(|token| token * turn));
        let completion: Vec<i32> = (0..100).map(|token| token + turn).collect();
        let response = response(&turn.to_string(), &prompt, vec![choice(&completion, "so")]);
        record_call(&mut recorder, &chat(json!(messages)), response);
        messages.push(json!({"role": "assistant", "content": "so"}));
        prompt.extend(completion);
        sizes.push(recorder.bytes());
    }
    let (first, last) = (sizes[20] - sizes[10], sizes[200] - sizes[190]);
    assert!(last < first + first / 4, "ten turns took {first} bytes and then {last}");
    assert_eq!(recorder.experiences(0).unwrap().len(), 1);
    let last = recorder.experiences(199).unwrap().remove(0);
    assert_eq!(last.prompt_length, 200 * 200 - 100);
    assert_eq!(last.messages.as_ref().unwrap().value().as_array().unwrap().len(), 400);
}

#[test]
fn responses_without_tokens_are_reported() {
    let call = chat(json!([]));
    let mut recorder = Recorder::new(RecorderLimits::default());
    let number = begin(&mut recorder, 0, &call, &RetryHeaders::default());
    let mut without_tokens = response("a", &[], vec![ResponseChoice::default()]);
    without_tokens.prompt = None;
    recorder.answered(number, without_tokens.clone(), saved("text")).unwrap();
    assert_eq!(recorder.experiences(0), Err(RecordError::NoTokens("m".to_owned())));
    // Calls still go through, and are still made once.
    let again = recorder.begin_as([0; 32], &call, &retry());
    assert_eq!(again, Ok(CallDecision::Duplicate(number, saved("text"))));
    // One that was aborted before anything was told is no reason.
    let mut recorder = Recorder::new(RecorderLimits::default());
    let number = begin(&mut recorder, 0, &call, &RetryHeaders::default());
    without_tokens.end = ResponseEnd::Aborted;
    recorder.answered(number, without_tokens, saved("")).unwrap();
    assert_eq!(recorder.experiences(0), Ok(Vec::new()));
    assert_eq!((recorder.counts().aborted, recorder.counts().aborted_empty), (1, 1));
    // What does not fit together fails the run.
    let number = begin(&mut recorder, 0, &call, &RetryHeaders::default());
    let mut inconsistent = choice(&[1, 2], "");
    inconsistent.logprobs = Some(vec![0.0]);
    let error =
        recorder.answered(number, response("a", &[1], vec![inconsistent]), saved("")).unwrap_err();
    assert_eq!(error, RecordError::Misread("2 tokens have 1 log-probabilities".to_owned()));
    assert_eq!(recorder.experiences(0), Err(error));
}

#[test]
fn calls_are_identified_by_their_body() {
    let mut recorder = Recorder::new(RecorderLimits::default());
    let call = |text: &str| chat(json!([{"role": "user", "content": text}]));
    let Ok(CallDecision::New(first)) = recorder.begin(&call("a"), &RetryHeaders::default()) else {
        panic!()
    };
    recorder.answered(first, response("a", &[1], vec![choice(&[2], "")]), saved("a")).unwrap();
    let other = recorder.begin(&call("b"), &retry());
    assert!(matches!(other, Ok(CallDecision::New(_))), "{other:?}");
    let again = recorder.begin(&call("a"), &retry());
    assert_eq!(again, Ok(CallDecision::Duplicate(first, saved("a"))));
}

#[test]
fn a_turn_without_tokens_is_counted_and_makes_no_experience() {
    let mut recorder = Recorder::new(RecorderLimits::default());
    let call = chat(json!([]));
    record_call(&mut recorder, &call, response("a", &[1], vec![choice(&[], "")]));
    assert_eq!(recorder.experiences(0), Ok(Vec::new()));
    assert_eq!((recorder.counts().turns, recorder.counts().merged.empty), (1, 1));
}

#[test]
fn missing_log_probabilities_stay_missing() {
    let mut recorder = Recorder::new(RecorderLimits::default());
    let mut without_logprobs = choice(&[5], "");
    without_logprobs.logprobs = None;
    record_call(&mut recorder, &chat(json!([])), response("a", &[1], vec![without_logprobs]));
    assert_eq!(recorder.experiences(0).unwrap()[0].logprobs, None);
}

#[test]
fn turns_are_serialized_exactly() {
    let mut reply = choice(&[i32::MAX, -1, 0], "so");
    reply.logprobs = Some(vec![f32::NEG_INFINITY, -0.1, f32::MIN_POSITIVE]);
    let response = response("a", &[1, 2], vec![reply.clone(), reply]);
    let turns = Turn::of(&chat(json!([{"role": "user"}])), response).unwrap();
    assert_eq!(turns[1].id, "a/1");
    let text = serde_json::to_string(&turns).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Turn>>(&text).unwrap(), turns);
    let torn = text.replacen("AQAAAAIAAAA=", "AQAAAAIA", 1);
    assert_ne!(torn, text);
    serde_json::from_str::<Vec<Turn>>(&torn).unwrap_err();
}
