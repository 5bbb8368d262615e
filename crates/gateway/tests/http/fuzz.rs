//! Arbitrary requests: no internal error, and nothing disclosed without a key.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use proptest::prelude::*;
use reqwest::Method;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::help::{ADMIN, World, says};

/// One gateway for all cases: no case may harm the next.
fn world() -> &'static (Runtime, World) {
    static WORLD: OnceLock<(Runtime, World)> = OnceLock::new();
    WORLD.get_or_init(|| {
        let runtime = Runtime::new().unwrap();
        let world = runtime.block_on(World::new());
        (runtime, world)
    })
}

/// Nearly valid JSON.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-2_i64..130).prop_map(Value::from),
        (-3.0_f64..3.0).prop_map(Value::from),
        prop_oneof![Just("user"), Just("assistant"), Just("trained"), Just("drain"), Just("vllm")]
            .prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            fields(inner).prop_map(Value::Object),
        ]
    })
}

fn name() -> impl Strategy<Value = String> {
    let names = "model messages role content prompt stream stream_options n logprobs top_logprobs \
                 include_usage max_tokens temperature tools stop seed echo version path in_flight \
                 engine url trained return_token_ids x";
    prop::sample::select(names.split(' ').collect::<Vec<_>>()).prop_map(str::to_owned)
}

fn fields(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map(name(), value, 0..5)
        .prop_map(|fields: BTreeMap<_, _>| fields.into_iter().collect())
}

/// A valid call with some fields replaced.
fn call() -> impl Strategy<Value = Value> {
    (any::<bool>(), fields(value())).prop_map(|(is_chat, fields)| {
        let mut body = if is_chat { says("x") } else { json!({ "prompt": "x" }) };
        body["max_tokens"] = json!(3);
        for (name, value) in fields {
            body[name] = value;
        }
        body
    })
}

fn path() -> impl Strategy<Value = String> {
    let known = "/v1/chat/completions /v1/completions /v1/models /v1/models/trained \
                 /rollway/v1/run/experiences /rollway/v1/run/usage /rollway/v1/models \
                 /metrics /openapi.json /";
    let known = prop::sample::select(known.split(' ').collect::<Vec<_>>());
    prop_oneof![
        4 => known.prop_map(str::to_owned),
        1 => "(/[a-z0-9%._~-]{0,8}){1,4}(\\?[a-z=0-9&%-]{0,12})?",
        1 => "/rollway/v1/models/[a-z0-9-]{1,20}",
        1 => "/rollway/v1/run/experiences\\?since=[a-z0-9-]{0,21}",
    ]
}

#[derive(Clone, Copy, Debug)]
enum Key {
    None,
    Wrong,
    Admin,
    Run,
}

fn key() -> impl Strategy<Value = Key> {
    prop::sample::select(vec![Key::None, Key::Wrong, Key::Admin, Key::Run, Key::Run, Key::Run])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn no_request_causes_an_internal_error(
        path in path(),
        method in prop::sample::select(vec!["GET", "POST", "POST", "POST", "DELETE", "PUT", "X"]),
        key in key(),
        body in prop_oneof![
            4 => call().prop_map(|body| body.to_string().into_bytes()),
            1 => value().prop_map(|body| body.to_string().into_bytes()),
            1 => prop::collection::vec(any::<u8>(), 0..64),
        ],
        retry in prop::option::of("[0-9a-z-]{0,4}"),
        idempotency in prop::option::of("[ -~]{0,4}"),
    ) {
        let (runtime, world) = world();
        runtime.block_on(async {
            let run = world.open(1);
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let mut request = world.client.request(method, world.url(&path)).body(body);
            match key {
                Key::None => {}
                Key::Wrong => request = request.bearer_auth("rw-1-0-00000000000000000000000000"),
                Key::Admin => request = request.bearer_auth(ADMIN),
                Key::Run => request = request.header("x-api-key", &run.key),
            }
            if let Some(retry) = retry {
                request = request.header("x-stainless-retry-count", retry);
            }
            if let Some(idempotency) = idempotency {
                request = request.header("idempotency-key", idempotency);
            }
            let response = request.send().await.unwrap();
            let status = response.status().as_u16();
            let kind = response.headers().get("content-type").cloned();
            let text = response.bytes().await.unwrap();
            let body_text = String::from_utf8_lossy(&text);
            prop_assert_ne!(status, 500, "{}", body_text);
            if matches!(key, Key::None | Key::Wrong) {
                prop_assert_eq!(status, 401, "{}", body_text);
            }
            if status >= 400 {
                prop_assert_eq!(kind.unwrap(), "application/json");
                let error: Value = serde_json::from_slice(&text).unwrap();
                prop_assert!(error["error"]["message"].is_string(), "{}", error);
            }
            let health = world.client.get(world.url("/health")).send().await.unwrap();
            prop_assert_eq!(health.status(), 200);
            Ok(())
        })?;
    }
}

#[test]
fn documented_endpoints_exist() {
    let (runtime, world) = world();
    runtime.block_on(async {
        let request = world.client.get(world.url("/openapi.json")).bearer_auth(ADMIN);
        let document: Value =
            serde_json::from_str(&request.send().await.unwrap().text().await.unwrap()).unwrap();
        let paths = document["paths"].as_object().unwrap();
        assert!(paths.len() > 10);
        for (path, methods) in paths {
            for (method, operation) in methods.as_object().unwrap() {
                if operation["tags"][0] == "serve" {
                    // Served in serve mode only.
                    continue;
                }
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
                let url = world.url(&path.replace("{id}", "77"));
                let request = world.client.request(method.clone(), url).bearer_auth(ADMIN);
                let response = request.send().await.unwrap();
                let status = response.status().as_u16();
                let text = response.text().await.unwrap();
                assert!(!text.contains("unknown endpoint"), "{method} {path}: {text}");
                assert_ne!(status, 405, "{method} {path}: {text}");
            }
        }
    });
}

#[test]
fn malformed_requests_are_answered_or_closed() {
    let (runtime, world) = world();
    let address = world.gateway.url().strip_prefix("http://").unwrap();
    let key = format!("authorization: Bearer {ADMIN}\r\nconnection: close\r\n\r\n");
    for (line, expected) in [
        ("CONNECT a:1 HTTP/1.1\r\nhost: a:1", &["404"][..]),
        ("OPTIONS * HTTP/1.1\r\nhost: x", &["404"]),
        ("GET http://elsewhere/health HTTP/1.1\r\nhost: elsewhere", &["200"]),
        ("GET /metrics HTTP/1.0", &["200"]),
        ("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1", &["400"]),
        ("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: x", &["400"]),
        ("GET /v1/models/%ff%fe HTTP/1.1\r\nhost: x", &["404"]),
        ("GET /v1/models/%00 HTTP/1.1\r\nhost: x", &["404"]),
        ("\0\0\0 / HTTP/1.1", &["400", ""]),
        ("GET /health HTTP/9.9", &["400", ""]),
    ] {
        let answer = runtime.block_on(async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(format!("{line}\r\n{key}").as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        });
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(expected.contains(&status), "{line:?}: {answer}");
    }
}
