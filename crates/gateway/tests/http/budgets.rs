//! Memory of calls, and fields that reach servers.

use std::sync::Arc;
use std::time::Duration;

use reqwest::StatusCode;
use rollway_experience::Json;
use rollway_gateway::gateway::{ByteLimits, GatewayLimits, GatewayOptions};
use rollway_gateway::http::{StoreFuture, TurnStore};
use rollway_mock_server::MockServerOptions;
use rollway_recording::Turn;
use serde_json::{Value, json};

use super::help::{ADMIN, MODEL, Run, World, options, read, says, streams};

async fn world(change: impl FnOnce(&mut GatewayLimits)) -> World {
    let mut options = options();
    change(&mut options.limits);
    World::with(options, vec![MockServerOptions::default()]).await
}

/// Returns how often a limit has refused a request.
async fn refusals(world: &World, reason: &str) -> f64 {
    let request = world.client.get(world.url("/metrics")).bearer_auth(ADMIN);
    let text = request.send().await.unwrap().text().await.unwrap();
    let start = format!("rollway_gateway_refused_total{{reason=\"{reason}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no {reason} in {text}")).parse().unwrap()
}

fn with(name: &str, value: Value) -> Value {
    let mut call = says("x");
    call[name] = value;
    call
}

#[tokio::test]
async fn bodies_with_too_many_values_are_refused_before_they_are_parsed() {
    let world = world(|limits| limits.json_nodes = 1000).await;
    let run = world.open(1);
    let call = with("stop", Value::from(vec![json!({ "": 0 }); 600]));
    let (status, body) = run.call(&call).await;
    assert_eq!(status, 413, "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("json_nodes"), "{body}");
    assert_eq!(refusals(&world, "json_nodes").await, 1.0);
    assert_eq!(run.send(&says("x")).await.status(), 200);
}

#[tokio::test]
async fn deeply_nested_bodies_are_refused() {
    let world = world(|_| {}).await;
    let run = world.open(1);
    let deep = format!("{}1{}", "[".repeat(101), "]".repeat(101));
    let call = says("x").to_string().replacen('{', &format!("{{\"stop\":{deep},"), 1);
    let response = run.chat(&Value::Null).body(call).send().await.unwrap();
    assert_eq!(response.status(), 413);
    assert_eq!(refusals(&world, "json_depth").await, 1.0);

    assert_eq!(world.control().counts().requests, 0);
}

/// With its feature `raw_value`, `serde_json` replaces an object with this key by the JSON in its
/// text, parsed with a new limit of the depth.
const RAW_VALUE: &str = "$serde_json::private::RawValue";

#[tokio::test]
async fn json_in_texts_is_not_parsed() {
    let world = world(|_| {}).await;
    let run = world.open(1);
    let deep = format!("{}{}", "[".repeat(120), "]".repeat(120));
    for key in [RAW_VALUE, "\\u0024serde_json::private::RawValue"] {
        let metadata = format!("{{\"metadata\":{{\"{key}\":\"{deep}\"}},");
        let call = says("x").to_string().replacen('{', &metadata, 1);
        let response = run.chat(&Value::Null).body(call).send().await.unwrap();
        assert_eq!(response.status(), 200, "{key}");
    }
    let sent = world.control().records();
    assert_eq!(sent.len(), 2);
    for request in sent {
        assert_eq!(request.body["metadata"], json!({ RAW_VALUE: deep }));
    }
    let info = Json::new(format!("{{\"{RAW_VALUE}\":\"{deep}\"}}")).unwrap();
    assert_eq!(info.value(), json!({ RAW_VALUE: deep }));
}

#[tokio::test]
async fn a_run_cannot_hold_more_memory_than_its_share() {
    let world = world(|limits| {
        limits.request_bytes = ByteLimits { total: 200_000, per_run: 100_000 };
        limits.request_timeout = Duration::from_millis(300);
    })
    .await;
    let (greedy, honest) = (world.open(1), world.open(2));
    let (status, body) = greedy.call(&says(&"x".repeat(60_000))).await;
    assert_eq!(status, 413, "{body}");
    world.control().hold(1);
    let large = says(&"x".repeat(30_000));
    let held = greedy.chat(&large);
    let held = tokio::spawn(async move { held.send().await.unwrap().status() });
    world.control().wait_for(|counts| counts.frozen == 1).await;
    // It holds 60 kB, as received and as parsed.
    let response = greedy.send(&large).await;
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "1");
    assert_eq!(refusals(&world, "request_bytes").await, 2.0);
    let other = honest.chat(&says("small"));
    let other = tokio::spawn(async move { other.send().await.unwrap().status() });
    world.control().wait_for(|counts| counts.frozen == 2).await;
    world.control().release();
    assert_eq!((held.await.unwrap(), other.await.unwrap()), (StatusCode::OK, StatusCode::OK));
    assert_eq!(greedy.send(&large).await.status(), 200, "the memory was returned");
}

