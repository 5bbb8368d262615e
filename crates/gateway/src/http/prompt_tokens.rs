//! Token ids of prompts, for servers whose responses do not contain them.

use reqwest::header::CONTENT_TYPE;
use rollway_model_api::server_api::{LookupStep, PromptLookup};
use rollway_model_api::{ResponseParseError, UpstreamBody};
use serde_json::Value;

use crate::models::{ReadError, RegisteredServer, read_limited};

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
    let wrong = |reply: &str| {
        ResponseParseError(format!("the server at {root} answers {path} with {reply}"))
    };
    let post = server.client.post(format!("{root}{path}")).header(CONTENT_TYPE, "application/json");
    let response = post.body(request.body.to_string()).send().await.map_err(failed)?;
    let status = response.status();
    let bytes = read_limited(response, MAX_REPLY_BYTES).await.map_err(|error| match error {
        ReadError::Broken(error) => failed(error),
        ReadError::TooLarge => wrong(&format!("more than {MAX_REPLY_BYTES} bytes")),
    })?;
    let reply: Value =
        serde_json::from_slice(&bytes).map_err(|error| wrong(&format!("invalid JSON: {error}")))?;
    if status.is_success() {
        return Ok(reply);
    }
    Err(wrong(&reply.to_string().chars().take(200).collect::<String>()))
}
