//! Scripted servers: each kind in its own form, with the requested extensions only.

use proptest::prelude::*;
use rollway_base::ServerKind;
use serde_json::{Value, json};

use crate::model_call::CallKind;

#[derive(Clone, Debug)]
pub(super) struct ScriptedResponse {
    pub(super) prompt: Vec<i32>,
    pub(super) choices: Vec<ScriptedChoice>,
}

#[derive(Clone, Debug)]
pub(super) struct ScriptedChoice {
    pieces: Vec<Piece>,
    pub(super) finish_reason: &'static str,
    /// Token from which on the weights were newer. `None`: no versions reported.
    updated: Option<usize>,
}

#[derive(Clone, Debug)]
struct Piece {
    tokens: Vec<(i32, f32)>,
    text: PieceText,
}

#[derive(Clone, Debug)]
enum PieceText {
    Nothing,
    Content(String),
    Reasoning(String),
    Arguments(usize, String),
}

impl ScriptedChoice {
    pub(super) fn tokens(&self) -> Vec<(i32, f32)> {
        self.pieces.iter().flat_map(|piece| piece.tokens.clone()).collect()
    }

    pub(super) fn version(&self, token: usize) -> Option<u64> {
        self.updated.map(|updated| if token < updated { 1 } else { 2 })
    }

    fn spans(&self) -> Option<Value> {
        let tokens = self.tokens().len();
        let updated = self.updated?.min(tokens);
        let mut spans = vec![json!({ "version": "v1", "start": 0, "end": updated })];
        if updated < tokens {
            spans.push(json!({ "version": "2", "start": updated, "end": tokens }));
        }
        Some(spans.into())
    }

    pub(super) fn reply(&self, kind: CallKind) -> Value {
        let (mut content, mut reasoning) = (String::new(), String::new());
        let mut calls: Vec<Option<String>> = vec![None, None];
        for piece in &self.pieces {
            match (&piece.text, kind) {
                (PieceText::Content(text), _)
                | (PieceText::Reasoning(text), CallKind::Completion) => {
                    content.push_str(text);
                }
                (PieceText::Reasoning(text), CallKind::Chat) => reasoning.push_str(text),
                (PieceText::Arguments(tool, text), CallKind::Chat) => {
                    calls[*tool].get_or_insert_default().push_str(text);
                }
                _ => {}
            }
        }
        if kind == CallKind::Completion {
            return content.into();
        }
        let mut message = json!({ "role": "assistant", "content": content });
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        let calls: Vec<Value> =
            (0..2).filter_map(|tool| Some(call(tool, calls[tool].as_ref()?))).collect();
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        message
    }
}

fn call(tool: usize, arguments: &str) -> Value {
    let function = json!({ "name": format!("tool{tool}"), "arguments": arguments });
    json!({ "id": format!("call-{tool}"), "type": "function", "function": function })
}

pub(super) fn scripted_response() -> impl Strategy<Value = ScriptedResponse> {
    let text = || "[a-c \"\\\\\n€😀]{1,4}";
    let text = prop_oneof![
        2 => Just(PieceText::Nothing),
        4 => text().prop_map(PieceText::Content),
        2 => text().prop_map(PieceText::Reasoning),
        2 => (0..2_usize, text()).prop_map(|(tool, text)| PieceText::Arguments(tool, text)),
    ];
    let token = (0..200_000, -9999_i16..=0).prop_map(|(id, log)| (id, f32::from(log) / 1024.0));
    let piece = (prop::collection::vec(token, 0..4), text)
        .prop_map(|(tokens, text)| Piece { tokens, text });
    let reason = prop_oneof![Just("stop"), Just("length"), Just("tool_calls"), Just("abort")];
    let choice =
        (prop::collection::vec(piece, 1..6), reason, prop::option::of(0..8_usize)).prop_map(
            |(pieces, finish_reason, updated)| ScriptedChoice { pieces, finish_reason, updated },
        );
    (prop::collection::vec(0..200_000, 1..6), prop::collection::vec(choice, 1..4))
        .prop_map(|(prompt, choices)| ScriptedResponse { prompt, choices })
}

