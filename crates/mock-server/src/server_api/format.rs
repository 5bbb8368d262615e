//! Rendering of responses: the parts that all server kinds share.

use serde_json::{Value, json};

use crate::faults::MockFault;
use crate::generation::{CallPart, Finish, Generation, Step};
use crate::text::Tokenizer;

pub(crate) const CREATED: u64 = 1_700_000_000;
pub(super) const CHUNK: &str = "chat.completion.chunk";
pub(super) const TEXT: &str = "text_completion";

/// Renders the response of one endpoint of a server kind.
pub(crate) trait Format: Send {
    /// Returns the events before the first token.
    fn begin(&mut self, _: &Generation) -> Vec<Value> {
        Vec::new()
    }

    /// Returns the events of one token for each choice.
    fn steps(&mut self, generation: &Generation, steps: &[Step]) -> Vec<Value>;

    /// Returns the events after the last token.
    fn end(&mut self, _: &Generation) -> Vec<Value> {
        Vec::new()
    }

    /// Returns a full response, given the steps of each choice.
    fn full(&mut self, generation: &Generation, choices: &[Vec<Step>]) -> Value;
}

/// Parts of a response that differ between server kinds.
pub(super) trait Style: Send {
    /// Returns the fields that every response and every event has.
    fn envelope(&self, generation: &Generation, object: &str, choices: Vec<Value>) -> Value;

    fn stream_usage(&self, generation: &Generation) -> Value;

    /// Renders a choice of a completion. `offset` is the number of characters sent before.
    fn text_choice(
        &self,
        generation: &Generation,
        index: usize,
        steps: &[Step],
        offset: usize,
    ) -> Value;

    /// Adds the fields that only a full response has.
    fn complete(&self, generation: &Generation, choices: &[Vec<Step>], body: &mut Value);

    fn usage_event(&self, generation: &Generation, object: &str) -> Vec<Value> {
        if !generation.request.include_usage {
            return Vec::new();
        }
        let mut event = self.envelope(generation, object, Vec::new());
        event["usage"] = self.stream_usage(generation);
        vec![event]
    }
}

/// Responses of `/v1/completions`.
pub(super) struct CompletionFormat<S> {
    pub(super) style: S,
    /// Number of sent characters of each choice.
    pub(super) offsets: Vec<usize>,
}

impl<S: Style> Format for CompletionFormat<S> {
    fn steps(&mut self, generation: &Generation, steps: &[Step]) -> Vec<Value> {
        self.offsets.resize(generation.request.choices(), 0);
        let mut events = Vec::with_capacity(steps.len());
        for step in steps {
            let offset = &mut self.offsets[step.choice];
            let one = std::slice::from_ref(step);
            let choice = self.style.text_choice(generation, step.choice, one, *offset);
            *offset += step.text.chars().count();
            events.push(self.style.envelope(generation, TEXT, vec![choice]));
        }
        events
    }

    fn end(&mut self, generation: &Generation) -> Vec<Value> {
        self.style.usage_event(generation, TEXT)
    }

    fn full(&mut self, generation: &Generation, choices: &[Vec<Step>]) -> Value {
        let rendered = choices.iter().enumerate();
        let rendered =
            rendered.map(|(index, steps)| self.style.text_choice(generation, index, steps, 0));
        let mut body = self.style.envelope(generation, TEXT, rendered.collect());
        self.style.complete(generation, choices, &mut body);
        body
    }
}

pub(super) fn ids(steps: &[Step]) -> Vec<i32> {
    steps.iter().filter_map(|step| step.token.as_ref().map(|token| token.id)).collect()
}

/// Returns the token ids, unless a fault omits them.
pub(super) fn returned_ids(generation: &Generation, steps: &[Step]) -> Value {
    match generation.fault {
        Some(MockFault::NoTokenIds) => Value::Null,
        _ => ids(steps).into(),
    }
}

/// Returns the token ids of the prompt of a choice, unless a fault omits them.
pub(super) fn returned_prompt(generation: &Generation, choice: usize) -> Value {
    match generation.fault {
        Some(MockFault::NoTokenIds) => Value::Null,
        _ => generation.request.prompts[choice / generation.request.n as usize].clone().into(),
    }
}

pub(super) fn is_first(steps: &[Step]) -> bool {
    steps.first().is_some_and(|step| step.position == 0)
}

pub(super) fn token_text(steps: &[Step]) -> String {
    steps.iter().map(|step| step.text.as_str()).collect()
}

fn finish(steps: &[Step]) -> Option<&Finish> {
    steps.last().and_then(|step| step.finish.as_ref())
}

/// Returns the finish reason, unless a fault omits it.
pub(super) fn returned_finish<'a>(
    generation: &Generation,
    steps: &'a [Step],
) -> Option<&'a Finish> {
    finish(steps).filter(|_| generation.fault != Some(MockFault::NoFinish))
}

