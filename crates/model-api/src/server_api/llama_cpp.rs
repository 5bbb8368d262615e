//! llama.cpp's `llama-server`.
//!
//! It returns token ids beside log-probabilities, but of the tokens of one multi-byte character
//! only the last. Nothing marks the omission; only the number of entries is too small. So
//! `token_check` verifies that none is missing before a response is recorded. Streams omit more
//! (the final token of a chat), so full responses are always requested.

mod prompt;
#[cfg(test)]
mod tests;
mod token_check;

use bytes::Bytes;
use rollway_experience::{ModelVersions, VersionSpan};
use serde_json::{Map, Value, json};

use self::prompt::LlamaPromptLookup;
use self::token_check::TokenCheck;
use super::chunk_parser::{StripPlan, forward, outgoing};
use super::json_fields::JsonFields;
use super::response_builder::MAX_LOGPROB;
use super::synthesize_stream::make_events;
use super::{
    LoadMetrics, PromptLookup, ResponseParseError, ResponseParser, ServerApi, TokenSource,
    UpstreamBody, WeightControl,
};
use crate::model_call::{CallKind, ModelCall};
use crate::response::{ModelResponse, ResponseChoice, ResponseEnd};

/// With `--metrics`.
const LOAD_METRICS: LoadMetrics = LoadMetrics {
    path: "/metrics",
    running: &["llamacpp:requests_processing"],
    waiting: &["llamacpp:requests_deferred"],
    cache_usage: &["llamacpp:kv_cache_usage_ratio"],
    preemptions: &[],
};

#[derive(Debug)]
pub(super) struct LlamaCppApi;

impl ServerApi for LlamaCppApi {
    fn load_metrics(&self) -> Option<&'static LoadMetrics> {
        Some(&LOAD_METRICS)
    }

    fn upstream_body(&self, call: &ModelCall, model: &str, _request_id: &str) -> UpstreamBody {
        let mut body = forward(call, model);
        for name in ["stream_options", "return_token_ids", "n_probs"] {
            body.remove(name);
        }
        // With 0 alternatives nothing is returned.
        let alternatives = alternatives(call).max(1);
        match call.kind {
            CallKind::Chat => {
                body.insert("logprobs".to_owned(), true.into());
                body.insert("top_logprobs".to_owned(), alternatives.into());
            }
            CallKind::Completion => {
                body.insert("logprobs".to_owned(), alternatives.into());
            }
        }
        for (name, value) in [
            ("stream", json!(false)),
            // All tokens, in case the log-probabilities omit some.
            ("verbose", json!(true)),
            ("return_tokens", json!(true)),
            ("response_fields", json!(["tokens", "stop_type"])),
            // Log-probabilities before sampling.
            ("post_sampling_probs", json!(false)),
        ] {
            body.insert(name.to_owned(), value);
        }
        outgoing(call, body, false)
    }

    fn response_parser(&self, call: &ModelCall, id: &str, model: &str) -> Box<dyn ResponseParser> {
        Box::new(LlamaCppParser {
            plan: StripPlan::new(call, true),
            kept_alternatives: usize::try_from(alternatives(call)).unwrap_or(usize::MAX),
            id: id.into(),
            model: model.into(),
            prompt: None,
            choices: None,
        })
    }

    fn parses_values(&self) -> bool {
        true
    }

    fn prompt_lookup(&self, call: &ModelCall) -> Option<Box<dyn PromptLookup>> {
        Some(Box::new(LlamaPromptLookup::new(call)))
    }

    fn detokenize(&self, token: i32, _: &str) -> Option<(UpstreamBody, &'static str)> {
        let body = json!({ "tokens": [token] });
        Some((UpstreamBody { path: "/detokenize", body, stream: false }, "content"))
    }

    fn weight_control(&self) -> Result<&'static dyn WeightControl, &'static str> {
        Err("llama-server cannot update its weights")
    }
}