#[tokio::test]
async fn large_responses_are_refused_and_their_memory_is_returned() {
    let world = world(|limits| {
        limits.response_bytes = ByteLimits { total: 64 << 10, per_run: 48 << 10 };
        limits.call_timeout = Duration::from_secs(10);
    })
    .await;
    let run = world.open(1);
    let long = |mut call: Value| {
        call["max_tokens"] = json!(3000);
        call["min_tokens"] = json!(3000);
        call["ignore_eos"] = json!(true);
        call
    };
    let (status, body) = run.call(&long(says("full"))).await;
    assert_eq!(status, 413, "{body}");
    // Of a stream only what is kept counts, which is less than what arrives.
    let text = run.text(&streams("stream")).await;
    assert!(text.ends_with("[DONE]\n\n"), "{text}");
    assert!(refusals(&world, "response_bytes").await >= 1.0);
    assert_eq!(run.send(&says("short")).await.status(), 200);
}

#[tokio::test]
async fn recordings_of_all_runs_have_a_limit() {
    let world = world(|limits| limits.recorded_bytes = 100_000).await;
    let (greedy, honest) = (world.open(1), world.open(2));
    assert_eq!(honest.send(&says("small")).await.status(), 200);
    let mut refused = None;
    for number in 0..20 {
        let (status, body) = greedy.call(&says(&format!("{number} {}", "x".repeat(9_000)))).await;
        if status != 200 {
            refused = Some(body);
            break;
        }
    }
    let refused = refused.expect("its recording ends at its share")["error"]["message"].to_string();
    assert!(refused.contains("recorded_bytes"), "{refused}");
    assert_eq!(honest.send(&says("again")).await.status(), 200);
    assert_eq!(world.experiences(&honest).len(), 2);
    assert_eq!(refusals(&world, "recorded_bytes").await, 1.0);
}

#[tokio::test]
async fn experiences_of_a_run_have_a_limit() {
    let mut options = options();
    options.record.max_experience_bytes = 50_000;
    let world = World::with(options, vec![MockServerOptions::default()]).await;
    let run = world.open(1);
    // Every choice repeats the prompt.
    let mut call = says(&"x".repeat(10_000));
    call["n"] = json!(8);
    assert_eq!(run.send(&call).await.status(), 200);
    let request = run.client.get(world.url("/rollway/v1/run/experiences")).bearer_auth(&run.key);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 409);
    assert!(response.text().await.unwrap().contains("bytes of experiences"));
}

#[tokio::test]
async fn runs_and_agents_send_known_fields_only() {
    let world = World::new().await;
    let run = world.open(1);
    let admin = Run { key: ADMIN.to_owned(), ..run.clone() };
    for name in ["prompt_embeds", "chat_template", "custom_logit_processor", "lora_path"] {
        let call = with(name, json!("x"));
        for client in [&run, &world.agent()] {
            let (status, body) = client.call(&call).await;
            assert_eq!((status, &body["error"]["param"]), (400, &json!(name)), "{body}");
        }
        assert_eq!(admin.send(&call).await.status(), 200, "the operator may");
    }
    let address = json!({ "url": "http://169.254.169.254/" });
    for image in
        [json!({ "type": "image_url", "image_url": address }), json!({ "image_url": address })]
    {
        let call = json!({ "model": MODEL, "messages": [{ "role": "user", "content": [image] }] });
        let (status, body) = run.call(&call).await;
        assert_eq!(status, 400, "{body}");
    }
    assert_eq!(
        (refusals(&world, "fields").await, refusals(&world, "remote_media").await),
        (8.0, 2.0)
    );

    let options = GatewayOptions { pass_fields: vec!["lora_path".to_owned()], ..options() };
    let world = World::with(options, vec![MockServerOptions::default()]).await;
    assert_eq!(world.open(1).send(&with("lora_path", json!("x"))).await.status(), 200);
}

