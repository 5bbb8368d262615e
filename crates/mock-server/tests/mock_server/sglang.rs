//! SGLang: full and streamed responses, and weight updates.

use rollway_base::ServerKind;
use rollway_mock_server::{CompletionLengths, END, MockServerOptions, RequestEnd};
use serde_json::{Value, json};

use crate::client::{Client, Events, chat, ids, with};

const CHAT: &str = "/v1/chat/completions";

fn options() -> MockServerOptions {
    MockServerOptions {
        lengths: CompletionLengths::Uniform(20, 60),
        ..MockServerOptions::new(ServerKind::Sglang)
    }
}

fn extra_fields() -> Value {
    json!({ "logprobs": true, "return_meta_info": true, "return_prompt_token_ids": true })
}

/// Returns the token ids and log-probabilities of a `meta_info`.
fn pairs(meta: &Value) -> (Vec<i32>, Vec<f32>) {
    let pairs = meta["output_token_logprobs"].as_array().unwrap();
    assert_eq!(meta["output_token_logprobs_length"], pairs.len());
    let pair = |pair: &Value| {
        let id = i32::try_from(pair[1].as_i64().unwrap()).unwrap();
        (id, pair[0].as_f64().unwrap() as f32)
    };
    pairs.iter().map(pair).unzip()
}

#[tokio::test]
async fn full_chats_contain_tokens_and_streams_do_not() {
    let client = Client::start(options());
    let body =
        with(chat("hello"), with(extra_fields(), json!({ "n": 2, "rid": "r", "model": "any" })));
    let whole = client.good(CHAT, body).await;
    assert_eq!((&whole["id"], &whole["model"]), (&json!("r"), &json!("any")));
    assert_eq!(whole["metadata"]["weight_version"], "default");
    let record = client.server.control().record("r").unwrap();
    for (index, choice_record) in record.choices.iter().enumerate() {
        let choice = &whole["choices"][index];
        assert_eq!(ids(&choice["prompt_token_ids"]), record.prompts[0]);
        let expected = choice_record.tokens.iter().map(|token| (token.id, token.logprob)).unzip();
        assert_eq!(pairs(&choice["meta_info"]), expected);
        assert_eq!(choice["meta_info"]["finish_reason"], json!({ "type": "stop", "matched": END }));
        assert_eq!(
            (&choice["finish_reason"], &choice["matched_stop"]),
            (&json!("stop"), &json!(END))
        );
    }
    for field in ["return_meta_info", "return_prompt_token_ids"] {
        let body = with(chat("hello"), json!({ field: true, "stream": true }));
        let (status, error) = client.post(CHAT, body).await;
        assert_eq!((status, &error["object"]), (400, &json!("error")));
        assert!(error["message"].as_str().unwrap().contains("not supported with streaming"));
    }
    let usage = json!({ "stream_options": { "include_usage": true } });
    let events = client.stream(CHAT, with(chat("hello"), usage)).await;
    let contents = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
    assert_eq!(
        contents.collect::<String>(),
        whole["choices"][0]["message"]["content"].as_str().unwrap()
    );
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "stop");
    let made = record.choices[0].tokens.len();
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], made);
}

#[tokio::test]
async fn completions_and_native_requests_return_the_same_tokens() {
    let client = Client::start(options());
    let body = json!({ "prompt": [5, 6, 300], "max_tokens": 30, "return_token_ids": true,
        "logprobs": 1 });
    let whole = client.good("/v1/completions", body.clone()).await;
    let tokens = ids(&whole["choices"][0]["token_ids"]);
    assert_eq!(ids(&whole["choices"][0]["prompt_token_ids"]), [5, 6, 300]);
    let events = client.stream("/v1/completions", body).await;
    let streamed = events.iter().flat_map(|event| ids(&event["choices"][0]["token_ids"]));
    assert_eq!(streamed.collect::<Vec<_>>(), tokens);
    assert_eq!(ids(&events[0]["choices"][0]["prompt_token_ids"]), [5, 6, 300]);
    assert!(events[1]["choices"][0]["prompt_token_ids"].is_null());

    let native = json!({ "input_ids": [5, 6, 300], "return_logprob": true,
        "sampling_params": { "max_new_tokens": 30 } });
    let response = client.good("/generate", native.clone()).await;
    assert_eq!(ids(&response["output_ids"]), tokens);
    assert_eq!(pairs(&response["meta_info"]).0, tokens);
    assert_eq!(response["text"], whole["choices"][0]["text"]);
    let events = client.stream("/generate", native).await;
    assert_eq!(events.len(), tokens.len());
    for (at, event) in events.iter().enumerate() {
        assert_eq!(ids(&event["output_ids"]), tokens[..=at], "every event has all tokens so far");
    }
    assert_eq!(events.last().unwrap()["text"], response["text"]);
    let batch = json!({ "text": ["a", "b"], "sampling_params": { "max_new_tokens": 4 } });
    let responses = client.good("/generate", batch).await;
    assert_eq!(
        responses[1]["meta_info"]["finish_reason"],
        json!({ "type": "length", "length": 4 })
    );
}

