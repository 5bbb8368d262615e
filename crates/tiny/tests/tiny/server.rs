//! The server alone: refusals, pauses, disconnects, seeds and stop texts.

use std::thread;

use rollway_base::Secret;
use rollway_tiny::{TinyServer, TinyServerLimits, TinyServerOptions};
use rollway_tiny_model::{ModelWeights, arithmetic};
use serde_json::{Value, json};

use crate::client::{post, receive, request, send};

const CHAT: &str = "/v1/chat/completions";

fn chat(text: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 5 })
}

fn content(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

/// Waits until the counters match.
async fn wait_for(server: &TinyServer, wanted: impl Fn(&rollway_tiny::GenerationCounts) -> bool) {
    while !wanted(&server.counts()) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_requests_are_refused() {
    let server = TinyServer::start(TinyServerOptions::default()).unwrap();
    let with = |name: &str, value: Value| {
        let mut body = chat("1+1=");
        body[name] = value;
        body
    };
    let cases = [
        (chat("what is 1+1?"), 400, "'w'"),
        (with("top_p", json!(0.5)), 400, "top_p"),
        (with("tools", json!([{}])), 400, "tools"),
        (with("temperature", json!(-1)), 400, "temperature"),
        (with("n", json!(100_000)), 400, "max_running"),
        (with("model", json!("other")), 404, "other"),
        (chat(&"1".repeat(100)), 400, "101 tokens"),
        (json!({ "messages": [] }), 400, "messages"),
        (json!([]), 400, "object"),
    ];
    for (body, status, part) in cases {
        let (returned, error) = post(&server.url(), CHAT, &body).await;
        let message = error["error"]["message"].as_str().unwrap_or_default();
        assert!(returned == status && message.contains(part), "{body}: {returned} {error}");
    }
    // Neutral values are accepted.
    let (status, _) = post(&server.url(), CHAT, &with("top_p", json!(1))).await;
    assert_eq!(status, 200);
    let (status, models) = request(&server.url(), "GET", "/v1/models", "", &Value::Null).await;
    assert!(status == 200 && models.contains("\"tiny\""), "{models}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_path_but_health_needs_the_key() {
    let api_key = Some(Secret::new("right").unwrap());
    let server =
        TinyServer::start(TinyServerOptions { api_key, ..TinyServerOptions::default() }).unwrap();
    let version = json!({ "new_version": "999" });
    let calls = [
        ("POST", CHAT, chat("1+1=")),
        ("GET", "/v1/models", Value::Null),
        ("POST", "/update_weight_version", version.clone()),
        ("POST", "/collective_rpc", json!({ "method": "reload_weights" })),
        ("POST", "/pause", Value::Null),
        ("POST", "/abort_requests", Value::Null),
        ("GET", "/weight_info", Value::Null),
        ("GET", "/nowhere", Value::Null),
    ];
    for (method, path, body) in &calls {
        for key in ["", "wrong", "right2"] {
            let (status, text) = request(&server.url(), method, path, key, body).await;
            assert!(
                status == 401 && text.contains("AuthenticationError"),
                "{path}: {status} {text}"
            );
        }
        let (status, text) = request(&server.url(), method, path, "right", body).await;
        assert_ne!(status, 401, "{path}: {text}");
        if *path == "/pause" {
            request(&server.url(), "POST", "/resume", "right", &Value::Null).await;
        }
    }
    assert_eq!(&*server.version(), "999", "set with the key");
    assert_eq!(request(&server.url(), "GET", "/health", "", &Value::Null).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_of_another_shape_are_refused() {
    let (weights, _) = arithmetic();
    let folder = tempfile::tempdir().unwrap();
    let mut shape = weights.shape();
    shape.layers += 1;
    ModelWeights::random(shape, 1).save(&folder.path().join("model.safetensors")).unwrap();
    let server = TinyServer::start(TinyServerOptions::default()).unwrap();
    let mut greedy = chat("12+34=");
    greedy["temperature"] = 0.into();
    let (_, before) = post(&server.url(), CHAT, &greedy).await;
    for path in [folder.path().to_owned(), folder.path().join("none")] {
        let reload = json!({ "method": "reload_weights", "kwargs": { "weights_path": path } });
        let (status, error) = post(&server.url(), "/collective_rpc", &reload).await;
        assert_eq!(status, 500, "{error}");
    }
    let (_, after) = post(&server.url(), CHAT, &greedy).await;
    assert_eq!(content(&before), content(&after));
    assert_eq!(server.counts().updates, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_server_responds_after_resume() {
    let limits = TinyServerLimits { max_waiting: 2, ..TinyServerLimits::default() };
    let server =
        TinyServer::start(TinyServerOptions { limits, ..TinyServerOptions::default() }).unwrap();
    let url = server.url();
    assert_eq!(post(&url, "/pause?mode=keep", &Value::Null).await.0, 200);
    let disconnected = send(&url, "POST", CHAT, "", &chat("1+1="));
    wait_for(&server, |counts| counts.requests == 1).await;
    let mut named = chat("1+2=");
    named["request_id"] = "x".into();
    let waiting = send(&url, "POST", CHAT, "", &named);
    wait_for(&server, |counts| counts.requests == 2).await;
    let (status, error) = post(&url, CHAT, &chat("1+3=")).await;
    assert!(status == 503 && error.to_string().contains("max_waiting"), "{error}");

    drop(disconnected);
    wait_for(&server, |counts| counts.left == 1).await;
    assert_eq!(post(&url, "/resume", &Value::Null).await.0, 200);
    let response = thread::spawn(move || receive(waiting)).join().unwrap();
    assert!(response.0 == 200 && response.1.contains("chatcmpl-x"), "{response:?}");

    // Nothing is running, so both modes return at once; a later request is aborted.
    for mode in ["wait", "abort"] {
        assert_eq!(post(&url, &format!("/pause?mode={mode}"), &Value::Null).await.0, 200);
    }
    let waiting = send(&url, "POST", CHAT, "", &named);
    wait_for(&server, |counts| counts.requests == 4).await;
    post(&url, "/abort_requests", &json!({ "request_ids": ["chatcmpl-x"] })).await;
    let response = thread::spawn(move || receive(waiting)).join().unwrap();
    assert!(response.1.contains("\"finish_reason\":\"abort\""), "{response:?}");
    let counts = server.counts();
    assert_eq!((counts.answered, counts.aborted, counts.refused), (1, 1, 1));
    server.stop().await;
}

/// Sorted completions of a group of requests for one prompt.
async fn group(seed: u64, others: &[&str]) -> Vec<String> {
    let server =
        TinyServer::start(TinyServerOptions { seed, ..TinyServerOptions::default() }).unwrap();
    let url = server.url();
    for other in others {
        post(&url, CHAT, &chat(other)).await;
    }
    let streams: Vec<_> = (0..16).map(|_| send(&url, "POST", CHAT, "", &chat("57+68="))).collect();
    let mut texts: Vec<String> = streams
        .into_iter()
        .map(|stream| content(&serde_json::from_str(&receive(stream).1).unwrap()))
        .collect();
    texts.sort();
    texts
}

#[tokio::test(flavor = "multi_thread")]
async fn default_seeds_depend_on_job_and_prompt_only() {
    let first = group(1, &[]).await;
    assert!(first.iter().any(|text| *text != first[0]), "they are not all the same: {first:?}");
    assert_eq!(first, group(1, &["1+1=", "2+2="]).await);
    assert_ne!(first, group(2, &[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_text_ends_the_completion() {
    let server = TinyServer::start(TinyServerOptions::default()).unwrap();
    let mut body = chat("12+34=");
    body["temperature"] = 0.into();
    let (_, whole) = post(&server.url(), CHAT, &body).await;
    let text = content(&whole);
    body["stop"] = json!([&text[1..2], "never"]);
    body["return_token_ids"] = true.into();
    body["logprobs"] = true.into();
    let (_, cut) = post(&server.url(), CHAT, &body).await;
    let choice = &cut["choices"][0];
    let first = text.find(&text[1..2]).unwrap();
    assert_eq!(content(&cut), text[..first]);
    assert_eq!(choice["stop_reason"], text[1..2]);
    let tokens = choice["token_ids"].as_array().unwrap().len();
    assert_eq!(tokens, first + 1, "the stop text is included");
    assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), tokens);
    body["stream"] = true.into();
    let (_, events) = request(&server.url(), "POST", CHAT, "", &body).await;
    let streamed: String = events
        .split("\n\n")
        .filter_map(|event| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok())
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(streamed, text[..first]);
    assert!(events.ends_with("data: [DONE]\n\n"));
}
