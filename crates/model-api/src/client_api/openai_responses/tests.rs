//! Translation of the Responses API: requests, responses, streams, errors.

use bytes::BytesMut;
use serde_json::{Value, json};

use super::*;
use crate::client_api::at_path;
use crate::error::ErrorKind;
use crate::sse::SseParser;

fn parse(body: &Value) -> Result<ModelCall, CallError> {
    at_path("/v1/responses").unwrap().parse(body.to_string().as_bytes())
}

#[test]
fn a_conversation_with_tools_becomes_a_chat() {
    let call = parse(&json!({
        "model": "policy",
        "instructions": "Be brief",
        "input": [
            { "role": "developer", "content": "Use tools" },
            { "type": "message", "role": "user",
              "content": [{ "type": "input_text", "text": "Look it up" }] },
            { "type": "reasoning", "id": "rs_1", "summary": [],
              "content": [{ "type": "reasoning_text", "text": "Hm." }] },
            { "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
              "content": [{ "type": "output_text", "text": "Well", "annotations": [] }] },
            { "type": "function_call", "id": "fc_1", "call_id": "call-1", "name": "look_up",
              "arguments": "{\"a\":1}" },
            { "type": "custom_tool_call", "call_id": "call-2", "name": "patch", "input": "+1" },
            { "type": "function_call_output", "call_id": "call-1", "output": "found" },
            { "type": "custom_tool_call_output", "call_id": "call-2",
              "output": [{ "type": "input_text", "text": "done" }] },
        ],
        "max_output_tokens": 8,
        "top_p": 0.9,
        "store": false,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "x",
        "tools": [
            { "type": "function", "name": "look_up", "parameters": { "type": "object" },
              "strict": false },
            { "type": "custom", "name": "patch", "description": "d", "format": {} },
            { "type": "web_search" },
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": true,
        "text": { "format": { "type": "json_schema", "name": "n", "schema": {}, "strict": true } },
    }))
    .unwrap();
    assert_eq!(call.text_tools, ["patch"]);
    let tool = |id: &str, name: &str, arguments: &str| {
        json!({ "id": id, "type": "function",
                "function": { "name": name, "arguments": arguments } })
    };
    let expected = json!({
        "model": "policy",
        "max_tokens": 8,
        "top_p": 0.9,
        "tools": [
            { "type": "function", "function": {
                "name": "look_up", "parameters": { "type": "object" } } },
            { "type": "function", "function": {
                "name": "patch", "description": "d", "parameters": {
                    "type": "object",
                    "properties": { "input": { "type": "string" } },
                    "required": ["input"],
                } } },
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": true,
        "response_format": { "type": "json_schema",
            "json_schema": { "name": "n", "schema": {}, "strict": true } },
        "messages": [
            { "role": "system", "content": "Be brief\n\nUse tools" },
            { "role": "user", "content": "Look it up" },
            { "role": "assistant", "content": "Well", "reasoning_content": "Hm.", "tool_calls": [
                tool("call-1", "look_up", "{\"a\":1}"),
                tool("call-2", "patch", "{\"input\": \"+1\"}"),
            ] },
            { "role": "tool", "tool_call_id": "call-1", "content": "found" },
            { "role": "tool", "tool_call_id": "call-2", "content": "done" },
        ],
    });
    assert_eq!(Value::Object(call.body), expected);
}

#[test]
fn invalid_requests_are_refused_by_field() {
    for (body, at) in [
        (json!({}), "input"),
        (json!({ "input": 7 }), "input"),
        (json!({ "input": [] }), "messages"),
        (json!({ "input": "Hi", "conversation": "conv_1" }), "conversation"),
        (json!({ "input": "Hi", "background": true }), "background"),
        (json!({ "input": "Hi", "max_output_tokens": 0 }), "max_output_tokens"),
        (json!({ "input": [{ "role": "robot", "content": "Hi" }] }), "input[0].role"),
        (json!({ "input": [{ "type": "image_generation_call" }] }), "input[0].type"),
        (json!({ "input": [{ "type": "function_call", "name": "f" }] }), "input[0].arguments"),
        (
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_file" }] }] }),
            "input[0].content[0].type",
        ),
        (json!({ "input": "Hi", "tools": [{ "type": "function" }] }), "tools[0].name"),
        (json!({ "input": "Hi", "text": { "format": { "type": "xml" } } }), "text.format.type"),
    ] {
        let error = parse(&body).expect_err(&body.to_string());
        assert_eq!(error.kind, ErrorKind::InvalidRequest, "{body}");
        assert_eq!(error.param.as_deref(), Some(at), "{body}: {error}");
    }
}

fn call_with_tools() -> ModelCall {
    parse(&json!({
        "model": "policy", "input": "Hi", "stream": true,
        "tools": [{ "type": "custom", "name": "patch" }],
    }))
    .unwrap()
}

#[test]
fn a_full_response_becomes_items() {
    let body = json!({
        "id": "resp-1", "created": 7, "model": "policy",
        "choices": [{ "index": 0, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": "Well", "reasoning_content": "Hm.", "tool_calls": [
                { "id": "a", "function": { "name": "look_up", "arguments": "{\"a\": 1}" } },
                { "id": "b", "function": { "name": "patch", "arguments": "{\"input\": \"+1\"}" } },
            ],
        } }],
        "usage": { "prompt_tokens": 5, "completion_tokens": 3 },
    });
    let body = OpenaiResponses.render_body(&call_with_tools(), body.to_string().into());
    let response: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&response["id"], &response["status"]), (&json!("resp-1"), &json!("completed")));
    assert_eq!(response["usage"]["total_tokens"], 8);
    assert_eq!(response["usage"]["input_tokens_details"]["cached_tokens"], 0);
    let output = response["output"].as_array().unwrap();
    let kinds: Vec<&Value> = output.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "custom_tool_call"]);
    assert_eq!(output[1]["content"][0]["text"], "Well");
    assert_eq!(
        (&output[2]["call_id"], &output[2]["arguments"]),
        (&json!("a"), &json!("{\"a\": 1}"))
    );
    assert_eq!((&output[3]["call_id"], &output[3]["input"]), (&json!("b"), &json!("+1")));

    let cut = json!({ "id": "resp-1", "choices": [{ "finish_reason": "length",
        "message": { "content": "Hi" } }] });
    let body = OpenaiResponses.render_body(&call_with_tools(), cut.to_string().into());
    let response: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
}

