//! Single responses in the form of the servers.

use rollway_base::ServerKind;
use serde_json::{Value, json};

use super::{NOW, call, parser_of};
use crate::model_call::{CallKind, ModelCall};
use crate::response::{ModelResponse, ResponseEnd};
use crate::server_api::{ResponseParseError, TokenSource, server_api};

/// Parses events of vLLM, each at a version of the weights.
fn parse_events(
    call: &ModelCall,
    events: &[(Value, Option<u64>)],
    end: ResponseEnd,
) -> Result<ModelResponse, ResponseParseError> {
    let mut parser = parser_of(ServerKind::Vllm, call);
    for (event, version) in events {
        parser.parse_event(&event.to_string(), TokenSource { version: *version })?;
    }
    parser.finish(end)
}

/// A chunk of a chat, with a log-probability of minus its id for each token.
fn piece(tokens: &[i32], finish_reason: Option<&str>) -> Value {
    let logprob = |id: &i32| json!({ "token": "x", "logprob": -id });
    let logprobs: Vec<Value> = tokens.iter().map(logprob).collect();
    json!({ "id": "x", "choices": [{
        "index": 0, "delta": { "content": "x" }, "logprobs": { "content": logprobs },
        "token_ids": tokens, "finish_reason": finish_reason,
    }]})
}

fn streamed() -> ModelCall {
    call(CallKind::Chat, json!({ "stream": true }))
}

#[test]
fn requests_add_only_the_fields_that_recording_needs() {
    let sent = |engine: ServerKind, call: &ModelCall| {
        let outgoing = server_api(engine).upstream_body(call, "theirs", "request-1");
        assert_eq!(outgoing.path, call.kind.path());
        outgoing.body
    };
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let options = json!({ "continuous_usage_stats": false });
    let chat = call(
        CallKind::Chat,
        json!({ "model": "ours", "stream": true, "stream_options": options, "seed": 1 }),
    );
    assert_eq!(
        sent(ServerKind::Vllm, &chat),
        json!({
            "model": "theirs", "messages": messages, "seed": 1, "stream": true,
            "stream_options": { "continuous_usage_stats": false, "include_usage": true },
            "logprobs": true, "top_logprobs": 0, "return_token_ids": true,
            "request_id": "request-1",
        })
    );
    assert_eq!(
        sent(ServerKind::Sglang, &chat),
        json!({
            "model": "theirs", "messages": messages, "seed": 1, "stream": false, "logprobs": true,
            "top_logprobs": 0, "return_meta_info": true, "return_prompt_token_ids": true,
            "rid": "request-1",
        })
    );
    let text = call(CallKind::Completion, json!({ "logprobs": null, "stop": ["."] }));
    assert_eq!(
        sent(ServerKind::Vllm, &text),
        json!({
            "model": "theirs", "prompt": "Hi", "stop": ["."], "logprobs": 0,
            "return_token_ids": true, "request_id": "request-1",
        })
    );
    let text = call(CallKind::Completion, json!({ "logprobs": 5, "stream": true }));
    assert_eq!(
        sent(ServerKind::Sglang, &text),
        json!({
            "model": "theirs", "prompt": "Hi", "logprobs": 5, "stream": true,
            "stream_options": { "include_usage": true }, "return_token_ids": true,
            "rid": "request-1",
        })
    );
    let abort =
        |engine: ServerKind, kind| server_api(engine).abort_body(kind, "request-1").unwrap().body;
    let ids = json!({ "request_ids": ["chatcmpl-request-1", "generate-tokens-request-1"] });
    assert_eq!(abort(ServerKind::Vllm, CallKind::Chat), ids);
    let ids = json!({ "request_ids": ["cmpl-request-1-0"] });
    assert_eq!(abort(ServerKind::Vllm, CallKind::Completion), ids);
    assert_eq!(abort(ServerKind::Sglang, CallKind::Chat), json!({ "rid": "request-1" }));
    assert_eq!(server_api(ServerKind::Openai).abort_body(CallKind::Chat, "request-1"), None);
}

#[test]
fn tokens_have_the_current_version_if_the_server_reports_none() {
    let events = [
        (piece(&[1, 2], None), Some(4)),
        (piece(&[3], None), None),
        (piece(&[4], Some("stop")), Some(5)),
    ];
    let response = parse_events(&streamed(), &events, ResponseEnd::Complete).unwrap();
    let versions: Vec<Option<u64>> = response.choices[0].versions.iter().collect();
    assert_eq!(versions, [Some(4), Some(4), None, Some(5)]);
    assert_eq!(response.choices[0].logprobs, Some(vec![-1.0, -2.0, -3.0, -4.0]));
}

