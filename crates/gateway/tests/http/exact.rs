//! Chats that continue a recorded turn are sent with its tokens.

use rollway_base::ServerKind;
use rollway_mock_server::{CompletionLengths, MockServerOptions};
use serde_json::{Value, json};

use super::help::{MODEL, Run, World, events, options};

const TURNS: usize = 5;

/// A server whose template tokenizes completions differently than they were sampled.
fn drifting(kind: ServerKind) -> MockServerOptions {
    let lengths = CompletionLengths::Uniform(4, 40);
    MockServerOptions { drift: true, lengths, tool_call_rate: 0.5, ..MockServerOptions::new(kind) }
}

async fn world(server: MockServerOptions, is_exact: bool) -> World {
    let mut options = options();
    options.exact_histories = is_exact;
    World::with(options, vec![server]).await
}

fn tools() -> Value {
    json!([{ "type": "function", "function": {
        "name": "look_up",
        "parameters": { "type": "object", "properties": { "city": { "type": "string" } } },
    }}])
}

/// Holds a conversation with tools; every second call is a stream. Returns the messages.
async fn converse(run: &Run) -> Vec<Value> {
    let mut messages = vec![json!({ "role": "user", "content": "hello" })];
    for turn in 0..TURNS {
        let stream = turn % 2 == 1;
        let body = json!({
            "model": MODEL, "messages": messages, "tools": tools(), "stream": stream,
        });
        let reply = if stream {
            streamed_message(&run.text(&body).await)
        } else {
            let (status, mut answer) = run.call(&body).await;
            assert_eq!(status, 200, "{answer}");
            answer["choices"][0]["message"].take()
        };
        let call = reply.pointer("/tool_calls/0/id").cloned();
        messages.push(reply);
        messages.push(match call {
            Some(id) => json!({ "role": "tool", "tool_call_id": id, "content": "sunny" }),
            None => json!({ "role": "user", "content": format!("and {turn}?") }),
        });
    }
    messages
}

