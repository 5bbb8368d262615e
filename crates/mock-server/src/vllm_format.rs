//! The shape of vLLM's answers, and, without what vLLM adds, of OpenAI's.

use rollway_base::ServerKind;
use serde_json::{Value, json};

use super::format::{
    Format, chat_logprobs, delta, message, reason, returned_finish, returned_ids, returned_prompt,
    text_logprobs, token_text, usage,
};
use super::generation::{Generation, Step};

/// Answers of `/v1/chat/completions`.
#[derive(Debug)]
pub(super) struct Chat {
    /// Whether token ids are told.
    pub(super) ids: bool,
}

/// Answers of `/v1/completions`.
#[derive(Debug)]
pub(super) struct Text {
    /// Whether token ids are told.
    pub(super) ids: bool,
    /// How many characters each choice was told.
    pub(super) offsets: Vec<usize>,
}

const CREATED: u64 = 1_700_000_000;

/// What every answer and every event of it begins with.
fn head(generation: &Generation, object: &str, choices: Vec<Value>) -> Value {
    json!({
        "id": generation.request.id,
        "object": object,
        "created": CREATED,
        "model": generation.state.options.model,
        "choices": choices,
    })
}

fn is_vllm(generation: &Generation) -> bool {
    generation.state.kind() == ServerKind::Vllm
}

/// The event that tells how many tokens there were.
fn usage_event(generation: &Generation, object: &str) -> Vec<Value> {
    if !generation.request.include_usage {
        return Vec::new();
    }
    let mut event = head(generation, object, Vec::new());
    event["usage"] = usage(generation);
    if let Some(usage) = event["usage"].as_object_mut() {
        usage.remove("prompt_tokens_details");
    }
    vec![event]
}

impl Format for Chat {
    fn begin(&mut self, generation: &Generation) -> Vec<Value> {
        let first = |index: usize| {
            let choice = json!({
                "index": index,
                "delta": { "role": "assistant", "content": "" },
                "logprobs": null,
                "finish_reason": null,
            });
            let mut event = head(generation, CHUNK, vec![choice]);
            if is_vllm(generation) {
                event["prompt_token_ids"] =
                    if self.ids { returned_prompt(generation, 0) } else { Value::Null };
            }
            event
        };
        (0..generation.request.choices()).map(first).collect()
    }

    fn steps(&mut self, generation: &Generation, steps: &[Step]) -> Vec<Value> {
        let event = |step: &Step| {
            let one = std::slice::from_ref(step);
            let has_call = step.call.is_some();
            let finish = returned_finish(generation, one);
            let mut choice = json!({
                "index": step.choice,
                "delta": delta(generation, step),
                "logprobs": chat_logprobs(generation, one),
                "finish_reason": finish.map(|finish| reason(generation, finish, has_call)),
            });
            if is_vllm(generation) {
                choice["token_ids"] =
                    if self.ids { returned_ids(generation, one) } else { Value::Null };
                if let Some(finish) = finish {
                    choice["stop_reason"] = finish.stop.clone().into();
                }
            }
            head(generation, CHUNK, vec![choice])
        };
        steps.iter().map(event).collect()
    }

    fn end(&mut self, generation: &Generation) -> Vec<Value> {
        usage_event(generation, CHUNK)
    }

    fn whole(&mut self, generation: &Generation, choices: &[Vec<Step>]) -> Value {
        let choice = |(index, steps): (usize, &Vec<Step>)| {
            let (content, calls) = message(generation, index, steps);
            let has_call = calls.as_array().is_some_and(|calls| !calls.is_empty());
            let finish = returned_finish(generation, steps);
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
                "finish_reason": finish.map(|finish| reason(generation, finish, has_call)),
            });
            if has_call {
                choice["message"]["tool_calls"] = calls;
            }
            if is_vllm(generation) {
                choice["message"]["reasoning"] = Value::Null;
                choice["stop_reason"] = finish.and_then(|finish| finish.stop.clone()).into();
                choice["token_ids"] =
                    if self.ids { returned_ids(generation, steps) } else { Value::Null };
            }
            choice
        };
        let choices = choices.iter().enumerate().map(choice).collect();
        let mut body = head(generation, "chat.completion", choices);
        body["service_tier"] = Value::Null;
        body["system_fingerprint"] = Value::Null;
        body["usage"] = usage(generation);
        if is_vllm(generation) {
            body["prompt_logprobs"] = Value::Null;
            body["prompt_token_ids"] =
                if self.ids { returned_prompt(generation, 0) } else { Value::Null };
            body["kv_transfer_params"] = Value::Null;
        }
        body
    }
}

const CHUNK: &str = "chat.completion.chunk";
const TEXT: &str = "text_completion";

impl Text {
    fn choice(
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
        if is_vllm(generation) {
            choice["stop_reason"] = finish.and_then(|finish| finish.stop.clone()).into();
            choice["token_ids"] =
                if self.ids { returned_ids(generation, steps) } else { Value::Null };
        }
        choice
    }
}

impl Format for Text {
    fn steps(&mut self, generation: &Generation, steps: &[Step]) -> Vec<Value> {
        let mut events = Vec::with_capacity(steps.len());
        self.offsets.resize(generation.request.choices(), 0);
        for step in steps {
            let one = std::slice::from_ref(step);
            let mut choice = self.choice(generation, step.choice, one, self.offsets[step.choice]);
            self.offsets[step.choice] += step.told.chars().count();
            if is_vllm(generation) {
                let is_told = self.ids && step.position == 0;
                let prompt = step.choice / generation.request.n as usize;
                choice["prompt_token_ids"] =
                    if is_told { returned_prompt(generation, prompt) } else { Value::Null };
            }
            events.push(head(generation, TEXT, vec![choice]));
        }
        events
    }

    fn end(&mut self, generation: &Generation) -> Vec<Value> {
        usage_event(generation, TEXT)
    }

    fn whole(&mut self, generation: &Generation, choices: &[Vec<Step>]) -> Value {
        let choice = |(index, steps): (usize, &Vec<Step>)| {
            let mut choice = self.choice(generation, index, steps, 0);
            if is_vllm(generation) {
                let prompt = index / generation.request.n as usize;
                choice["prompt_logprobs"] = Value::Null;
                choice["prompt_token_ids"] =
                    if self.ids { returned_prompt(generation, prompt) } else { Value::Null };
            }
            choice
        };
        let choices = choices.iter().enumerate().map(choice).collect();
        let mut body = head(generation, TEXT, choices);
        body["service_tier"] = Value::Null;
        body["system_fingerprint"] = Value::Null;
        body["usage"] = usage(generation);
        if is_vllm(generation) {
            body["kv_transfer_params"] = Value::Null;
        }
        body
    }
}
