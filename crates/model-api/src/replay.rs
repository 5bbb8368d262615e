//! Full responses from streams and streams from full responses, for clients that repeat a call.
//!
//! A stream is saved as the equivalent full response, because its hundreds of events are larger
//! than their content; unless the client requested token ids or log-probabilities, which the full
//! response would have to be assembled from. Then the events are saved.

use bytes::{Bytes, BytesMut};
use memchr::memmem;
use serde_json::{Map, Value, json};

use crate::client_api::StreamRenderer;
use crate::json_shape::JsonShape;
use crate::model_call::{CallKind, ModelCall};
use crate::response::ModelResponse;

/// A response in the internal form, saved for a client that repeats its call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedResponse {
    /// True if the parts are the data of events, and not the body of a full response.
    pub stream: bool,
    /// The body, or the data of each event without the final `[DONE]`.
    pub parts: Vec<Bytes>,
}

/// State of a forwarded stream.
#[derive(Debug)]
pub struct StreamCapture {
    choices: u32,
    finished: u32,
    /// Events from the end of the last choice on, sent after the recording.
    held: BytesMut,
    /// Data of all events, if they are saved.
    parts: Option<Vec<Bytes>>,
    kept_bytes: usize,
    first: Option<Bytes>,
    usage: Option<Bytes>,
}

impl StreamCapture {
    pub fn new(call: &ModelCall) -> Self {
        let is_verbatim = call.wants_logprobs() || call.wants_token_ids();
        Self {
            choices: call.choices,
            finished: 0,
            held: BytesMut::new(),
            parts: is_verbatim.then(Vec::new),
            kept_bytes: 0,
            first: None,
            usage: None,
        }
    }

    /// Takes the data of an event, and renders it to `out` unless it must wait for the recording.
    pub fn take(&mut self, part: Bytes, renderer: &mut StreamRenderer, out: &mut BytesMut) {
        self.finished += count_finished(&part);
        renderer.event(&part, if self.is_finished() { &mut self.held } else { out });
        if memmem::find(&part, b"\"usage\":{").is_some() {
            self.usage = Some(part.clone());
        }
        if self.first.is_none() {
            self.first = Some(part.clone());
        }
        if let Some(parts) = &mut self.parts {
            self.kept_bytes += part.len() + size_of::<Bytes>();
            parts.push(part);
        }
    }

    /// Memory of the events that are kept.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes + self.held.len()
    }

    pub fn is_finished(&self) -> bool {
        self.finished >= self.choices
    }

    /// Returns the events that wait for the recording.
    pub fn take_held(&mut self) -> BytesMut {
        self.held.split()
    }

    pub fn into_saved(self, call: &ModelCall, response: &ModelResponse) -> SavedResponse {
        if let Some(parts) = self.parts {
            return SavedResponse { stream: true, parts };
        }
        let full = full_response(call.kind, response, self.first.as_deref(), self.usage.as_deref());
        SavedResponse { stream: false, parts: vec![full.to_string().into()] }
    }
}

impl SavedResponse {
    pub fn id(&self) -> Option<String> {
        self.first()?.get("id")?.as_str().map(str::to_owned)
    }

    /// Estimates the memory of sending the response: its parts, the first one parsed, and the body.
    pub fn sent_bytes(&self) -> usize {
        let parts: usize = self.parts.iter().map(Bytes::len).sum();
        let first = self.parts.first().map(|part| JsonShape::of(part).bytes).unwrap_or_default();
        2 * parts + usize::try_from(first).unwrap_or(usize::MAX)
    }

    /// Returns the parts in the form that a call requests: the body, or the data of events.
    pub fn into_parts(self, call: &ModelCall) -> Vec<Bytes> {
        match (self.stream, call.stream) {
            (false, true) => stream_events(call, &self.first().unwrap_or_default()),
            _ => self.parts,
        }
    }

    fn first(&self) -> Option<Value> {
        serde_json::from_slice(self.parts.first()?).ok()
    }
}

/// Returns the full response that is equivalent to a stream.
fn full_response(
    kind: CallKind,
    response: &ModelResponse,
    first: Option<&[u8]>,
    usage: Option<&[u8]>,
) -> Value {
    let field = |part: Option<&[u8]>, name: &str| {
        let part: Map<String, Value> = serde_json::from_slice(part?).ok()?;
        part.get(name).cloned()
    };
    let choices: Vec<Value> = response
        .choices
        .iter()
        .enumerate()
        .map(|(index, choice)| {
            let name = match kind {
                CallKind::Chat => "message",
                CallKind::Completion => "text",
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
        "id": response.id,
        "object": match kind {
            CallKind::Chat => "chat.completion",
            CallKind::Completion => "text_completion",
        },
        "created": field(first, "created"),
        "model": response.model,
        "choices": choices,
        "usage": field(usage, "usage"),
    })
}

/// Returns the data of the events of a stream that is equivalent to a full response.
fn stream_events(call: &ModelCall, full: &Value) -> Vec<Bytes> {
    let object = match call.kind {
        CallKind::Chat => "chat.completion.chunk",
        CallKind::Completion => "text_completion",
    };
    let event = |choices: Value, usage: Option<&Value>| {
        let mut event = json!({
            "id": full["id"],
            "object": object,
            "created": full["created"],
            "model": full["model"],
            "choices": choices,
        });
        if let Some(usage) = usage {
            event["usage"] = usage.clone();
        }
        Bytes::from(event.to_string())
    };
    let none = Vec::new();
    let mut parts = Vec::new();
    for choice in full["choices"].as_array().unwrap_or(&none) {
        let (index, reason) = (&choice["index"], &choice["finish_reason"]);
        let (name, content, empty) = match call.kind {
            CallKind::Chat => ("delta", delta(&choice["message"]), json!({})),
            CallKind::Completion => ("text", choice["text"].clone(), json!("")),
        };
        let content = json!({ "index": index, name: content, "finish_reason": null });
        let ended = json!({ "index": index, name: empty, "finish_reason": reason });
        parts.push(event(json!([content]), None));
        parts.push(event(json!([ended]), None));
    }
    if call.wants_usage() && full["usage"].is_object() {
        parts.push(event(json!([]), Some(&full["usage"])));
    }
    parts
}

/// Returns the message as a delta: tool calls have an index there.
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

/// Returns the number of choices that end in an event. Within a text the quotes are escaped.
fn count_finished(data: &[u8]) -> u32 {
    const NAME: &[u8] = b"\"finish_reason\":";
    let ends = memmem::find_iter(data, NAME).map(|at| &data[at + NAME.len()..]);
    let values = ends.map(|rest| rest.iter().find(|byte| !byte.is_ascii_whitespace()));
    values.map(|value| u32::from(value == Some(&b'"'))).sum()
}