struct ScriptedRequest {
    kind: CallKind,
    is_sglang: bool,
    ids: bool,
    logprobs: bool,
    usage: bool,
    meta_info: bool,
    prompt_ids: bool,
}

/// Returns the events of a stream, or the one body.
pub(super) fn answer(
    engine: ServerKind,
    kind: CallKind,
    body: &Value,
    script: &ScriptedResponse,
) -> Vec<Value> {
    let request = ScriptedRequest {
        kind,
        is_sglang: engine == ServerKind::Sglang,
        ids: body["return_token_ids"] == true,
        logprobs: body["logprobs"] == true || body["logprobs"].is_number(),
        usage: body["stream_options"]["include_usage"] == true,
        meta_info: body["return_meta_info"] == true,
        prompt_ids: body["return_prompt_token_ids"] == true,
    };
    if body["stream"] == true { stream(&request, script) } else { vec![full(&request, script)] }
}

fn envelope(kind: CallKind, object: &str, choices: Value) -> Value {
    let object = if kind == CallKind::Chat { object } else { "text_completion" };
    json!({
        "id": "theirs-1", "object": object, "created": 17, "model": "theirs", "choices": choices,
    })
}

fn usage(script: &ScriptedResponse) -> Value {
    let tokens: usize = script.choices.iter().map(|choice| choice.tokens().len()).sum();
    let prompt = script.prompt.len();
    json!({
        "prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens,
    })
}

fn ids(tokens: &[(i32, f32)]) -> Value {
    tokens.iter().map(|token| token.0).collect()
}

fn logprobs(kind: CallKind, tokens: &[(i32, f32)]) -> Value {
    let all: Vec<f32> = tokens.iter().map(|token| token.1).collect();
    match kind {
        CallKind::Chat => {
            let entry = |log: &f32| json!({ "token": "x", "logprob": log, "top_logprobs": [] });
            json!({ "content": all.iter().map(entry).collect::<Vec<_>>() })
        }
        CallKind::Completion => json!({ "token_logprobs": all, "tokens": vec!["x"; all.len()] }),
    }
}

/// Interleaves the chunks of all choices.
fn stream(request: &ScriptedRequest, script: &ScriptedResponse) -> Vec<Value> {
    let object = "chat.completion.chunk";
    let mut events = Vec::new();
    if request.kind == CallKind::Chat {
        for index in 0..script.choices.len() {
            let delta = json!({ "role": "assistant", "content": "" });
            let choice = json!({
                "index": index, "delta": delta, "logprobs": null, "finish_reason": null,
            });
            let mut event = envelope(request.kind, object, json!([choice]));
            event["prompt_token_ids"] = json!(request.ids.then_some(&script.prompt));
            events.push(event);
        }
    }
    for number in 0..6 {
        for (index, choice) in script.choices.iter().enumerate() {
            if number < choice.pieces.len()
                && let Some(choice) = chunk(request, script, index, number)
            {
                let mut event = envelope(request.kind, object, json!([choice]));
                if request.is_sglang {
                    event["usage"] = Value::Null;
                }
                events.push(event);
            }
        }
    }
    if request.usage {
        let mut event = envelope(request.kind, object, json!([]));
        event["usage"] = usage(script);
        events.push(event);
    }
    events
}

fn text_of(text: &PieceText) -> &str {
    match text {
        PieceText::Content(text) | PieceText::Reasoning(text) => text,
        PieceText::Nothing | PieceText::Arguments(..) => "",
    }
}

