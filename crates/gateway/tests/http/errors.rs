//! Error responses.

use rollway_base::ServerKind;
use rollway_gateway::gateway::GatewayLimits;
use rollway_mock_server::{MockFault, MockServerOptions};
use rollway_recording::RecordError;
use serde_json::{Value, json};

use super::help::{ADMIN, World, events, options, read, says, streams};

/// Checks the form of OpenAI's API.
fn check_form(error: &Value, status: u16) {
    let inside = &error["error"];
    assert!(inside["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
    assert!(inside["type"].is_string(), "{error}");
    let code = match status {
        401 => json!("invalid_api_key"),
        429 => json!("rate_limit_exceeded"),
        _ => Value::Null,
    };
    assert_eq!(inside["code"], code, "{error}");
}

#[tokio::test]
async fn invalid_requests_are_refused_with_their_field() {
    let world = World::new().await;
    let run = world.open(1);
    for (body, status, param) in [
        ("{", 400, Value::Null),
        ("[]", 400, Value::Null),
        ("{}", 400, json!("messages")),
        (r#"{"messages":"hi"}"#, 400, json!("messages")),
        (r#"{"messages":[{"role":"user","content":"x"}],"n":0}"#, 400, json!("n")),
        (r#"{"messages":[{"role":"user","content":"x"}],"stream":1}"#, 400, json!("stream")),
        (r#"{"messages":[{"role":"user","content":"x"}],"model":"no"}"#, 404, json!("model")),
    ] {
        let request = run.chat(&json!({})).body(body);
        let response = request.send().await.unwrap();
        assert_eq!(response.headers()["content-type"], "application/json");
        let (got, error) = read(response).await;
        assert_eq!(got, status, "{body}: {error}");
        check_form(&error, status);
        assert_eq!(error["error"]["param"], param, "{body}: {error}");
    }
    assert_eq!(world.control().counts().requests, 0);
    assert_eq!(world.handle.experiences(run.name, 0).unwrap().1, 0);
}

#[tokio::test]
async fn refusals_of_the_server_are_forwarded_and_not_recorded() {
    for kind in [ServerKind::Vllm, ServerKind::Sglang, ServerKind::Openai] {
        let world = World::of(kind).await;
        let run = world.open(1);
        for body in [says("x"), streams("x")] {
            world.control().inject(MockFault::Status(422), 1);
            let (status, error) = run.call(&body).await;
            assert_eq!(status, 422, "{error}");
            assert!(error["error"]["message"].is_string(), "{error}");
        }
        assert_eq!(world.control().counts().requests, 2);
        assert_eq!(world.handle.experiences(run.name, 0).unwrap().1, 0);
        assert_eq!(run.send(&says("x")).await.status(), 200);
    }
}

#[tokio::test]
async fn a_stream_that_breaks_ends_with_an_error_and_is_recorded_as_aborted() {
    let world = World::new().await;
    let run = world.open(1);
    world.control().inject(MockFault::CutAfter(3), 1);
    let response = run.send(&streams("hello")).await;
    assert_eq!(response.status(), 200);
    let events = events(&response.text().await.unwrap());
    assert!(!events.iter().any(|event| event == "[DONE]"));
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    check_form(&last, 502);
    let experiences = world.experiences(&run);
    assert_eq!(experiences.len(), 1);
    let said = &world.control().records()[0].choices[0].tokens;
    assert!(experiences[0].response_length() <= said.len());
    assert!(world.metric("streams_broken_total").await >= 1.0);

    // The same call is a retry, and replaces it.
    let response = run.send(&streams("hello")).await;
    assert!(response.text().await.unwrap().ends_with("data: [DONE]\n\n"));
    let experiences = world.experiences(&run);
    assert_eq!(experiences.len(), 1);
    assert_eq!(
        experiences[0].response_length(),
        world.control().records()[1].choices[0].tokens.len()
    );
}

#[tokio::test]
async fn a_response_that_cannot_be_recorded_fails_the_run() {
    for (fault, stream) in
        [(MockFault::Misalign, false), (MockFault::Misalign, true), (MockFault::NoFinish, true)]
    {
        let world = World::new().await;
        let run = world.open(1);
        assert_eq!(run.send(&says("good")).await.status(), 200);
        world.control().inject(fault, 1);
        let body = if stream { streams("bad") } else { says("bad") };
        let response = run.send(&body).await;
        let error = if stream {
            let events = events(&response.text().await.unwrap());
            serde_json::from_str(events.last().unwrap()).unwrap()
        } else {
            assert_eq!(response.status(), 502);
            read(response).await.1
        };
        check_form(&error, 502);
        assert!(matches!(world.handle.experiences(run.name, 0), Err(RecordError::Misread(_))));
        let request = run.client.get(run.url.clone() + "/rollway/v1/run/experiences");
        let (status, error) = read(request.bearer_auth(&run.key).send().await.unwrap()).await;
        assert_eq!(status, 409);
        check_form(&error, 409);
        let (status, _) = run.call(&says("more")).await;
        assert_eq!(status, 409, "nothing more of the run can be recorded");
        assert_eq!(world.metric("recording_failures_total").await, 1.0);
        let other = world.open(2);
        assert_eq!(other.send(&says("good")).await.status(), 200);
    }
}

#[tokio::test]
async fn a_server_without_token_ids_is_not_recorded() {
    let world = World::of(ServerKind::Openai).await;
    let run = world.open(1);
    for body in [says("hello"), streams("hello")] {
        assert_eq!(run.send(&body).await.status(), 200);
    }
    let error = world.handle.experiences(run.name, 0).unwrap_err();
    assert!(matches!(error, RecordError::NoTokens(_)));
}

#[tokio::test]
async fn calls_with_the_admin_key_belong_to_no_run() {
    let world = World::new().await;
    let run = world.agent();
    assert_eq!(run.send(&says("hello")).await.status(), 200);
    assert_eq!(run.send(&streams("hello")).await.status(), 200);
    assert_eq!(world.handle.experiences(run.name, 0).unwrap().1, 0);
    assert_eq!(world.metric("turns_total").await, 0.0);
}

#[tokio::test]
async fn durations_beyond_a_day_are_refused() {
    let world = World::new().await;
    let path = "/rollway/v1/models/1?deadline_seconds=1e19";
    let request = world.client.delete(world.url(path)).bearer_auth(ADMIN);
    let (status, body) = read(request.send().await.unwrap()).await;
    assert_eq!((status, &body["error"]["param"]), (400, &json!("deadline_seconds")), "{body}");
}

#[tokio::test]
async fn compressed_bodies_are_refused_by_their_name() {
    let world = World::new().await;
    let run = world.open(1);
    let gzip = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3].as_slice();
    let request = run.chat(&json!({})).header("content-encoding", "gzip").body(gzip);
    let (status, error) = read(request.send().await.unwrap()).await;
    assert_eq!(status, 415, "{error}");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("content encoding \"gzip\""), "{message}");
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let request = run.chat(&body).header("content-encoding", "identity");
    assert_eq!(read(request.send().await.unwrap()).await.0, 200);
}

#[tokio::test]
async fn errors_of_runs_do_not_contain_the_addresses_of_servers() {
    let mut options = options();
    options.limits = GatewayLimits { max_retries: 0, ..GatewayLimits::default() };
    let world = World::with(options, vec![MockServerOptions::default()]).await;
    let host = "127.0.0.1";
    assert!(world.servers[0].url().contains(host));
    let mut number = 0;
    for fault in [MockFault::Status(500), MockFault::Cut, MockFault::CutAfter(1)] {
        for body in [says("x"), streams("x")] {
            number += 1;
            let run = world.open(number);
            world.control().inject(fault, 1);
            let text = run.text(&body).await;
            assert!(text.contains("error"), "{fault:?}: {text}");
            assert!(!text.contains(host), "{fault:?}: {text}");
            if fault == MockFault::Cut {
                assert!(text.contains("could not be reached"), "{text}");
            }
        }
    }
}