#[tokio::test]
async fn auxiliary_requests_have_known_fields_only() {
    let world = World::new().await;
    let run = world.open(1);
    let admin = Run { key: ADMIN.to_owned(), ..run.clone() };
    let post = async |client: &Run, path: &str, body: &Value| {
        read(client.post(path, body).send().await.unwrap()).await
    };
    let embeddings = json!({ "model": MODEL, "input": "a", "mm_processor_kwargs": {} });
    let (status, body) = post(&run, "/v1/embeddings", &embeddings).await;
    assert_eq!((status, &body["error"]["param"]), (400, &json!("mm_processor_kwargs")), "{body}");
    assert_eq!(post(&admin, "/v1/embeddings", &embeddings).await.0, 200, "the operator may");
    let allowed = json!({ "model": MODEL, "input": "a", "encoding_format": "float", "user": "u" });
    assert_eq!(post(&run, "/v1/embeddings", &allowed).await.0, 200);

    let image = json!({ "type": "image", "source": { "type": "url", "url": "http://10.0.0.1/" } });
    let count = json!({ "model": MODEL, "messages": [{ "role": "user", "content": [image] }] });
    let (status, body) = post(&run, "/v1/messages/count_tokens", &count).await;
    assert_eq!(status, 400, "{body}");
    assert_eq!(
        (refusals(&world, "fields").await, refusals(&world, "remote_media").await),
        (1.0, 1.0)
    );
}

#[tokio::test]
async fn forced_tokens_are_refused_and_restricted_ones_are_marked() {
    let world = World::new().await;
    let run = world.open(1);
    for (name, value) in [
        ("logit_bias", json!({ "7": 100 })),
        ("guided_choice", json!(["yes"])),
        ("structured_outputs", json!({ "choice": ["yes"] })),
        ("allowed_token_ids", json!([7])),
    ] {
        let (status, body) = run.call(&with(name, value)).await;
        assert_eq!((status, &body["error"]["param"]), (400, &json!(name)), "{body}");
    }
    assert_eq!(refusals(&world, "forced_tokens").await, 4.0);
    assert_eq!(run.send(&with("logit_bias", json!({ "7": -100 }))).await.status(), 200);
    let experiences = world.experiences(&run);
    let info = experiences[0].info.value();
    assert_eq!(info["sampling"]["constrained_by"], json!(["logit_bias"]), "{info}");
}