/// Number of alternatives per token that the client requested.
fn alternatives(call: &ModelCall) -> u64 {
    let name = match call.kind {
        CallKind::Chat => "top_logprobs",
        CallKind::Completion => "logprobs",
    };
    call.body.get(name).and_then(Value::as_u64).unwrap_or(0)
}

#[derive(Debug)]
struct LlamaCppParser {
    plan: StripPlan,
    kept_alternatives: usize,
    id: String,
    model: String,
    prompt: Option<Vec<i32>>,
    /// Recorded choices, or the reason why there are none: the client gets its response in any
    /// case.
    choices: Option<Result<Vec<ResponseChoice>, ResponseParseError>>,
}

impl ResponseParser for LlamaCppParser {
    fn set_prompt(&mut self, tokens: Vec<i32>) {
        self.prompt = Some(tokens);
    }

    fn parse_full(
        &mut self,
        body: &[u8],
        source: TokenSource,
    ) -> Result<Vec<Bytes>, ResponseParseError> {
        let body: Value = serde_json::from_slice(body).map_err(|error| {
            ResponseParseError::new(format!("the response of llama-server is not JSON: {error}"))
        })?;
        let Value::Object(mut body) = body else {
            return Err(ResponseParseError::new(
                "the response of llama-server is not a JSON object",
            ));
        };
        self.choices = Some(self.record_choices(&body, source));
        self.trim(&mut body);
        let body = Value::Object(body).to_string();
        if !self.plan.stream {
            return Ok(vec![body.into()]);
        }
        let fields = JsonFields::read(&body).map_err(ResponseParseError)?;
        let choices = fields.list("choices").map_err(ResponseParseError)?.unwrap_or_default();
        make_events(&self.plan, fields, choices).map_err(ResponseParseError)
    }

    fn parse_event(
        &mut self,
        _data: &str,
        _source: TokenSource,
    ) -> Result<Vec<Bytes>, ResponseParseError> {
        Err(ResponseParseError::new("llama-server sent events instead of a full response"))
    }

    fn finish(self: Box<Self>, end: ResponseEnd) -> Result<ModelResponse, ResponseParseError> {
        let choices = match (self.choices, end) {
            (Some(choices), _) => choices?,
            (None, ResponseEnd::Aborted) => Vec::new(),
            (None, ResponseEnd::Complete) => {
                return Err(ResponseParseError::new("llama-server sent no response"));
            }
        };
        Ok(ModelResponse { id: self.id, model: self.model, prompt: self.prompt, choices, end })
    }
}

