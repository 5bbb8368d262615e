//! vLLM's `/inference/v1/generate`: token ids in and out, translated to completions.

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

/// Parameters of the engine that have no effect on a response with token ids.
const IGNORED: [&str; 4] = ["detokenize", "extra_args", "output_kind", "skip_reading_prefix_cache"];

/// `POST /inference/v1/generate`.
#[derive(Debug)]
pub struct VllmGenerate;

impl ClientApi for VllmGenerate {
    fn name(&self) -> &'static str {
        "vllm_generate"
    }

    fn routes(&self) -> &'static [Route] {
        &[Route::Call("/inference/v1/generate")]
    }

    fn id_prefix(&self) -> &'static str {
        "generate"
    }

    fn parse(&self, _: &RouteMatch<'_>, body: &[u8]) -> Result<ModelCall, CallError> {
        let body = parse_object(body)?;
        let fields = RequestFields(&body);
        refuse_stream(&fields)?;
        refuse_fields(&fields, &["features", "content_parts", "kv_transfer_params"])?;
        if fields.text("output_mode")?.is_some_and(|mode| mode != "tokens") {
            let message = "output_mode is not supported: only `tokens`";
            return Err(refusal(message).at("output_mode"));
        }
        let Some(tokens) = fields.list("token_ids")? else {
            return Err(refusal("token_ids is missing").at("token_ids"));
        };
        let mut completion = Map::new();
        if let Some(model) = fields.get("model") {
            completion.insert("model".to_owned(), model.clone());
        }
        completion.insert("prompt".to_owned(), tokens.clone().into());
        completion.insert("return_token_ids".to_owned(), true.into());
        // As many as the model has room for, unlike completions.
        completion.insert("max_tokens".to_owned(), Value::Null);
        copy_sampling(&fields, &[("logprobs", "logprobs")], &IGNORED, &mut completion)?;
        check_completion(completion)
    }

    fn render_body(&self, _: &ModelCall, body: Bytes) -> Bytes {
        let Ok(reply) = serde_json::from_slice::<CompletionReply>(&body) else { return body };
        let prompt = reply.choices.first().and_then(|choice| choice.prompt_token_ids.clone());
        let rendered = json!({
            "request_id": reply.id,
            "model": reply.model,
            "created": reply.created,
            "output_mode": "tokens",
            "choices": reply.choices.iter().map(choice).collect::<Vec<_>>(),
            "prompt_token_ids": prompt,
            "usage": reply.usage,
        });
        rendered.to_string().into()
    }
}

fn choice(choice: &CompletionChoice) -> Value {
    let logprobs = choice.token_logprobs().map(|tokens| {
        let entry = |(token_id, logprob)| {
            json!({ "token_id": token_id, "logprob": logprob, "rank": null, "top_logprobs": [] })
        };
        json!({ "content": tokens.map(entry).collect::<Vec<_>>() })
    });
    json!({
        "index": choice.index,
        "token_ids": choice.token_ids,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    })
}