#[tokio::test]
async fn an_update_waits_for_responses_unless_paused() {
    let client = Client::start(MockServerOptions { version_spans: true, ..options() });
    let control = client.server.control();
    let weights = tempfile::tempdir().unwrap();
    for version in [3, 4] {
        std::fs::create_dir(weights.path().join(format!("v{version}"))).unwrap();
    }
    let update = |version: u32| {
        let path = weights.path().join(format!("v{version}"));
        json!({ "model_path": path, "weight_version": version.to_string() })
    };
    control.hold(4);
    let first = client.good(CHAT, with(chat("one"), extra_fields()));
    let (first, second) = tokio::join!(first, async {
        control.wait_for(|counts| counts.frozen == 1).await;
        let updated = client.good("/update_weights_from_disk", update(3));
        let second = async {
            control.wait_until_closed().await;
            client.good(CHAT, with(chat("two"), extra_fields())).await
        };
        let late = async {
            control.wait_for(|counts| counts.waiting == 1).await;
            control.release();
        };
        let (updated, second, ()) = tokio::join!(updated, second, late);
        assert_eq!(updated["num_paused_requests"], 0);
        second
    });
    let spans = |response: &Value| response["choices"][0]["meta_info"]["weight_versions"].clone();
    assert_eq!(spans(&first).as_array().unwrap().len(), 1);
    assert_eq!(spans(&first)[0]["version"], "default");
    assert_eq!(spans(&second)[0]["version"], "3");

    control.hold(4);
    let third = client.good(CHAT, with(chat("three"), extra_fields()));
    let (third, ()) = tokio::join!(third, async {
        control.wait_for(|counts| counts.frozen == 1).await;
        client.good("/pause_generation", json!({ "mode": "in_place" })).await;
        control.release();
        let updated = client.good("/update_weights_from_disk", update(4)).await;
        assert_eq!(updated["num_paused_requests"], 1);
        client.good("/continue_generation", json!({})).await;
    });
    let spans = spans(&third);
    assert_eq!(spans[0], json!({ "version": "3", "start": 0, "end": 4 }));
    assert_eq!((&spans[1]["version"], &spans[1]["start"]), (&json!("4"), &json!(4)));
    assert_eq!(third["choices"][0]["meta_info"]["weight_version"], "4", "the one at the end");
    let record = control.records().pop().unwrap();
    assert!(record.choices[0].tokens[..4].iter().all(|token| token.version == 3));
    assert!(record.choices[0].tokens[4..].iter().all(|token| token.version == 4));
}

#[tokio::test]
async fn a_failed_update_and_a_new_name_behave_like_sglangs() {
    let client = Client::start(options());
    let control = client.server.control();
    let (status, body) =
        client.post("/update_weights_from_disk", json!({ "model_path": "/nowhere/1" })).await;
    assert_eq!((status, &body["success"]), (400, &json!(false)));
    assert_eq!(client.get("/model_info").await.1["weight_version"], "default");

    control.hold(2);
    let mut kept = Events::open(&client, CHAT, with(chat("x"), json!({ "rid": "kept" }))).await;
    control.wait_for(|counts| counts.frozen == 1).await;
    let body = json!({ "new_version": "8", "abort_all_requests": false });
    client.good("/update_weight_version", body).await;
    assert_eq!(control.counts().aborted, 0);
    client.good("/update_weight_version", json!({ "new_version": "9" })).await;
    while kept.next().await.is_some() {}
    assert_eq!(control.ended(RequestEnd::Aborted), ["kept"], "a new name aborts by default");
    assert_eq!(client.get("/get_weight_version").await.1["weight_version"], "9");
}

#[tokio::test]
async fn a_request_is_aborted_by_its_id() {
    let client = Client::start(MockServerOptions { api_key: Some("k".into()), ..options() });
    assert_eq!(client.get("/model_info").await.0, 401);
    assert_eq!(client.get("/health").await.0, 200);

    let client = Client::start(options());
    let control = client.server.control();
    control.hold(2);
    let response =
        client.good(CHAT, with(chat("x"), with(extra_fields(), json!({ "rid": "gone" }))));
    let (response, ()) = tokio::join!(response, async {
        control.wait_for(|counts| counts.frozen == 1).await;
        client.post("/abort_request", json!({ "rid": "" })).await;
        client.post("/abort_request", json!({ "rid": "gone" })).await;
    });
    assert_eq!(response["choices"][0]["finish_reason"], "abort");
    assert_eq!(pairs(&response["choices"][0]["meta_info"]).0.len(), 2);
    assert_eq!(control.ended(RequestEnd::Aborted), ["gone"]);
}
