//! Translation of the Messages API: requests, responses, streams, errors.

use bytes::BytesMut;
use serde_json::{Value, json};

use super::*;
use crate::client_api::at_path;
use crate::error::ErrorKind;
use crate::sse::SseParser;

fn parse(body: &Value) -> Result<ModelCall, CallError> {
    at_path("/v1/messages").unwrap().parse(body.to_string().as_bytes())
}

fn request(messages: Value) -> Value {
    json!({ "model": "policy", "max_tokens": 8, "messages": messages })
}

#[test]
fn a_conversation_with_tools_becomes_a_chat() {
    let mut body = request(json!([
        { "role": "user", "content": [
            { "type": "text", "text": "Look", "cache_control": { "type": "ephemeral" } },
            { "type": "text", "text": "it up" },
        ] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "Hm.", "signature": "" },
            { "type": "text", "text": "Well" },
            { "type": "tool_use", "id": "call-1", "name": "look_up", "input": { "a": [1, 2] } },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "call-1", "content": [
                { "type": "text", "text": "found" },
            ] },
            { "type": "text", "text": "Go on" },
        ] },
    ]));
    body["system"] = json!([{ "type": "text", "text": "Be brief" }]);
    body["stop_sequences"] = json!(["END"]);
    body["temperature"] = json!(0.5);
    body["thinking"] = json!({ "type": "adaptive" });
    body["stream"] = json!(true);
    body["tools"] = json!([
        { "name": "look_up", "description": "d", "input_schema": { "type": "object" } },
        { "type": "web_search_20250305", "name": "web_search" },
    ]);
    body["tool_choice"] = json!({ "type": "any", "disable_parallel_tool_use": true });
    let call = parse(&body).unwrap();
    assert!(call.stream && call.choices == 1 && call.wants_usage());
    let expected = json!({
        "model": "policy",
        "max_tokens": 8,
        "temperature": 0.5,
        "stop": ["END"],
        "stream": true,
        "stream_options": { "include_usage": true },
        "tools": [{ "type": "function", "function": {
            "name": "look_up", "description": "d", "parameters": { "type": "object" },
        } }],
        "tool_choice": "required",
        "parallel_tool_calls": false,
        "messages": [
            { "role": "system", "content": "Be brief" },
            { "role": "user", "content": "Look\nit up" },
            { "role": "assistant", "content": "Well", "reasoning_content": "Hm.", "tool_calls": [
                { "id": "call-1", "type": "function", "function": {
                    "name": "look_up", "arguments": "{\"a\": [1, 2]}",
                } },
            ] },
            { "role": "tool", "tool_call_id": "call-1", "content": "found" },
            { "role": "user", "content": "Go on" },
        ],
    });
    assert_eq!(Value::Object(call.body), expected);
}

#[test]
fn images_become_content_parts() {
    let source = json!({ "type": "base64", "media_type": "image/png", "data": "QQ==" });
    let image = json!({ "type": "image", "source": source });
    let body = request(json!([{ "role": "user", "content": [
        { "type": "tool_result", "tool_use_id": "1", "content": [image] },
        { "type": "text", "text": "Hi" },
    ] }]));
    let call = parse(&body).unwrap();
    assert_eq!(
        call.body["messages"],
        json!([
            { "role": "tool", "tool_call_id": "1", "content": "" },
            { "role": "user", "content": [
                { "type": "image_url", "image_url": { "url": "data:image/png;base64,QQ==" } },
                { "type": "text", "text": "Hi" },
            ] },
        ])
    );
}

#[test]
fn invalid_requests_are_refused_by_field() {
    let user = |content: Value| request(json!([{ "role": "user", "content": content }]));
    for (body, at) in [
        (json!({ "messages": [{ "role": "user", "content": "Hi" }] }), "max_tokens"),
        (json!({ "max_tokens": 0, "messages": [] }), "max_tokens"),
        (request(json!([])), "messages"),
        (request(json!("Hi")), "messages"),
        (request(json!([{ "content": "Hi" }])), "messages[0].role"),
        (request(json!([{ "role": "tool", "content": "Hi" }])), "messages[0].role"),
        (request(json!([{ "role": "assistant", "content": "Hi" }])), "messages"),
        (user(json!(7)), "messages[0].content"),
        (user(json!([{ "text": "Hi" }])), "messages[0].content[0].type"),
        (user(json!([{ "type": "document" }])), "messages[0].content[0].type"),
        (user(json!([{ "type": "text" }])), "messages[0].content[0].text"),
        (user(json!([{ "type": "image" }])), "messages[0].content[0].source.type"),
    ] {
        let error = parse(&body).expect_err(&body.to_string());
        assert_eq!(error.kind, ErrorKind::InvalidRequest, "{body}");
        assert_eq!(error.param.as_deref(), Some(at), "{body}: {error}");
    }
}

