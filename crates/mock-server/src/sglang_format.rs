//! The shape of SGLang's answers: `/v1/chat/completions`, `/v1/completions` and `/generate`.

use serde_json::{Value, json};

use super::faults::MockFault;
use super::format::{
    Format, aligned, chat_logprobs, delta, ids, message, returned_finish, returned_ids,
    returned_prompt, text_logprobs, token_text, usage,
};
use super::generation::{Finish, Generation, Step};
use super::text::END;

const CREATED: u64 = 1_700_000_000;
const CHUNK: &str = "chat.completion.chunk";
const TEXT: &str = "text_completion";

/// Answers of `/v1/chat/completions`.
#[derive(Debug, Default)]
pub(super) struct Chat {
    /// Choices that have ended, with the reason and what was matched: told last.
    finished: Vec<(usize, Value, Value)>,
}

/// Answers of `/v1/completions`.
#[derive(Debug, Default)]
pub(super) struct Text {
    offsets: Vec<usize>,
}

/// Answers of `/generate`. Every event of a stream tells all that was said so far.
#[derive(Debug)]
pub(super) struct Generate {
    said: Vec<Vec<Step>>,
    /// Whether one prompt was asked for one choice, not a list of them.
    is_single: bool,
}

impl Generate {
    pub(super) const fn new(is_single: bool) -> Self {
        Self { said: Vec::new(), is_single }
    }
}

fn head(generation: &Generation, object: &str, choices: Vec<Value>) -> Value {
    // SGLang repeats the name that it was called by.
    let named = generation.request.body.get("model").and_then(Value::as_str);
    json!({
        "id": generation.request.id,
        "object": object,
        "created": CREATED,
        "model": named.unwrap_or(&generation.state.options.model),
        "choices": choices,
        "usage": null,
    })
}

/// Why a choice ended, as SGLang says it to itself.
fn reason(finish: &Finish, made: usize) -> Value {
    match finish.reason {
        "length" => json!({ "type": "length", "length": made }),
        "abort" => json!({ "type": "abort", "message": "Abort in waiting queue" }),
        kind => {
            let matched = finish.stop.clone().map_or_else(|| END.into(), Value::from);
            json!({ "type": kind, "matched": matched })
        }
    }
}

/// What SGLang knows about a choice.
fn meta_info(generation: &Generation, choice: usize, steps: &[Step]) -> Value {
    let state = &generation.state;
    let request = &generation.request;
    let made = ids(steps).len();
    let finish =
        returned_finish(generation, steps).map_or(Value::Null, |finish| reason(finish, made));
    let mut meta = json!({
        "id": request.id,
        "finish_reason": finish,
        "prompt_tokens": request.prompts[choice / request.n as usize].len(),
        "weight_version": state.version_name(),
        "num_retractions": 0,
        "completion_tokens": made,
        "cached_tokens": 0,
        "e2e_latency": 0.0,
    });
    if state.options.version_spans {
        meta["weight_versions"] = spans(steps);
    }
    let Some(top) = request.logprobs else { return meta };
    let told = aligned(generation, steps);
    let tokens = told.iter().filter_map(|step| step.token.as_ref().map(|token| (step, token)));
    let hides = generation.fault == Some(MockFault::NoTokenIds);
    let (mut pairs, mut tops) = (Vec::new(), Vec::new());
    for (step, token) in tokens {
        pairs.push(if hides {
            json!([token.logprob])
        } else {
            json!([token.logprob, token.id, null])
        });
        if top > 0 {
            let script = generation.script(step.choice);
            let others = script.others(token.version, step.position, top - 1);
            let all = std::iter::once((token.id, token.logprob)).chain(others);
            let all = all.map(|(id, logprob)| json!([logprob, id, null]));
            tops.push(Value::from(all.collect::<Vec<_>>()));
        }
    }
    meta["input_token_logprobs"] = json!([]);
    meta["output_token_logprobs_length"] = pairs.len().into();
    meta["output_token_logprobs"] = pairs.into();
    if top > 0 {
        meta["input_top_logprobs"] = json!([]);
        meta["output_top_logprobs"] = tops.into();
    }
    meta
}