#[test]
fn versions_of_the_server_take_precedence() {
    let versions = |reported: Value| {
        let mut last = piece(&[3], Some("stop"));
        last["choices"][0]["weight_versions"] = reported;
        let events = [(piece(&[1, 2], None), Some(4)), (last, Some(5))];
        let response = parse_events(&streamed(), &events, ResponseEnd::Complete)?;
        Ok::<_, ResponseParseError>(response.choices[0].versions.iter().collect::<Vec<_>>())
    };
    let span = |version: &str, start: u32, end: u32| {
        let mut span = json!({ "start": start, "end": end });
        span["version"] = version.into();
        span
    };
    assert_eq!(
        versions(json!([span("v7", 0, 1), span("8", 1, 3)])),
        Ok(vec![Some(7), Some(8), Some(8)])
    );
    // Names of others are unknown versions; the default name is the current version.
    assert_eq!(versions(json!([span("lora", 0, 3)])), Ok(vec![None; 3]));
    assert_eq!(versions(json!([span("default", 0, 3)])), Ok(vec![Some(5); 3]));
    // Of tokens that it leaves out in the middle nothing is known; the rest is not reported yet.
    assert_eq!(versions(json!([span("6", 1, 2)])), Ok(vec![None, Some(6), Some(5)]));
    assert_eq!(versions(json!([span("+6", 0, 9)])), Ok(vec![None; 3]));
    assert_eq!(versions(json!([])), Ok(vec![Some(4), Some(4), Some(5)]));
    assert!(versions(json!([span("6", 0, 2), span("7", 1, 3)])).is_err());
    assert!(versions(json!([span("99999999999999999999", 0, 3)])).is_ok());
}

#[test]
fn inconsistent_responses_are_refused() {
    let refused = |events: &[Value], reason: &str| {
        let events: Vec<(Value, Option<u64>)> =
            events.iter().map(|event| (event.clone(), Some(1))).collect();
        let error = parse_events(&streamed(), &events, ResponseEnd::Complete).unwrap_err();
        assert!(error.0.contains(reason), "{error}");
    };
    let usage = |tokens: u64| json!({ "choices": [], "usage": { "completion_tokens": tokens } });
    refused(&[piece(&[1], None)], "without a finish reason");
    refused(&[], "without a finish reason");
    refused(&[piece(&[1, 2], Some("stop")), usage(3)], "counted 3 tokens, but returned 2");
    refused(&[piece(&[1], Some("stop")), piece(&[2], None)], "after the finish reason");
    let mut short = piece(&[1, 2], Some("stop"));
    short["choices"][0]["token_ids"] = json!([1]);
    refused(&[short], "1 tokens came with 2 log-probabilities");
    let mut other = piece(&[1], Some("stop"));
    other["choices"][0]["index"] = 1.into();
    refused(&[other], "choice 1");
    let mut missing = piece(&[1], Some("stop"));
    missing["choices"][0]["logprobs"]["content"][0]["logprob"] = Value::Null;
    refused(&[missing], "log-probability is missing");
    let mut above = piece(&[1], Some("stop"));
    above["choices"][0]["logprobs"]["content"][0]["logprob"] = 0.5.into();
    refused(&[above], "a log-probability is 0.5, above 0");
    let mut huge = piece(&[1], Some("stop"));
    huge["choices"][0]["token_ids"] = json!([3_000_000_000_u32]);
    refused(&[huge], "token_ids");
    refused(&[piece(&[-1], Some("stop"))], "negative");
    let mut first = piece(&[1], None);
    first["prompt_token_ids"] = json!([1]);
    let mut second = piece(&[2], Some("stop"));
    second["prompt_token_ids"] = json!([2]);
    refused(&[first, second], "two different prompts");
}

#[test]
fn responses_that_cannot_be_recorded_are_forwarded() {
    let mut parser = parser_of(ServerKind::Vllm, &streamed());
    let mut bad = piece(&[1], Some("stop"));
    bad["choices"][0]["token_ids"] = "nonsense".into();
    let got = parser.parse_event(&bad.to_string(), NOW).unwrap();
    let got: Value = serde_json::from_slice(&got[0]).unwrap();
    assert_eq!(got["choices"][0]["delta"]["content"], "x");
    assert_eq!(got["choices"][0]["finish_reason"], "stop");
    assert!(parser.finish(ResponseEnd::Complete).is_err());
}

#[test]
fn a_response_without_token_ids_has_no_tokens() {
    let mut old = piece(&[1], Some("stop"));
    old["choices"][0].as_object_mut().unwrap().remove("token_ids");
    let usage = json!({ "choices": [], "usage": { "completion_tokens": 1 } });
    let response =
        parse_events(&streamed(), &[(old, Some(1)), (usage, Some(1))], ResponseEnd::Complete)
            .unwrap();
    assert_eq!(response.prompt, None);
    assert_eq!(response.choices[0].tokens, None);
    assert_eq!(response.choices[0].logprobs, None);
    assert_eq!(response.choices[0].versions.tokens(), 0);
    assert_eq!(response.choices[0].reply, json!({ "role": "assistant", "content": "x" }));
}

