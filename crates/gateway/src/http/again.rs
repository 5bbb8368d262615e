//! What is kept of an answer for a client that asks again, and how it is given again.
//!
//! A stream is kept as the whole answer that it amounts to, because its hundreds of events are
//! larger than all that they say; unless the client wanted what a whole answer would have to be put
//! together from. It is then kept as it was.

use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Map, Value, json};

use super::delivery::Whole;
use super::respond;
use super::runs::Receipt;
use crate::answer::Answer;
use crate::call::{Call, Kind};
use crate::record::Kept;

/// What a stream has been so far.
#[derive(Debug)]
pub(super) struct Gathered {
    /// How many choices there will be.
    choices: u32,
    /// How many have ended.
    finished: u32,
    /// From the last choice's end on, the client gets nothing before the answer was recorded.
    held: BytesMut,
    /// Every part, if they are kept as they are.
    parts: Option<Vec<Bytes>>,
    first: Option<Bytes>,
    usage: Option<Bytes>,
}

impl Gathered {
    pub(super) fn new(call: &Call) -> Self {
        let is_verbatim = call.wants_logprobs() || call.wants_token_ids();
        Self {
            choices: call.choices,
            finished: 0,
            held: BytesMut::new(),
            parts: is_verbatim.then(Vec::new),
            first: None,
            usage: None,
        }
    }

    /// Takes the data of an event, and adds it to what is sent unless it must wait.
    pub(super) fn take(&mut self, part: Bytes, out: &mut BytesMut) {
        self.finished += count_finished(&part);
        append(if self.is_finished() { &mut self.held } else { out }, &part);
        if contains(&part, b"\"usage\":{") {
            self.usage = Some(part.clone());
        }
        if self.first.is_none() {
            self.first = Some(part.clone());
        }
        if let Some(parts) = &mut self.parts {
            parts.push(part);
        }
    }

    /// Whether every choice has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.finished >= self.choices
    }

    /// Returns what waits to be sent.
    pub(super) fn take_held(&mut self) -> BytesMut {
        self.held.split()
    }

    /// Returns what is kept.
    pub(super) fn kept(self, call: &Call, answer: &Answer) -> Kept {
        if let Some(parts) = self.parts {
            return Kept { stream: true, parts };
        }
        let whole = whole(call.kind, answer, self.first.as_deref(), self.usage.as_deref());
        Kept { stream: false, parts: vec![whole.to_string().into()] }
    }
}

/// Returns the whole answer that a stream amounts to.
fn whole(kind: Kind, answer: &Answer, first: Option<&[u8]>, usage: Option<&[u8]>) -> Value {
    let field = |part: Option<&[u8]>, name: &str| {
        let part: Map<String, Value> = serde_json::from_slice(part?).ok()?;
        part.get(name).cloned()
    };
    let choices: Vec<Value> = answer
        .choices
        .iter()
        .enumerate()
        .map(|(index, choice)| {
            let name = match kind {
                Kind::Chat => "message",
                Kind::Completion => "text",
            };
            json!({
                "index": index,
                name: choice.reply,
                "logprobs": null,
                "finish_reason": choice.finish_reason,
            })
        })
        .collect();
    json!({
        "id": answer.id,
        "object": match kind {
            Kind::Chat => "chat.completion",
            Kind::Completion => "text_completion",
        },
        "created": field(first, "created"),
        "model": answer.model,
        "choices": choices,
        "usage": field(usage, "usage"),
    })
}

/// Returns the events that a whole answer could have been.
fn events(call: &Call, whole: &Value) -> Vec<Bytes> {
    let object = match call.kind {
        Kind::Chat => "chat.completion.chunk",
        Kind::Completion => "text_completion",
    };
    let event = |choices: Value, usage: Option<&Value>| {
        let mut event = json!({
            "id": whole["id"],
            "object": object,
            "created": whole["created"],
            "model": whole["model"],
            "choices": choices,
        });
        if let Some(usage) = usage {
            event["usage"] = usage.clone();
        }
        Bytes::from(event.to_string())
    };
    let none = Vec::new();
    let mut parts = Vec::new();
    for choice in whole["choices"].as_array().unwrap_or(&none) {
        let (index, reason) = (&choice["index"], &choice["finish_reason"]);
        let (name, said, nothing) = match call.kind {
            Kind::Chat => ("delta", delta(&choice["message"]), json!({})),
            Kind::Completion => ("text", choice["text"].clone(), json!("")),
        };
        let said = json!({ "index": index, name: said, "finish_reason": null });
        let ended = json!({ "index": index, name: nothing, "finish_reason": reason });
        parts.push(event(json!([said]), None));
        parts.push(event(json!([ended]), None));
    }
    if call.wants_usage() && whole["usage"].is_object() {
        parts.push(event(json!([]), Some(&whole["usage"])));
    }
    parts
}

/// In a stream the calls of tools say which one they are.
fn delta(message: &Value) -> Value {
    let mut delta = message.clone();
    if let Some(calls) = delta.get_mut("tool_calls").and_then(Value::as_array_mut) {
        for (index, call) in calls.iter_mut().enumerate() {
            if let Some(call) = call.as_object_mut() {
                call.insert("index".to_owned(), index.into());
            }
        }
    }
    delta
}

/// Gives an answer again, in the form that the client wants.
pub(super) fn response(call: &Call, kept: Kept, receipt: Receipt) -> Response {
    let first = kept.parts.first().and_then(|part| serde_json::from_slice(part).ok());
    let first: Value = first.unwrap_or_default();
    let parts = match (kept.stream, call.stream) {
        (false, true) => events(call, &first),
        _ => kept.parts,
    };
    let mut response = complete(call, parts, Some(receipt));
    if let Some(id) = first["id"].as_str().and_then(|id| HeaderValue::from_str(id).ok()) {
        response.headers_mut().insert("x-request-id", id);
    }
    response
}

/// Gives an answer that is known to its end.
pub(super) fn complete(call: &Call, parts: Vec<Bytes>, receipt: Option<Receipt>) -> Response {
    if !call.stream {
        let body = parts.into_iter().next().unwrap_or_default();
        let body = axum::body::Body::new(Whole::new(body, receipt));
        return respond::json(StatusCode::OK, body);
    }
    let room = parts.iter().map(|part| part.len() + 8).sum::<usize>() + 16;
    let mut body = BytesMut::with_capacity(room);
    for part in &parts {
        append(&mut body, part);
    }
    append(&mut body, b"[DONE]");
    respond::events(axum::body::Body::new(Whole::new(body.freeze(), receipt)))
}

/// Appends an event.
fn append(to: &mut BytesMut, data: &[u8]) {
    to.reserve(data.len() + 8);
    to.put_slice(b"data: ");
    to.put_slice(data);
    to.put_slice(b"\n\n");
}

/// Counts the choices that end in an event. Within a text the quotes would be escaped.
fn count_finished(data: &[u8]) -> u32 {
    const NAME: &[u8] = b"\"finish_reason\":";
    let mut count = 0;
    let mut rest = data;
    while let Some(at) = find(rest, NAME) {
        rest = &rest[at + NAME.len()..];
        let value = rest.iter().find(|byte| !byte.is_ascii_whitespace());
        count += u32::from(value == Some(&b'"'));
    }
    count
}

fn contains(data: &[u8], what: &[u8]) -> bool {
    find(data, what).is_some()
}

fn find(data: &[u8], what: &[u8]) -> Option<usize> {
    data.windows(what.len()).position(|window| window == what)
}
