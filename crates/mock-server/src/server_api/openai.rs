//! OpenAI's API without extensions, and its responses with and without those of vLLM.

use http::StatusCode;
use serde_json::{Value, json};

use super::MockApi;
use super::format::{
    CHUNK, CREATED, CompletionFormat, Format, Style, TEXT, chat_logprobs, delta, is_first, message,
    returned_finish, returned_ids, returned_prompt, text_logprobs, token_text, usage,
};
use crate::api_error::ApiError;
use crate::generation::{Finish, Generation, Step};
use crate::generation_state::GenerationState;
use crate::request::{CHAT_PATH, MockRequest};

#[derive(Debug)]
pub(super) struct OpenaiMock;

const COMMON_FIELDS: &str = "model stream stream_options n max_tokens stop seed temperature top_p \
                             logprobs user frequency_penalty presence_penalty logit_bias";
const CHAT_FIELDS: &str = "messages tools tool_choice parallel_tool_calls top_logprobs \
                           response_format max_completion_tokens metadata store reasoning_effort \
                           service_tier";
const COMPLETION_FIELDS: &str = "prompt best_of echo suffix";

impl MockApi for OpenaiMock {
    fn describes_model(&self) -> bool {
        false
    }

    /// A strict server refuses fields that the API does not have.
    fn check(&self, state: &GenerationState, path: &str, body: &Value) -> Result<(), ApiError> {
        if !state.options.strict {
            return Ok(());
        }
        let fields = if path == CHAT_PATH { CHAT_FIELDS } else { COMPLETION_FIELDS };
        let is_known = |name: &str| {
            COMMON_FIELDS.split(' ').chain(fields.split(' ')).any(|known| known == name)
        };
        let names = body.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        let unknown: Vec<&str> = names.filter(|name| !is_known(name)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let message = format!("Unexpected fields in the request: {}", unknown.join(", "));
        Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, message))
    }

    fn error_body(&self, mut error: Value) -> Value {
        error["type"] = "invalid_request_error".into();
        error["code"] = Value::Null;
        json!({ "error": error })
    }

    fn chat_format(&self, _: &MockRequest) -> Box<dyn Format> {
        OpenaiStyle { is_vllm: false, ids: false }.chat()
    }

    fn completion_format(&self, _: &MockRequest) -> Box<dyn Format> {
        OpenaiStyle { is_vllm: false, ids: false }.completion()
    }
}

/// OpenAI's responses, with the fields that vLLM adds if `is_vllm`.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenaiStyle {
    pub(super) is_vllm: bool,
    /// True if token ids are part of the response.
    pub(super) ids: bool,
}

impl OpenaiStyle {
    pub(super) fn chat(self) -> Box<dyn Format> {
        Box::new(self)
    }

    pub(super) fn completion(self) -> Box<dyn Format> {
        Box::new(CompletionFormat { style: self, offsets: Vec::new() })
    }

    fn ids(self, generation: &Generation, steps: &[Step]) -> Value {
        if self.ids { returned_ids(generation, steps) } else { Value::Null }
    }

    fn prompt(self, generation: &Generation, choice: usize) -> Value {
        if self.ids { returned_prompt(generation, choice) } else { Value::Null }
    }
}

