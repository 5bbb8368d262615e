//! Parser of responses in the form that all servers share: `choices` in full responses and in
//! events. [`ResponseFields`] finds tokens, log-probabilities and versions.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::client_reply::ClientReply;
use super::json_fields::{JsonFields, JsonText, is_empty_object, text_json};
use super::response_builder::{ChoiceDelta, ResponseBuilder};
use super::synthesize_stream::make_events;
use super::{ResponseParseError, ResponseParser, TokenSource, UpstreamBody};
use crate::model_call::{CallKind, ModelCall};
use crate::response::{ModelResponse, ResponseEnd};

/// Characters of an invalid response that an error shows.
const MAX_SHOWN_CHARS: usize = 200;

/// Location of recorded fields in the responses of a server kind. Each method also removes what the
/// client did not request.
pub(super) trait ResponseFields: Debug + Send + Sync {
    /// Parses the fields outside of choices. They count for the first choice.
    fn top(&self, plan: &StripPlan, fields: &mut JsonFields<'_>) -> Result<ChoiceDelta, String> {
        let _ = (plan, fields);
        Ok(ChoiceDelta::default())
    }

    fn choice(&self, plan: &StripPlan, fields: &mut JsonFields<'_>) -> Result<ChoiceDelta, String> {
        let _ = (plan, fields);
        Ok(ChoiceDelta::default())
    }
}

/// Fields that stay in the client's response.
#[derive(Debug)]
pub(super) struct StripPlan {
    pub(super) kind: CallKind,
    pub(super) stream: bool,
    pub(super) keeps_token_ids: bool,
    pub(super) keeps_logprobs: bool,
    pub(super) keeps_usage: bool,
    pub(super) keeps_prompt_token_ids: bool,
    pub(super) keeps_meta_info: bool,
    /// True if the gateway requested more than the client, so that events may be for the gateway
    /// only.
    pub(super) adds: bool,
}

impl StripPlan {
    /// Returns the plan of a call. With `adds`, only requested fields stay.
    pub(super) fn new(call: &ModelCall, adds: bool) -> Self {
        Self {
            kind: call.kind,
            stream: call.stream,
            keeps_token_ids: !adds || call.wants_token_ids(),
            keeps_logprobs: !adds || call.wants_logprobs(),
            keeps_usage: !adds || call.wants_usage(),
            keeps_prompt_token_ids: !adds || call.wants("return_prompt_token_ids"),
            keeps_meta_info: !adds || call.wants("return_meta_info"),
            adds,
        }
    }
}

#[derive(Debug)]
pub(super) struct ChunkParser {
    server_fields: &'static dyn ResponseFields,
    plan: StripPlan,
    id: String,
    model: String,
    /// Id and model as JSON.
    id_json: Arc<str>,
    model_json: Arc<str>,
    response: ResponseBuilder,
    /// Memory of replies, tokens and log-probabilities.
    kept_bytes: usize,
    server_error: Option<String>,
}

impl ChunkParser {
    pub(super) fn new(
        server_fields: &'static dyn ResponseFields,
        plan: StripPlan,
        call: &ModelCall,
        id: &str,
        model: &str,
    ) -> Self {
        let response = ResponseBuilder::new(call.choices);
        Self {
            server_fields,
            plan,
            id: id.to_owned(),
            model: model.to_owned(),
            id_json: text_json(id),
            model_json: text_json(model),
            response,
            kept_bytes: 0,
            server_error: None,
        }
    }

