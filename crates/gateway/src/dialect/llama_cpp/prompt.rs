//! The tokens of a call's prompt, which `llama-server` tells only when asked separately.

use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::call::{Call, Kind};
use crate::dialect::Misread;
use crate::models::Server;

/// The largest answer that is read, in bytes.
const MAX_BYTES: usize = 64 << 20;

/// Returns the ids of the prompt, made the way the server makes them for the call itself.
pub(super) async fn tokens(server: &Server, call: &Call) -> Result<Vec<i32>, Misread> {
    let text = match call.kind {
        Kind::Chat => {
            let mut body = call.body.clone();
            for name in ["stream", "stream_options", "logprobs", "top_logprobs", "n"] {
                body.remove(name);
            }
            let answer = ask(server, "/apply-template", &Value::Object(body)).await?;
            let text = answer.get("prompt").and_then(Value::as_str);
            text.ok_or_else(|| odd("/apply-template", &answer))?.to_owned()
        }
        Kind::Completion => match call.body.get("prompt") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(ids)) => return numbers(ids).ok_or_else(several),
            _ => return Err(several()),
        },
    };
    let question = json!({ "content": text, "add_special": true, "parse_special": true });
    let answer = ask(server, "/tokenize", &question).await?;
    let tokens = answer.get("tokens").and_then(Value::as_array);
    tokens.and_then(|tokens| numbers(tokens)).ok_or_else(|| odd("/tokenize", &answer))
}

/// Reads token ids. A list within the list is another prompt.
fn numbers(list: &[Value]) -> Option<Vec<i32>> {
    let number = |value: &Value| value.as_i64().and_then(|id| i32::try_from(id).ok());
    match list {
        [Value::Array(only)] => only.iter().map(number).collect(),
        _ => list.iter().map(number).collect(),
    }
}

fn several() -> Misread {
    Misread("a recorded completion has one prompt, as a text or as token ids".into())
}

fn odd(path: &str, answer: &Value) -> Misread {
    let shown: String = answer.to_string().chars().take(200).collect();
    Misread(format!("llama-server answers {path} with {shown}"))
}

async fn ask(server: &Server, path: &str, body: &Value) -> Result<Value, Misread> {
    let failed = |error: reqwest::Error| {
        Misread(format!("llama-server at {} does not answer {path}: {error}", server.spec.url))
    };
    let url = format!("{}{path}", server.spec.url.trim_end_matches('/'));
    let mut request = server.client.post(url).header(CONTENT_TYPE, "application/json");
    if let Some(key) = &server.spec.api_key {
        request = request.bearer_auth(key.reveal());
    }
    let mut response = request.body(body.to_string()).send().await.map_err(failed)?;
    let status = response.status();
    let mut bytes = Vec::new();
    while let Some(part) = response.chunk().await.map_err(failed)? {
        if bytes.len() + part.len() > MAX_BYTES {
            return Err(Misread(format!("llama-server answers {path} with too many bytes")));
        }
        bytes.extend_from_slice(&part);
    }
    let answer = serde_json::from_slice(&bytes)
        .map_err(|error| Misread(format!("llama-server answers {path} with no JSON: {error}")))?;
    if status.is_success() { Ok(answer) } else { Err(odd(path, &answer)) }
}
