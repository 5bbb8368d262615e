//! Servers that say something that was decided before, each in its own shapes, with the extras that
//! the body asks for and without the others.

use proptest::prelude::*;
use rollway_base::ServerKind;
use serde_json::{Map, Value, json};

use crate::model_call::CallKind;

/// All that a server is going to say.
#[derive(Clone, Debug)]
pub(super) struct ScriptedResponse {
    pub(super) prompt: Vec<i32>,
    pub(super) choices: Vec<SaidChoice>,
}

#[derive(Clone, Debug)]
pub(super) struct SaidChoice {
    pieces: Vec<Piece>,
    pub(super) finish_reason: &'static str,
    /// From which token on the weights were newer; none if the server tells no versions.
    updated: Option<usize>,
}

#[derive(Clone, Debug)]
struct Piece {
    tokens: Vec<(i32, f32)>,
    say: Say,
}

#[derive(Clone, Debug)]
enum Say {
    Nothing,
    Content(String),
    Reasoning(String),
    Arguments(usize, String),
}

impl SaidChoice {
    pub(super) fn tokens(&self) -> Vec<(i32, f32)> {
        self.pieces.iter().flat_map(|piece| piece.tokens.clone()).collect()
    }

    /// The version that the server tells of a token.
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
            match (&piece.say, kind) {
                (Say::Content(text), _) | (Say::Reasoning(text), CallKind::Completion) => {
                    content.push_str(text);
                }
                (Say::Reasoning(text), CallKind::Chat) => reasoning.push_str(text),
                (Say::Arguments(tool, text), CallKind::Chat) => {
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

/// Anything that a server may say.
pub(super) fn scripted_response() -> impl Strategy<Value = ScriptedResponse> {
    let text = || "[a-c \"\\\\\n€😀]{1,4}";
    let say = prop_oneof![
        2 => Just(Say::Nothing),
        4 => text().prop_map(Say::Content),
        2 => text().prop_map(Say::Reasoning),
        2 => (0..2_usize, text()).prop_map(|(tool, text)| Say::Arguments(tool, text)),
    ];
    let token = (0..200_000, -9999_i16..=0).prop_map(|(id, log)| (id, f32::from(log) / 1024.0));
    let piece =
        (prop::collection::vec(token, 0..4), say).prop_map(|(tokens, say)| Piece { tokens, say });
    let reason = prop_oneof![Just("stop"), Just("length"), Just("tool_calls"), Just("abort")];
    let choice = (prop::collection::vec(piece, 1..6), reason, prop::option::of(0..8_usize))
        .prop_map(|(pieces, finish_reason, updated)| SaidChoice { pieces, finish_reason, updated });
    (prop::collection::vec(0..200_000, 1..6), prop::collection::vec(choice, 1..4))
        .prop_map(|(prompt, choices)| ScriptedResponse { prompt, choices })
}

/// What a body asks for.
struct ScriptedRequest {
    kind: CallKind,
    ids: bool,
    logprobs: bool,
    usage: bool,
    meta_info: bool,
    prompt_ids: bool,
}

/// Says it: the events of a stream, or the one body.
pub(super) fn answer(
    engine: ServerKind,
    kind: CallKind,
    body: &Value,
    said: &ScriptedResponse,
) -> Vec<Value> {
    let asked = ScriptedRequest {
        kind,
        ids: body["return_token_ids"] == true,
        logprobs: body["logprobs"] == true || body["logprobs"].is_number(),
        usage: body["stream_options"]["include_usage"] == true,
        meta_info: body["return_meta_info"] == true,
        prompt_ids: body["return_prompt_token_ids"] == true,
    };
    match (engine, body["stream"] == true) {
        (ServerKind::Sglang, true) => stream(&asked, said, sglang_piece),
        (ServerKind::Sglang, false) => vec![sglang_whole(&asked, said)],
        (_, true) => stream(&asked, said, vllm_piece),
        (_, false) => vec![vllm_whole(&asked, said)],
    }
}

fn envelope(kind: CallKind, object: &str, choices: Value) -> Value {
    let object = if kind == CallKind::Chat { object } else { "text_completion" };
    json!({
        "id": "theirs-1", "object": object, "created": 17, "model": "theirs", "choices": choices,
    })
}

fn usage(said: &ScriptedResponse) -> Value {
    let tokens: usize = said.choices.iter().map(|choice| choice.tokens().len()).sum();
    let prompt = said.prompt.len();
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

type Pieces =
    fn(&ScriptedRequest, &ScriptedResponse, usize, usize, &mut Map<String, Value>) -> Option<Value>;

/// Says the pieces of all choices in turn, and how many tokens they were.
fn stream(asked: &ScriptedRequest, said: &ScriptedResponse, piece: Pieces) -> Vec<Value> {
    let object = "chat.completion.chunk";
    let mut events = Vec::new();
    if asked.kind == CallKind::Chat {
        for index in 0..said.choices.len() {
            let delta = json!({ "role": "assistant", "content": "" });
            let choice = json!({
                "index": index, "delta": delta, "logprobs": null, "finish_reason": null,
            });
            let mut event = envelope(asked.kind, object, json!([choice]));
            event["prompt_token_ids"] = if asked.ids { json!(said.prompt) } else { Value::Null };
            events.push(event);
        }
    }
    for number in 0..6 {
        for (index, choice) in said.choices.iter().enumerate() {
            if number < choice.pieces.len() {
                let mut more = Map::new();
                if let Some(choice) = piece(asked, said, index, number, &mut more) {
                    let mut event = envelope(asked.kind, object, json!([choice]));
                    event.as_object_mut().unwrap().extend(more);
                    events.push(event);
                }
            }
        }
    }
    if asked.usage {
        let mut event = envelope(asked.kind, object, json!([]));
        event["usage"] = usage(said);
        events.push(event);
    }
    events
}

fn text_of(say: &Say) -> &str {
    match say {
        Say::Content(text) | Say::Reasoning(text) => text,
        Say::Nothing | Say::Arguments(..) => "",
    }
}

fn delta_of(choice: &SaidChoice, number: usize) -> Value {
    match &choice.pieces[number].say {
        Say::Nothing => json!({}),
        Say::Content(text) => json!({ "content": text }),
        Say::Reasoning(text) => json!({ "reasoning_content": text }),
        Say::Arguments(tool, text) => {
            let earlier = choice.pieces[..number].iter();
            let begun = earlier
                .filter(|piece| matches!(&piece.say, Say::Arguments(other, _) if other == tool));
            let mut piece = call(*tool, text);
            if begun.count() > 0 {
                piece = json!({ "function": { "arguments": text } });
            }
            piece["index"] = (*tool).into();
            json!({ "tool_calls": [piece] })
        }
    }
}

fn vllm_piece(
    asked: &ScriptedRequest,
    said: &ScriptedResponse,
    index: usize,
    number: usize,
    _: &mut Map<String, Value>,
) -> Option<Value> {
    let choice = &said.choices[index];
    let piece = &choice.pieces[number];
    let is_last = number + 1 == choice.pieces.len();
    let mut told = json!({ "index": index, "logprobs": null, "finish_reason": null });
    told["token_ids"] = if asked.ids { ids(&piece.tokens) } else { Value::Null };
    if asked.logprobs {
        told["logprobs"] = logprobs(asked.kind, &piece.tokens);
    }
    if asked.kind == CallKind::Chat {
        told["delta"] = delta_of(choice, number);
        if told["delta"] == json!({}) && !is_last && !asked.ids && !asked.logprobs {
            return None;
        }
    } else {
        told["text"] = text_of(&piece.say).into();
        let prompt = asked.ids && number == 0;
        told["prompt_token_ids"] = if prompt { json!(said.prompt) } else { Value::Null };
    }
    if is_last {
        told["finish_reason"] = choice.finish_reason.into();
        told["stop_reason"] = Value::Null;
        if let Some(spans) = choice.spans() {
            told["weight_versions"] = spans;
        }
    }
    Some(told)
}

fn sglang_piece(
    asked: &ScriptedRequest,
    said: &ScriptedResponse,
    index: usize,
    number: usize,
    more: &mut Map<String, Value>,
) -> Option<Value> {
    more.insert("usage".to_owned(), Value::Null);
    let choice = &said.choices[index];
    let piece = &choice.pieces[number];
    let mut told = json!({
        "index": index, "text": text_of(&piece.say), "logprobs": null, "finish_reason": null,
        "matched_stop": null,
    });
    if asked.logprobs && !piece.tokens.is_empty() {
        told["logprobs"] = logprobs(asked.kind, &piece.tokens);
    }
    if asked.ids {
        told["token_ids"] = ids(&piece.tokens);
        if number == 0 {
            told["prompt_token_ids"] = json!(said.prompt);
        }
    }
    if number + 1 == choice.pieces.len() {
        told["finish_reason"] = choice.finish_reason.into();
    }
    Some(told)
}

/// What the choices of all whole answers have.
fn whole_choice(asked: &ScriptedRequest, index: usize, choice: &SaidChoice) -> Value {
    let reply = choice.reply(asked.kind);
    let name = if asked.kind == CallKind::Chat { "message" } else { "text" };
    let tokens = choice.tokens();
    let logprobs = asked.logprobs.then(|| logprobs(asked.kind, &tokens));
    json!({
        "index": index, name: reply, "logprobs": logprobs, "finish_reason": choice.finish_reason,
    })
}

fn vllm_whole(asked: &ScriptedRequest, said: &ScriptedResponse) -> Value {
    let prompt = if asked.ids { json!(said.prompt) } else { Value::Null };
    let choices = said.choices.iter().enumerate().map(|(index, choice)| {
        let mut told = whole_choice(asked, index, choice);
        told["stop_reason"] = Value::Null;
        told["token_ids"] = if asked.ids { ids(&choice.tokens()) } else { Value::Null };
        if asked.kind == CallKind::Completion {
            told["prompt_token_ids"] = prompt.clone();
        } else {
            told["message"]["refusal"] = Value::Null;
        }
        if let Some(spans) = choice.spans() {
            told["weight_versions"] = spans;
        }
        told
    });
    let mut whole = envelope(asked.kind, "chat.completion", choices.collect());
    if asked.kind == CallKind::Chat {
        whole["prompt_token_ids"] = prompt;
    }
    whole["usage"] = usage(said);
    whole
}

fn sglang_whole(asked: &ScriptedRequest, said: &ScriptedResponse) -> Value {
    let choices = said.choices.iter().enumerate().map(|(index, choice)| {
        let tokens = choice.tokens();
        let mut told = whole_choice(asked, index, choice);
        told["matched_stop"] = Value::Null;
        if asked.kind == CallKind::Completion && asked.ids {
            told["token_ids"] = ids(&tokens);
        }
        if asked.ids || asked.prompt_ids {
            told["prompt_token_ids"] = json!(said.prompt);
        }
        if asked.meta_info {
            let entries: Vec<Value> =
                tokens.iter().map(|(id, log)| json!([log, id, null])).collect();
            told["meta_info"] = version_of(choice);
            told["meta_info"]["output_token_logprobs"] = entries.into();
        }
        told
    });
    let mut whole = envelope(asked.kind, "chat.completion", choices.collect());
    whole["usage"] = usage(said);
    whole["metadata"] = version_of(&said.choices[0]);
    whole
}

fn version_of(choice: &SaidChoice) -> Value {
    match choice.spans() {
        Some(spans) => json!({ "weight_version": "2", "weight_versions": spans }),
        None => json!({ "weight_version": "default" }),
    }
}
