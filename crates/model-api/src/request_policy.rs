//! Fields of requests that a run or an agent may send to an inference server.
//!
//! Servers have fields that load code, files or tensors, or that ask other machines. They are not
//! for clients that are not trusted with the server.

use serde_json::{Map, Value};

/// Fields of OpenAI's APIs and sampling parameters of the servers. Sorted.
const ALLOWED: [&str; 80] = [
    "add_generation_prompt",
    "add_special_tokens",
    "allowed_token_ids",
    "audio",
    "bad_words",
    "best_of",
    "cache_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "ebnf",
    "echo",
    "frequency_penalty",
    "function_call",
    "functions",
    "grammar",
    "guided_choice",
    "guided_decoding_backend",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "guided_whitespace_pattern",
    "ignore_eos",
    "include_reasoning",
    "include_stop_str_in_output",
    "input_ids",
    "json_schema",
    "length_penalty",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "min_p",
    "min_tokens",
    "modalities",
    "model",
    "n",
    "no_stop_trim",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "reasoning_effort",
    "regex",
    "repetition_penalty",
    "request_id",
    "response_format",
    "return_meta_info",
    "return_prompt_token_ids",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "rid",
    "safety_identifier",
    "seed",
    "separate_reasoning",
    "service_tier",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop",
    "stop_token_ids",
    "store",
    "stream",
    "stream_options",
    "stream_reasoning",
    "structured_outputs",
    "suffix",
    "temperature",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "use_beam_search",
    "user",
    "verbosity",
];

/// Fields of OpenAI's API for embeddings. Sorted.
const EMBEDDINGS_ALLOWED: [&str; 5] = ["dimensions", "encoding_format", "input", "model", "user"];

/// Fields that restrict the tokens that may be sampled.
const CONSTRAINTS: [&str; 14] = [
    "allowed_token_ids",
    "bad_words",
    "continue_final_message",
    "ebnf",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "json_schema",
    "logit_bias",
    "regex",
    "response_format",
    "structured_outputs",
];

/// Content parts with an address or with data.
const MEDIA: [&str; 6] =
    ["image_url", "video_url", "audio_url", "input_image", "input_video", "input_audio"];

/// Bias of a token that is sampled whatever the model predicts.
const FORCING_BIAS: f64 = 20.0;

/// Returns the first field that is neither known nor in `further`; `*` there stands for all.
pub fn unknown_field<'a>(body: &'a Map<String, Value>, further: &[String]) -> Option<&'a str> {
    first_unknown(body, &ALLOWED, further)
}

/// Returns the first field that is in neither list; `allowed` is sorted.
fn first_unknown<'a>(
    body: &'a Map<String, Value>,
    allowed: &[&str],
    further: &[String],
) -> Option<&'a str> {
    let is_allowed = |name: &str| {
        allowed.binary_search(&name).is_ok() || further.iter().any(|it| it == name || it == "*")
    };
    let given = body.iter().filter(|(_, value)| !value.is_null());
    given.map(|(name, _)| name.as_str()).find(|name| !is_allowed(name))
}

/// Returns the first field of a request for embeddings that is neither known nor in `further`.
pub fn unknown_embeddings_field<'a>(
    body: &'a Map<String, Value>,
    further: &[String],
) -> Option<&'a str> {
    first_unknown(body, &EMBEDDINGS_ALLOWED, further)
}

/// Returns the names of the fields that are allowed without configuration.
pub fn allowed_fields() -> impl Iterator<Item = &'static str> {
    ALLOWED.into_iter()
}

/// Returns the first content part that a server would get from elsewhere, or that holds tensors:
/// its place and its kind.
pub fn remote_media(body: &Map<String, Value>) -> Option<(String, &str)> {
    let messages = body.get("messages")?.as_array()?;
    for (number, message) in messages.iter().enumerate() {
        let parts = message.get("content").and_then(Value::as_array);
        for (index, part) in parts.into_iter().flatten().enumerate() {
            if let Some(kind) = remote_kind(part) {
                return Some((format!("messages[{number}].content[{index}]"), kind));
            }
        }
    }
    None
}

/// Returns the kind of a content part that a server would get from elsewhere, or that holds
/// tensors. Servers also take parts without `type`, by the name of their other field.
fn remote_kind(part: &Value) -> Option<&str> {
    let holds_tensors = |name: &&str| name.ends_with("_embeds");
    let kind = part.get("type").and_then(Value::as_str);
    if let Some(kind) = kind.filter(holds_tensors) {
        return Some(kind);
    }
    let mut names = part.as_object()?.iter().filter(|(_, value)| !value.is_null());
    let found = names.find_map(|(name, value)| {
        let name = name.as_str();
        let is_refused = holds_tensors(&name) || (MEDIA.contains(&name) && is_remote(value));
        is_refused.then_some(name)
    });
    found.map(|name| kind.unwrap_or(name))
}

/// Returns whether a part has an address other than one that contains the data.
fn is_remote(media: &Value) -> bool {
    let url = media.get("url").unwrap_or(media).as_str();
    let scheme = url.and_then(|url| url.get(..5));
    url.is_some() && !scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"))
}