impl Style for OpenaiStyle {
    fn envelope(&self, generation: &Generation, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": generation.request.id,
            "object": object,
            "created": CREATED,
            "model": generation.state.options.model,
            "choices": choices,
        })
    }

    fn stream_usage(&self, generation: &Generation) -> Value {
        let mut usage = usage(generation);
        if let Some(usage) = usage.as_object_mut() {
            usage.remove("prompt_tokens_details");
        }
        usage
    }

    fn text_choice(
        &self,
        generation: &Generation,
        index: usize,
        steps: &[Step],
        offset: usize,
    ) -> Value {
        let finish = returned_finish(generation, steps);
        let mut choice = json!({
            "index": index,
            "text": token_text(steps),
            "logprobs": text_logprobs(generation, steps, offset),
            "finish_reason": finish.map(|finish| finish.reason),
        });
        if self.is_vllm {
            choice["stop_reason"] = finish.and_then(|finish| finish.stop.clone()).into();
            choice["token_ids"] = self.ids(generation, steps);
            choice["prompt_token_ids"] =
                if is_first(steps) { self.prompt(generation, index) } else { Value::Null };
        }
        choice
    }

    fn complete(&self, generation: &Generation, _: &[Vec<Step>], body: &mut Value) {
        body["service_tier"] = Value::Null;
        body["system_fingerprint"] = Value::Null;
        body["usage"] = usage(generation);
        if self.is_vllm {
            body["kv_transfer_params"] = Value::Null;
            if body["object"] == TEXT {
                for choice in body["choices"].as_array_mut().into_iter().flatten() {
                    choice["prompt_logprobs"] = Value::Null;
                }
            }
        }
    }
}

fn chat_reason(generation: &Generation, finish: &Finish, has_call: bool) -> &'static str {
    match finish.reason {
        "stop" if has_call && !generation.request.is_named => "tool_calls",
        reason => reason,
    }
}

/// Responses of `/v1/chat/completions`.
impl Format for OpenaiStyle {
    fn begin(&mut self, generation: &Generation) -> Vec<Value> {
        let first = |index: usize| {
            let choice = json!({
                "index": index,
                "delta": { "role": "assistant", "content": "" },
                "logprobs": null,
                "finish_reason": null,
            });
            let mut event = self.envelope(generation, CHUNK, vec![choice]);
            if self.is_vllm {
                event["prompt_token_ids"] = self.prompt(generation, 0);
            }
            event
        };
        (0..generation.request.choices()).map(first).collect()
    }

    fn steps(&mut self, generation: &Generation, steps: &[Step]) -> Vec<Value> {
        let event = |step: &Step| {
            let one = std::slice::from_ref(step);
            let finish = returned_finish(generation, one);
            let reason = finish.map(|finish| chat_reason(generation, finish, step.call.is_some()));
            let mut choice = json!({
                "index": step.choice,
                "delta": delta(generation, step),
                "logprobs": chat_logprobs(generation, one),
                "finish_reason": reason,
            });
            if self.is_vllm {
                choice["token_ids"] = self.ids(generation, one);
                if let Some(finish) = finish {
                    choice["stop_reason"] = finish.stop.clone().into();
                }
            }
            self.envelope(generation, CHUNK, vec![choice])
        };
        steps.iter().map(event).collect()
    }

    fn end(&mut self, generation: &Generation) -> Vec<Value> {
        self.usage_event(generation, CHUNK)
    }

    fn full(&mut self, generation: &Generation, choices: &[Vec<Step>]) -> Value {
        let choice = |(index, steps): (usize, &Vec<Step>)| {
            let (content, calls) = message(generation, index, steps);
            let finish = returned_finish(generation, steps);
            let reason = finish.map(|finish| chat_reason(generation, finish, calls.is_some()));
            let mut choice = json!({
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": content,
                    "refusal": null,
                    "annotations": null,
                    "audio": null,
                    "function_call": null,
                },
                "logprobs": chat_logprobs(generation, steps),
                "finish_reason": reason,
            });
            if let Some(calls) = calls {
                choice["message"]["tool_calls"] = calls;
            }
            if self.is_vllm {
                choice["message"]["reasoning"] = Value::Null;
                choice["stop_reason"] = finish.and_then(|finish| finish.stop.clone()).into();
                choice["token_ids"] = self.ids(generation, steps);
            }
            choice
        };
        let rendered = choices.iter().enumerate().map(choice).collect();
        let mut body = self.envelope(generation, "chat.completion", rendered);
        self.complete(generation, choices, &mut body);
        if self.is_vllm {
            body["prompt_logprobs"] = Value::Null;
            body["prompt_token_ids"] = self.prompt(generation, 0);
        }
        body
    }
}