#[tokio::test]
async fn copies_of_fields_for_several_prompts_count() {
    let world = world(|limits| {
        limits.request_bytes = ByteLimits { total: 1 << 20, per_run: 300_000 };
    })
    .await;
    let run = world.open(1);
    let list = async |prompts: usize, field: usize| {
        let user = "x".repeat(field);
        let body = json!({ "model": MODEL, "prompt": vec!["a"; prompts], "user": user });
        read(run.post("/v1/completions", &body).send().await.unwrap()).await
    };
    assert_eq!(list(2, 10_000).await.0, 200);
    let (status, body) = list(2, 70_000).await;
    assert_eq!(status, 413, "a single field is too large: {body}");
    let (status, body) = list(100, 10_000).await;
    assert_eq!(status, 413, "together they are too large: {body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("request_bytes_per_run"), "{body}");
    assert_eq!(refusals(&world, "request_bytes").await, 1.0);
    assert_eq!(world.control().counts().requests, 2);
}

#[tokio::test]
async fn the_messages_of_a_continued_response_count() {
    let world = world(|limits| {
        limits.request_bytes = ByteLimits { total: 1 << 20, per_run: 100_000 };
    })
    .await;
    let run = world.open(1);
    let send = async |input: usize, previous: &Value| {
        let input = "x".repeat(input);
        let body = json!({ "model": MODEL, "input": input, "previous_response_id": previous });
        read(run.post("/v1/responses", &body).send().await.unwrap()).await
    };
    let (status, first) = send(30_000, &Value::Null).await;
    assert_eq!(status, 200, "{first}");
    let (status, body) = send(25_000, &first["id"]).await;
    assert_eq!(status, 413, "{body}");
    assert_eq!(refusals(&world, "request_bytes").await, 1.0);
    assert_eq!(send(10, &first["id"]).await.0, 200);
}

#[tokio::test]
async fn a_continued_conversation_is_no_larger_than_a_request() {
    let world = world(|limits| limits.request_body_bytes = 50_000).await;
    let run = world.open(1);
    let mut previous = Value::Null;
    for expected in [200, 200, 413] {
        let input = "x".repeat(30_000);
        let body = json!({ "model": MODEL, "input": input, "previous_response_id": previous });
        let response = run.post("/v1/responses", &body).send().await.unwrap();
        let (status, body) = read(response).await;
        assert_eq!(status, expected, "{body}");
        previous = body["id"].clone();
    }
    assert_eq!(refusals(&world, "body_bytes").await, 1.0);
}

async fn held(world: &World, kind: &str) -> f64 {
    let request = world.client.get(world.url("/metrics")).bearer_auth(ADMIN);
    let text = request.send().await.unwrap().text().await.unwrap();
    let start = format!("rollway_gateway_held_bytes{{kind=\"{kind}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse().unwrap()
}

#[tokio::test]
async fn experiences_for_clients_count_as_responses() {
    let world = world(|limits| {
        limits.response_bytes = ByteLimits { total: 1 << 20, per_run: 200_000 };
    })
    .await;
    let run = world.open(1);
    let url = world.url("/rollway/v1/run/experiences");
    let fetch = async || run.client.get(&url).bearer_auth(&run.key).send().await.unwrap();
    assert_eq!(run.send(&says(&"x".repeat(10_000))).await.status(), 200);
    // Each has about 100 kB: they wait for each other.
    let fetched = tokio::join!(fetch(), fetch(), fetch());
    for response in [fetched.0, fetched.1, fetched.2] {
        assert_eq!(response.status(), 200);
        assert!(response.bytes().await.unwrap().len() > 50_000);
    }
    assert_eq!(run.send(&says("small")).await.status(), 200);
    assert_eq!(held(&world, "responses").await, 0.0);

    let mut call = says(&"y".repeat(10_000));
    call["n"] = json!(3);
    assert_eq!(run.send(&call).await.status(), 200);
    let response = fetch().await;
    assert_eq!(response.status(), 413);
    assert!(response.text().await.unwrap().contains("response_bytes_per_run"));
    assert_eq!(refusals(&world, "response_bytes").await, 1.0);
    assert_eq!(held(&world, "responses").await, 0.0);
}

#[tokio::test]
async fn saved_responses_count_as_responses() {
    let world = world(|limits| {
        limits.response_bytes = ByteLimits { total: 1 << 20, per_run: 48 << 10 };
    })
    .await;
    let run = world.open(1);
    // The parsed values take more than the response of the server.
    let mut call = says("x");
    (call["n"], call["max_tokens"]) = (json!(20), json!(1));
    let send = || run.chat(&call).header("idempotency-key", "one").send();
    assert_eq!(send().await.unwrap().status(), 200);
    let (status, body) = read(send().await.unwrap()).await;
    assert_eq!(status, 413, "{body}");
    assert_eq!(refusals(&world, "response_bytes").await, 1.0);
    assert_eq!(world.control().counts().requests, 1);
}

/// Stores nothing.
#[derive(Debug)]
struct NoStore;

impl TurnStore for NoStore {
    fn store_turns(&self, _: Vec<Turn>) -> StoreFuture<'_> {
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test]
async fn messages_that_are_stored_with_every_choice_count() {
    let mut options = options();
    options.limits.request_bytes = ByteLimits { total: 400_000, per_run: 400_000 };
    let servers = vec![MockServerOptions::default()];
    let world = World::with_store(options, servers, Some(Arc::new(NoStore))).await;
    let mut call = says(&"x".repeat(20_000));
    for (choices, expected) in [(4, 200), (8, 413)] {
        call["n"] = json!(choices);
        let (status, body) = world.agent().call(&call).await;
        assert_eq!(status, expected, "{choices} choices: {body}");
    }
    assert_eq!(refusals(&world, "request_bytes").await, 1.0);
    assert_eq!(world.open(1).send(&call).await.status(), 200, "a run shares its messages");
}

#[tokio::test]
async fn replies_beside_calls_count_as_responses() {
    let world = world(|limits| {
        limits.response_bytes = ByteLimits { total: 1 << 20, per_run: 100_000 };
    })
    .await;
    let run = world.open(1);
    let post =
        async |path: &str, body: Value| read(run.post(path, &body).send().await.unwrap()).await;
    for (length, expected) in [(10, 200), (40_000, 413)] {
        let input = "x".repeat(length);
        // A token takes 64 bytes once it is parsed.
        let (status, body) = post("/v1/messages/count_tokens", says(&input)).await;
        assert_eq!(status, expected, "{body}");
        let embeddings = json!({ "model": MODEL, "input": vec!["x"; length / 10] });
        let (status, body) = post("/v1/embeddings", embeddings).await;
        assert_eq!(status, expected, "{body}");
    }
    assert_eq!(refusals(&world, "response_bytes").await, 2.0);
    assert_eq!(held(&world, "responses").await, 0.0);
}
