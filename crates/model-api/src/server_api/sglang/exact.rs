//! Chats with exact prompts: `/v1/tokenize` renders the messages, and the chat has the spliced
//! tokens as `input_ids`. Servers without `input_ids` ignore it, and return the prompt they used.

use serde_json::{Map, Value};

use crate::server_api::exact_prompt::{
    ChatReason, ExactPrompt, ExactStep, RecordedPrefix, history_body, rendering_body, splice,
    token_ids,
};
use crate::server_api::{ResponseParseError, UpstreamBody};

const TOKENIZE: &str = "/v1/tokenize";

#[derive(Debug)]
pub(super) struct SglangExactPrompt {
    chat: UpstreamBody,
    prefix: RecordedPrefix,
    state: SglangStep,
}

#[derive(Debug)]
enum SglangStep {
    RenderPrompt,
    /// With the rendered prompt.
    RenderHistory(Vec<i32>),
    Generate,
}

impl SglangExactPrompt {
    pub(super) fn new(chat: UpstreamBody, prefix: RecordedPrefix) -> Self {
        Self { chat, prefix, state: SglangStep::RenderPrompt }
    }

    fn fields(&self) -> Map<String, Value> {
        self.chat.body.as_object().cloned().unwrap_or_default()
    }

    /// Returns the request that renders messages.
    fn tokenize(mut body: Map<String, Value>) -> ExactStep {
        for name in ["rid", "return_meta_info", "return_prompt_token_ids"] {
            body.remove(name);
        }
        ExactStep::Request(UpstreamBody { path: TOKENIZE, body: body.into(), stream: false })
    }
}

impl ExactPrompt for SglangExactPrompt {
    fn start(&mut self) -> ExactStep {
        if has_media(&self.chat.body) {
            return ExactStep::Chat(ChatReason::NotText);
        }
        Self::tokenize(rendering_body(&self.fields()))
    }

    fn reply(&mut self, reply: Value) -> Result<ExactStep, ResponseParseError> {
        match std::mem::replace(&mut self.state, SglangStep::Generate) {
            SglangStep::RenderPrompt => {
                let prompt = token_ids(&reply, "tokens")?;
                if prompt.starts_with(&self.prefix.tokens) {
                    return Ok(ExactStep::Chat(ChatReason::Reproduced));
                }
                self.state = SglangStep::RenderHistory(prompt);
                Ok(Self::tokenize(history_body(&self.fields(), self.prefix.messages)))
            }
            SglangStep::RenderHistory(prompt) => {
                let history = token_ids(&reply, "tokens")?;
                let Some(prompt) = splice(&self.prefix.tokens, &history, &prompt) else {
                    return Ok(ExactStep::Chat(ChatReason::Rewritten));
                };
                let mut chat = self.chat.clone();
                chat.body["input_ids"] = prompt.into();
                Ok(ExactStep::Generate(chat))
            }
            SglangStep::Generate => Ok(ExactStep::Response(reply.to_string().into())),
        }
    }
}

/// Returns whether a message has content besides text.
fn has_media(body: &Value) -> bool {
    let messages = body.get("messages").and_then(Value::as_array).into_iter().flatten();
    let parts = messages.filter_map(|message| message.get("content")?.as_array()).flatten();
    parts.into_iter().any(|part| part.is_object() && part.get("text").is_none())
}
