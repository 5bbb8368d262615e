//! Comparison of the vLLM mock with a recording of the real server, which
//! `python/tests_real/test_recorded.py` writes and checks: statuses, names and types of fields, and
//! the values of control replies.

use rollway_base::ServerKind;
use rollway_mock_server::MockServerOptions;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::Client;

const RECORDING: &str = include_str!("vllm_recorded.json");

/// Returns the types of a value: those of all fields, and of the first element of lists.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let shape_of = |name: &str, field| match name {
                // Its names are tokens.
                "top_logprobs" => "list".into(),
                _ => shape(field),
            };
            fields.iter().map(|(name, field)| (name.clone(), shape_of(name, field))).collect()
        }
        Value::Array(items) => items.first().map(shape).into_iter().collect(),
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
    }
}

/// Returns whether a reply of the mock has only fields of the real one, of the same types. Real
/// replies have further fields, and some are null in one of the two.
fn is_within(mock: &Value, real: &Value) -> bool {
    match (mock, real) {
        (Value::Object(mock), Value::Object(real)) => mock
            .iter()
            .all(|(name, field)| real.get(name).is_some_and(|other| is_within(field, other))),
        (Value::Array(mock), Value::Array(real)) => match (mock.first(), real.first()) {
            (Some(mock), Some(real)) => is_within(mock, real),
            _ => true,
        },
        _ => mock == real || [mock, real].contains(&&json!("null")),
    }
}

#[tokio::test]
async fn the_mock_answers_as_the_recorded_server() {
    let recording: Value = serde_json::from_str(RECORDING).unwrap();
    let weights = TempDir::new().unwrap();
    let folder = weights.path().join("v7");
    std::fs::create_dir(&folder).unwrap();
    let client = Client::start(MockServerOptions {
        model: "tiny".to_owned(),
        ..MockServerOptions::new(ServerKind::Vllm)
    });
    let mut differences = Vec::new();
    for request in recording["requests"].as_array().unwrap() {
        let (method, path) =
            (request["method"].as_str().unwrap(), request["path"].as_str().unwrap());
        let body = request["body"].to_string().replace("MODEL", "tiny");
        let body = body.replace("WEIGHTS", &folder.display().to_string());
        let body: Value = serde_json::from_str(&body).unwrap();
        let (status, reply) = client.request(method, path, &body).await;
        let is_json = reply.is_object() || reply.is_array();
        let reply = match request["is_exact"].as_bool() {
            Some(true) => reply,
            _ if is_json => shape(&reply),
            _ => json!("text"),
        };
        let is_generation = path.starts_with("/v1/") && status == 200;
        let is_same = match is_generation {
            true => is_within(&reply, &request["reply"]),
            false => reply == request["reply"],
        };
        if !is_same || request["status"] != status {
            differences.push(format!(
                "{method} {path} {body}\n mock: {status} {reply}\n real: {} {}",
                request["status"], request["reply"]
            ));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
