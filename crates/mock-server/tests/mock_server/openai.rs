//! OpenAI's API without extensions.

use rollway_base::ServerKind;
use rollway_mock_server::MockServerOptions;
use serde_json::json;

use crate::client::{Client, chat, logprobs, with};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn responses_have_no_fields_beyond_the_api() {
    let client = Client::start(MockServerOptions::new(ServerKind::Openai));
    let body = with(chat("x"), json!({ "logprobs": true, "return_token_ids": true }));
    let response = client.good(CHAT, body).await;
    assert!(response.get("prompt_token_ids").is_none());
    let choice = &response["choices"][0];
    assert!(choice.get("token_ids").is_none());
    assert_eq!(response["usage"]["completion_tokens"], logprobs(choice).len());
    assert_eq!(client.post("/pause", json!({})).await.0, 404);
}

#[tokio::test]
async fn a_strict_server_refuses_unknown_fields() {
    let client = Client::start(MockServerOptions {
        strict: true,
        ..MockServerOptions::new(ServerKind::Openai)
    });
    client.good(CHAT, with(chat("x"), json!({ "temperature": 1.0 }))).await;
    let (status, error) =
        client.post(CHAT, with(chat("x"), json!({ "return_token_ids": true }))).await;
    assert_eq!(status, 422);
    assert!(error["error"]["message"].as_str().unwrap().contains("return_token_ids"));
    let (status, _) =
        client.post("/v1/completions", json!({ "prompt": "x", "messages": [] })).await;
    assert_eq!(status, 422);
}