#[test]
fn errors_of_the_server_differ_from_invalid_responses() {
    let mut parser = parser_of(ServerKind::Vllm, &streamed());
    parser.parse_event(&piece(&[1], None).to_string(), NOW).unwrap();
    let error = json!({ "error": { "message": "out of memory", "code": 500 } }).to_string();
    let error_of_parser = parser.parse_event(&error, NOW).unwrap_err();
    assert_eq!(error_of_parser.0, "the server failed: out of memory");
    assert_eq!(parser.server_error(), Some(error.as_str()));
    let error = json!({ "object": "error", "message": "too long" }).to_string();
    let error_of_parser = parser.parse_event(&error, NOW).unwrap_err();
    assert_eq!(error_of_parser.0, "the server failed: too long");
    assert_eq!(parser.server_error(), Some(error.as_str()));
    let mut parser = parser_of(ServerKind::Vllm, &streamed());
    for invalid in ["", "<html>", "[]", "7", "{\"choices\":7}", "{\"choices\":[7]}"] {
        let error_of_parser = parser.parse_event(invalid, NOW).unwrap_err();
        assert!(error_of_parser.0.contains("invalid response of the server"), "{error_of_parser}");
    }
    assert!(parser.parse_full(b"{}", NOW).is_err());
    assert!(parser.parse_full(b"\xff", NOW).is_err());
    assert_eq!(parser.server_error(), None);
}

#[test]
fn unknown_fields_are_forwarded_unchanged() {
    let mut parser = parser_of(ServerKind::Vllm, &streamed());
    let event = concat!(
        r#"{"z":1.0,"id":"x","model":"y","new":{"b":[1e2, 2]},"choices":[{"index":0,"delta":"#,
        r#"{"content":"\u00e9","novel":{"a":1}},"finish_reason":null,"logprobs":null}],"a":0}"#
    );
    let got = parser.parse_event(event, NOW).unwrap();
    let wanted = event.replace("\"x\"", "\"turn-1\"").replace("\"y\"", "\"ours\"");
    assert_eq!(str::from_utf8(&got[0]).unwrap(), wanted);
    let alive = r#"{"type": "ping"}"#;
    assert_eq!(parser.parse_event(alive, NOW).unwrap(), [alive]);
    let response = parser.finish(ResponseEnd::Aborted).unwrap();
    let reply = json!({ "role": "assistant", "content": "é", "novel": { "a": 1 } });
    assert_eq!(response.choices[0].reply, reply);
}

#[test]
fn an_aborted_response_keeps_only_tokens_with_log_probabilities() {
    let call = call(CallKind::Completion, json!({ "stream": true }));
    let mut parser = parser_of(ServerKind::Sglang, &call);
    let event = json!({ "choices": [{
        "index": 0, "text": "ab", "token_ids": [1, 2], "prompt_token_ids": [9],
        "logprobs": { "token_logprobs": [-0.5] }, "finish_reason": null,
    }]});
    parser.parse_event(&event.to_string(), NOW).unwrap();
    let response = parser.finish(ResponseEnd::Aborted).unwrap();
    assert_eq!(response.prompt, Some(vec![9]));
    assert_eq!(response.choices[0].tokens, Some(vec![1]));
    assert_eq!(response.choices[0].logprobs, Some(vec![-0.5]));
    assert_eq!(response.choices[0].versions.tokens(), 1);
    assert_eq!(response.choices[0].reply, "ab");
}

#[test]
fn the_last_version_labels_all_tokens_only_if_it_never_changed() {
    let versions = |kind: CallKind, reported: Value, version: Option<u64>| {
        let call = call(kind, json!({}));
        let mut choice = json!({ "index": 0, "finish_reason": "stop" });
        let mut response = json!({ "metadata": reported });
        if kind == CallKind::Chat {
            choice["meta_info"] = reported;
            choice["meta_info"]["output_token_logprobs"] = json!([[-1.0, 5, "x"], [-2.0, 6, null]]);
        } else {
            choice["token_ids"] = json!([5, 6]);
            choice["logprobs"] = json!({ "token_logprobs": [-1.0, -2.0] });
        }
        response["choices"] = json!([choice]);
        let mut parser = parser_of(ServerKind::Sglang, &call);
        parser.parse_full(response.to_string().as_bytes(), TokenSource { version }).unwrap();
        let response = parser.finish(ResponseEnd::Complete).unwrap();
        assert_eq!(response.choices[0].tokens, Some(vec![5, 6]));
        response.choices[0].versions.iter().collect::<Vec<_>>()
    };
    for kind in [CallKind::Chat, CallKind::Completion] {
        let last = json!({ "weight_version": "7" });
        assert_eq!(versions(kind, last.clone(), Some(7)), [Some(7); 2]);
        assert_eq!(versions(kind, last.clone(), Some(6)), [None; 2]);
        assert_eq!(versions(kind, last, None), [None; 2]);
        assert_eq!(versions(kind, json!({ "weight_version": "default" }), Some(0)), [Some(0); 2]);
        let spans = json!([
            { "version": "6", "start": 0, "end": 1 }, { "version": "7", "start": 1, "end": 2 },
        ]);
        let reported = json!({ "weight_version": "7", "weight_versions": spans });
        assert_eq!(versions(kind, reported, None), [Some(6), Some(7)]);
    }
}