/// Which version made which tokens.
fn spans(steps: &[Step]) -> Value {
    let mut spans: Vec<(String, usize, usize)> = Vec::new();
    let tokens = steps.iter().filter_map(|step| step.token.as_ref());
    for (at, token) in tokens.enumerate() {
        match spans.last_mut() {
            Some((name, _, end)) if **name == *token.version_name => *end = at + 1,
            _ => spans.push((token.version_name.to_string(), at, at + 1)),
        }
    }
    let span = |(version, start, end)| json!({ "version": version, "start": start, "end": end });
    spans.into_iter().map(span).collect::<Vec<_>>().into()
}

/// How many tokens there are.
fn counted(generation: &Generation) -> Value {
    let mut usage = usage(generation);
    usage["reasoning_tokens"] = 0.into();
    usage
}

fn usage_event(generation: &Generation, object: &str) -> Vec<Value> {
    if !generation.request.include_usage {
        return Vec::new();
    }
    let mut event = head(generation, object, Vec::new());
    event["usage"] = counted(generation);
    vec![event]
}

fn metadata(generation: &Generation, steps: Option<&Vec<Step>>) -> Value {
    let mut metadata = json!({ "weight_version": generation.state.version_name() });
    if generation.state.options.version_spans
        && let Some(steps) = steps
    {
        metadata["weight_versions"] = spans(steps);
    }
    metadata
}

/// What a message is told to be in the middle of a stream.
fn full_delta(delta: Value) -> Value {
    let mut full = json!({
        "role": null,
        "content": null,
        "reasoning_content": null,
        "tool_calls": null,
    });
    for (name, value) in delta.as_object().into_iter().flatten() {
        full[name] = value.clone();
    }
    full
}

fn chunk(generation: &Generation, index: usize, delta: Value, logprobs: Value) -> Value {
    let choice = json!({
        "index": index,
        "delta": full_delta(delta),
        "logprobs": logprobs,
        "finish_reason": null,
        "matched_stop": null,
    });
    head(generation, CHUNK, vec![choice])
}

/// The reason of an end and what was matched, for the client.
fn outward(finish: &Finish, has_call: bool) -> (Value, Value) {
    match finish.reason {
        "stop" if has_call => ("tool_calls".into(), Value::Null),
        "stop" => ("stop".into(), reason(finish, 0)["matched"].clone()),
        reason => (reason.into(), Value::Null),
    }
}

impl Format for Chat {
    fn begin(&mut self, generation: &Generation) -> Vec<Value> {
        let first = |index| {
            let delta = json!({ "role": "assistant", "content": "" });
            chunk(generation, index, delta, Value::Null)
        };
        (0..generation.request.choices()).map(first).collect()
    }

    fn steps(&mut self, generation: &Generation, steps: &[Step]) -> Vec<Value> {
        let mut events = Vec::new();
        for step in steps {
            if let Some(finish) = returned_finish(generation, std::slice::from_ref(step)) {
                let (reason, matched) = outward(finish, step.call.is_some());
                self.finished.push((step.choice, reason, matched));
            }
            let told = delta(generation, step);
            let logprobs = chat_logprobs(generation, std::slice::from_ref(step));
            let says = told.get("tool_calls").is_some()
                || told["content"].as_str().is_some_and(|text| !text.is_empty());
            if says || !logprobs.is_null() {
                events.push(chunk(generation, step.choice, told, logprobs));
            }
        }
        events
    }

    fn end(&mut self, generation: &Generation) -> Vec<Value> {
        let mut events = Vec::new();
        for (index, reason, matched) in self.finished.drain(..) {
            let mut event = chunk(generation, index, json!({}), Value::Null);
            event["choices"][0]["finish_reason"] = reason;
            event["choices"][0]["matched_stop"] = matched;
            events.push(event);
        }
        events.extend(usage_event(generation, CHUNK));
        events
    }