#[test]
fn a_full_response_becomes_a_message() {
    let call = parse(&request(json!([{ "role": "user", "content": "Hi" }]))).unwrap();
    let render = |choice: Value| -> Value {
        let body = json!({
            "id": "msg-1", "object": "chat.completion", "created": 7, "model": "policy",
            "choices": [choice], "usage": { "prompt_tokens": 5, "completion_tokens": 3 },
        });
        let body = AnthropicMessages.render_body(&call, body.to_string().into());
        serde_json::from_slice(&body).unwrap()
    };
    let message = render(json!({ "index": 0, "finish_reason": "stop", "message": {
        "role": "assistant", "content": "Well", "reasoning": "Hm.", "tool_calls": [
            { "id": "call-1", "type": "function",
              "function": { "name": "look_up", "arguments": "{\"a\": 1}" } },
        ],
    } }));
    assert_eq!((&message["id"], &message["type"]), (&json!("msg-1"), &json!("message")));
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(message["usage"]["input_tokens"], 5);
    assert_eq!(message["usage"]["output_tokens"], 3);
    assert_eq!(
        message["content"],
        json!([
            { "type": "thinking", "thinking": "Hm.", "signature": "" },
            { "type": "text", "text": "Well" },
            { "type": "tool_use", "id": "call-1", "name": "look_up", "input": { "a": 1 } },
        ])
    );
    for (finish, stop, reason, sequence) in [
        ("stop", Value::Null, "end_turn", Value::Null),
        ("stop", json!("END"), "stop_sequence", json!("END")),
        ("length", Value::Null, "max_tokens", Value::Null),
        ("content_filter", Value::Null, "refusal", Value::Null),
    ] {
        let message = render(json!({
            "index": 0, "finish_reason": finish, "stop_reason": stop,
            "message": { "role": "assistant", "content": "Hi" },
        }));
        assert_eq!(
            (&message["stop_reason"], &message["stop_sequence"]),
            (&json!(reason), &sequence)
        );
    }
}

fn streamed(deltas: &[Value]) -> Vec<Value> {
    let call = parse(&request(json!([{ "role": "user", "content": "Hi" }]))).unwrap();
    let mut renderer = AnthropicMessages.stream_renderer(&call);
    let mut out = BytesMut::new();
    let head = json!({ "id": "msg-1", "created": 7, "model": "policy" });
    let mut event = |more: Value| {
        let mut event = head.clone();
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        renderer.event(event.to_string().as_bytes(), &mut out);
    };
    for delta in deltas {
        event(json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] }));
    }
    event(json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] }));
    event(json!({ "choices": [], "usage": { "prompt_tokens": 5, "completion_tokens": 3 } }));
    renderer.finish(&mut out);
    let events = SseParser::default().feed(&out, 1 << 20).unwrap();
    events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

#[test]
fn a_stream_has_its_blocks_in_order() {
    let events = streamed(&[
        json!({ "role": "assistant", "content": "" }),
        json!({ "reasoning_content": "Hm." }),
        json!({ "content": "We" }),
        json!({ "content": "ll" }),
        json!({ "tool_calls": [{ "index": 0, "id": "a", "type": "function",
            "function": { "name": "look_up", "arguments": "" } }] }),
        json!({ "tool_calls": [{ "index": 0, "function": { "arguments": "{\"a\"" } }] }),
        json!({ "tool_calls": [{ "index": 0, "function": { "arguments": ": 1}" } }] }),
        json!({ "tool_calls": [{ "index": 1, "id": "b", "type": "function",
            "function": { "name": "look_up", "arguments": "{}" } }] }),
    ]);
    let kinds: Vec<String> = events
        .iter()
        .map(|event| {
            let kind = event["type"].as_str().unwrap();
            match event["index"].as_u64() {
                Some(index) => format!("{kind} {index}"),
                None => kind.to_owned(),
            }
        })
        .collect();
    assert_eq!(
        kinds,
        [
            "message_start",
            "content_block_start 0",
            "content_block_delta 0",
            "content_block_stop 0",
            "content_block_start 1",
            "content_block_delta 1",
            "content_block_delta 1",
            "content_block_stop 1",
            "content_block_start 2",
            "content_block_delta 2",
            "content_block_delta 2",
            "content_block_stop 2",
            "content_block_start 3",
            "content_block_delta 3",
            "content_block_stop 3",
            "message_delta",
            "message_stop",
        ]
    );
    assert_eq!(events[0]["message"]["id"], "msg-1");
    assert_eq!(events[1]["content_block"]["type"], "thinking");
    assert_eq!(events[8]["content_block"]["id"], "a");
    let end = &events[15];
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
    assert_eq!(end["usage"]["input_tokens"], 5);
    assert_eq!(end["usage"]["output_tokens"], 3);
}

#[test]
fn an_empty_stream_is_complete() {
    let kinds: Vec<Value> = streamed(&[]).iter().map(|event| event["type"].clone()).collect();
    assert_eq!(kinds, ["message_start", "message_delta", "message_stop"]);
}

#[test]
fn errors_have_the_form_of_the_api() {
    let error = CallError::new(ErrorKind::Unavailable, "no server");
    let body: Value = serde_json::from_slice(&AnthropicMessages.render_error(&error)).unwrap();
    let expected =
        json!({ "type": "error", "error": { "type": "overloaded_error", "message": "no server" } });
    assert_eq!(body, expected);
    let theirs = json!({ "error": { "message": "too long", "code": 400 } }).to_string();
    let body = AnthropicMessages.render_server_error(400, theirs.into());
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["error"], json!({ "type": "invalid_request_error", "message": "too long" }));
    let call = parse(&request(json!([{ "role": "user", "content": "Hi" }]))).unwrap();
    let event = AnthropicMessages.stream_renderer(&call).error(&error);
    assert!(event.starts_with(b"event: error\ndata: {"));
}
