//! Token ids of prompts, for servers whose responses do not contain them.

use reqwest::header::CONTENT_TYPE;
use rollway_model_api::server_api::{LookupStep, PromptLookup};
use rollway_model_api::{ResponseParseError, UpstreamBody};
use serde_json::Value;

use crate::models::RegisteredServer;

/// Maximum size of a reply.
const MAX_REPLY_BYTES: usize = 64 << 20;

/// Finds out the token ids of a prompt by the requests of a lookup.
pub(super) async fn prompt_tokens(
    server: &RegisteredServer,
    mut lookup: Box<dyn PromptLookup>,
) -> Result<Vec<i32>, ResponseParseError> {
    let mut step = lookup.start()?;
    loop {
        step = match step {
            LookupStep::Request(request) => lookup.reply(&send(server, &request).await?)?,
            LookupStep::Tokens(tokens) => return Ok(tokens),
        };
    }
}

async fn send(
    server: &RegisteredServer,
    request: &UpstreamBody,
) -> Result<Value, ResponseParseError> {
    let (root, path) = (&server.spec.url, request.path);
    let failed = |error: reqwest::Error| {
        ResponseParseError(format!("the server at {root} does not answer {path}: {error}"))
    };
    let wrong =
        |what: &str| ResponseParseError(format!("the server at {root} answers {path} with {what}"));
    let url = format!("{}{path}", root.trim_end_matches('/'));
    let mut post = server.client.post(url).header(CONTENT_TYPE, "application/json");
    if let Some(key) = &server.spec.api_key {
        post = post.bearer_auth(key.reveal());
    }
    let mut response = post.body(request.body.to_string()).send().await.map_err(failed)?;
    let status = response.status();
    let mut bytes = Vec::new();
    while let Some(part) = response.chunk().await.map_err(failed)? {
        if bytes.len() + part.len() > MAX_REPLY_BYTES {
            return Err(wrong(&format!("more than {MAX_REPLY_BYTES} bytes")));
        }
        bytes.extend_from_slice(&part);
    }
    let reply: Value =
        serde_json::from_slice(&bytes).map_err(|error| wrong(&format!("invalid JSON: {error}")))?;
    if status.is_success() {
        return Ok(reply);
    }
    Err(wrong(&reply.to_string().chars().take(200).collect::<String>()))
}
