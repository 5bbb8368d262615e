//! Model usage of a run against its budget.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::State;
use bytes::Bytes;
use rollway_model_api::replay::SavedResponse;
use rollway_model_api::{CallError, CallKind, ErrorKind, ModelCall, ModelResponse, ResponseChoice};
use serde_json::{Value, json};

use super::responses::{self, HandlerResult};
use super::state::GatewayState;
use crate::keys::Caller;
use crate::options::RunBudget;

/// Usage of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunUsage {
    /// Time of the first call.
    began: Instant,
    calls: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
    tool_turns: u64,
    /// Key of the budget that was used up first.
    exhausted: Option<&'static str>,
    /// True if the servers failed to answer the last call.
    pub(super) is_unavailable: bool,
}

/// The part of a budget that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BudgetExhausted {
    key: &'static str,
    used: u64,
    max: u64,
}

impl fmt::Display for BudgetExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, used, max } = self;
        let unit = if *key == "duration" { " seconds" } else { "" };
        write!(f, "The budget of this run is exhausted ({key}: {used} of {max}{unit}). Stop here.")
    }
}

impl RunUsage {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            calls: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            tool_turns: 0,
            exhausted: None,
            is_unavailable: false,
        }
    }

    fn to_json(self) -> Value {
        json!({
            "model_calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "tool_turns": self.tool_turns,
            "exhausted": self.exhausted,
            "unavailable": self.is_unavailable,
        })
    }

    /// Charges a call, and limits its completion to the rest of the budget.
    pub(super) fn charge_call(
        &mut self,
        budget: &RunBudget,
        call: &mut ModelCall,
    ) -> Result<(), BudgetExhausted> {
        let charged = self.charge(budget, call);
        if let Err(BudgetExhausted { key, .. }) = charged {
            self.exhausted.get_or_insert(key);
        }
        charged
    }

    fn charge(&mut self, budget: &RunBudget, call: &mut ModelCall) -> Result<(), BudgetExhausted> {
        for (key, used, max) in [
            ("model_calls", self.calls, budget.model_calls),
            ("prompt_tokens", self.prompt_tokens, budget.prompt_tokens),
            ("completion_tokens", self.completion_tokens, budget.completion_tokens),
            ("tool_turns", self.tool_turns, budget.tool_turns),
        ] {
            if let Some(max) = max.filter(|max| used >= *max) {
                return Err(BudgetExhausted { key, used, max });
            }
        }
        let elapsed = self.began.elapsed();
        if let Some(max) = budget.duration.filter(|max| elapsed >= *max) {
            let (used, max) = (elapsed.as_secs(), max.as_secs());
            return Err(BudgetExhausted { key: "duration", used, max });
        }
        self.calls += 1;
        if let Some(max) = budget.completion_tokens {
            // All choices together stay within the rest.
            let rest = (max - self.completion_tokens) / u64::from(call.choices.max(1));
            limit_completion(call, rest.max(1));
        }
        Ok(())
    }

    /// Charges the tokens of a response, also of an aborted one.
    pub(super) fn charge_tokens(&mut self, response: &ModelResponse) {
        let count = |tokens: &Option<Vec<i32>>| tokens.as_ref().map_or(0, |tokens| tokens.len());
        self.prompt_tokens += count(&response.prompt) as u64;
        let completion: usize = response.choices.iter().map(|choice| count(&choice.tokens)).sum();
        self.completion_tokens += completion as u64;
        let has_calls = |choice: &ResponseChoice| {
            choice.reply["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty())
        };
        self.tool_turns +=
            response.choices.iter().filter(|choice| has_calls(choice)).count() as u64;
    }
}

fn limit_completion(call: &mut ModelCall, max: u64) {
    let names = ["max_completion_tokens", "max_tokens"];
    let mut is_limited = false;
    for name in names {
        if let Some(value) = call.body.get_mut(name).filter(|value| !value.is_null()) {
            if value.as_u64().is_none_or(|wanted| wanted > max) {
                *value = max.into();
            }
            is_limited = true;
        }
    }
    if !is_limited {
        call.body.insert("max_tokens".to_owned(), max.into());
    }
}

/// `GET /rollway/v1/run/usage`: usage of the run, and the budget that it has used up.
pub(super) async fn usage(
    State(app): State<Arc<GatewayState>>,
    Extension(caller): Extension<Caller>,
) -> HandlerResult {
    let Caller::Run(run) = caller else {
        let message = "usage belongs to a run: send its run key";
        return Err(CallError::new(ErrorKind::Forbidden, message).into());
    };
    let session = app.runs.existing(run);
    let usage = session.map_or_else(RunUsage::new, |session| session.usage());
    Ok(responses::value(&usage.to_json()))
}

/// Returns the parts of a complete response with the reason as its text. Agents take an error for a
/// reason to retry, and a message for the end.
pub(super) fn final_message(id: &str, call: &ModelCall, reason: BudgetExhausted) -> Vec<Bytes> {
    let text = reason.to_string();
    let (object, name, content) = match call.kind {
        CallKind::Chat => {
            let message = json!({ "role": "assistant", "content": text });
            ("chat.completion", "message", message)
        }
        CallKind::Completion => ("text_completion", "text", Value::String(text)),
    };
    let choice = |index: u32| {
        json!({
            "index": index,
            name: content,
            "logprobs": null,
            "finish_reason": "stop",
        })
    };
    let body = json!({
        "id": id,
        "object": object,
        "created": 0,
        "model": call.model().unwrap_or_default(),
        "choices": (0..call.choices).map(choice).collect::<Vec<_>>(),
        "usage": { "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0 },
    });
    SavedResponse { stream: false, parts: vec![body.to_string().into()] }.into_parts(call)
}
