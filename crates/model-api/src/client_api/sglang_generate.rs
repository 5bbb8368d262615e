//! SGLang's `/generate`, translated to completions.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::openai_completions::check_completion;
use super::request_fields::{RequestFields, parse_object, refusal};
use super::token_form::{
    CompletionChoice, CompletionReply, copy_sampling, refuse_fields, refuse_stream,
};
use super::{ClientApi, Route, RouteMatch};
use crate::error::CallError;
use crate::model_call::ModelCall;

/// Default of SGLang.
const MAX_NEW_TOKENS: u64 = 128;

/// Sampling parameters with another name in completions.
const RENAMED: [(&str, &str); 3] =
    [("max_new_tokens", "max_tokens"), ("min_new_tokens", "min_tokens"), ("sampling_seed", "seed")];

/// Fields that the response would have to answer to.
const UNSUPPORTED: [&str; 7] = [
    "audio_data",
    "image_data",
    "input_embeds",
    "lora_path",
    "return_hidden_states",
    "token_ids_logprob",
    "video_data",
];

/// `POST /generate`.
#[derive(Debug)]
pub struct SglangGenerate;

impl ClientApi for SglangGenerate {
    fn name(&self) -> &'static str {
        "sglang_generate"
    }

    fn routes(&self) -> &'static [Route] {
        &[Route::Call("/generate")]
    }

    fn id_prefix(&self) -> &'static str {
        "gen"
    }

    fn parse(&self, _: &RouteMatch<'_>, body: &[u8]) -> Result<ModelCall, CallError> {
        let body = parse_object(body)?;
        let fields = RequestFields(&body);
        refuse_stream(&fields)?;
        refuse_fields(&fields, &UNSUPPORTED)?;
        let prompt = match (fields.get("input_ids"), fields.get("text")) {
            (Some(Value::Array(ids)), None) if !ids.iter().any(Value::is_array) => {
                ids.clone().into()
            }
            (None, Some(Value::String(text))) => Value::from(text.as_str()),
            _ => {
                let message = "exactly one of input_ids (a list of token ids) and text (a string) \
                               is required; several prompts need several calls";
                return Err(refusal(message).at("input_ids"));
            }
        };
        let mut completion = Map::new();
        if let Some(model) = fields.get("model") {
            completion.insert("model".to_owned(), model.clone());
        }
        completion.insert("prompt".to_owned(), prompt);
        completion.insert("return_token_ids".to_owned(), true.into());
        completion.insert("max_tokens".to_owned(), MAX_NEW_TOKENS.into());
        if fields.boolean("return_logprob")? == Some(true) {
            completion.insert("logprobs".to_owned(), 0.into());
        }
        copy_sampling(&fields, &RENAMED, &[], &mut completion)?;
        check_completion(completion)
    }

    fn render_body(&self, call: &ModelCall, body: Bytes) -> Bytes {
        let Ok(reply) = serde_json::from_slice::<CompletionReply>(&body) else { return body };
        let rendered = reply.choices.iter().map(|choice| generated(&reply, choice));
        let rendered = match call.choices {
            1 => rendered.into_iter().next().unwrap_or_default(),
            _ => rendered.collect(),
        };
        rendered.to_string().into()
    }
}

fn generated(reply: &CompletionReply, choice: &CompletionChoice) -> Value {
    let tokens = choice.token_ids.as_ref().map_or(0, Vec::len);
    let reason = choice.finish_reason.as_deref().map(|reason| match reason {
        "length" => json!({ "type": "length", "length": tokens }),
        reason => json!({ "type": reason, "matched": choice.stop_reason }),
    });
    let mut meta = json!({
        "id": reply.id,
        "finish_reason": reason,
        "prompt_tokens": choice.prompt_token_ids.as_ref().map(Vec::len),
        "completion_tokens": tokens,
        "cached_tokens": 0,
    });
    if let Some(version) = &reply.weight_version {
        meta["weight_version"] = version.clone();
    }
    if let Some(tokens) = choice.token_logprobs() {
        let entries = tokens.map(|(token, logprob)| json!([logprob, token, null]));
        meta["output_token_logprobs"] = entries.collect();
    }
    json!({ "text": choice.text, "output_ids": choice.token_ids, "meta_info": meta })
}