impl LlamaCppParser {
    fn record_choices(
        &self,
        body: &Map<String, Value>,
        source: TokenSource,
    ) -> Result<Vec<ResponseChoice>, ResponseParseError> {
        self.check_prompt(body)?;
        let list = body.get("choices").and_then(Value::as_array);
        let list = list.filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| {
            ResponseParseError::new("the response of llama-server has no choices")
        })?;
        let check = TokenCheck::new(body, list.len());
        let choices = list.iter().enumerate().map(|(position, value)| {
            if value.get("index").and_then(Value::as_u64) != Some(position as u64) {
                return Err(ResponseParseError::new(format!(
                    "choice {position} of llama-server is out of order"
                )));
            }
            self.choice(value, position, &check, source)
        });
        choices.collect()
    }

    /// The prompt was tokenized separately: at least the number of tokens must be equal.
    fn check_prompt(&self, body: &Map<String, Value>) -> Result<(), ResponseParseError> {
        let stated = body.get("usage").and_then(|usage| usage.get("prompt_tokens"));
        let (Some(stated), Some(prompt)) = (stated.and_then(Value::as_u64), &self.prompt) else {
            return Ok(());
        };
        if stated == prompt.len() as u64 {
            return Ok(());
        }
        Err(ResponseParseError::new(format!(
            "llama-server evaluated a prompt of {stated} tokens but tokenizes it to {}: prompts \
             with images or audio cannot be recorded",
            prompt.len()
        )))
    }

    fn choice(
        &self,
        value: &Value,
        position: usize,
        check: &TokenCheck,
        source: TokenSource,
    ) -> Result<ResponseChoice, ResponseParseError> {
        let entries = value.get("logprobs").and_then(|logprobs| logprobs.get("content"));
        let entries = entries.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let reply = match self.plan.kind {
            CallKind::Chat => value.get("message").cloned().unwrap_or_default(),
            CallKind::Completion => value.get("text").cloned().unwrap_or_default(),
        };
        let (tokens, logprobs) = read(entries)?;
        check.check(position, &tokens, entries, &reply)?;
        let mut versions = ModelVersions::default();
        if let Ok(count @ 1..) = u32::try_from(tokens.len()) {
            let run = VersionSpan { version: source.version, tokens: count };
            versions.push(run).map_err(|problem| ResponseParseError(problem.to_string()))?;
        }
        let finish_reason = value.get("finish_reason").and_then(Value::as_str).map(String::from);
        if finish_reason.is_none() {
            return Err(ResponseParseError::new(format!(
                "choice {position} of llama-server has no finish reason"
            )));
        }
        Ok(ResponseChoice {
            tokens: Some(tokens),
            logprobs: Some(logprobs),
            versions,
            finish_reason,
            reply,
        })
    }

    /// Removes fields that only the gateway requested, and adds token ids.
    fn trim(&self, body: &mut Map<String, Value>) {
        body.insert("id".to_owned(), self.id.as_str().into());
        body.insert("model".to_owned(), self.model.as_str().into());
        body.remove("__verbose");
        if self.plan.stream {
            // Belongs to the full response, not to an event.
            body.remove("timings");
        }
        if let (Some(prompt), true) = (&self.prompt, self.plan.keeps_token_ids) {
            body.insert("prompt_token_ids".to_owned(), json!(prompt));
        }
        let recorded = self.choices.as_ref().and_then(|choices| choices.as_ref().ok());
        let list = body.get_mut("choices").and_then(Value::as_array_mut).into_iter().flatten();
        for (position, choice) in list.enumerate() {
            let Some(choice) = choice.as_object_mut() else { continue };
            if self.plan.keeps_token_ids {
                let known = recorded.and_then(|choices| choices.get(position));
                let tokens = known.and_then(|choice| choice.tokens.as_ref());
                choice.insert("token_ids".to_owned(), json!(tokens));
            }
            self.trim_logprobs(choice);
        }
    }

    fn trim_logprobs(&self, choice: &mut Map<String, Value>) {
        if !self.plan.keeps_logprobs {
            choice.insert("logprobs".to_owned(), Value::Null);
            return;
        }
        let entries = choice.get_mut("logprobs").and_then(|logprobs| logprobs.get_mut("content"));
        for entry in entries.and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(Value::Array(others)) = entry.get_mut("top_logprobs") {
                others.truncate(self.kept_alternatives);
            }
        }
    }
}

fn read(entries: &[Value]) -> Result<(Vec<i32>, Vec<f32>), ResponseParseError> {
    let mut tokens = Vec::with_capacity(entries.len());
    let mut logprobs = Vec::with_capacity(entries.len());
    for entry in entries {
        let id = entry.get("id").and_then(Value::as_i64).and_then(|id| i32::try_from(id).ok());
        tokens.push(id.ok_or_else(|| {
            ResponseParseError::new(
                "llama-server returns no token ids: it is older than its `id` fields",
            )
        })?);
        let logprob = entry.get("logprob").and_then(Value::as_f64).map(|number| number as f32);
        if let Some(logprob) = logprob.filter(|logprob| *logprob > MAX_LOGPROB) {
            return Err(ResponseParseError(format!("a log-probability is {logprob}, above 0")));
        }
        // Probabilities rounded to zero have the lowest float.
        logprobs.push(
            logprob.filter(|number| number.is_finite() && *number > f32::MIN).ok_or_else(|| {
                ResponseParseError::new(
                    "llama-server returns no log-probability of a sampled token",
                )
            })?,
        );
    }
    Ok((tokens, logprobs))
}
