//! Reads answers of the form that all servers share: `choices` in a whole answer, pieces of them
//! in the events of a stream. Where a server hides tokens, log-probabilities and versions is said
//! by its [`ResponseFields`].

use std::fmt::Debug;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::client_reply::ClientReply;
use super::json_fields::{JsonFields, JsonText, write_list};
use super::response_builder::{ChoiceDelta, ResponseBuilder};
use super::synthesize_stream::make_events;
use super::{ResponseParseError, ResponseParser, TokenSource, UpstreamBody};
use crate::model_call::{CallKind, ModelCall};
use crate::response::{ModelResponse, ResponseEnd};

/// How many characters of a server's nonsense an error shows.
const MAX_SHOWN_CHARS: usize = 200;

/// Where a kind of server puts what must be recorded. Each method also takes away what the client
/// did not ask for.
pub(super) trait ResponseFields: Debug + Send + Sync {
    /// Reads the fields of a whole answer or an event, except for its choices. What it tells is
    /// taken as told about the first choice.
    fn top(&self, plan: &StripPlan, fields: &mut JsonFields<'_>) -> Result<ChoiceDelta, String> {
        let _ = (plan, fields);
        Ok(ChoiceDelta::default())
    }

    /// Reads the fields of a choice.
    fn choice(&self, plan: &StripPlan, fields: &mut JsonFields<'_>) -> Result<ChoiceDelta, String> {
        let _ = (plan, fields);
        Ok(ChoiceDelta::default())
    }
}

/// What the client asked for, and so what may stay in its answer.
#[derive(Debug)]
pub(super) struct StripPlan {
    pub(super) kind: CallKind,
    pub(super) stream: bool,
    pub(super) keeps_token_ids: bool,
    pub(super) keeps_logprobs: bool,
    pub(super) keeps_usage: bool,
    /// Fields of the server's own that the client asked for by name.
    pub(super) keeps_prompt_token_ids: bool,
    pub(super) keeps_meta_info: bool,
    /// Whether we asked for more than the client: then events may be there for us alone.
    pub(super) adds: bool,
}

impl StripPlan {
    /// Returns what may stay of the answer to a call for which we ask more than the client.
    pub(super) fn stripping(call: &ModelCall) -> Self {
        Self {
            kind: call.kind,
            stream: call.stream,
            keeps_token_ids: call.wants_token_ids(),
            keeps_logprobs: call.wants_logprobs(),
            keeps_usage: call.wants_usage(),
            keeps_prompt_token_ids: call.wants("return_prompt_token_ids"),
            keeps_meta_info: call.wants("return_meta_info"),
            adds: true,
        }
    }

    /// Returns that all of the answer may stay.
    pub(super) fn keeping(call: &ModelCall) -> Self {
        Self {
            kind: call.kind,
            stream: call.stream,
            keeps_token_ids: true,
            keeps_logprobs: true,
            keeps_usage: true,
            keeps_prompt_token_ids: true,
            keeps_meta_info: true,
            adds: false,
        }
    }
}

/// Reads one answer.
#[derive(Debug)]
pub(super) struct ChunkParser {
    words: &'static dyn ResponseFields,
    plan: StripPlan,
    id: String,
    model: String,
    gathered: ResponseBuilder,
    server_error: Option<String>,
}

impl ChunkParser {
    /// Returns a reader for the answer to a call.
    pub(super) fn new(
        words: &'static dyn ResponseFields,
        plan: StripPlan,
        call: &ModelCall,
        id: &str,
        model: &str,
    ) -> Self {
        let gathered = ResponseBuilder::new(call.choices);
        let (id, model) = (id.to_owned(), model.to_owned());
        Self { words, plan, id, model, gathered, server_error: None }
    }

    /// Reads what a whole answer and an event share. Returns its fields and choices, under our
    /// names.
    fn open<'a>(
        &mut self,
        json: &'a str,
    ) -> Result<(JsonFields<'a>, Opened<'a>), ResponseParseError> {
        let nonsense = |why: String| nonsense(&why, json);
        let mut fields = JsonFields::read(json).map_err(|error| nonsense(error.to_string()))?;
        // Some put the error's fields at the top.
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
        let choices = fields.get::<Vec<JsonFields<'a>>>("choices").map_err(nonsense)?;
        fields.set_text("id", &self.id);
        fields.set_text("model", &self.model);
        Ok((fields, choices))
    }

    /// Takes what a piece tells about its choices.
    fn take(
        &mut self,
        fields: &mut JsonFields<'_>,
        choices: &mut [JsonFields<'_>],
        source: TokenSource,
    ) {
        match self.words.top(&self.plan, fields) {
            Ok(part) => self.gathered.part(0, part, source),
            Err(why) => self.gathered.broken(why),
        }
        for choice in choices {
            let index = match choice.get::<usize>("index") {
                Ok(index) => index.unwrap_or(0),
                Err(why) => {
                    self.gathered.broken(why);
                    continue;
                }
            };
            match self.words.choice(&self.plan, choice) {
                Ok(part) => self.gathered.part(index, part, source),
                Err(why) => self.gathered.broken(format!("choice {index}: {why}")),
            }
            let said = self.take_reply(index, choice);
            self.gathered.note(said.map_err(|why| format!("choice {index}: {why}")));
        }
    }

    /// Takes what a choice says to the client.
    fn take_reply(&mut self, index: usize, choice: &JsonFields<'_>) -> Result<(), String> {
        if let Some(reply) = self.gathered.reply(index) {
            if let Some(delta) = choice.get::<JsonFields<'_>>("delta")? {
                reply.push_delta(&delta)?;
            } else if let Some(message) = choice.get::<Value>("message")? {
                *reply = ClientReply::Whole(message);
            } else if let Some(text) = choice.get::<JsonText<'_>>("text")? {
                reply.push_text(&text.0);
            }
        }
        if let Some(reason) = choice.get::<String>("finish_reason")? {
            self.gathered.finished(index, reason);
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
                    self.gathered.usage(counted);
                }
            }
            Err(why) => self.gathered.broken(why),
        }
    }
}

