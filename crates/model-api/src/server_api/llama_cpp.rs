//! The dialect of `llama-server`, the server of llama.cpp.
//!
//! It tells token ids beside log-probabilities, with a catch: of the tokens that make up one
//! character of several bytes only the last is told. Nothing in an answer says so; only the number
//! of entries is too small. So every answer has to prove that none is missing (`proof`), or it is
//! not recorded. In streams more goes missing without a trace (the token that ends a chat), so the
//! server is always asked for whole answers.

mod prompt;
#[cfg(test)]
mod tests;
mod token_check;

use bytes::Bytes;
use rollway_experience::{ModelVersions, VersionRun};
use serde_json::{Map, Value, json};

use self::prompt::LlamaPromptLookup;
use self::token_check::TokenCheck;
use super::chunk_parser::{StripPlan, forward, outgoing};
use super::json_fields::JsonFields;
use super::synthesize_stream::make_events;
use super::{
    PromptLookup, ResponseParseError, ResponseParser, ServerApi, TokenSource, UpstreamBody,
    WeightControl,
};
use crate::model_call::{CallKind, ModelCall};
use crate::response::{ModelResponse, ResponseChoice, ResponseEnd};

/// The dialect of `llama-server`.
#[derive(Debug)]
pub(super) struct LlamaCppApi;

impl ServerApi for LlamaCppApi {
    fn upstream_body(&self, call: &ModelCall, model: &str, _request_id: &str) -> UpstreamBody {
        let mut body = forward(call, model);
        for name in ["stream_options", "return_token_ids", "n_probs"] {
            body.remove(name);
        }
        // Fewer than one alternative would mean: tell nothing.
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
            // What the tokens are, if the log-probabilities leave some out.
            ("verbose", json!(true)),
            ("return_tokens", json!(true)),
            ("response_fields", json!(["tokens", "stop_type"])),
            // Log-probabilities of the model, whatever the sampling did to them.
            ("post_sampling_probs", json!(false)),
        ] {
            body.insert(name.to_owned(), value);
        }
        outgoing(call, body, false)
    }

    fn response_parser(&self, call: &ModelCall, id: &str, model: &str) -> Box<dyn ResponseParser> {
        Box::new(WholeReader {
            plan: StripPlan::stripping(call),
            kept_alternatives: usize::try_from(alternatives(call)).unwrap_or(usize::MAX),
            id: id.into(),
            model: model.into(),
            prompt: None,
            choices: None,
        })
    }

    fn prompt_lookup(&self, call: &ModelCall) -> Option<Box<dyn PromptLookup>> {
        Some(Box::new(LlamaPromptLookup::new(call)))
    }

    fn weight_control(&self) -> Result<&'static dyn WeightControl, &'static str> {
        Err("llama-server cannot be given other weights while it runs: start it anew, or train \
             with vllm or sglang")
    }
}

