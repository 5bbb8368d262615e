//! SGLang: token ids in `meta_info`.
//!
//! - Chat: `return_meta_info` and `logprobs` bring `output_token_logprobs` in the `meta_info` of
//!   every choice, as `[log-probability, token id, text or null]`, and the versions of the weights;
//!   `return_prompt_token_ids` brings the prompt's tokens, in every choice. The server refuses all
//!   of them for streams, so that it is always asked for a whole answer; a client who wants a
//!   stream gets events that are made from it: who speaks, what is said, which tools are called,
//!   the end. It waits for the first of them until the server has said everything.
//! - Completions: `return_token_ids` brings `token_ids` and `prompt_token_ids` in every choice, and
//!   in streams too. Versions are told by whole answers alone, at the top (`metadata`), of the
//!   first choice.
//! - A server that tells one `weight_version` and no spans of tokens (`weight_versions`) means the
//!   one at the end of the answer. It is believed of all tokens if the gateway knows of no other
//!   since the request; otherwise the tokens have no known version.
//! - What was not asked for is left out, except for `logprobs`, which are null then.
//! - The request's id is the body's `rid`, by which `/abort_request` knows it.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::chunks::{Chunks, Plan, Words, ask_logprobs, ask_usage, forward, logprobs, outgoing};
use super::fields::Fields;
use super::gather::{Part, Span, Version};
use super::{Dialect, Outgoing, Reader};
use crate::call::{Call, Kind};

/// The dialect of SGLang.
#[derive(Debug)]
pub struct Sglang;

impl Dialect for Sglang {
    fn outgoing(&self, call: &Call, model: &str, request_id: &str) -> Outgoing {
        let mut body = forward(call, model);
        body.insert("rid".to_owned(), request_id.into());
        ask_logprobs(call, &mut body);
        match call.kind {
            Kind::Chat => {
                body.insert("return_meta_info".to_owned(), true.into());
                body.insert("return_prompt_token_ids".to_owned(), true.into());
                body.insert("stream".to_owned(), false.into());
                body.remove("stream_options");
                outgoing(call, body, false)
            }
            Kind::Completion => {
                body.insert("return_token_ids".to_owned(), true.into());
                if call.stream {
                    ask_usage(&mut body);
                }
                outgoing(call, body, call.stream)
            }
        }
    }

    fn reader(&self, call: &Call, id: &str, model: &str) -> Box<dyn Reader> {
        Box::new(Chunks::new(&Self, Plan::stripping(call), call, id, model))
    }

    fn abort(&self, _: Kind, request_id: &str) -> Option<Outgoing> {
        let body = json!({ "rid": request_id });
        Some(Outgoing { path: "/abort_request", body, stream: false })
    }
}

/// What the server knows about a choice.
#[derive(Deserialize)]
struct MetaInfo {
    output_token_logprobs: Option<Vec<(Option<f32>, i32, IgnoredAny)>>,
    weight_version: Option<Value>,
    weight_versions: Option<Vec<Span>>,
}

impl Words for Sglang {
    fn top(&self, plan: &Plan, fields: &mut Fields<'_>) -> Result<Part, String> {
        // In a chat every choice has a `meta_info` of its own, which says the same and more.
        if plan.kind == Kind::Chat {
            return Ok(Part::default());
        }
        let mut part = Part::default();
        if let Some(told) = fields.get::<MetaInfo>("metadata")? {
            told.versions(&mut part);
        }
        Ok(part)
    }

    fn choice(&self, plan: &Plan, fields: &mut Fields<'_>) -> Result<Part, String> {
        let mut part = Part { prompt: fields.get("prompt_token_ids")?, ..Part::default() };
        match plan.kind {
            Kind::Chat => {
                if let Some(mut told) = fields.get::<MetaInfo>("meta_info")? {
                    if let Some(entries) = told.output_token_logprobs.take() {
                        part.logprobs = Some(entries.iter().map(|entry| entry.0).collect());
                        part.tokens = Some(entries.iter().map(|entry| entry.1).collect());
                    }
                    told.versions(&mut part);
                }
            }
            Kind::Completion => {
                part.tokens = fields.get("token_ids")?;
                part.logprobs = logprobs(plan.kind, fields)?;
            }
        }
        if !plan.keeps_token_ids {
            fields.remove("token_ids");
        }
        if !plan.keeps_meta_info {
            fields.remove("meta_info");
        }
        if !(plan.keeps_prompt_token_ids || plan.keeps_token_ids) {
            fields.remove("prompt_token_ids");
        }
        if !plan.keeps_logprobs {
            fields.blank("logprobs");
        }
        Ok(part)
    }
}

impl MetaInfo {
    /// Tells the versions of the tokens.
    fn versions(self, part: &mut Part) {
        match self.weight_versions {
            Some(spans) => part.spans = Some(spans),
            None => part.last_version = self.weight_version.as_ref().map(Version::read),
        }
    }
}
