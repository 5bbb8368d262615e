//! Chats with exact prompts: the server renders the messages, generates from the spliced tokens,
//! and parses the generated tokens to a chat response. The server must be started with
//! `--enable-scale-out`.

use serde_json::{Map, Value, json};

use crate::server_api::exact_prompt::{
    ChatReason, ExactPrompt, ExactStep, RecordedPrefix, history_body, rendering_body, splice,
    token_ids,
};
use crate::server_api::{ResponseParseError, UpstreamBody};

const RENDER: &str = "/v1/chat/completions/render";
const GENERATE: &str = "/inference/v1/generate";
const DERENDER: &str = "/v1/chat/completions/derender";

#[derive(Debug)]
pub(super) struct VllmExactPrompt {
    /// Body of the chat.
    chat: Map<String, Value>,
    request_id: String,
    prefix: RecordedPrefix,
    state: VllmStep,
}

#[derive(Debug)]
enum VllmStep {
    RenderPrompt,
    /// With the request to generate from the rendered prompt.
    RenderHistory(Value),
    Generate(Vec<i32>),
    /// With prompt and generated response.
    Derender(Vec<i32>, Value),
}

impl VllmExactPrompt {
    pub(super) fn new(
        mut chat: Map<String, Value>,
        request_id: &str,
        prefix: RecordedPrefix,
    ) -> Self {
        chat.insert("stream".to_owned(), false.into());
        chat.remove("stream_options");
        let request_id = request_id.to_owned();
        Self { chat, request_id, prefix, state: VllmStep::RenderPrompt }
    }

    fn generate(&mut self, mut request: Value, prompt: Vec<i32>) -> ExactStep {
        request["token_ids"] = json!(prompt);
        request["request_id"] = json!(self.request_id);
        request["return_token_ids"] = true.into();
        request["stream"] = false.into();
        request["model"] = self.chat.get("model").cloned().unwrap_or_default();
        if let Some(fields) = request.as_object_mut() {
            // Positions in the rendered text.
            fields.remove("token_offsets");
            fields.remove("stream_options");
        }
        self.state = VllmStep::Generate(prompt);
        ExactStep::Generate(UpstreamBody { path: GENERATE, body: request, stream: false })
    }
}

impl ExactPrompt for VllmExactPrompt {
    fn start(&mut self) -> ExactStep {
        let mut body = rendering_body(&self.chat);
        // Sampling parameters of the generation are made of these.
        for name in ["logprobs", "top_logprobs"] {
            if let Some(value) = self.chat.get(name) {
                body.insert(name.to_owned(), value.clone());
            }
        }
        ExactStep::Request(UpstreamBody { path: RENDER, body: body.into(), stream: false })
    }

    fn reply(&mut self, reply: Value) -> Result<ExactStep, ResponseParseError> {
        match std::mem::replace(&mut self.state, VllmStep::RenderPrompt) {
            VllmStep::RenderPrompt => {
                if reply.get("features").is_some_and(|features| !features.is_null()) {
                    return Ok(ExactStep::Chat(ChatReason::NotText));
                }
                if token_ids(&reply, "token_ids")?.starts_with(&self.prefix.tokens) {
                    return Ok(ExactStep::Chat(ChatReason::Reproduced));
                }
                self.state = VllmStep::RenderHistory(reply);
                let body = history_body(&self.chat, self.prefix.messages).into();
                Ok(ExactStep::Request(UpstreamBody { path: RENDER, body, stream: false }))
            }
            VllmStep::RenderHistory(request) => {
                let history = token_ids(&reply, "token_ids")?;
                let prompt = token_ids(&request, "token_ids")?;
                match splice(&self.prefix.tokens, &history, &prompt) {
                    Some(prompt) => Ok(self.generate(request, prompt)),
                    None => Ok(ExactStep::Chat(ChatReason::Rewritten)),
                }
            }
            VllmStep::Generate(prompt) => {
                let body = json!({
                    "model": self.chat.get("model"),
                    "generate_response": reply,
                    "prompt_tokens": prompt.len(),
                    "prompt_token_ids": prompt,
                    "chat_request": self.chat,
                });
                self.state = VllmStep::Derender(prompt, reply);
                Ok(ExactStep::Request(UpstreamBody { path: DERENDER, body, stream: false }))
            }
            VllmStep::Derender(prompt, generated) => {
                let mut response = chat_response(reply, &generated, &prompt)?;
                // As in chats: a named tool leaves the reason of the generation.
                if !self.chat.get("tool_choice").is_some_and(Value::is_object) {
                    set_tool_reason(&mut response);
                }
                Ok(ExactStep::Response(response.to_string().into()))
            }
        }
    }
}

/// Adds the tokens to the parsed response, in the places of a chat.
fn chat_response(
    mut response: Value,
    generated: &Value,
    prompt: &[i32],
) -> Result<Value, ResponseParseError> {
    let reported = generated.get("prompt_token_ids").filter(|ids| !ids.is_null());
    response["prompt_token_ids"] = reported.cloned().unwrap_or_else(|| json!(prompt));
    let missing = || ResponseParseError::new(format!("{DERENDER} returned other choices"));
    let choices = response.get_mut("choices").and_then(Value::as_array_mut).ok_or_else(missing)?;
    let sampled = generated.get("choices").and_then(Value::as_array).ok_or_else(missing)?;
    if choices.len() != sampled.len() {
        return Err(missing());
    }
    for (choice, sampled) in choices.iter_mut().zip(sampled) {
        if choice["index"] != sampled["index"] {
            return Err(missing());
        }
        choice["token_ids"] = sampled["token_ids"].clone();
        if let Some(versions) = sampled.get("weight_versions").filter(|it| !it.is_null()) {
            choice["weight_versions"] = versions.clone();
        }
    }
    Ok(response)
}

/// Sets the finish reason of choices with tool calls.
fn set_tool_reason(response: &mut Value) {
    for choice in response["choices"].as_array_mut().into_iter().flatten() {
        let calls = choice.pointer("/message/tool_calls").and_then(Value::as_array);
        if choice["finish_reason"] == "stop" && calls.is_some_and(|calls| !calls.is_empty()) {
            choice["finish_reason"] = "tool_calls".into();
        }
    }
}
