//! vLLM: full and streamed responses, and weight updates.

use rollway_base::ServerKind;
use rollway_mock_server::{
    CompletionLengths, END, MockCounts, MockFault, MockServerOptions, RecordedRequest, RequestEnd,
    Script, ScriptedTurn, Tokenizer,
};
use serde_json::{Value, json};

use crate::client::{Client, Events, chat, ids, logprobs, with};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn options() -> MockServerOptions {
    MockServerOptions {
        lengths: CompletionLengths::Uniform(20, 60),
        ..MockServerOptions::new(ServerKind::Vllm)
    }
}

fn extra_fields() -> Value {
    json!({ "return_token_ids": true, "logprobs": true })
}

fn recorded_choice(record: &RecordedRequest, choice: usize) -> (Vec<i32>, Vec<f32>) {
    let tokens = &record.choices[choice].tokens;
    tokens.iter().map(|token| (token.id, token.logprob)).unzip()
}

#[tokio::test]
async fn full_and_streamed_responses_contain_the_generated_tokens() {
    let client = Client::start(options());
    let body = with(chat("hello, wörld"), with(extra_fields(), json!({ "n": 3 })));
    let whole = client.good(CHAT, body.clone()).await;
    let streamed = with(body, json!({ "stream_options": { "include_usage": true } }));
    let events = client.stream(CHAT, streamed).await;
    let records = client.server.control().records();
    assert_eq!(records.len(), 2);
    assert_eq!(ids(&whole["prompt_token_ids"]), records[0].prompts[0]);
    assert_eq!(ids(&events[0]["prompt_token_ids"]), records[0].prompts[0]);
    let mut made = 0;
    for index in 0..3 {
        let choice = &whole["choices"][index];
        let (tokens, probs) = recorded_choice(&records[0], index);
        assert_eq!(ids(&choice["token_ids"]), tokens);
        assert_eq!(logprobs(choice), probs);
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(tokens.last(), Some(&END));
        let chunks: Vec<&Value> =
            events.iter().flat_map(|event| event["choices"].as_array().unwrap()).collect();
        let chunks = chunks.iter().filter(|choice| choice["index"] == index);
        let chunks: Vec<&Value> = chunks.copied().collect();
        let deltas = chunks.iter().map(|chunk| chunk["delta"]["content"].as_str().unwrap());
        assert_eq!(deltas.collect::<String>(), choice["message"]["content"].as_str().unwrap());
        let streamed: Vec<i32> = chunks[1..].iter().flat_map(|c| ids(&c["token_ids"])).collect();
        assert_eq!(streamed, tokens);
        let streamed: Vec<f32> = chunks[1..].iter().flat_map(|c| logprobs(c)).collect();
        assert_eq!(streamed, probs);
        assert_eq!(chunks.last().unwrap()["finish_reason"], "stop");
        made += tokens.len();
    }
    assert_eq!(whole["usage"]["completion_tokens"], made);
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], made);
    assert_ne!(recorded_choice(&records[0], 0), recorded_choice(&records[0], 1), "choices differ");
}

#[tokio::test]
async fn tokens_can_be_computed_and_retokenized() {
    let client = Client::start(options());
    let mut wide = 0;
    for number in 0..20 {
        let limits = if number % 2 == 0 { json!({}) } else { json!({ "max_tokens": 10 + number }) };
        let body = with(chat(&format!("question {number}")), with(extra_fields(), limits));
        let whole = client.good(CHAT, body).await;
        let choice = &whole["choices"][0];
        let tokens = ids(&choice["token_ids"]);
        let prompt = ids(&whole["prompt_token_ids"]);
        let (tokenizer, lengths) = (Tokenizer::new(4096), options().lengths);
        let mut script = Script::new(tokenizer, lengths, 0, &prompt, None, 0);
        if number % 2 == 1 {
            script = script.limited(10 + number);
        }
        let (expected, probs): (Vec<i32>, Vec<f32>) =
            (0..tokens.len()).map(|at| script.token(0, u32::try_from(at).unwrap())).unzip();
        assert_eq!((tokens.clone(), logprobs(choice)), (expected, probs));
        let text = choice["message"]["content"].as_str().unwrap();
        let mut spelled = tokenizer.encode(text);
        if choice["finish_reason"] == "stop" {
            spelled.push(END);
        } else {
            assert_eq!(tokens.len(), 10 + number as usize);
        }
        assert_eq!(spelled, tokens, "{text}");
        wide += usize::from(!text.is_ascii());
    }
    assert!(wide > 5, "characters of several tokens are to be expected");
}

