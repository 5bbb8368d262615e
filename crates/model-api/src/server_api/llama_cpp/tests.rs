//! A scripted `llama-server` with the omissions of the real one.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::LlamaCppApi;
use crate::client_api::at_path;
use crate::model_call::{CallKind, ModelCall};
use crate::response::{ModelResponse, ResponseEnd};
use crate::server_api::{ResponseParseError, ServerApi as _, TokenSource};

const SOURCE: TokenSource = TokenSource { version: Some(3) };

fn chat(more: Value) -> ModelCall {
    let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let fields = more.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(fields);
    at_path(CallKind::Chat.path())
        .unwrap()
        .parse(body.to_string().as_bytes())
        .expect("a valid call")
}

/// Renders one-byte tokens as the server does: tokens inside a character are omitted. Returns text
/// and entries.
fn render_tokens(tokens: &[u8]) -> (String, Vec<Value>) {
    let mut entries = Vec::new();
    let mut sent = 0;
    for end in 1..=tokens.len() {
        if !is_incomplete(&tokens[..end]) {
            entries.push(json!({
                "id": tokens[end - 1],
                "logprob": -0.5 - f64::from(tokens[end - 1]),
                "bytes": &tokens[sent..end],
                "top_logprobs": [{ "id": 1, "logprob": -0.25 }],
            }));
            sent = end;
        }
    }
    (String::from_utf8_lossy(tokens).into_owned(), entries)
}

fn is_incomplete(bytes: &[u8]) -> bool {
    (1..=bytes.len().min(4)).any(|back| {
        let length = match bytes[bytes.len() - back] {
            0xC0..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF7 => 4,
            _ => 1,
        };
        back < length
    })
}

fn answer(choices: &[&[u8]], details: bool) -> Value {
    let list: Vec<Value> = choices
        .iter()
        .enumerate()
        .map(|(index, tokens)| {
            let (text, entries) = render_tokens(tokens);
            json!({
                "index": index,
                "finish_reason": "length",
                "message": { "role": "assistant", "content": text },
                "logprobs": { "content": entries },
            })
        })
        .collect();
    let first = choices[0];
    let mut body = json!({
        "id": "theirs", "model": "file.gguf", "object": "chat.completion", "choices": list,
        "usage": { "prompt_tokens": 2, "completion_tokens": first.len() },
    });
    if details {
        body["__verbose"] = json!({ "tokens": first, "stop_type": "limit" });
    }
    body
}

fn read(call: &ModelCall, body: &Value) -> (Vec<Value>, Result<ModelResponse, ResponseParseError>) {
    let mut parser = LlamaCppApi.response_parser(call, "ours", "policy");
    parser.set_prompt(vec![7, 8]);
    let parts =
        parser.parse_full(body.to_string().as_bytes(), SOURCE).expect("it can be passed on");
    let parts = parts.iter().map(|part| serde_json::from_slice(part).expect("JSON")).collect();
    (parts, parser.finish(ResponseEnd::Complete))
}

#[test]
fn a_response_is_recorded_and_the_client_gets_no_extra_fields() {
    let (parts, answer) = read(&chat(json!({})), &answer(&[b"abc"], true));
    let answer = answer.expect("it is whole");
    assert_eq!((answer.id.as_str(), answer.model.as_str()), ("ours", "policy"));
    assert_eq!(answer.prompt, Some(vec![7, 8]));
    let choice = &answer.choices[0];
    assert_eq!(choice.tokens, Some(vec![97, 98, 99]));
    assert_eq!(choice.logprobs, Some(vec![-97.5, -98.5, -99.5]));
    assert_eq!(choice.versions.iter().collect::<Vec<_>>(), [Some(3); 3]);
    assert_eq!(choice.reply["content"], "abc");
    let [shown] = parts.as_slice() else { panic!("{parts:?}") };
    assert_eq!((&shown["id"], &shown["model"]), (&json!("ours"), &json!("policy")));
    assert_eq!(shown["choices"][0]["logprobs"], Value::Null);
    assert_eq!(shown.get("__verbose"), None);
}

#[test]
fn a_client_gets_requested_log_probabilities_and_ids() {
    let call = chat(json!({ "logprobs": true, "return_token_ids": true }));
    let (parts, _) = read(&call, &answer(&[b"ab"], true));
    let choice = &parts[0]["choices"][0];
    assert_eq!(choice["logprobs"]["content"][1]["logprob"], -98.5);
    assert_eq!(choice["logprobs"]["content"][1]["top_logprobs"], json!([]));
    assert_eq!(choice["token_ids"], json!([97, 98]));
    assert_eq!(parts[0]["prompt_token_ids"], json!([7, 8]));
}

