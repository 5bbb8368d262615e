//! Responses to completions that generate nothing and return the log-probabilities of their prompt:
//! `echo` with `max_tokens` 0.

use serde_json::{Value, json};

use super::options::MockServerOptions;
use super::request::MockRequest;
use super::script::Script;
use super::server_api::CREATED;

/// Returns the response. The first token of a prompt has no log-probability.
pub(super) fn response(options: &MockServerOptions, request: &MockRequest, version: u64) -> Value {
    let choice = |(index, prompt): (usize, &Vec<i32>)| {
        let tokenizer = options.tokenizer();
        let texts: Vec<String> = prompt.iter().map(|id| tokenizer.decode(&[*id])).collect();
        let logprobs = request.logprobs.map(|_| {
            json!({
                "text_offset": offsets(&texts),
                "token_logprobs": prompt_logprobs(options, prompt, version),
                "tokens": texts,
                "top_logprobs": null,
            })
        });
        json!({
            "index": index,
            "text": texts.concat(),
            "logprobs": logprobs,
            "finish_reason": "length",
        })
    };
    let tokens: usize = request.prompts.iter().map(Vec::len).sum();
    json!({
        "id": request.id,
        "object": "text_completion",
        "created": CREATED,
        "model": options.model,
        "choices": request.prompts.iter().enumerate().map(choice).collect::<Vec<_>>(),
        "usage": { "prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens },
    })
}

/// Returns the log-probability of every token given those before it: that of the first token which
/// a completion of them would have.
pub(super) fn prompt_logprobs(
    options: &MockServerOptions,
    prompt: &[i32],
    version: u64,
) -> Vec<Option<f32>> {
    let score = |position: usize| {
        let (before, tokenizer) = (&prompt[..position], options.tokenizer());
        let script = Script::new(tokenizer, options.lengths, options.seed, before, None, 0);
        (position > 0).then(|| script.token(version, 0).1)
    };
    (0..prompt.len()).map(score).collect()
}

fn offsets(texts: &[String]) -> Vec<usize> {
    let begin = |at: &mut usize, text: &String| {
        let here = *at;
        *at += text.chars().count();
        Some(here)
    };
    texts.iter().scan(0, begin).collect()
}