fn delta_of(choice: &ScriptedChoice, number: usize) -> Value {
    match &choice.pieces[number].text {
        PieceText::Nothing => json!({}),
        PieceText::Content(text) => json!({ "content": text }),
        PieceText::Reasoning(text) => json!({ "reasoning_content": text }),
        PieceText::Arguments(tool, text) => {
            let earlier = choice.pieces[..number].iter();
            let begun = earlier.filter(
                |piece| matches!(&piece.text, PieceText::Arguments(other, _) if other == tool),
            );
            let mut piece = call(*tool, text);
            if begun.count() > 0 {
                piece = json!({ "function": { "arguments": text } });
            }
            piece["index"] = (*tool).into();
            json!({ "tool_calls": [piece] })
        }
    }
}

/// Unrequested fields are null at vLLM and absent at SGLang.
fn chunk(
    request: &ScriptedRequest,
    script: &ScriptedResponse,
    index: usize,
    number: usize,
) -> Option<Value> {
    let choice = &script.choices[index];
    let piece = &choice.pieces[number];
    let is_last = number + 1 == choice.pieces.len();
    let mut body = json!({ "index": index, "logprobs": null, "finish_reason": null });
    if request.ids || !request.is_sglang {
        body["token_ids"] = json!(request.ids.then(|| ids(&piece.tokens)));
    }
    if request.logprobs && !(request.is_sglang && piece.tokens.is_empty()) {
        body["logprobs"] = logprobs(request.kind, &piece.tokens);
    }
    if request.kind == CallKind::Chat {
        body["delta"] = delta_of(choice, number);
        if body["delta"] == json!({}) && !is_last && !request.ids && !request.logprobs {
            return None;
        }
    } else {
        body["text"] = text_of(&piece.text).into();
        let has_prompt = request.ids && number == 0;
        if has_prompt || !request.is_sglang {
            body["prompt_token_ids"] = json!(has_prompt.then_some(&script.prompt));
        }
    }
    if is_last {
        body["finish_reason"] = choice.finish_reason.into();
    }
    if request.is_sglang {
        body["matched_stop"] = Value::Null;
    } else if is_last {
        body["stop_reason"] = Value::Null;
        if let Some(spans) = choice.spans() {
            body["weight_versions"] = spans;
        }
    }
    Some(body)
}

fn full(request: &ScriptedRequest, script: &ScriptedResponse) -> Value {
    let is_chat = request.kind == CallKind::Chat;
    let prompt = json!(request.ids.then_some(&script.prompt));
    let choices = script.choices.iter().enumerate().map(|(index, choice)| {
        let tokens = choice.tokens();
        let logprobs = request.logprobs.then(|| logprobs(request.kind, &tokens));
        let mut body = json!({
            "index": index,
            (if is_chat { "message" } else { "text" }): choice.reply(request.kind),
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        });
        if request.is_sglang {
            body["matched_stop"] = Value::Null;
            if !is_chat && request.ids {
                body["token_ids"] = ids(&tokens);
            }
            if request.ids || request.prompt_ids {
                body["prompt_token_ids"] = json!(script.prompt);
            }
            if request.meta_info {
                let entries = tokens.iter().map(|(id, log)| json!([log, id, null]));
                body["meta_info"] = version_of(choice);
                body["meta_info"]["output_token_logprobs"] = entries.collect();
            }
            return body;
        }
        body["stop_reason"] = Value::Null;
        body["token_ids"] = json!(request.ids.then(|| ids(&tokens)));
        if is_chat {
            body["message"]["refusal"] = Value::Null;
        } else {
            body["prompt_token_ids"] = prompt.clone();
        }
        if let Some(spans) = choice.spans() {
            body["weight_versions"] = spans;
        }
        body
    });
    let mut body = envelope(request.kind, "chat.completion", choices.collect());
    body["usage"] = usage(script);
    if request.is_sglang {
        body["metadata"] = version_of(&script.choices[0]);
    } else if is_chat {
        body["prompt_token_ids"] = prompt;
    }
    body
}

fn version_of(choice: &ScriptedChoice) -> Value {
    match choice.spans() {
        Some(spans) => json!({ "weight_version": "2", "weight_versions": spans }),
        None => json!({ "weight_version": "default" }),
    }
}