fn events_of(out: &BytesMut) -> Vec<Value> {
    let events = SseParser::default().feed(out, 1 << 20).unwrap();
    events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

#[test]
fn a_stream_has_its_events_in_order() {
    let mut renderer = OpenaiResponses.stream_renderer(&call_with_tools());
    let mut out = BytesMut::new();
    for choice in [
        json!({ "delta": { "role": "assistant", "content": "" } }),
        json!({ "delta": { "reasoning": "Hm." } }),
        json!({ "delta": { "content": "We" } }),
        json!({ "delta": { "content": "ll" } }),
        json!({ "delta": { "tool_calls": [{ "index": 0, "id": "a",
            "function": { "name": "look_up", "arguments": "{\"a\"" } }] } }),
        json!({ "delta": { "tool_calls": [{ "index": 0, "function": { "arguments": ":1}" } }] } }),
        json!({ "delta": { "tool_calls": [{ "index": 1, "id": "b",
            "function": { "name": "patch", "arguments": "{\"input\"" } }] } }),
        json!({ "delta": { "tool_calls": [{ "index": 1,
            "function": { "arguments": ":\"+1\"}" } }] } }),
        json!({ "delta": {}, "finish_reason": "tool_calls" }),
    ] {
        let event = json!({ "id": "resp-1", "created": 7, "model": "m", "choices": [choice] });
        renderer.event(event.to_string().as_bytes(), &mut out);
    }
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": 5, "completion_tokens": 3 } });
    renderer.event(usage.to_string().as_bytes(), &mut out);
    renderer.finish(&mut out);
    let events = events_of(&out);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    let response = &events.last().unwrap()["response"];
    let output = response["output"].as_array().unwrap();
    assert_eq!(output.len(), 4);
    for (index, item) in output.iter().enumerate() {
        let done = |event: &&Value| {
            event["type"] == "response.output_item.done" && event["output_index"] == index
        };
        assert_eq!(&events.iter().find(done).unwrap()["item"], item);
    }
    assert_eq!(output[2]["arguments"], "{\"a\":1}");
    assert_eq!(output[3]["input"], "+1");
    assert_eq!(response["usage"]["total_tokens"], 8);
}

#[test]
fn an_error_ends_a_stream_with_a_failed_response() {
    let mut renderer = OpenaiResponses.stream_renderer(&call_with_tools());
    let error = renderer.error(&CallError::new(ErrorKind::Upstream, "broke off"));
    let events = events_of(&BytesMut::from(&error[..]));
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["error"]["message"], "broke off");
}