    /// Parses the envelope. Returns fields and choices under the gateway's id and model name.
    fn open<'a>(
        &mut self,
        json: &'a str,
    ) -> Result<(JsonFields<'a>, Option<Vec<JsonFields<'a>>>), ResponseParseError> {
        let invalid = |reason: String| invalid(&reason, json);
        let mut fields = JsonFields::read(json).map_err(invalid)?;
        // Some servers put the fields of an error at the top.
        let is_error = fields.json("object") == Some("\"error\"");
        if let Some(error) = fields.json("error").or_else(|| is_error.then_some(json)) {
            self.server_error = Some(json.to_owned());
            let message = serde_json::from_str::<Value>(error).ok();
            let message = message.as_ref().and_then(|error| error.get("message")?.as_str());
            return Err(ResponseParseError(format!(
                "the server failed: {}",
                message.unwrap_or(error)
            )));
        }
        let choices = fields.list("choices").map_err(invalid)?;
        fields.set_shared("id", &self.id_json);
        fields.set_shared("model", &self.model_json);
        Ok((fields, choices))
    }

    fn take(
        &mut self,
        fields: &mut JsonFields<'_>,
        choices: &mut [JsonFields<'_>],
        source: TokenSource,
    ) {
        match self.server_fields.top(&self.plan, fields) {
            Ok(part) => {
                self.kept_bytes += part.bytes();
                self.response.add_part(0, part, source);
            }
            Err(reason) => self.response.set_broken(reason),
        }
        for choice in choices {
            let index = match choice.get::<usize>("index") {
                Ok(index) => index.unwrap_or(0),
                Err(reason) => {
                    self.response.set_broken(reason);
                    continue;
                }
            };
            match self.server_fields.choice(&self.plan, choice) {
                Ok(part) => {
                    self.kept_bytes += part.bytes();
                    self.response.add_part(index, part, source);
                }
                Err(reason) => self.response.set_broken(format!("choice {index}: {reason}")),
            }
            let outcome = self.take_reply(index, choice);
            self.response.note(outcome.map_err(|reason| format!("choice {index}: {reason}")));
        }
    }

    fn take_reply(&mut self, index: usize, choice: &JsonFields<'_>) -> Result<(), String> {
        let texts = ["delta", "message", "text"];
        self.kept_bytes +=
            texts.iter().filter_map(|name| choice.json(name)).map(str::len).sum::<usize>();
        if let Some(reply) = self.response.reply(index) {
            if let Some(delta) = choice.object("delta")? {
                reply.push_delta(&delta)?;
            } else if let Some(message) = choice.value("message")? {
                *reply = ClientReply::Full(message);
            } else if let Some(text) = choice.get::<JsonText<'_>>("text")? {
                reply.push_text(&text.0);
            }
        }
        if let Some(reason) = choice.get::<String>("finish_reason")? {
            self.response.set_finished(index, reason);
        }
        Ok(())
    }

    fn take_usage(&mut self, fields: &JsonFields<'_>) {
        #[derive(Deserialize)]
        struct Usage {
            completion_tokens: Option<u64>,
        }
        match fields.get::<Usage>("usage") {
            Ok(usage) => {
                if let Some(counted) = usage.and_then(|usage| usage.completion_tokens) {
                    self.response.set_usage(counted);
                }
            }
            Err(reason) => self.response.set_broken(reason),
        }
    }
}

fn invalid(reason: &str, json: &str) -> ResponseParseError {
    let shown: String = json.chars().take(MAX_SHOWN_CHARS).collect();
    ResponseParseError(format!("invalid response of the server: {reason}: {shown}"))
}

impl ResponseParser for ChunkParser {
    fn set_prompt(&mut self, tokens: Vec<i32>) {
        self.response.set_prompt(tokens);
    }

    fn parse_full(
        &mut self,
        body: &[u8],
        source: TokenSource,
    ) -> Result<Vec<Bytes>, ResponseParseError> {
        let body = str::from_utf8(body).map_err(|error| {
            ResponseParseError(format!("the response of the server is not UTF-8: {error}"))
        })?;
        let (mut fields, Some(mut choices)) = self.open(body)? else {
            return Err(invalid("it has no choices", body));
        };
        self.take(&mut fields, &mut choices, source);
        self.take_usage(&fields);
        if self.plan.stream {
            return make_events(&self.plan, fields, choices).map_err(ResponseParseError);
        }
        Ok(vec![fields.to_json_with(&choices).into()])
    }

