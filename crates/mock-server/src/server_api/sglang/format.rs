//! SGLang's responses: `/v1/chat/completions`, `/v1/completions` and `/generate`.

use serde_json::{Value, json};

use crate::faults::MockFault;
use crate::generation::{Finish, Generation, Step};
use crate::server_api::format::{
    CHUNK, CREATED, Format, Style, aligned, chat_logprobs, delta, ids, is_first, message,
    returned_finish, returned_ids, returned_prompt, text_logprobs, token_text, usage,
};
use crate::text::END;

#[derive(Clone, Copy, Debug)]
pub(super) struct SglangStyle;

/// Responses of `/v1/chat/completions`.
#[derive(Debug, Default)]
pub(super) struct Chat {
    /// Index, finish reason and matched stop of each ended choice, sent at the end.
    finished: Vec<(usize, Value, Value)>,
}

/// Responses of `/generate`. Every event of a stream contains the completion so far.
#[derive(Debug)]
pub(super) struct Generate {
    steps: Vec<Vec<Step>>,
    /// True if the response is an object, not a list.
    is_single: bool,
}

impl Generate {
    pub(super) const fn new(is_single: bool) -> Self {
        Self { steps: Vec::new(), is_single }
    }
}

/// Returns the finish reason in the form of `meta_info`.
fn native_reason(finish: &Finish, tokens: usize) -> Value {
    match finish.reason {
        "length" => json!({ "type": "length", "length": tokens }),
        "abort" => json!({ "type": "abort", "message": "Abort in waiting queue" }),
        kind => {
            let matched = finish.stop.clone().map_or_else(|| END.into(), Value::from);
            json!({ "type": kind, "matched": matched })
        }
    }
}

/// Returns the finish reason and the matched stop in OpenAI's form.
fn openai_reason(finish: Option<&Finish>, has_call: bool) -> (Value, Value) {
    match finish.map(|finish| (finish.reason, finish)) {
        None => Default::default(),
        Some(("stop", _)) if has_call => ("tool_calls".into(), Value::Null),
        Some(("stop", finish)) => ("stop".into(), native_reason(finish, 0)["matched"].clone()),
        Some((reason, _)) => (reason.into(), Value::Null),
    }
}