/// Returns the steps whose log-probabilities are part of the response.
pub(super) fn aligned<'a>(generation: &Generation, steps: &'a [Step]) -> &'a [Step] {
    match generation.fault {
        Some(MockFault::Misalign) if finish(steps).is_some() => &steps[..steps.len() - 1],
        _ => steps,
    }
}

/// Names a token in log-probabilities: the characters that it completes, or its special name.
fn label(tokenizer: Tokenizer, step: &Step, id: i32) -> String {
    if step.piece.is_empty() && id > 255 { tokenizer.decode(&[id]) } else { step.piece.clone() }
}

pub(super) fn chat_logprobs(generation: &Generation, steps: &[Step]) -> Value {
    let Some(top) = generation.request.logprobs else { return Value::Null };
    let tokenizer = generation.state.template.tokenizer;
    let entry = |text: String, logprob: f32| {
        let bytes = text.as_bytes().to_vec();
        json!({ "token": text, "logprob": logprob, "bytes": bytes })
    };
    let content = aligned(generation, steps).iter().filter_map(|step| {
        let token = step.token.as_ref()?;
        let text = label(tokenizer, step, token.id);
        let mut tops = Vec::new();
        if top > 0 {
            tops.push(entry(text.clone(), token.logprob));
            let others = generation.script(step.choice);
            let others = others.others(token.version, step.position, top - 1);
            tops.extend(others.into_iter().map(|(id, log)| entry(tokenizer.decode(&[id]), log)));
        }
        let mut sampled = entry(text, token.logprob);
        sampled["top_logprobs"] = tops.into();
        Some(sampled)
    });
    json!({ "content": content.collect::<Vec<_>>() })
}

pub(super) fn text_logprobs(generation: &Generation, steps: &[Step], offset: usize) -> Value {
    let Some(top) = generation.request.logprobs else { return Value::Null };
    let tokenizer = generation.state.template.tokenizer;
    let (mut tokens, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    let mut at = offset;
    for step in aligned(generation, steps) {
        let Some(token) = &step.token else { continue };
        let text = label(tokenizer, step, token.id);
        offsets.push(at);
        at += text.chars().count();
        let mut likely = json!({});
        likely[&text] = token.logprob.into();
        let script = generation.script(step.choice);
        for (id, logprob) in script.others(token.version, step.position, top.saturating_sub(1)) {
            likely[&tokenizer.decode(&[id])] = logprob.into();
        }
        tops.push(likely);
        tokens.push(text);
        logprobs.push(token.logprob);
    }
    json!({
        "text_offset": offsets,
        "token_logprobs": logprobs,
        "tokens": tokens,
        "top_logprobs": tops,
    })
}

/// Returns name and arguments of the tool call, if the steps contain a complete one.
fn complete_call(steps: &[Step]) -> Option<(String, String)> {
    let is_complete = finish(steps).is_some_and(|finish| finish.reason == "stop");
    let mut name = None;
    let mut arguments = String::new();
    for step in steps {
        match &step.call {
            Some(CallPart::Name(called)) => name = Some(called.clone()),
            Some(CallPart::Arguments(more)) => arguments.push_str(more),
            Some(CallPart::Nothing) | None => {}
        }
    }
    name.filter(|_| is_complete).map(|name| (name, arguments))
}

fn call_id(generation: &Generation, choice: usize) -> String {
    let id: String = generation.request.id.chars().filter(char::is_ascii_alphanumeric).collect();
    let start = id.len().saturating_sub(20);
    format!("call_{}{choice}", &id[start..])
}

pub(super) fn usage(generation: &Generation) -> Value {
    let (prompt, completion) = (generation.prompt_tokens(), generation.completion_tokens());
    json!({
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": null,
    })
}

/// Returns the text and the tool calls of a message; one of them is `None`.
pub(super) fn message(
    generation: &Generation,
    choice: usize,
    steps: &[Step],
) -> (Option<String>, Option<Value>) {
    match complete_call(steps) {
        Some((name, arguments)) => {
            let call = json!({
                "id": call_id(generation, choice),
                "type": "function",
                "function": { "name": name, "arguments": arguments },
            });
            (None, Some(json!([call])))
        }
        None => (Some(token_text(steps)), None),
    }
}

/// Returns the delta of a message that a step adds.
pub(super) fn delta(generation: &Generation, step: &Step) -> Value {
    match &step.call {
        None => json!({ "content": step.text }),
        Some(CallPart::Nothing) => json!({}),
        Some(CallPart::Name(name)) => json!({ "tool_calls": [{
            "index": 0,
            "id": call_id(generation, step.choice),
            "type": "function",
            "function": { "name": name, "arguments": "" },
        }]}),
        Some(CallPart::Arguments(more)) => json!({ "tool_calls": [{
            "index": 0,
            "function": { "arguments": more },
        }]}),
    }
}