/// How many alternatives to each token the client wants.
fn alternatives(call: &ModelCall) -> u64 {
    let name = match call.kind {
        CallKind::Chat => "top_logprobs",
        CallKind::Completion => "logprobs",
    };
    call.body.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// Reads a whole answer.
#[derive(Debug)]
struct WholeReader {
    plan: StripPlan,
    kept_alternatives: usize,
    id: String,
    model: String,
    prompt: Option<Vec<i32>>,
    /// What is recorded, or why nothing is: the client gets its answer all the same.
    choices: Option<Result<Vec<ResponseChoice>, ResponseParseError>>,
}

impl ResponseParser for WholeReader {
    fn set_prompt(&mut self, tokens: Vec<i32>) {
        self.prompt = Some(tokens);
    }

    fn parse_full(
        &mut self,
        body: &[u8],
        source: TokenSource,
    ) -> Result<Vec<Bytes>, ResponseParseError> {
        let body: Value = serde_json::from_slice(body).map_err(|error| {
            ResponseParseError(format!("llama-server's answer is no JSON: {error}"))
        })?;
        let Value::Object(mut body) = body else {
            return Err(ResponseParseError("llama-server's answer is no JSON object".to_owned()));
        };
        self.choices = Some(self.gather(&body, source));
        self.trim(&mut body);
        let body = Value::Object(body).to_string();
        if !self.plan.stream {
            return Ok(vec![body.into()]);
        }
        let fields =
            JsonFields::read(&body).map_err(|error| ResponseParseError(error.to_string()))?;
        let choices = fields.get("choices").map_err(ResponseParseError)?.unwrap_or_default();
        make_events(&self.plan, fields, choices).map_err(ResponseParseError)
    }

    fn parse_event(
        &mut self,
        _data: &str,
        _source: TokenSource,
    ) -> Result<Vec<Bytes>, ResponseParseError> {
        Err(ResponseParseError(
            "llama-server sent events but was asked for a whole answer".to_owned(),
        ))
    }

    fn finish(self: Box<Self>, end: ResponseEnd) -> Result<ModelResponse, ResponseParseError> {
        let choices = match (self.choices, end) {
            (Some(choices), _) => choices?,
            (None, ResponseEnd::Aborted) => Vec::new(),
            (None, ResponseEnd::Complete) => {
                return Err(ResponseParseError("llama-server gave no answer".to_owned()));
            }
        };
        Ok(ModelResponse { id: self.id, model: self.model, prompt: self.prompt, choices, end })
    }
}

impl WholeReader {
    fn gather(
        &self,
        body: &Map<String, Value>,
        source: TokenSource,
    ) -> Result<Vec<ResponseChoice>, ResponseParseError> {
        self.check_prompt(body)?;
        let list = body.get("choices").and_then(Value::as_array);
        let list = list.filter(|list| !list.is_empty());
        let list = list
            .ok_or_else(|| ResponseParseError("llama-server's answer has no choices".to_owned()))?;
        let proof = TokenCheck::new(body, list.len());
        let choices = list.iter().enumerate().map(|(position, value)| {
            if value.get("index").and_then(Value::as_u64) != Some(position as u64) {
                return Err(ResponseParseError(format!(
                    "llama-server's choice {position} is out of order"
                )));
            }
            self.choice(value, position, &proof, source)
        });
        choices.collect()
    }

    /// The prompt was tokenized apart from the answer: at least the number must be the same.
    fn check_prompt(&self, body: &Map<String, Value>) -> Result<(), ResponseParseError> {
        let stated = body.get("usage").and_then(|usage| usage.get("prompt_tokens"));
        let (Some(stated), Some(prompt)) = (stated.and_then(Value::as_u64), &self.prompt) else {
            return Ok(());
        };
        if stated == prompt.len() as u64 {
            return Ok(());
        }
        Err(ResponseParseError(format!(
            "llama-server saw a prompt of {stated} tokens but tokenizes it to {}: prompts with \
             pictures or sound cannot be recorded",
            prompt.len()
        )))
    }

    fn choice(
        &self,
        value: &Value,
        position: usize,
        proof: &TokenCheck,
        source: TokenSource,
    ) -> Result<ResponseChoice, ResponseParseError> {
        let entries = value.get("logprobs").and_then(|logprobs| logprobs.get("content"));
        let entries = entries.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let reply = match self.plan.kind {
            CallKind::Chat => value.get("message").cloned().unwrap_or_default(),
            CallKind::Completion => value.get("text").cloned().unwrap_or_default(),
        };
        let (tokens, logprobs) = read(entries)?;
        proof.check(position, &tokens, entries, &reply)?;
        let mut versions = ModelVersions::default();
        if let Ok(count @ 1..) = u32::try_from(tokens.len()) {
            let run = VersionRun { version: source.version, tokens: count };
            versions.push(run).map_err(|problem| ResponseParseError(problem.to_string()))?;
        }
        let finish_reason = value.get("finish_reason").and_then(Value::as_str).map(String::from);
        if finish_reason.is_none() {
            return Err(ResponseParseError(format!(
                "llama-server's choice {position} has no finish reason"
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

    /// Removes what only the gateway asked for, and adds what only the gateway knows.
    fn trim(&self, body: &mut Map<String, Value>) {
        body.insert("id".to_owned(), self.id.as_str().into());
        body.insert("model".to_owned(), self.model.as_str().into());
        body.remove("__verbose");
        if self.plan.stream {
            // Of the whole answer, and meant for one event alone.
            body.remove("timings");
        }
        if let (Some(prompt), true) = (&self.prompt, self.plan.keeps_token_ids) {
            body.insert("prompt_token_ids".to_owned(), json!(prompt));
        }
        let gathered = self.choices.as_ref().and_then(|choices| choices.as_ref().ok());
        let list = body.get_mut("choices").and_then(Value::as_array_mut).into_iter().flatten();
        for (position, choice) in list.enumerate() {
            let Some(choice) = choice.as_object_mut() else { continue };
            if self.plan.keeps_token_ids {
                let known = gathered.and_then(|choices| choices.get(position));
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

/// Reads ids and log-probabilities from the entries.
fn read(entries: &[Value]) -> Result<(Vec<i32>, Vec<f32>), ResponseParseError> {
    let mut tokens = Vec::with_capacity(entries.len());
    let mut logprobs = Vec::with_capacity(entries.len());
    for entry in entries {
        let id = entry.get("id").and_then(Value::as_i64).and_then(|id| i32::try_from(id).ok());
        tokens.push(id.ok_or_else(|| {
            ResponseParseError(
                "llama-server tells no token ids: it is older than its `id` fields".into(),
            )
        })?);
        let logprob = entry.get("logprob").and_then(Value::as_f64).map(|number| number as f32);
        // A probability that was rounded to zero is told as the lowest number there is.
        logprobs.push(
            logprob.filter(|number| number.is_finite() && *number > f32::MIN).ok_or_else(|| {
                ResponseParseError(
                    "llama-server tells no log-probability of a token that it said".into(),
                )
            })?,
        );
    }
    Ok((tokens, logprobs))
}
