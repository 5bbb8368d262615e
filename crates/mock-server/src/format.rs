//! The shape of answers: what they have in common in all dialects.

use serde_json::{Value, json};

use super::faults::MockFault;
use super::generation::{CallPart, Finish, Generation, Step};
use super::text::Tokenizer;

/// How answers look at an endpoint of a kind of server.
pub(super) trait Format: Send {
    /// The events before the first token.
    fn begin(&mut self, generation: &Generation) -> Vec<Value> {
        let _ = generation;
        Vec::new()
    }

    /// The events of one token for each choice.
    fn steps(&mut self, generation: &Generation, steps: &[Step]) -> Vec<Value>;

    /// The events after the last token.
    fn end(&mut self, generation: &Generation) -> Vec<Value>;

    /// A whole answer, given the steps of each choice.
    fn whole(&mut self, generation: &Generation, choices: &[Vec<Step>]) -> Value;
}

/// The ids of the tokens of steps.
pub(super) fn ids(steps: &[Step]) -> Vec<i32> {
    steps.iter().filter_map(|step| step.token.as_ref().map(|token| token.id)).collect()
}

/// The ids of the tokens, unless a fault leaves them out.
pub(super) fn returned_ids(generation: &Generation, steps: &[Step]) -> Value {
    match generation.fault {
        Some(MockFault::NoTokenIds) => Value::Null,
        _ => ids(steps).into(),
    }
}

/// The ids of a prompt's tokens, unless a fault leaves them out.
pub(super) fn returned_prompt(generation: &Generation, prompt: usize) -> Value {
    match generation.fault {
        Some(MockFault::NoTokenIds) => Value::Null,
        _ => generation.request.prompts[prompt].clone().into(),
    }
}

/// The text that steps tell.
pub(super) fn token_text(steps: &[Step]) -> String {
    steps.iter().map(|step| step.told.as_str()).collect()
}

/// Why the steps ended.
pub(super) fn finish(steps: &[Step]) -> Option<&Finish> {
    steps.last().and_then(|step| step.finish.as_ref())
}

/// Why the steps ended, unless a fault leaves it out.
pub(super) fn returned_finish<'a>(
    generation: &Generation,
    steps: &'a [Step],
) -> Option<&'a Finish> {
    finish(steps).filter(|_| generation.fault != Some(MockFault::NoFinish))
}

/// The steps whose log-probabilities are told.
pub(super) fn aligned<'a>(generation: &Generation, steps: &'a [Step]) -> &'a [Step] {
    let ends = steps.last().is_some_and(|step| step.finish.is_some());
    match generation.fault {
        Some(MockFault::Misalign) if ends => &steps[..steps.len() - 1],
        _ => steps,
    }
}

/// What a token is called in log-probabilities: the characters that it completes, or the name of a
/// special one.
fn label(tokenizer: Tokenizer, step: &Step, id: i32) -> String {
    if step.piece.is_empty() && id > 255 { tokenizer.decode(&[id]) } else { step.piece.clone() }
}

/// The log-probabilities of a chat.
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
            let script = generation.script(step.choice);
            let others = script.others(token.version, step.position, top - 1);
            tops.extend(
                others.into_iter().map(|(id, logprob)| entry(tokenizer.decode(&[id]), logprob)),
            );
        }
        let mut said = entry(text, token.logprob);
        said["top_logprobs"] = tops.into();
        Some(said)
    });
    json!({ "content": content.collect::<Vec<_>>() })
}

/// The log-probabilities of a completion. `offset` is how many characters were told before.
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

/// The tool call that steps make, if they make a whole one: its name and its arguments.
pub(super) fn whole_call(steps: &[Step]) -> Option<(String, String)> {
    let is_whole = finish(steps).is_some_and(|finish| finish.reason == "stop");
    let mut name = None;
    let mut arguments = String::new();
    for step in steps {
        match &step.call {
            Some(CallPart::Name(called)) => name = Some(called.clone()),
            Some(CallPart::Arguments(more)) => arguments.push_str(more),
            Some(CallPart::Nothing) | None => {}
        }
    }
    name.filter(|_| is_whole).map(|name| (name, arguments))
}

/// The reason that a client is told for the end of a choice.
pub(super) fn reason(generation: &Generation, finish: &Finish, has_call: bool) -> &'static str {
    match finish.reason {
        "stop" if has_call && !generation.request.is_named => "tool_calls",
        reason => reason,
    }
}

/// The id of a choice's tool call.
pub(super) fn call_id(generation: &Generation, choice: usize) -> String {
    let id: String = generation.request.id.chars().filter(char::is_ascii_alphanumeric).collect();
    let start = id.len().saturating_sub(20);
    format!("call_{}{choice}", &id[start..])
}

/// How many tokens there are.
pub(super) fn usage(generation: &Generation) -> Value {
    let (prompt, made) = (generation.prompt_tokens(), generation.made());
    json!({
        "prompt_tokens": prompt,
        "total_tokens": prompt + made,
        "completion_tokens": made,
        "prompt_tokens_details": null,
    })
}

/// What a message of the model says: its text and its tool calls.
pub(super) fn message(generation: &Generation, choice: usize, steps: &[Step]) -> (Value, Value) {
    match whole_call(steps) {
        Some((name, arguments)) => {
            let call = json!({
                "id": call_id(generation, choice),
                "type": "function",
                "function": { "name": name, "arguments": arguments },
            });
            (Value::Null, json!([call]))
        }
        None => (token_text(steps).into(), json!([])),
    }
}

/// What a step adds to a message.
pub(super) fn delta(generation: &Generation, step: &Step) -> Value {
    match &step.call {
        None => json!({ "content": step.told }),
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