#[tokio::test]
async fn prescribed_turns_follow_the_conversation() {
    let call = ScriptedTurn::ToolCall {
        name: "write".to_owned(),
        arguments: r#"{"path": "a.txt", "text": "é\n"}"#.to_owned(),
    };
    let turns = vec![call, ScriptedTurn::Text("Done.".to_owned())];
    let client = Client::start(MockServerOptions { turns, ..options() });
    let tools = json!([{ "type": "function", "function": { "name": "write" } }]);
    let ask = |messages: &[Value], tools: &Value| {
        with(json!({ "messages": messages, "tools": tools }), extra_fields())
    };
    let mut messages = vec![json!({ "role": "user", "content": "write é" })];
    for _ in 0..2 {
        // The same turn for every request of a conversation, such as a retry.
        let first = client.good(CHAT, ask(&messages, &tools)).await;
        let call = &first["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], "write");
        assert_eq!(call["arguments"], r#"{"path": "a.txt", "text": "é\n"}"#);
        assert_eq!(first["choices"][0]["finish_reason"], "tool_calls");
    }
    let first = client.good(CHAT, ask(&messages, &tools)).await;
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({ "role": "tool", "content": "ok" }));
    let second = client.good(CHAT, ask(&messages, &tools)).await;
    let choice = &second["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&"Done.".into(), &"stop".into())
    );
    let tokens = ids(&choice["token_ids"]);
    assert_eq!((tokens.len(), tokens.last()), (logprobs(choice).len(), Some(&END)));
    let generated =
        [ids(&first["prompt_token_ids"]), ids(&first["choices"][0]["token_ids"])].concat();
    assert!(ids(&second["prompt_token_ids"]).starts_with(&generated));
    // The token API generates the same turn.
    let mut sampling = client.good("/v1/chat/completions/render", ask(&messages, &tools)).await;
    sampling["stream"] = false.into();
    let generated = client.good("/inference/v1/generate", sampling).await;
    assert_eq!(ids(&generated["choices"][0]["token_ids"]), tokens);
    // Later turns and conversations without tools are generated.
    let title = client.good(CHAT, ask(&messages[..1], &json!([]))).await;
    assert_ne!(title["choices"][0]["message"]["content"], Value::Null);
    let (status, refusal) = client
        .post(
            CHAT,
            ask(&messages[..1], &json!([{ "type": "function", "function": { "name": "x" } }])),
        )
        .await;
    assert_eq!(status, 400);
    assert!(
        refusal.to_string().contains("calls the tool write, which is not offered"),
        "{refusal}"
    );
}

#[tokio::test]
async fn the_next_prompt_begins_with_the_last_turn_unless_tokenization_drifts() {
    let tools = json!([{ "type": "function", "function": {
        "name": "look_up",
        "parameters": { "type": "object", "properties": {
            "what": { "type": "string" }, "times": { "type": "integer" } } },
    }}]);
    for drift in [false, true] {
        let client = Client::start(MockServerOptions { drift, ..options() });
        let mut messages = vec![
            json!({ "role": "system", "content": "be brief" }),
            json!({ "role": "user", "content": [{ "type": "text", "text": "who?" }] }),
        ];
        let mut before: Option<Vec<i32>> = None;
        for turn in 0..4 {
            let choice = if turn == 1 { "required" } else { "auto" };
            let body = json!({ "messages": messages, "tools": tools, "tool_choice": choice });
            let response = client.good(CHAT, with(body, extra_fields())).await;
            let prompt = ids(&response["prompt_token_ids"]);
            if let Some(before) = before {
                assert_eq!(prompt.starts_with(&before), !drift || turn == 2, "turn {turn}");
            }
            let choice = &response["choices"][0];
            before = Some([prompt, ids(&choice["token_ids"])].concat());
            messages.push(choice["message"].clone());
            if turn == 1 {
                assert_eq!(choice["finish_reason"], "tool_calls");
                let call = &choice["message"]["tool_calls"][0];
                assert_eq!(call["function"]["name"], "look_up");
                let arguments = call["function"]["arguments"].as_str().unwrap();
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                assert!(arguments["what"].is_string() && arguments["times"].is_u64());
                let result =
                    json!({ "role": "tool", "content": "done", "tool_call_id": call["id"] });
                messages.push(result);
            } else {
                messages.push(json!({ "role": "user", "content": "and then?" }));
            }
        }
    }
}

#[tokio::test]
async fn a_streamed_tool_call_equals_the_full_one() {
    let client = Client::start(options());
    let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": {
        "type": "object", "properties": { "x": { "type": "string" } } } } }]);
    let body = with(chat("go"), json!({ "tools": tools, "tool_choice": "required" }));
    let body = with(body, extra_fields());
    let whole = client.good(CHAT, body.clone()).await;
    let events = client.stream(CHAT, body).await;
    let call = &whole["choices"][0]["message"]["tool_calls"][0]["function"];
    let (mut name, mut arguments, mut tokens) = (String::new(), String::new(), Vec::new());
    for event in &events[1..] {
        let choice = &event["choices"][0];
        tokens.extend(ids(&choice["token_ids"]));
        let function = &choice["delta"]["tool_calls"][0]["function"];
        name.push_str(function["name"].as_str().unwrap_or_default());
        arguments.push_str(function["arguments"].as_str().unwrap_or_default());
    }
    assert_eq!(json!({ "name": name, "arguments": arguments }), *call);
    assert_eq!(tokens, ids(&whole["choices"][0]["token_ids"]));
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn completions_take_texts_and_ids_and_stop_at_stop_strings() {
    let client = Client::start(options());
    let body = json!({ "prompt": ["one", [1, 2, 300]], "n": 2, "max_tokens": 200, "logprobs": 1,
        "return_token_ids": true });
    let whole = client.good(TEXT, body.clone()).await;
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    let record = &client.server.control().records()[0];
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(ids(&choice["prompt_token_ids"]), record.prompts[index / 2]);
        assert_eq!(ids(&choice["token_ids"]), recorded_choice(record, index).0);
        let returned = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert_eq!(returned.len(), recorded_choice(record, index).1.len());
    }
    let events = client.stream(TEXT, body).await;
    let text = |index: usize| -> String {
        let chunks = events.iter().map(|event| &event["choices"][0]);
        let chunks = chunks.filter(|choice| choice["index"] == index);
        chunks.map(|choice| choice["text"].as_str().unwrap()).collect()
    };
    assert_eq!(text(3), choices[3]["text"].as_str().unwrap());

    let full = choices[0]["text"].as_str().unwrap();
    let stop: String = full.chars().skip(9).take(4).collect();
    let body = json!({ "prompt": "one", "max_tokens": 200, "stop": [stop.clone(), "nowhere"] });
    let cut = client.good(TEXT, body.clone()).await;
    let choice = &cut["choices"][0];
    assert_eq!(choice["text"].as_str(), full.split(&stop).next());
    assert_eq!(choice["stop_reason"], stop);
    assert_eq!(choice["finish_reason"], "stop");
    let events = client.stream(TEXT, body).await;
    let texts = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap());
    assert_eq!(texts.collect::<String>(), choice["text"].as_str().unwrap());
}