/// The choices that were found.
type Opened<'a> = Option<Vec<JsonFields<'a>>>;

fn nonsense(why: &str, json: &str) -> ResponseParseError {
    let shown: String = json.chars().take(MAX_SHOWN_CHARS).collect();
    ResponseParseError(format!("the server's answer makes no sense: {why}: {shown}"))
}

impl ResponseParser for ChunkParser {
    fn set_prompt(&mut self, tokens: Vec<i32>) {
        self.gathered.set_prompt(tokens);
    }

    fn parse_full(
        &mut self,
        body: &[u8],
        source: TokenSource,
    ) -> Result<Vec<Bytes>, ResponseParseError> {
        let body = str::from_utf8(body).map_err(|error| {
            ResponseParseError(format!("the server's answer is no UTF-8: {error}"))
        })?;
        let (mut fields, Some(mut choices)) = self.open(body)? else {
            return Err(nonsense("it has no choices", body));
        };
        self.take(&mut fields, &mut choices, source);
        self.take_usage(&fields);
        if self.plan.stream {
            return make_events(&self.plan, fields, choices).map_err(ResponseParseError);
        }
        fields.set("choices", write_list(&choices));
        Ok(vec![fields.to_json().into()])
    }

    fn parse_event(
        &mut self,
        data: &str,
        source: TokenSource,
    ) -> Result<Vec<Bytes>, ResponseParseError> {
        let (mut fields, Some(mut choices)) = self.open(data)? else {
            // Nothing of an answer, such as a sign of life.
            return Ok(vec![Bytes::copy_from_slice(data.as_bytes())]);
        };
        self.take(&mut fields, &mut choices, source);
        // Counts that come with choices are counts so far, of one choice.
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
        fields.set("choices", write_list(&choices));
        Ok(vec![fields.to_json().into()])
    }

    fn server_error(&self) -> Option<&str> {
        self.server_error.as_deref()
    }

    fn finish(self: Box<Self>, end: ResponseEnd) -> Result<ModelResponse, ResponseParseError> {
        self.gathered.finish(self.id, self.model, end)
    }
}

/// Whether a piece of a choice has nothing for the client: an empty delta and nothing besides.
fn says_nothing(choice: &JsonFields<'_>) -> bool {
    choice.iter().all(|(name, json)| match name {
        "index" => true,
        "delta" => choice
            .get::<JsonFields<'_>>(name)
            .is_ok_and(|delta| delta.is_none_or(|delta| delta.is_empty())),
        _ => json == "null",
    })
}

/// Reads the log-probabilities of a choice, in the form of the endpoint.
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

/// Returns the client's call as it is sent on, for the server's model.
pub(super) fn forward(call: &ModelCall, model: &str) -> Map<String, Value> {
    let mut body = call.body.clone();
    body.insert("model".to_owned(), model.into());
    body
}

/// Adds the wish for log-probabilities, in the form of the endpoint.
pub(super) fn ask_logprobs(call: &ModelCall, body: &mut Map<String, Value>) {
    match call.kind {
        CallKind::Chat => {
            body.insert("logprobs".to_owned(), true.into());
            // Null would mean none at all to some servers.
            if body.get("top_logprobs").is_none_or(Value::is_null) {
                body.insert("top_logprobs".to_owned(), 0.into());
            }
        }
        CallKind::Completion => {
            // 0 is the number of alternatives: the sampled token is always there.
            if !call.wants_logprobs() {
                body.insert("logprobs".to_owned(), 0.into());
            }
        }
    }
}

/// Adds the wish for the number of tokens at the end of a stream.
pub(super) fn ask_usage(body: &mut Map<String, Value>) {
    let options = body.entry("stream_options").or_insert(Value::Null);
    if !options.is_object() {
        *options = Value::Object(Map::new());
    }
    if let Value::Object(options) = options {
        options.insert("include_usage".to_owned(), true.into());
    }
}

/// Returns what is sent to the endpoint that the client called.
pub(super) fn outgoing(call: &ModelCall, body: Map<String, Value>, stream: bool) -> UpstreamBody {
    UpstreamBody { path: call.kind.path(), body: Value::Object(body), stream }
}