#[test]
fn a_stream_is_synthesized_from_a_full_response() {
    let call = chat(json!({ "stream": true, "stream_options": { "include_usage": true } }));
    assert!(!LlamaCppApi.upstream_body(&call, "m", "r").stream);
    let (parts, answer) = read(&call, &answer(&[b"abc"], true));
    let content: String =
        parts.iter().filter_map(|part| part["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(content, "abc");
    assert_eq!(parts.last().expect("events")["usage"]["completion_tokens"], 3);
    assert_eq!(answer.expect("it is whole").choices[0].tokens, Some(vec![97, 98, 99]));
}

#[test]
fn requests_ask_for_everything_that_recording_needs() {
    let call = chat(json!({ "top_logprobs": 5, "logprobs": true, "n_probs": 0, "seed": 1 }));
    let body = LlamaCppApi.upstream_body(&call, "file.gguf", "r").body;
    assert_eq!((&body["model"], &body["seed"]), (&json!("file.gguf"), &json!(1)));
    assert_eq!((&body["logprobs"], &body["top_logprobs"]), (&json!(true), &json!(5)));
    assert_eq!((&body["return_tokens"], &body["verbose"]), (&json!(true), &json!(true)));
    assert_eq!(body.get("n_probs"), None);
    assert_eq!(LlamaCppApi.upstream_body(&chat(json!({})), "m", "r").body["top_logprobs"], 1);
}

#[test]
fn a_stop_string_is_not_part_of_the_completion() {
    let mut body = answer(&[b"abc"], true);
    body["__verbose"] = json!({ "tokens": [97, 98, 99, 46, 46], "stop_type": "word" });
    body["usage"]["completion_tokens"] = json!(5);
    let (_, answer) = read(&chat(json!({ "stop": ".." })), &body);
    assert_eq!(answer.expect("its beginning").choices[0].tokens, Some(vec![97, 98, 99]));
    body["__verbose"]["stop_type"] = json!("eos");
    assert!(read(&chat(json!({})), &body).1.is_err());
}

#[test]
fn a_prompt_of_another_length_is_not_recorded() {
    let mut body = answer(&[b"abc"], true);
    body["usage"]["prompt_tokens"] = json!(77);
    let reason = read(&chat(json!({})), &body).1.expect_err("it differs").0;
    assert!(reason.contains("77 tokens"), "{reason}");
}

#[test]
fn a_log_probability_above_zero_is_not_recorded() {
    let mut body = answer(&[b"abc"], true);
    body["choices"][0]["logprobs"]["content"][1]["logprob"] = json!(0.5);
    let reason = read(&chat(json!({})), &body).1.expect_err("it is no probability").0;
    assert!(reason.contains("0.5, above 0"), "{reason}");
}

/// Mostly letters, and bytes that begin, continue or break characters.
fn token() -> impl Strategy<Value = u8> {
    prop_oneof![
        6 => 32..127_u8,
        1 => 0x80..0xC0_u8,
        1 => prop_oneof![Just(0xC3_u8), Just(0xE4), Just(0xF0)],
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A response is recorded with all of its tokens or not at all.
    #[test]
    fn nothing_misaligned_is_recorded(
        first in prop::collection::vec(token(), 1..12),
        second in prop::option::of(prop::collection::vec(token(), 1..12)),
        details in any::<bool>(),
    ) {
        let mut choices = vec![first.as_slice()];
        choices.extend(second.as_deref());
        let call = chat(json!({ "n": choices.len() }));
        let (_, outcome) = read(&call, &answer(&choices, details));
        let has_all_entries = |tokens: &&[u8]| render_tokens(tokens).1.len() == tokens.len();
        let all_entries = choices.iter().all(has_all_entries);
        match outcome {
            Ok(answer) => {
                prop_assert!(all_entries);
                for (choice, tokens) in answer.choices.iter().zip(&choices) {
                    let tokens = tokens.iter().map(|byte| i32::from(*byte)).collect();
                    prop_assert_eq!(&choice.tokens, &Some(tokens));
                }
            }
            // With a known count no valid response is refused.
            Err(reason) => prop_assert!(!all_entries || choices.len() > 1, "{}", reason),
        }
    }
}
