//! The OpenAI Completions API.

use serde_json::{Map, Value};

use super::request_fields::{RequestFields, a, check, parse, parse_object, refusal};
use super::{ClientApi, Route, RouteMatch};
use crate::error::{CallError, ErrorKind};
use crate::json_shape::fields_bytes;
use crate::model_call::{CallKind, ModelCall};

/// Maximum number of prompts of a request.
const MAX_PROMPTS: usize = 256;

/// Maximum memory of the fields that the calls of several prompts share. Each call has a copy.
const MAX_COPIED_BYTES: u64 = 64 << 10;

/// `POST /v1/completions`.
#[derive(Debug)]
pub struct OpenaiCompletions;

impl ClientApi for OpenaiCompletions {
    fn name(&self) -> &'static str {
        "completions"
    }

    fn routes(&self) -> &'static [Route] {
        const { &[Route::Call(CallKind::Completion.path())] }
    }

    fn id_prefix(&self) -> &'static str {
        "cmpl"
    }

    fn parse(&self, _: &RouteMatch<'_>, body: &[u8]) -> Result<ModelCall, CallError> {
        parse(CallKind::Completion, body, check_prompt, check_logprobs)
    }

    fn parse_all(&self, _: &RouteMatch<'_>, body: &[u8]) -> Result<Vec<ModelCall>, CallError> {
        let mut body = parse_object(body)?;
        let prompts = match body.get_mut("prompt") {
            Some(Value::Array(prompts)) if is_several(prompts) => std::mem::take(prompts),
            _ => return check_completion(body).map(|call| vec![call]),
        };
        if prompts.len() > MAX_PROMPTS {
            let message = format!("prompt has {} prompts, more than {MAX_PROMPTS}", prompts.len());
            return Err(refusal(message).at("prompt"));
        }
        body.remove("prompt");
        let bytes = fields_bytes(&body);
        if bytes > MAX_COPIED_BYTES {
            let message = format!(
                "the fields beside prompt take {bytes} bytes of memory, and each of the {} prompts \
                 gets a copy: with several prompts the limit is {MAX_COPIED_BYTES}; make a call \
                 for each prompt",
                prompts.len()
            );
            return Err(CallError::new(ErrorKind::TooLarge, message));
        }
        let call = |prompt: Value| {
            let mut body = body.clone();
            body.insert("prompt".to_owned(), prompt);
            check_completion(body)
        };
        prompts.into_iter().map(call).collect()
    }
}

/// Returns whether a list contains prompts and not the token ids of one.
fn is_several(prompts: &[Value]) -> bool {
    prompts.len() > 1 && prompts.iter().all(|prompt| prompt.is_string() || prompt.is_array())
}

/// Checks a completion that another client API was translated to.
pub(super) fn check_completion(body: Map<String, Value>) -> Result<ModelCall, CallError> {
    check(CallKind::Completion, body, check_prompt, check_logprobs)
}

/// Checks that there is exactly one prompt: the choices of a recorded response share it. Requests
/// with several are split before.
fn check_prompt(fields: &RequestFields<'_>) -> Result<(), CallError> {
    let at = "prompt";
    let prompts = match fields.get(at) {
        Some(Value::String(_)) => return Ok(()),
        Some(Value::Array(prompts)) => prompts,
        Some(other) => {
            let wanted = "a string or a list of token ids";
            return Err(refusal(format!("prompt must be {wanted}, not {}", a(other))).at(at));
        }
        None => return Err(refusal("prompt is missing").at(at)),
    };
    match prompts.as_slice() {
        [] => Err(refusal("prompt is empty: it needs at least one token id").at(at)),
        [Value::String(_)] => Ok(()),
        [Value::Array(ids)] => token_ids(ids),
        [Value::String(_) | Value::Array(_), ..] => Err(refusal(format!(
            "prompt has {} prompts, but one call takes one: make a call for each",
            prompts.len()
        ))
        .at(at)),
        ids => token_ids(ids),
    }
}

fn token_ids(ids: &[Value]) -> Result<(), CallError> {
    let at = "prompt";
    if ids.is_empty() {
        return Err(refusal("prompt is empty: it needs at least one token id").at(at));
    }
    for (number, id) in ids.iter().enumerate() {
        if id.as_u64().is_none_or(|id| id > i32::MAX.cast_unsigned().into()) {
            let shown = if id.is_number() { id.to_string() } else { a(id).to_owned() };
            return Err(refusal(format!("prompt[{number}] must be a token id, not {shown}")).at(at));
        }
    }
    Ok(())
}

fn check_logprobs(fields: &RequestFields<'_>) -> Result<(), CallError> {
    let max = i64::from(i32::MAX);
    fields.integer("top_logprobs", -1, max)?;
    fields.integer("logprobs", -1, max).map(drop)
}