fn meta_info(generation: &Generation, choice: usize, steps: &[Step]) -> Value {
    let state = &generation.state;
    let request = &generation.request;
    let made = ids(steps).len();
    let finish = returned_finish(generation, steps);
    let mut meta = json!({
        "id": request.id,
        "finish_reason": finish.map(|finish| native_reason(finish, made)),
        "prompt_tokens": request.prompts[choice / request.n as usize].len(),
        "weight_version": state.version_name(),
        "num_retractions": 0,
        "completion_tokens": made,
        "cached_tokens": 0,
        "e2e_latency": 0.0,
    });
    if state.options.version_spans {
        meta["weight_versions"] = version_spans(steps);
    }
    let Some(top) = request.logprobs else { return meta };
    let hides_ids = generation.fault == Some(MockFault::NoTokenIds);
    let (mut pairs, mut tops) = (Vec::new(), Vec::new());
    for step in aligned(generation, steps) {
        let Some(token) = &step.token else { continue };
        pairs.push(if hides_ids {
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

/// Returns the version of the weights of each span of tokens.
fn version_spans(steps: &[Step]) -> Value {
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

impl Style for SglangStyle {
    fn envelope(&self, generation: &Generation, object: &str, choices: Vec<Value>) -> Value {
        // SGLang repeats the model name of the request.
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

    fn stream_usage(&self, generation: &Generation) -> Value {
        let mut usage = usage(generation);
        usage["reasoning_tokens"] = 0.into();
        usage
    }

    fn text_choice(
        &self,
        generation: &Generation,
        index: usize,
        steps: &[Step],
        offset: usize,
    ) -> Value {
        let (reason, matched) = openai_reason(returned_finish(generation, steps), false);
        let mut choice = json!({
            "index": index,
            "text": token_text(steps),
            "logprobs": text_logprobs(generation, steps, offset),
            "finish_reason": reason,
            "matched_stop": matched,
        });
        if generation.request.wants("return_token_ids") {
            choice["token_ids"] = returned_ids(generation, steps);
            choice["prompt_token_ids"] =
                if is_first(steps) { returned_prompt(generation, index) } else { Value::Null };
        }
        choice
    }

    fn complete(&self, generation: &Generation, choices: &[Vec<Step>], body: &mut Value) {
        body["usage"] = self.stream_usage(generation);
        body["metadata"] = json!({ "weight_version": generation.state.version_name() });
        if generation.state.options.version_spans
            && let Some(steps) = choices.first()
        {
            body["metadata"]["weight_versions"] = version_spans(steps);
        }
    }
}

fn chunk(generation: &Generation, index: usize, delta: &Value, logprobs: Value) -> Value {
    let mut full = json!({
        "role": null,
        "content": null,
        "reasoning_content": null,
        "tool_calls": null,
    });
    for (name, value) in delta.as_object().into_iter().flatten() {
        full[name] = value.clone();
    }
    let choice = json!({
        "index": index,
        "delta": full,
        "logprobs": logprobs,
        "finish_reason": null,
        "matched_stop": null,
    });
    SglangStyle.envelope(generation, CHUNK, vec![choice])
}

impl Format for Chat {
    fn begin(&mut self, generation: &Generation) -> Vec<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        let first = |index| chunk(generation, index, &delta, Value::Null);
        (0..generation.request.choices()).map(first).collect()
    }

    fn steps(&mut self, generation: &Generation, steps: &[Step]) -> Vec<Value> {
        let mut events = Vec::new();
        for step in steps {
            let one = std::slice::from_ref(step);
            if let Some(finish) = returned_finish(generation, one) {
                let (reason, matched) = openai_reason(Some(finish), step.call.is_some());
                self.finished.push((step.choice, reason, matched));
            }
            let delta = delta(generation, step);
            let logprobs = chat_logprobs(generation, one);
            let has_content = delta.get("tool_calls").is_some()
                || delta["content"].as_str().is_some_and(|text| !text.is_empty());
            if has_content || !logprobs.is_null() {
                events.push(chunk(generation, step.choice, &delta, logprobs));
            }
        }
        events
    }

    fn end(&mut self, generation: &Generation) -> Vec<Value> {
        let mut events = Vec::new();
        for (index, reason, matched) in self.finished.drain(..) {
            let mut event = chunk(generation, index, &json!({}), Value::Null);
            event["choices"][0]["finish_reason"] = reason;
            event["choices"][0]["matched_stop"] = matched;
            events.push(event);
        }
        events.extend(SglangStyle.usage_event(generation, CHUNK));
        events
    }

    fn full(&mut self, generation: &Generation, choices: &[Vec<Step>]) -> Value {
        let request = &generation.request;
        let choice = |(index, steps): (usize, &Vec<Step>)| {
            let (content, calls) = message(generation, index, steps);
            let finish = returned_finish(generation, steps);
            let (reason, matched) = openai_reason(finish, calls.is_some());
            let mut choice = json!({
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": content.unwrap_or_default(),
                    "reasoning_content": null,
                    "tool_calls": calls,
                },
                "logprobs": chat_logprobs(generation, steps),
                "finish_reason": reason,
                "matched_stop": matched,
            });
            if request.wants("return_prompt_token_ids") || request.wants("return_token_ids") {
                choice["prompt_token_ids"] = returned_prompt(generation, index);
            }
            if request.wants("return_token_ids") {
                choice["token_ids"] = returned_ids(generation, steps);
            }
            if request.wants("return_meta_info") {
                choice["meta_info"] = meta_info(generation, index, steps);
            }
            choice
        };
        let rendered = choices.iter().enumerate().map(choice).collect();
        let mut body = SglangStyle.envelope(generation, "chat.completion", rendered);
        SglangStyle.complete(generation, choices, &mut body);
        body
    }
}

/// Renders one completion of `/generate`.
fn native(generation: &Generation, choice: usize, steps: &[Step]) -> Value {
    let mut body = json!({
        "text": token_text(steps),
        "output_ids": returned_ids(generation, steps),
        "meta_info": meta_info(generation, choice, steps),
    });
    if generation.request.wants("return_prompt_token_ids") {
        body["prompt_token_ids"] = returned_prompt(generation, choice);
    }
    body
}

impl Format for Generate {
    fn steps(&mut self, generation: &Generation, steps: &[Step]) -> Vec<Value> {
        self.steps.resize(generation.request.choices(), Vec::new());
        let mut events = Vec::with_capacity(steps.len());
        for step in steps {
            self.steps[step.choice].push(step.clone());
            let mut event = native(generation, step.choice, &self.steps[step.choice]);
            if !self.is_single {
                event["index"] = step.choice.into();
            }
            events.push(event);
        }
        events
    }

    fn full(&mut self, generation: &Generation, choices: &[Vec<Step>]) -> Value {
        let rendered = choices.iter().enumerate();
        let mut rendered = rendered.map(|(index, steps)| native(generation, index, steps));
        if self.is_single { rendered.next().unwrap_or_default() } else { rendered.collect() }
    }
}