#[tokio::test]
async fn weights_change_in_the_middle_of_a_kept_response() {
    let client = Client::start(options());
    let control = client.server.control();
    let weights = tempfile::tempdir().unwrap();
    std::fs::write(weights.path().join("weights.json"), r#"{"version": 7}"#).unwrap();
    control.hold(5);
    let body = with(chat("a long story"), with(extra_fields(), json!({ "request_id": "x" })));
    let (response, ()) = tokio::join!(client.good(CHAT, body.clone()), async {
        control.wait_for(|counts: &MockCounts| counts.frozen == 1).await;
        client.good("/pause?mode=keep", json!({})).await;
        assert_eq!(client.get("/is_paused").await.1["is_paused"], true);
        control.release();
        let rpc = json!({ "method": "reload_weights",
            "kwargs": { "weights_path": weights.path() } });
        client.good("/collective_rpc", rpc).await;
        let info = client.get("/weight_info").await.1;
        assert_eq!(info["weight_version"], "default", "a reload renames nothing");
        client.good("/update_weight_version", json!({ "new_version": "7" })).await;
        assert_eq!(client.get("/weight_info").await.1["weight_version"], "7");
        assert_eq!(control.record("chatcmpl-x").unwrap().choices[0].tokens.len(), 5);
        client.good("/resume", json!({})).await;
    });
    let record = control.record("chatcmpl-x").unwrap();
    let tokens = &record.choices[0].tokens;
    assert_eq!(ids(&response["choices"][0]["token_ids"]), recorded_choice(&record, 0).0);
    for (at, token) in tokens.iter().enumerate() {
        assert_eq!(token.version, if at < 5 { 0 } else { 7 });
    }
    let after = client.good(CHAT, body).await;
    let (before, after) =
        (ids(&response["choices"][0]["token_ids"]), ids(&after["choices"][0]["token_ids"]));
    assert_ne!(before[..5], after[..5]);
    assert_eq!(before[5..], after[5..]);
}

#[tokio::test]
async fn an_update_that_fails_changes_nothing() {
    let client = Client::start(options());
    let rpc =
        |path: &str| json!({ "method": "reload_weights", "kwargs": { "weights_path": path } });
    let (status, body) = client.post("/collective_rpc", rpc("/nowhere/9")).await;
    assert_eq!(status, 500);
    assert_eq!(body["error"]["type"], "InternalServerError");
    let weights = tempfile::tempdir().unwrap();
    let nine = weights.path().join("step-9");
    std::fs::create_dir(&nine).unwrap();
    client.server.control().fail_updates(1);
    assert_eq!(client.post("/collective_rpc", rpc(nine.to_str().unwrap())).await.0, 500);
    assert_eq!(client.server.control().version(), 0);
    client.good("/collective_rpc", rpc(nine.to_str().unwrap())).await;
    assert_eq!(client.server.control().version(), 9);
}

#[tokio::test]
async fn aborts_and_disconnects_end_responses() {
    let client = Client::start(options());
    let control = client.server.control();
    control.hold(3);
    let named = |id: &str| with(chat(id), json!({ "request_id": id }));
    let mut stays = Events::open(&client, CHAT, named("stays")).await;
    let mut leaves = Events::open(&client, CHAT, named("leaves")).await;
    assert!(leaves.next().await.is_some());
    control.wait_for(|counts| counts.frozen == 2).await;
    drop(leaves);
    control.wait_for(|counts| counts.left == 1).await;
    let request = json!({ "request_ids": ["chatcmpl-stays"] });
    assert_eq!(client.good("/abort_requests", request).await["aborted"], 1);
    let mut last = Value::Null;
    while let Some(event) = stays.next().await {
        last = event;
    }
    assert!(stays.is_done);
    assert_eq!(last["choices"][0]["finish_reason"], "abort");
    assert_eq!(control.ended(RequestEnd::Left), ["chatcmpl-leaves"]);
    assert_eq!(control.ended(RequestEnd::Aborted), ["chatcmpl-stays"]);
    assert_eq!(control.counts().running, 0);
}

#[tokio::test]
async fn a_full_response_is_aborted_when_its_client_disconnects() {
    let client = Client::start(options());
    let control = client.server.control();
    control.hold(3);
    tokio::select! {
        _ = client.post(CHAT, chat("never mind")) => panic!("it was held"),
        _ = control.wait_for(|counts| counts.frozen == 1) => {}
    }
    assert_eq!(control.wait_for(|counts| counts.left == 1).await.running, 0);
}

#[tokio::test]
async fn a_waiting_pause_lets_responses_end_and_admits_none() {
    let client = Client::start(options());
    let control = client.server.control();
    control.hold(3);
    let first = client.good(CHAT, chat("first"));
    let pause = async {
        control.wait_for(|counts| counts.frozen == 1).await;
        let release = async {
            control.wait_until_closed().await;
            let after = async {
                control.wait_for(|counts| counts.waiting == 1).await;
                control.release();
            };
            tokio::join!(client.good(CHAT, chat("second")), after).0
        };
        let paused = async {
            client.good("/pause?mode=wait", json!({})).await;
            assert_eq!((control.counts().completed, control.counts().running), (1, 0));
            client.good("/resume", json!({})).await;
        };
        tokio::join!(paused, release).1
    };
    let (_, second) = tokio::join!(first, pause);
    assert_eq!(second["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn injected_faults_happen() {
    let client = Client::start(options());
    let control = client.server.control();
    let body = with(chat("hm"), extra_fields());
    control.inject(MockFault::Status(503), 2);
    control.inject(MockFault::Cut, 1);
    control.inject(MockFault::CutAfter(4), 1);
    control.inject(MockFault::Misalign, 1);
    control.inject(MockFault::NoTokenIds, 1);
    for _ in 0..2 {
        let (status, error) = client.post(CHAT, body.clone()).await;
        assert_eq!((status, error["error"]["code"].as_u64()), (503, Some(503)));
    }
    assert!(client.send(CHAT, &body).await.is_err());
    let mut events = Events::open(&client, CHAT, body.clone()).await;
    let mut seen = 0;
    while events.next().await.is_some() {
        seen += 1;
    }
    assert!(events.is_broken && !events.is_done);
    assert_eq!(seen, 5, "the role and four tokens");
    let choice = client.good(CHAT, body.clone()).await["choices"][0].clone();
    assert_eq!(logprobs(&choice).len() + 1, ids(&choice["token_ids"]).len());
    let response = client.good(CHAT, body.clone()).await;
    assert!(
        response["choices"][0]["token_ids"].is_null() && response["prompt_token_ids"].is_null()
    );
    assert!(client.good(CHAT, body).await["choices"][0]["token_ids"].is_array());
    assert_eq!(control.counts().failed, 4);
    control.set_healthy(false);
    assert_eq!(client.get("/health").await.0, 503);
}

#[tokio::test]
async fn invalid_requests_are_refused_like_vllm() {
    let client = Client::start(MockServerOptions { api_key: Some("k".into()), ..options() });
    assert_eq!(client.get("/v1/models").await.0, 401);
    assert_eq!(client.get_with_key("/v1/models", "k").await, 200);
    assert_eq!(client.get("/health").await.0, 200);
    assert_eq!(client.get("/weight_info").await.0, 200, "control is not guarded");

    let client = Client::start(options());
    let cases = [
        (with(chat("x"), json!({ "model": "other" })), 404, "NotFoundError"),
        (json!({ "messages": "x" }), 400, "BadRequestError"),
        (json!({ "messages": [{ "role": "pirate", "content": "arr" }] }), 400, "BadRequestError"),
        (with(chat("x"), json!({ "n": 0 })), 400, "BadRequestError"),
        (with(chat("x"), json!({ "max_tokens": "many" })), 400, "BadRequestError"),
        (with(chat("x"), json!({ "tool_choice": "required" })), 400, "BadRequestError"),
        (
            with(chat("x"), json!({ "stream_options": { "include_usage": true } })),
            400,
            "BadRequestError",
        ),
    ];
    for (body, status, kind) in cases {
        let (answered, error) = client.post(CHAT, body.clone()).await;
        assert_eq!((answered, error["error"]["type"].as_str()), (status, Some(kind)), "{body}");
    }
    let body = json!({ "prompt": [1, 999_999] });
    assert_eq!(client.post(TEXT, body).await.0, 400);
}

#[tokio::test]
async fn a_stopped_server_frees_its_port_for_the_next() {
    let client = Client::start(options());
    let address = client.server.address();
    let control = client.server.control();
    control.hold(2);
    let mut events = Events::open(&client, CHAT, chat("doomed")).await;
    control.wait_for(|counts| counts.frozen == 1).await;
    client.server.stop().await;
    while events.next().await.is_some() {}
    assert!(!events.is_done);
    let next = Client::start(MockServerOptions { address, ..options() });
    next.good(CHAT, chat("hello again")).await;
}
