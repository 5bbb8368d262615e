//! Limits of requests.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream;
use rollway_gateway::gateway::{GatewayLimits, GatewayOptions, RunBudget};
use rollway_mock_server::{MockFault, MockServerOptions};
use rollway_net::ListenerLimits;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::help::{ADMIN, MODEL, World, events, options, says, streams};

fn limited(limits: GatewayLimits) -> GatewayOptions {
    GatewayOptions { limits, ..options() }
}

async fn world(limits: GatewayLimits) -> World {
    World::with(limited(limits), vec![MockServerOptions::default()]).await
}

#[tokio::test]
async fn large_bodies_are_refused_without_being_read() {
    let world = world(GatewayLimits { request_body_bytes: 1000, ..GatewayLimits::default() }).await;
    let run = world.open(1);
    let (status, _) = run.call(&says(&"x".repeat(1000))).await;
    assert_eq!(status, 413);

    // Chunked, endless, and without a length.
    let endless = stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 100]));
    let request = run.chat(&says("x")).body(reqwest::Body::wrap_stream(endless));
    match request.send().await {
        Ok(response) => assert_eq!(response.status(), 413),
        // It was still sending when the connection was closed.
        Err(error) => assert!(error.is_request() || error.is_body(), "{error:?}"),
    }
    assert_eq!(world.control().counts().requests, 0);
    assert_eq!(run.send(&says("x")).await.status(), 200);
}

#[tokio::test]
async fn calls_above_the_limits_get_a_retry_time() {
    let limits = GatewayLimits { calls: 3, calls_per_run: 2, ..GatewayLimits::default() };
    let world = world(limits).await;
    let (one, other) = (world.open(1), world.open(2));
    world.control().hold(1);
    let start = |run: &super::help::Run| {
        let request = run.chat(&streams("x"));
        tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() })
    };
    let mut in_flight = vec![start(&one), start(&one)];
    world.control().wait_for(|counts| counts.frozen == 2).await;
    let refused = |response: &reqwest::Response| {
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "1");
    };
    refused(&one.send(&says("of the run")).await);
    in_flight.push(start(&other));
    world.control().wait_for(|counts| counts.frozen == 3).await;
    refused(&other.send(&says("overall")).await);
    assert_eq!(world.metric("in_flight").await, 3.0);

    world.control().release();
    for text in join_all(in_flight).await {
        assert!(text.unwrap().ends_with("[DONE]\n\n"));
    }
    assert_eq!(other.send(&says("again")).await.status(), 200);
    assert_eq!(world.metric("in_flight").await, 0.0);
}

#[tokio::test]
async fn a_hanging_server_times_out() {
    let limits = GatewayLimits {
        call_timeout: Duration::from_secs(2),
        max_retries: 0,
        ..GatewayLimits::default()
    };
    let world = world(limits).await;
    let run = world.open(1);
    assert_eq!(run.send(&says("warm")).await.status(), 200);
    world.control().inject(MockFault::Hang, 1);
    let (status, _) = run.call(&says("x")).await;
    assert_eq!(status, 504);
    world.control().inject(MockFault::HangAfter(2), 1);
    let response = run.send(&streams("y")).await;
    let events = events(&response.text().await.unwrap());
    assert!(events.last().unwrap().contains("upstream_timeout"), "{events:?}");
    world.control().wait_for(|counts| counts.running == 0).await;
    assert_eq!(world.experiences(&run).len(), 2, "what was heard is recorded as aborted");
}

#[tokio::test]
async fn an_idle_stream_times_out() {
    let limits =
        GatewayLimits { idle_timeout: Duration::from_millis(200), ..GatewayLimits::default() };
    let world = world(limits).await;
    let run = world.open(1);
    world.control().inject(MockFault::HangAfter(2), 1);
    let response = run.send(&streams("y")).await;
    let events = events(&response.text().await.unwrap());
    assert!(events.last().unwrap().contains("upstream_timeout"), "{events:?}");
    world.control().wait_for(|counts| counts.running == 0).await;
}

#[tokio::test]
async fn slow_clients_time_out() {
    let timeout = Duration::from_millis(200);
    let defaults = GatewayLimits::default();
    let listener = ListenerLimits { header_timeout: timeout, ..defaults.listener.clone() };
    let world = world(GatewayLimits { listener, request_timeout: timeout, ..defaults }).await;
    let address = world.gateway.url().strip_prefix("http://").unwrap().to_owned();
    let mut reply = String::new();
    let mut slow = TcpStream::connect(&address).await.unwrap();
    slow.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    slow.read_to_string(&mut reply).await.unwrap();
    assert!(reply.is_empty(), "{reply}");

    let mut slow = TcpStream::connect(&address).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN}\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    slow.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 400"), "{reply}");
}

