//! vLLM: token ids by `return_token_ids`.
//!
//! - Chat: `prompt_token_ids` at the top of a whole answer and of the first event of each choice;
//!   `token_ids` and `logprobs.content` in every choice and every piece of one, token by token.
//! - Completions: `prompt_token_ids` in every choice, or in the first piece of each.
//! - What was not asked for is null there, so that is what is put in its place. An empty `delta`
//!   is sent only for the sake of its token ids, and left out for clients who did not want them.
//! - Weight versions are told by some versions of the server, as spans of tokens
//!   (`weight_versions`), with the last piece of a choice.
//! - The request's id is the body's `request_id` (a header `X-Request-Id` would go before it),
//!   of which the server makes a name of its own, with the endpoint and, for completions, the
//!   number of the prompt in it. `/abort_requests` wants that name, and is not open everywhere.
//!
//! A stream's `system_fingerprint` comes with the number of tokens, which we ask for: a client who
//! did not gets neither.

use serde_json::{Value, json};

use super::chunks::{Chunks, Plan, Words, ask_logprobs, ask_usage, forward, logprobs, outgoing};
use super::fields::Fields;
use super::gather::{Part, Span, Version};
use super::{Dialect, Outgoing, Reader};
use crate::call::{Call, Kind};

/// The dialect of vLLM.
#[derive(Debug)]
pub struct Vllm;

impl Dialect for Vllm {
    fn outgoing(&self, call: &Call, model: &str, request_id: &str) -> Outgoing {
        let mut body = forward(call, model);
        body.insert("request_id".to_owned(), request_id.into());
        body.insert("return_token_ids".to_owned(), true.into());
        ask_logprobs(call, &mut body);
        if call.stream {
            ask_usage(&mut body);
        }
        outgoing(call, body, call.stream)
    }

    fn reader(&self, call: &Call, id: &str, model: &str) -> Box<dyn Reader> {
        Box::new(Chunks::new(&Self, Plan::stripping(call), call, id, model))
    }

    fn abort(&self, kind: Kind, request_id: &str) -> Option<Outgoing> {
        let id = match kind {
            Kind::Chat => format!("chatcmpl-{request_id}"),
            Kind::Completion => format!("cmpl-{request_id}-0"),
        };
        let body = json!({ "request_ids": [id] });
        Some(Outgoing { path: "/abort_requests", body, stream: false })
    }
}

impl Words for Vllm {
    fn top(&self, plan: &Plan, fields: &mut Fields<'_>) -> Result<Part, String> {
        let prompt = fields.get("prompt_token_ids")?;
        if !plan.keeps_token_ids {
            fields.blank("prompt_token_ids");
        }
        Ok(Part { prompt, ..Part::default() })
    }

    fn choice(&self, plan: &Plan, fields: &mut Fields<'_>) -> Result<Part, String> {
        let part = Part {
            tokens: fields.get("token_ids")?,
            logprobs: logprobs(plan.kind, fields)?,
            prompt: fields.get("prompt_token_ids")?,
            version: fields.get::<Value>("weight_version")?.as_ref().map(Version::read),
            spans: fields.get::<Vec<Span>>("weight_versions")?,
            ..Part::default()
        };
        if !plan.keeps_token_ids {
            fields.blank("token_ids");
            fields.blank("prompt_token_ids");
        }
        if !plan.keeps_logprobs {
            fields.blank("logprobs");
        }
        if let Some(tokens) = part.tokens.as_ref().map(Vec::len) {
            let logprobs = part.logprobs.as_ref().map_or(0, Vec::len);
            if tokens != logprobs {
                return Err(format!("{tokens} tokens came with {logprobs} log-probabilities"));
            }
        }
        Ok(part)
    }
}
