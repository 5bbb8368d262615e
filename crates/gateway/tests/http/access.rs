//! Authentication.

use rollway_gateway::keys::RunRef;
use serde_json::Value;

use super::help::{ADMIN, AGENT, World, read, says};

const PATHS: [&str; 10] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/v1/models/trained",
    "/metrics",
    "/openapi.json",
    "/rollway/v1/models",
    "/rollway/v1/run/experiences",
    "/rollway/v1/run/usage",
    "/no/such/path",
];

#[tokio::test]
async fn without_a_key_all_paths_respond_alike_except_health() {
    let world = World::new().await;
    let run = world.open(1);
    let forged = run.key[..run.key.len() - 1].to_owned();
    let other = World::new().await.open(1).key;
    let mut expected_body: Option<Value> = None;
    for path in PATHS {
        for method in [reqwest::Method::GET, reqwest::Method::POST, reqwest::Method::OPTIONS] {
            for key in [None, Some(""), Some("wrong"), Some(&forged), Some(&other)] {
                let mut request = world.client.request(method.clone(), world.url(path));
                if let Some(key) = key {
                    request = request.bearer_auth(key);
                }
                let response = request.body("no JSON").send().await.unwrap();
                assert!(response.headers().get("x-request-id").is_none());
                let (status, body) = read(response).await;
                assert_eq!(status, 401, "{method} {path} {key:?}: {body}");
                assert_eq!(*expected_body.get_or_insert_with(|| body.clone()), body);
            }
        }
    }
    let (status, health) = read(world.client.get(world.url("/health")).send().await.unwrap()).await;
    assert_eq!((status, health.to_string()), (200, r#"{"status":"ok"}"#.to_owned()));
    assert_eq!(world.control().counts().requests, 0);
}

#[tokio::test]
async fn every_key_opens_its_paths_only() {
    let world = World::new().await;
    let run = world.open(1);
    for (path, as_run, as_agent, as_admin) in [
        ("/v1/models", 200, 200, 200),
        ("/metrics", 403, 403, 200),
        ("/openapi.json", 403, 403, 200),
        ("/rollway/v1/models", 403, 403, 200),
        ("/rollway/v1/run/experiences", 200, 403, 403),
        ("/rollway/v1/run/usage", 200, 403, 403),
        ("/no/such/path", 403, 403, 404),
        ("/v1/no/such/path", 404, 404, 404),
        ("/v1/chat/completions", 405, 405, 405),
    ] {
        let keys = [(run.key.as_str(), as_run), (AGENT, as_agent), (ADMIN, as_admin)];
        for (key, expected) in keys {
            let get = || world.client.get(world.url(path));
            for request in [get().bearer_auth(key), get().header("x-api-key", key)] {
                let status = request.send().await.unwrap().status();
                assert_eq!(status, expected, "{path}");
            }
        }
    }
}

#[tokio::test]
async fn any_valid_key_of_a_request_counts() {
    let world = World::new().await;
    let run = world.open(1);
    let placeholder = |path: &str| world.client.get(world.url(path)).bearer_auth("EMPTY");
    let with_header = placeholder("/v1/models").header("x-api-key", &run.key);
    let with_path = placeholder(&format!("/r/{}/v1/models", run.key));
    for request in [with_header, with_path] {
        assert_eq!(request.send().await.unwrap().status(), 200);
    }
    let chat = format!("/r/{}/v1/chat/completions", run.key);
    let post = world.client.post(world.url(&chat)).header("content-type", "application/json");
    let response = post.body(says("hi").to_string()).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(world.experiences(&run).len(), 1);
    for (path, expected) in [
        ("/r/wrong/v1/models".to_owned(), 401),
        ("/r/wrong/health".to_owned(), 401),
        (format!("/r/{}/metrics", run.key), 403),
    ] {
        let status = placeholder(&path).send().await.unwrap().status();
        assert_eq!(status, expected, "{path}");
    }
}

#[tokio::test]
async fn a_run_key_is_valid_while_its_attempt_is_open() {
    let world = World::new().await;
    let keys = world.handle.open(4, 2, 2);
    assert_eq!(keys.len(), 2);
    let mut run = world.open(9);
    for (number, key) in keys.iter().enumerate() {
        run.key.clone_from(key);
        for _ in 0..=number {
            assert_eq!(run.send(&says("hi")).await.status(), 200);
        }
        let name = RunRef { attempt: 4, run: 2 + u32::try_from(number).unwrap() };
        assert_eq!(world.handle.experiences(name, 0).unwrap().1, 1 + number as u64);
    }
    world.handle.close(4);
    let (status, error) = run.call(&says("hi")).await;
    assert_eq!(status, 401);
    assert!(error["error"]["message"].as_str().unwrap().contains("attempt 4 is closed"), "{error}");
    assert_eq!(world.handle.experiences(RunRef { attempt: 4, run: 2 }, 0).unwrap().1, 0);
    assert_eq!(world.control().counts().requests, 3);
}

#[tokio::test]
async fn bodies_must_be_declared_as_json() {
    let world = World::new().await;
    let run = world.open(1);
    for (content_type, expected) in [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
    ] {
        let request = world.client.post(world.url("/v1/chat/completions")).bearer_auth(&run.key);
        let request = request.header("content-type", content_type).body(says("hi").to_string());
        let (status, body) = read(request.send().await.unwrap()).await;
        assert_eq!(status, expected, "{content_type}: {body}");
    }
}

#[tokio::test]
async fn the_id_of_a_response_does_not_reveal_the_next_one() {
    let world = World::new().await;
    let run = world.open(1);
    let (_, first) = run.call(&says("a")).await;
    let (_, second) = run.call(&says("b")).await;
    let [first, second] = [first, second].map(|body| body["id"].as_str().unwrap().to_owned());
    let common = first.bytes().zip(second.bytes()).take_while(|(a, b)| a == b).count();
    assert!(common < "chatcmpl-".len() + 16, "{first} {second}");
}