#[tokio::test]
async fn sequential_calls_need_one_permit() {
    let limits = GatewayLimits { calls: 1, calls_per_run: 1, ..GatewayLimits::default() };
    let world = world(limits).await;
    let run = world.open(1);
    for number in 0..50 {
        let text = format!("say {number}");
        let body = if number % 2 == 0 { says(&text) } else { streams(&text) };
        let response = run.send(&body).await;
        assert_eq!(response.status(), 200);
        response.text().await.unwrap();
    }
}

#[tokio::test]
async fn calls_beyond_the_budget_get_a_final_message() {
    let budget = RunBudget { model_calls: Some(2), ..RunBudget::default() };
    let options = GatewayOptions { budget, ..options() };
    let world = World::with(options, vec![MockServerOptions::default()]).await;
    let run = world.open(1);
    assert_eq!(run.usage().await["model_calls"], 0);
    for number in 0..2 {
        assert_eq!(run.send(&says(&format!("call {number}"))).await.status(), 200);
    }
    assert_eq!(run.usage().await["exhausted"], serde_json::Value::Null);
    let (status, body) = run.call(&says("one more")).await;
    assert_eq!((status, &body["choices"][0]["finish_reason"]), (200, &"stop".into()));
    let text = body["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.contains("model_calls: 2 of 2"), "{text}");
    let stream = run.send(&streams("one more, streamed")).await.text().await.unwrap();
    assert!(stream.contains("model_calls: 2 of 2") && stream.ends_with("[DONE]\n\n"), "{stream}");
    // Neither reached the server, and neither is recorded.
    assert_eq!(world.control().counts().requests, 2);
    assert_eq!(world.experiences(&run).len(), 2);
    assert_eq!(world.metric("calls_beyond_budget_total").await, 2.0);
    let usage = run.usage().await;
    assert_eq!((&usage["model_calls"], &usage["exhausted"]), (&2.into(), &"model_calls".into()));
    let tokens = |name: &str| usage[name].as_u64().unwrap();
    assert!(tokens("prompt_tokens") > 0 && tokens("completion_tokens") > 0, "{usage}");
    assert_eq!(world.open(2).send(&says("another run")).await.status(), 200);
}

#[tokio::test]
async fn the_final_message_has_the_form_of_each_api() {
    let budget = RunBudget { model_calls: Some(0), ..RunBudget::default() };
    let options = GatewayOptions { budget, ..options() };
    let world = World::with(options, vec![MockServerOptions::default()]).await;
    let run = world.open(1);
    let post = async |path: &str, body: serde_json::Value| {
        let response = run.post(path, &body).send().await.unwrap();
        assert_eq!(response.status(), 200);
        response.text().await.unwrap()
    };
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let is_final =
        |text: &serde_json::Value| text.as_str().unwrap().contains("model_calls: 0 of 0");

    let mut call = json!({ "model": MODEL, "input": "x" });
    let full = parse(&post("/v1/responses", call.clone()).await);
    assert_eq!(
        (&full["status"], &full["output"][0]["type"]),
        (&json!("completed"), &json!("message"))
    );
    assert!(is_final(&full["output"][0]["content"][0]["text"]), "{full}");
    call["stream"] = json!(true);
    let events = named_events(&post("/v1/responses", call).await);
    let (name, last) = events.last().unwrap();
    assert_eq!((events[0].0.as_str(), name.as_str()), ("response.created", "response.completed"));
    assert!(is_final(&last["response"]["output"][0]["content"][0]["text"]), "{last}");

    let mut call = says("x");
    call["max_tokens"] = json!(5);
    let full = parse(&post("/v1/messages", call.clone()).await);
    assert_eq!((&full["type"], &full["stop_reason"]), (&json!("message"), &json!("end_turn")));
    assert!(is_final(&full["content"][0]["text"]), "{full}");
    call["stream"] = json!(true);
    let events = named_events(&post("/v1/messages", call).await);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((names[0], *names.last().unwrap()), ("message_start", "message_stop"));
    assert!(names.contains(&"content_block_stop"), "{names:?}");
    let delta = events.iter().find(|(name, _)| name == "message_delta").unwrap();
    assert_eq!(delta.1["delta"]["stop_reason"], "end_turn");
    assert_eq!(world.control().counts().requests, 0);
}

/// Returns the names and data of the events of a stream.
fn named_events(text: &str) -> Vec<(String, serde_json::Value)> {
    let events = text.split("\n\n").filter(|event| !event.is_empty());
    let parse = |event: &str| {
        let (name, data) = event.strip_prefix("event: ")?.split_once("\ndata: ")?;
        Some((name.to_owned(), serde_json::from_str(data).ok()?))
    };
    events.map(|event| parse(event).unwrap_or_else(|| panic!("no event: {event}"))).collect()
}

#[tokio::test]
async fn prompts_have_a_budget() {
    let budget = RunBudget { prompt_tokens: Some(1), ..RunBudget::default() };
    let options = GatewayOptions { budget, ..options() };
    let world = World::with(options, vec![MockServerOptions::default()]).await;
    let run = world.open(1);
    assert_eq!(run.send(&says("the first call may exceed it")).await.status(), 200);
    let used = run.usage().await["prompt_tokens"].as_u64().unwrap();
    let (status, body) = run.call(&says("second")).await;
    let text = body["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(status == 200 && text.contains(&format!("prompt_tokens: {used} of 1")), "{text}");
    assert_eq!(run.usage().await["exhausted"], "prompt_tokens");
    assert_eq!(world.control().counts().requests, 1);
}

#[tokio::test]
async fn completions_end_with_the_budget_of_tokens() {
    let budget = RunBudget { completion_tokens: Some(10), ..RunBudget::default() };
    let options = GatewayOptions { budget, ..options() };
    let world = World::with(options, vec![MockServerOptions::default()]).await;
    let run = world.open(1);
    let mut first = says("first");
    first["max_tokens"] = 7.into();
    let mut second = says("second");
    second["max_tokens"] = 7.into();
    let lengths = [run.call(&first).await.1, run.call(&second).await.1]
        .map(|body| body["usage"]["completion_tokens"].as_u64().unwrap());
    assert_eq!(lengths, [7, 3]);
    let (_, body) = run.call(&says("third")).await;
    let text = body["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.contains("completion_tokens: 10 of 10"), "{text}");
}

#[tokio::test]
async fn tool_turns_and_time_have_budgets() {
    let budget = RunBudget { tool_turns: Some(1), ..RunBudget::default() };
    let options = GatewayOptions { budget, ..options() };
    let world = World::with(options, vec![MockServerOptions::default()]).await;
    let run = world.open(1);
    let tool = serde_json::json!({ "type": "function", "function": { "name": "look" } });
    let mut call = says("use a tool");
    call["tools"] = vec![tool].into();
    call["tool_choice"] = "required".into();
    assert_eq!(run.send(&says("no tool")).await.status(), 200);
    let (_, body) = run.call(&call).await;
    assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
    let (_, body) = run.call(&call).await;
    let text = body["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.contains("tool_turns: 1 of 1"), "{text}");
    assert_eq!(world.control().counts().requests, 2);

    let budget = RunBudget { duration: Some(Duration::from_millis(1)), ..RunBudget::default() };
    let options = GatewayOptions { budget, ..super::help::options() };
    let world = World::with(options, vec![MockServerOptions::default()]).await;
    let run = world.open(1);
    // The time counts from the first call, which may use all of it.
    run.call(&says("first")).await;
    let (_, body) = run.call(&says("second")).await;
    let text = body["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.contains("duration: ") && text.contains("seconds"), "{text}");
}

#[tokio::test]
async fn ambiguous_framing_is_refused_and_ends_the_connection() {
    let world = World::new().await;
    let address = world.gateway.url().strip_prefix("http://").unwrap().to_owned();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN}\r\n\
         content-type: application/json\r\n"
    );
    // The smuggled request must not be answered.
    let body = "2\r\n{}\r\n0\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    for framing in [
        "content-length: 2\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 2\r\n",
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
    ] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(format!("{head}{framing}\r\n{body}").as_bytes()).await.unwrap();
        let mut reply = String::new();
        // Returns only if the gateway closes the connection.
        stream.read_to_string(&mut reply).await.unwrap();
        assert_eq!(reply.matches("HTTP/1.1 ").count(), 1, "{framing:?}: {reply}");
        assert!(reply.starts_with("HTTP/1.1 400"), "{framing:?}: {reply}");
        assert!(reply.contains("Transfer-Encoding"), "{framing:?}: {reply}");
    }
}
