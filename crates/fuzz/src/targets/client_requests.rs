//! Requests of the gateway's client APIs, up to the request for a server of each kind.

use bytes::{Bytes, BytesMut};
use rollway_base::ServerKind;
use rollway_config::GatewayConfig;
use rollway_model_api::client_api::{CLIENT_APIS, RouteMatch};
use rollway_model_api::json_shape::JsonShape;
use rollway_model_api::replay::StreamCapture;
use rollway_model_api::server_api::server_api;
use rollway_model_api::{CallError, CallKind, ClientApi, ErrorKind, ModelCall, request_policy};
use serde_json::Value;

use crate::FuzzTarget;
use crate::input::{choice, with_bytes};
use crate::memory;

pub(crate) const TARGET: FuzzTarget = FuzzTarget {
    name: "client_requests",
    max_bytes: 8192,
    memory: 1 << 20,
    per_byte: 8192,
    parse,
    seeds,
};

fn parse(input: &[u8]) {
    let (choice, body) = choice(input);
    let api = CLIENT_APIS[usize::from(choice) % CLIENT_APIS.len()];
    if !is_admitted(body) {
        return;
    }
    let routes = api.routes();
    let route = routes[usize::from(choice) / CLIENT_APIS.len() % routes.len()];
    match (RouteMatch { api, route, parameter: "model" }).parse_all(body) {
        Ok(calls) => calls.iter().for_each(|call| use_call(api, call)),
        Err(error) => {
            assert!((400..500).contains(&error.kind.status()), "{error}");
            check_json(&api.render_error(&error));
        }
    }
}

/// Checks the shape of a body as the gateway does before it parses the body. The estimated memory
/// is an upper bound.
fn is_admitted(body: &[u8]) -> bool {
    let limits = GatewayConfig::default();
    let shape = JsonShape::of(body);
    if shape.nodes > limits.json_nodes || shape.depth > limits.json_depth {
        return false;
    }
    let (value, peak) = memory::measured(|| serde_json::from_slice::<Value>(body));
    // A list that grows is in two places for a moment.
    let bound = 2 * shape.bytes as usize + 4096;
    assert!(value.is_err() || peak <= bound, "{peak} bytes, estimated: {}", shape.bytes);
    true
}

/// Makes the requests for all kinds of servers, and renders a response to the client.
fn use_call(api: &dyn ClientApi, call: &ModelCall) {
    assert!((1..=128).contains(&call.choices));
    let _ = (call.fingerprint(), call.only_scores(), call.wants_usage());
    let _ = request_policy::unknown_field(&call.body, &[]).map(str::len);
    let _ = request_policy::remote_media(&call.body).map(|(at, _)| at.len());
    let _ = request_policy::forced_tokens(&call.body).map(str::len);
    let _ = request_policy::constraints(&call.body).len();
    for kind in ServerKind::ALL {
        let server = server_api(kind);
        let request = server.upstream_body(call, "theirs", "request-1");
        assert_eq!(request.body["model"], "theirs", "{kind}");
        let _ = server.prompt_lookup(call).map(|mut lookup| drop(lookup.start()));
        let _ = server.token_count(call, "theirs").map(|mut lookup| drop(lookup.start()));
    }
    let full = match call.kind {
        CallKind::Chat => RESPONSES.lines().next(),
        CallKind::Completion => RESPONSES.lines().nth(1),
    };
    let full = full.expect("there is a response of each kind");
    check_json(&api.render_body(call, Bytes::from_static(full.as_bytes())));
    let (mut renderer, mut out) = (api.stream_renderer(call), BytesMut::new());
    let mut capture = StreamCapture::new(call);
    for event in EVENTS.lines() {
        capture.take(Bytes::from_static(event.as_bytes()), &mut renderer, &mut out);
    }
    renderer.finish(&mut out);
    let error = CallError::new(ErrorKind::Upstream, "the server failed");
    out.extend_from_slice(&renderer.error(&error));
}

fn check_json(body: &[u8]) {
    serde_json::from_slice::<Value>(body).expect("a response is JSON");
}

/// A full response of a chat and one of a completion, in the internal form.
const RESPONSES: &str = include_str!("../../seeds/responses.jsonl");

/// Events of a stream, in the internal form.
const EVENTS: &str = include_str!("../../seeds/events.jsonl");

/// Requests, each after the position of its API in `CLIENT_APIS`.
const REQUESTS: &str = include_str!("../../seeds/client_requests.txt");

fn seeds() -> Vec<Vec<u8>> {
    let requests = REQUESTS.lines().filter_map(|line| line.split_once(' '));
    requests
        .map(|(api, body)| with_bytes(api.parse().expect("the position of an API"), body))
        .collect()
}