    fn whole(&mut self, generation: &Generation, choices: &[Vec<Step>]) -> Value {
        let request = &generation.request;
        let choice = |(index, steps): (usize, &Vec<Step>)| {
            let (content, calls) = message(generation, index, steps);
            let has_call = calls.as_array().is_some_and(|calls| !calls.is_empty());
            let ended = returned_finish(generation, steps).map(|finish| outward(finish, has_call));
            let (reason, matched) = ended.unwrap_or_default();
            let mut choice = json!({
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": content.as_str().unwrap_or_default(),
                    "reasoning_content": null,
                    "tool_calls": if has_call { calls } else { Value::Null },
                },
                "logprobs": chat_logprobs(generation, steps),
                "finish_reason": reason,
                "matched_stop": matched,
            });
            if request.wants("return_prompt_token_ids") || request.wants("return_token_ids") {
                choice["prompt_token_ids"] = returned_prompt(generation, 0);
            }
            if request.wants("return_token_ids") {
                choice["token_ids"] = returned_ids(generation, steps);
            }
            if request.wants("return_meta_info") {
                choice["meta_info"] = meta_info(generation, index, steps);
            }
            choice
        };
        let told = choices.iter().enumerate().map(choice).collect();
        let mut body = head(generation, "chat.completion", told);
        body["usage"] = counted(generation);
        body["metadata"] = metadata(generation, choices.first());
        body
    }
}

impl Text {
    fn choice(generation: &Generation, index: usize, steps: &[Step], offset: usize) -> Value {
        let finish = returned_finish(generation, steps);
        let (reason, matched) = finish.map(|finish| outward(finish, false)).unwrap_or_default();
        let mut choice = json!({
            "index": index,
            "text": token_text(steps),
            "logprobs": text_logprobs(generation, steps, offset),
            "finish_reason": reason,
            "matched_stop": matched,
        });
        if generation.request.wants("return_token_ids") {
            choice["token_ids"] = returned_ids(generation, steps);
            let is_first = steps.first().is_some_and(|step| step.position == 0);
            let prompt = index / generation.request.n as usize;
            choice["prompt_token_ids"] =
                if is_first { returned_prompt(generation, prompt) } else { Value::Null };
        }
        choice
    }
}

impl Format for Text {
    fn steps(&mut self, generation: &Generation, steps: &[Step]) -> Vec<Value> {
        self.offsets.resize(generation.request.choices(), 0);
        let mut events = Vec::with_capacity(steps.len());
        for step in steps {
            let offset = &mut self.offsets[step.choice];
            let one = std::slice::from_ref(step);
            let choice = Self::choice(generation, step.choice, one, *offset);
            *offset += step.told.chars().count();
            events.push(head(generation, TEXT, vec![choice]));
        }
        events
    }

    fn end(&mut self, generation: &Generation) -> Vec<Value> {
        usage_event(generation, TEXT)
    }

    fn whole(&mut self, generation: &Generation, choices: &[Vec<Step>]) -> Value {
        let told = choices.iter().enumerate();
        let told = told.map(|(index, steps)| Self::choice(generation, index, steps, 0)).collect();
        let mut body = head(generation, TEXT, told);
        body["usage"] = counted(generation);
        body["metadata"] = metadata(generation, choices.first());
        body
    }
}

/// One answer of `/generate`.
fn native(generation: &Generation, choice: usize, steps: &[Step]) -> Value {
    let mut body = json!({
        "text": token_text(steps),
        "output_ids": returned_ids(generation, steps),
        "meta_info": meta_info(generation, choice, steps),
    });
    if generation.request.wants("return_prompt_token_ids") {
        body["prompt_token_ids"] =
            returned_prompt(generation, choice / generation.request.n as usize);
    }
    body
}

impl Format for Generate {
    fn steps(&mut self, generation: &Generation, steps: &[Step]) -> Vec<Value> {
        self.said.resize(generation.request.choices(), Vec::new());
        let mut events = Vec::with_capacity(steps.len());
        for step in steps {
            self.said[step.choice].push(step.clone());
            let mut event = native(generation, step.choice, &self.said[step.choice]);
            if !self.is_single {
                event["index"] = step.choice.into();
            }
            events.push(event);
        }
        events
    }

    fn end(&mut self, _: &Generation) -> Vec<Value> {
        Vec::new()
    }

    fn whole(&mut self, generation: &Generation, choices: &[Vec<Step>]) -> Value {
        let told = choices.iter().enumerate();
        let mut told = told.map(|(index, steps)| native(generation, index, steps));
        if self.is_single { told.next().unwrap_or_default() } else { told.collect() }
    }
}
