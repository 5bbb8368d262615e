//! The OpenAI Chat Completions API.

use serde_json::{Map, Value};

use super::request_fields::{RequestFields, a, check, parse, refusal};
use super::{ClientApi, Route, RouteMatch};
use crate::error::CallError;
use crate::model_call::{CallKind, ModelCall};

/// `POST /v1/chat/completions`.
#[derive(Debug)]
pub struct OpenaiChat;

impl ClientApi for OpenaiChat {
    fn name(&self) -> &'static str {
        "chat"
    }

    fn routes(&self) -> &'static [Route] {
        const { &[Route::Call(CallKind::Chat.path())] }
    }

    fn key_headers(&self) -> &'static [&'static str] {
        &["api-key"]
    }

    fn id_prefix(&self) -> &'static str {
        "chatcmpl"
    }

    fn parse(&self, _: &RouteMatch<'_>, body: &[u8]) -> Result<ModelCall, CallError> {
        parse(CallKind::Chat, body, check_messages, check_logprobs)
    }
}

/// Checks a chat request that another client API was translated to.
pub(super) fn check_chat(body: Map<String, Value>) -> Result<ModelCall, CallError> {
    check(CallKind::Chat, body, check_messages, check_logprobs)
}

fn check_messages(fields: &RequestFields<'_>) -> Result<(), CallError> {
    let at = "messages";
    let Some(messages) = fields.list(at)? else {
        return Err(refusal("messages is missing: a chat needs at least one").at(at));
    };
    if messages.is_empty() {
        return Err(refusal("messages is empty: a chat needs at least one").at(at));
    }
    for (number, message) in messages.iter().enumerate() {
        let at = format!("messages[{number}]");
        if !message.is_object() {
            return Err(refusal(format!("{at} must be an object, not {}", a(message))).at(at));
        }
        let at = format!("{at}.role");
        match message.get("role") {
            Some(Value::String(_)) => {}
            Some(role) => {
                return Err(refusal(format!("{at} must be a string, not {}", a(role))).at(at));
            }
            None => return Err(refusal(format!("{at} is missing")).at(at)),
        }
    }
    Ok(())
}

fn check_logprobs(fields: &RequestFields<'_>) -> Result<(), CallError> {
    let top = fields.integer("top_logprobs", -1, i64::from(i32::MAX))?;
    match (fields.boolean("logprobs")?, top) {
        (Some(true), _) | (_, None | Some(0)) => Ok(()),
        _ => Err(refusal("top_logprobs needs logprobs to be true").at("top_logprobs")),
    }
}