fn streamed_message(body: &str) -> Value {
    let mut message = json!({ "role": "assistant", "content": "" });
    let mut text = String::new();
    let mut arguments = String::new();
    for event in events(body).iter().filter(|event| *event != "[DONE]") {
        let event: Value = serde_json::from_str(event).unwrap();
        let delta = &event["choices"][0]["delta"];
        text.push_str(delta["content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            if call["id"].is_string() {
                message["tool_calls"] = json!([{
                    "id": call["id"], "type": "function", "function": call["function"],
                }]);
            }
            arguments.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
    }
    message["content"] = text.into();
    if !message["tool_calls"].is_null() {
        message["tool_calls"][0]["function"]["arguments"] = arguments.into();
    }
    message
}

#[tokio::test]
async fn a_conversation_is_one_sequence_although_the_template_drifts() {
    for kind in [ServerKind::Vllm, ServerKind::Sglang] {
        let drifted = world(drifting(kind), false).await;
        let run = drifted.open(1);
        converse(&run).await;
        let broken = drifted.metric("turns_drifted_total").await;
        assert!(broken >= 1.0, "{kind:?}: the mock server must drift");
        assert_eq!(drifted.experiences(&run).len() as f64, 1.0 + broken, "{kind:?}");

        let exact = world(drifting(kind), true).await;
        let run = exact.open(1);
        let messages = converse(&run).await;
        assert!(messages.iter().any(|message| message["role"] == "tool"), "{messages:?}");
        let experiences = exact.experiences(&run);
        assert_eq!(experiences.len(), 1, "{kind:?}");
        assert_eq!(exact.metric("turns_drifted_total").await, 0.0, "{kind:?}");
        assert_eq!(exact.metric("exact_prompts_total").await, (TURNS - 1) as f64, "{kind:?}");

        let tokens: Vec<i32> = experiences[0].tokens.iter().collect();
        let records = exact.control().records();
        let generated: Vec<_> =
            records.iter().filter(|record| !record.choices[0].tokens.is_empty()).collect();
        assert_eq!(generated.len(), TURNS, "{kind:?}");
        for record in generated {
            let sampled = record.choices[0].tokens.iter().map(|token| token.id);
            let sequence: Vec<i32> = record.prompts[0].iter().copied().chain(sampled).collect();
            assert!(tokens.starts_with(&sequence), "{kind:?}: not the tokens of the server");
        }
        let versions = experiences[0].model_versions.as_ref().unwrap();
        assert_eq!(versions.tokens() as usize, tokens.len() - experiences[0].prompt_length);
        assert_eq!(versions.oldest(), Some(0));
    }
}

#[tokio::test]
async fn a_template_that_reproduces_tokens_is_used_as_it_is() {
    let server = MockServerOptions { drift: false, ..drifting(ServerKind::Vllm) };
    let world = world(server, true).await;
    let run = world.open(1);
    converse(&run).await;
    assert_eq!(world.experiences(&run).len(), 1);
    let paths: Vec<_> = world.control().records().iter().map(|record| record.path).collect();
    assert_eq!(paths, ["/v1/chat/completions"; TURNS], "streams stay streams");
}

#[tokio::test]
async fn a_template_that_rewrites_turns_is_respected_and_counted() {
    let server =
        MockServerOptions { strips_turns: true, tool_call_rate: 0.0, ..drifting(ServerKind::Vllm) };
    let world = world(server, true).await;
    let run = world.open(1);
    converse(&run).await;
    assert_eq!(world.metric("turns_drifted_total").await, (TURNS - 1) as f64);
    assert_eq!(world.experiences(&run).len(), TURNS);
    assert_eq!(outcome(&world, "rewritten").await, (TURNS - 1) as f64);
}

#[tokio::test]
async fn a_server_without_the_endpoints_gets_chats() {
    let server = MockServerOptions { scale_out: false, ..drifting(ServerKind::Vllm) };
    let world = world(server, true).await;
    let run = world.open(1);
    converse(&run).await;
    assert!(world.metric("turns_drifted_total").await >= 1.0);
    assert_eq!(outcome(&world, "unsupported").await, (TURNS - 1) as f64);
}

#[tokio::test]
async fn a_response_that_cannot_be_parsed_is_requested_as_a_chat() {
    let server = MockServerOptions { derender_fails: true, ..drifting(ServerKind::Vllm) };
    let world = world(server, true).await;
    let run = world.open(1);
    converse(&run).await;
    // The tokens are not generated twice for every call.
    assert_eq!(outcome(&world, "failed").await, 1.0);
    assert_eq!(outcome(&world, "unsupported").await, (TURNS - 2) as f64);
    let turns: f64 = world.metric("turns_total").await;
    assert_eq!(turns, TURNS as f64, "what was not delivered is not recorded");
}

#[tokio::test]
async fn only_unchanged_turns_that_the_model_ended_are_continued() {
    let server = MockServerOptions { tool_call_rate: 0.0, ..drifting(ServerKind::Vllm) };
    let world = world(server, true).await;
    let run = world.open(1);
    let hello = json!({ "role": "user", "content": "hello" });
    let next = json!({ "role": "user", "content": "go on" });
    let ask = |extra: Value, reply: Value| {
        let mut body = json!({ "model": MODEL, "messages": [hello, reply, next] });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let first = json!({ "model": MODEL, "messages": [hello] });
    let (_, answer) = run.call(&first).await;
    let reply = answer["choices"][0]["message"].clone();
    let edited = json!({ "role": "assistant", "content": "something else" });
    let kwargs = json!({ "chat_template_kwargs": { "enable_thinking": false } });
    for (extra, reply) in
        [(json!({}), edited), (json!({ "tools": tools() }), reply.clone()), (kwargs, reply.clone())]
    {
        let (status, answer) = run.call(&ask(extra, reply)).await;
        assert_eq!(status, 200, "{answer}");
    }
    assert_eq!(world.metric("exact_prompts_total").await, 0.0);
    // Reasoning that a client drops, and text parts, are no change.
    let parts = json!([{ "type": "text", "text": reply["content"] }]);
    let same = json!({ "role": "assistant", "content": parts });
    let (status, answer) = run.call(&ask(json!({}), same)).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(outcome(&world, "spliced").await, 1.0);

    let mut short = json!({ "model": MODEL, "messages": [hello], "max_tokens": 3 });
    let (_, answer) = run.call(&short).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    short["messages"] = json!([hello, answer["choices"][0]["message"], next]);
    assert_eq!(run.call(&short).await.0, 200);
    assert_eq!(world.metric("exact_prompts_total").await, 1.0, "a truncated turn");
}

#[tokio::test]
async fn an_exact_request_is_aborted_in_the_server() {
    let world = world(drifting(ServerKind::Vllm), true).await;
    let run = world.open(1);
    let hello = json!({ "role": "user", "content": "hello" });
    let (_, answer) = run.call(&json!({ "model": MODEL, "messages": [hello] })).await;
    let reply = &answer["choices"][0]["message"];
    let control = world.control();
    control.hold(2);
    let body = json!({ "model": MODEL, "messages": [hello, reply, hello] });
    let call = tokio::spawn(run.chat(&body).send());
    control.wait_for(|counts| counts.running == 1).await;
    assert_eq!(control.records().last().unwrap().path, "/inference/v1/generate");
    call.abort();
    control.wait_for(|counts| counts.aborted + counts.left == 1).await;
}

/// Returns the number of chats with an outcome.
async fn outcome(world: &World, name: &str) -> f64 {
    let request = world.client.get(world.url("/metrics")).bearer_auth(super::help::ADMIN);
    let text = request.send().await.unwrap().text().await.unwrap();
    let start = format!("rollway_gateway_exact_prompts_total{{outcome=\"{name}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no {start} in\n{text}")).parse().unwrap()
}