/// Returns the field that leaves the model no choice, so that its tokens are not samples.
pub fn forced_tokens(body: &Map<String, Value>) -> Option<&'static str> {
    let is_single = |value: &Value| value.as_array().is_some_and(|choices| choices.len() == 1);
    for name in ["allowed_token_ids", "guided_choice"] {
        if body.get(name).is_some_and(is_single) {
            return Some(name);
        }
    }
    let outputs = body.get("structured_outputs");
    if outputs.and_then(|outputs| outputs.get("choice")).is_some_and(is_single) {
        return Some("structured_outputs");
    }
    let biases = body.get("logit_bias").and_then(Value::as_object)?;
    let forces = |bias: &Value| bias.as_f64().is_some_and(|bias| bias >= FORCING_BIAS);
    biases.values().any(forces).then_some("logit_bias")
}

/// Returns the fields that restrict the tokens that may be sampled.
pub fn constraints(body: &Map<String, Value>) -> Vec<&'static str> {
    let restricts = |name: &str| match (name, body.get(name)) {
        (_, None | Some(Value::Null | Value::Bool(false))) => false,
        ("response_format", Some(format)) => format["type"] != "text",
        ("logit_bias", Some(Value::Object(biases))) => !biases.is_empty(),
        ("bad_words", Some(Value::Array(words))) => !words.is_empty(),
        _ => true,
    };
    CONSTRAINTS.into_iter().filter(|name| restricts(name)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn body(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn fields_that_reach_into_a_server_are_unknown() {
        assert!(ALLOWED.is_sorted() && EMBEDDINGS_ALLOWED.is_sorted());
        for name in [
            "prompt_embeds",
            "chat_template",
            "logits_processors",
            "custom_logit_processor",
            "mm_processor_kwargs",
            "lora_path",
            "kv_transfer_params",
            "vllm_xargs",
            "priority",
        ] {
            let given = body(json!({ "model": "m", "messages": [], name: [1] }));
            assert_eq!(unknown_field(&given, &[]), Some(name));
            assert_eq!(unknown_field(&given, &[name.to_owned()]), None);
            assert_eq!(unknown_field(&given, &["*".to_owned()]), None);
            assert_eq!(unknown_field(&body(json!({ name: null })), &[]), None);
        }
    }

    #[test]
    fn media_from_elsewhere_are_found() {
        let with = |part: Value| {
            let content = json!([{ "type": "text", "text": "x" }, part]);
            body(json!({ "messages": [{ "role": "user", "content": content }] }))
        };
        let data = "data:image/png;base64,AAAA";
        for part in [
            json!({ "type": "image_url", "image_url": { "url": "http://10.0.0.1/admin" } }),
            json!({ "type": "image_url", "image_url": "file:///etc/passwd" }),
            json!({ "type": "video_url", "video_url": { "url": "\u{e4}" } }),
            json!({ "type": "image_embeds", "image_embeds": "AAAA" }),
            json!({ "image_url": { "url": "http://10.0.0.1/admin" } }),
            json!({ "audio_url": "http://10.0.0.1/admin" }),
            json!({ "type": 1, "image_embeds": "AAAA" }),
            json!({ "type": "text", "text": "x", "prompt_embeds": "AAAA" }),
        ] {
            let given = with(part);
            assert_eq!(remote_media(&given).unwrap().0, "messages[0].content[1]", "{given:?}");
        }
        let local = with(json!({ "type": "image_url", "image_url": { "url": data } }));
        assert_eq!(remote_media(&local), None);
        let local = with(json!({ "image_url": data, "audio_url": null }));
        assert_eq!(remote_media(&local), None);
        let audio =
            json!({ "type": "input_audio", "input_audio": { "data": "AA", "format": "wav" } });
        assert_eq!(remote_media(&with(audio)), None);
    }

    #[test]
    fn forced_and_constrained_tokens_are_found() {
        for (given, forced, constrained) in [
            (json!({}), None, vec![]),
            (json!({ "temperature": 0.5, "logit_bias": {} }), None, vec![]),
            (json!({ "logit_bias": { "5": 100 } }), Some("logit_bias"), vec!["logit_bias"]),
            (json!({ "logit_bias": { "5": -100 } }), None, vec!["logit_bias"]),
            (json!({ "guided_choice": ["yes"] }), Some("guided_choice"), vec!["guided_choice"]),
            (json!({ "guided_choice": ["yes", "no"] }), None, vec!["guided_choice"]),
            (
                json!({ "structured_outputs": { "choice": ["yes"] } }),
                Some("structured_outputs"),
                vec!["structured_outputs"],
            ),
            (
                json!({ "allowed_token_ids": [7] }),
                Some("allowed_token_ids"),
                vec!["allowed_token_ids"],
            ),
            (json!({ "response_format": { "type": "text" } }), None, vec![]),
            (
                json!({ "response_format": { "type": "json_object" } }),
                None,
                vec!["response_format"],
            ),
            (json!({ "continue_final_message": true }), None, vec!["continue_final_message"]),
        ] {
            let given = body(given);
            assert_eq!(forced_tokens(&given), forced, "{given:?}");
            assert_eq!(constraints(&given), constrained, "{given:?}");
        }
    }
}