    fn parse_event(
        &mut self,
        data: &str,
        source: TokenSource,
    ) -> Result<Vec<Bytes>, ResponseParseError> {
        let (mut fields, Some(mut choices)) = self.open(data)? else {
            // No part of a response, such as a keep-alive.
            return Ok(vec![Bytes::copy_from_slice(data.as_bytes())]);
        };
        self.take(&mut fields, &mut choices, source);
        // Counts with choices are partial counts of one choice.
        if choices.is_empty() {
            self.take_usage(&fields);
        }
        let mut empty = false;
        if self.plan.adds {
            let counts = fields.json("usage").is_some();
            if counts && !self.plan.keeps_usage {
                fields.remove("usage");
            }
            let keeps_counts = counts && self.plan.keeps_usage;
            empty = !keeps_counts && (counts || !choices.is_empty());
            empty &= choices.iter().all(says_nothing);
        }
        if empty {
            return Ok(Vec::new());
        }
        Ok(vec![fields.to_json_with(&choices).into()])
    }

    fn server_error(&self) -> Option<&str> {
        self.server_error.as_deref()
    }

    fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    fn has_assumed_versions(&self) -> bool {
        self.response.has_assumed_versions()
    }

    fn drop_assumed_versions(&mut self) {
        self.response.drop_assumed_versions();
    }

    fn finish(self: Box<Self>, end: ResponseEnd) -> Result<ModelResponse, ResponseParseError> {
        self.response.finish(self.id, self.model, end)
    }
}

/// Returns whether a chunk has nothing for the client: an empty delta and no other field.
fn says_nothing(choice: &JsonFields<'_>) -> bool {
    choice.iter().all(|(name, json)| match name {
        "index" => true,
        "delta" => json == "null" || is_empty_object(json),
        _ => json == "null",
    })
}

pub(super) fn logprobs(
    kind: CallKind,
    choice: &JsonFields<'_>,
) -> Result<Option<Vec<Option<f32>>>, String> {
    #[derive(Deserialize)]
    struct Chat {
        content: Option<Vec<Entry>>,
    }
    #[derive(Deserialize)]
    struct Entry {
        logprob: Option<f32>,
    }
    #[derive(Deserialize)]
    struct Completion {
        token_logprobs: Option<Vec<Option<f32>>>,
    }
    match kind {
        CallKind::Chat => {
            let entries = choice.get::<Chat>("logprobs")?.and_then(|logprobs| logprobs.content);
            let all = |entries: Vec<Entry>| entries.iter().map(|entry| entry.logprob).collect();
            Ok(entries.map(all))
        }
        CallKind::Completion => {
            Ok(choice.get::<Completion>("logprobs")?.and_then(|logprobs| logprobs.token_logprobs))
        }
    }
}

/// Returns the body of the call with the server's model name.
pub(super) fn forward(call: &ModelCall, model: &str) -> Map<String, Value> {
    let mut body = call.body.clone();
    body.insert("model".to_owned(), model.into());
    body
}

pub(super) fn ask_logprobs(call: &ModelCall, body: &mut Map<String, Value>) {
    match call.kind {
        CallKind::Chat => {
            body.insert("logprobs".to_owned(), true.into());
            // Some servers take null as no log-probabilities.
            if body.get("top_logprobs").is_none_or(Value::is_null) {
                body.insert("top_logprobs".to_owned(), 0.into());
            }
        }
        CallKind::Completion => {
            // 0 alternatives: the sampled token is always included.
            if !call.wants_logprobs() {
                body.insert("logprobs".to_owned(), 0.into());
            }
        }
    }
}

pub(super) fn ask_usage(body: &mut Map<String, Value>) {
    let options = body.entry("stream_options").or_insert(Value::Null);
    if !options.is_object() {
        *options = Value::Object(Map::new());
    }
    if let Value::Object(options) = options {
        options.insert("include_usage".to_owned(), true.into());
    }
}

pub(super) fn outgoing(call: &ModelCall, body: Map<String, Value>, stream: bool) -> UpstreamBody {
    UpstreamBody { path: call.kind.path(), body: Value::Object(body), stream }
}
