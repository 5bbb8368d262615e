//! Parsing of calls: fields, refusals, fingerprints; rendering of streams.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use serde_json::Value;

use super::*;
use crate::error::ErrorKind;
use crate::model_call::CallKind;

fn parse(kind: CallKind, body: &Value) -> Result<ModelCall, CallError> {
    at_path(kind.path()).unwrap().parse(body.to_string().as_bytes())
}

fn with(kind: CallKind, name: &str, value: Value) -> Result<ModelCall, CallError> {
    let mut body = match kind {
        CallKind::Chat => json!({ "messages": [{ "role": "user" }] }),
        CallKind::Completion => json!({ "prompt": "Hi" }),
    };
    body[name] = value;
    parse(kind, &body)
}

#[test]
fn required_fields_are_parsed() {
    let body = json!({
        "model": "ours", "messages": [{ "role": "user", "content": "Hi" }], "stream": true,
        "stream_options": { "include_usage": true }, "n": 3, "logprobs": true,
        "top_logprobs": 2, "return_token_ids": true, "max_tokens": 5, "anything": { "a": 1 },
    });
    let call = parse(CallKind::Chat, &body).unwrap();
    assert_eq!(call.model(), Some("ours"));
    assert_eq!((call.stream, call.choices), (true, 3));
    assert!(call.wants_token_ids() && call.wants_logprobs() && call.wants_usage());
    assert_eq!(Value::Object(call.body), body);
    let nulls = json!({
        "prompt": [1, 2], "model": null, "stream": null, "stream_options": null, "n": null,
        "logprobs": null, "top_logprobs": null, "return_token_ids": null, "max_tokens": null,
        "echo": null, "best_of": null, "tools": null,
    });
    let call = parse(CallKind::Completion, &nulls).unwrap();
    assert_eq!((call.model(), call.stream, call.choices), (None, false, 1));
    assert!(!(call.wants_token_ids() || call.wants_logprobs() || call.wants_usage()));
    for prompt in [json!(""), json!(["Hi"]), json!([[7]]), json!([0])] {
        with(CallKind::Completion, "prompt", prompt).unwrap();
    }
    assert!(with(CallKind::Completion, "logprobs", json!(0)).unwrap().wants_logprobs());
    with(CallKind::Completion, "best_of", json!(1)).unwrap();
}

#[test]
fn invalid_fields_are_refused_by_name() {
    use CallKind::{Chat, Completion};
    for (kind, name, value, at) in [
        (Chat, "model", json!(7), "model"),
        (Chat, "messages", json!(null), "messages"),
        (Chat, "messages", json!([]), "messages"),
        (Chat, "messages", json!("Hi"), "messages"),
        (Chat, "messages", json!([{ "role": "user" }, "Hi"]), "messages[1]"),
        (Chat, "messages", json!([{ "content": "Hi" }]), "messages[0].role"),
        (Chat, "messages", json!([{ "role": 7 }]), "messages[0].role"),
        (Chat, "stream", json!("true"), "stream"),
        (Chat, "stream_options", json!([]), "stream_options"),
        (Chat, "stream_options", json!({ "include_usage": 1 }), "stream_options.include_usage"),
        (Chat, "n", json!(0), "n"),
        (Chat, "n", json!(129), "n"),
        (Chat, "n", json!(1.5), "n"),
        (Chat, "n", json!("2"), "n"),
        (Chat, "logprobs", json!(1), "logprobs"),
        (Chat, "top_logprobs", json!(2), "top_logprobs"),
        (Chat, "top_logprobs", json!(-2), "top_logprobs"),
        (Chat, "return_token_ids", json!(1), "return_token_ids"),
        (Chat, "max_tokens", json!(-1), "max_tokens"),
        (Chat, "max_completion_tokens", json!("many"), "max_completion_tokens"),
        (Chat, "tools", json!({}), "tools"),
        (Chat, "use_beam_search", json!(true), "use_beam_search"),
        (Chat, "include_reasoning", json!(false), "include_reasoning"),
        (Completion, "prompt", json!(null), "prompt"),
        (Completion, "prompt", json!(7), "prompt"),
        (Completion, "prompt", json!([]), "prompt"),
        (Completion, "prompt", json!([[]]), "prompt"),
        (Completion, "prompt", json!([1, -1]), "prompt"),
        (Completion, "prompt", json!([1, 1.5]), "prompt"),
        (Completion, "prompt", json!([4_294_967_296_u64]), "prompt"),
        (Completion, "prompt", json!([1, "a"]), "prompt"),
        (Completion, "prompt", json!(["a", "b"]), "prompt"),
        (Completion, "prompt", json!([[1], [2]]), "prompt"),
        (Completion, "logprobs", json!(true), "logprobs"),
        (Completion, "best_of", json!(2), "best_of"),
        (Completion, "echo", json!(true), "echo"),
    ] {
        let shown = format!("{name}: {value}");
        let error = with(kind, name, value).expect_err(&shown);
        assert_eq!(error.kind, ErrorKind::InvalidRequest, "{shown}");
        assert_eq!(error.param.as_deref(), Some(at), "{shown}: {error}");
        assert!(error.message.contains(name), "{shown}: {error}");
    }
}

#[test]
fn calls_that_only_score_their_prompt_are_accepted() {
    let scored = |kind: CallKind, more: &Value| {
        let mut body = json!({ "prompt": [1, 2], "messages": [{ "role": "user", "content": "" }] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        parse(kind, &body)
    };
    let scoring = json!({ "echo": true, "max_tokens": 0, "logprobs": 0 });
    assert!(scored(CallKind::Completion, &scoring).unwrap().only_scores());
    let generating = json!({ "echo": false, "max_tokens": 0, "logprobs": 0 });
    assert!(!scored(CallKind::Completion, &generating).unwrap().only_scores());
    for (kind, refused) in [
        (CallKind::Completion, json!({ "echo": true })),
        (CallKind::Completion, json!({ "echo": true, "max_tokens": 1 })),
        (CallKind::Completion, json!({ "echo": true, "max_tokens": 0, "stream": true })),
        (CallKind::Chat, json!({ "echo": true, "max_tokens": 0 })),
    ] {
        let error = scored(kind, &refused).expect_err(&refused.to_string());
        assert_eq!(error.param.as_deref(), Some("echo"), "{refused}");
    }
}

#[test]
fn invalid_bodies_are_refused() {
    let deep = format!("{{\"prompt\":\"Hi\",\"a\":{}1{}}}", "[".repeat(9999), "]".repeat(9999));
    for body in ["", "7", "[]", "null", "{", "{\"a\":1,}", "{\"n\":1e999}", deep.as_str()] {
        let error =
            at_path(CallKind::Completion.path()).unwrap().parse(body.as_bytes()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidRequest, "{body:.20}");
    }
    assert!(at_path(CallKind::Chat.path()).unwrap().parse(b"{\"model\":\"\xff\"}").is_err());
    // The last of the same name counts, as for the servers behind us.
    let twice = at_path(CallKind::Completion.path())
        .unwrap()
        .parse(br#"{"prompt":7,"prompt":"Hi"}"#)
        .unwrap();
    assert_eq!(twice.body["prompt"], "Hi");
}

fn fingerprint(kind: CallKind, body: &str) -> [u8; 32] {
    at_path(kind.path()).unwrap().parse(body.as_bytes()).unwrap().fingerprint()
}

#[test]
fn retries_have_equal_fingerprints_and_other_calls_do_not() {
    let print = |body| fingerprint(CallKind::Completion, body);
    let known = print(r#"{"prompt":"Hi","seed":1,"x":{"a":[1,2],"b":null}}"#);
    for same in [
        r#"{ "x": {"b": null, "a": [1, 2]}, "seed": 1, "prompt": "Hi" }"#,
        r#"{"prompt":"\u0048i","seed":1,"x":{"a":[1,2],"b":null},"stop":null}"#,
        r#"{"prompt":"Hi","seed":1,"x":{"a":[1,2],"b":null},"request_id":"7","rid":"8"}"#,
    ] {
        assert_eq!(print(same), known, "{same}");
    }
    for other in [
        r#"{"prompt":"Hi","seed":2,"x":{"a":[1,2],"b":null}}"#,
        r#"{"prompt":"Hi","seed":1,"x":{"a":[2,1],"b":null}}"#,
        r#"{"prompt":"Hi","seed":1,"x":{"a":[1,2]}}"#,
        r#"{"prompt":"Hi","seed":1,"x":{"a":[1,2],"b":null},"stream":true}"#,
        r#"{"prompt":["Hi"],"seed":1,"x":{"a":[1,2],"b":null}}"#,
    ] {
        assert_ne!(print(other), known, "{other}");
    }
    let body = r#"{"prompt":"Hi","messages":[{"role":"user"}]}"#;
    assert_ne!(fingerprint(CallKind::Chat, body), fingerprint(CallKind::Completion, body));
}

proptest! {
    #[test]
    fn no_body_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        drop(at_path(CallKind::Chat.path()).unwrap().parse(&bytes));
    }

    #[test]
    fn no_value_of_a_field_makes_it_panic(
        name in prop_oneof![
            Just("messages"), Just("n"), Just("stream"), Just("stream_options"),
            Just("logprobs"), Just("top_logprobs"), Just("model"), Just("best_of"),
        ],
        value in prop_oneof![
            Just(json!(null)), any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from), any::<f64>().prop_map(Value::from),
            ".{0,4}".prop_map(Value::from), Just(json!([])), Just(json!([{}, null])),
            Just(json!({ "include_usage": [] })),
        ],
    ) {
        if let Ok(call) = with(CallKind::Chat, name, value) {
            prop_assert!((1..=128).contains(&call.choices));
            call.fingerprint();
        }
    }
}

/// A client API with the model in its path, whose events have a name and whose errors are plain
/// text.
#[derive(Debug)]
struct NamedEvents;

impl ClientApi for NamedEvents {
    fn name(&self) -> &'static str {
        "named"
    }

    fn routes(&self) -> &'static [Route] {
        &[Route::Call("/v1/named/{model}:generate"), Route::CountTokens("/v1/named/{model}:count")]
    }

    fn id_prefix(&self) -> &'static str {
        "named"
    }

    fn parse(&self, route: &RouteMatch<'_>, body: &[u8]) -> Result<ModelCall, CallError> {
        let mut call = OpenaiChat.parse(route, body)?;
        call.body.insert("model".to_owned(), route.parameter.into());
        Ok(call)
    }

    fn stream_renderer(&self, _: &ModelCall) -> StreamRenderer {
        StreamRenderer::Translated(Box::new(Self))
    }
}

impl StreamTranslator for NamedEvents {
    fn event(&mut self, data: &[u8], out: &mut BytesMut) {
        out.extend_from_slice(b"event: delta\n");
        sse::write_event(data, out);
    }

    fn finish(&mut self, out: &mut BytesMut) {
        out.extend_from_slice(b"event: stop\n");
        sse::write_event(b"{}", out);
    }

    fn error(&mut self, error: &CallError, out: &mut BytesMut) {
        out.extend_from_slice(b"event: error\n");
        sse::write_event(error.message.as_bytes(), out);
    }
}

fn rendered(api: &'static dyn ClientApi, path: &str) -> (String, String) {
    let route = RouteMatch::find(api, path).unwrap();
    let call = route.parse(br#"{"messages":[{"role":"user"}],"stream":true}"#).unwrap();
    let mut renderer = api.stream_renderer(&call);
    let mut out = BytesMut::new();
    renderer.event(b"{\"a\":1}", &mut out);
    renderer.finish(&mut out);
    let error = renderer.error(&CallError::new(ErrorKind::Upstream, "broken"));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&out), text(&error))
}

#[test]
fn streams_are_rendered_by_the_client_api() {
    let (stream, error) = rendered(&OpenaiChat, CallKind::Chat.path());
    assert_eq!(stream, "data: {\"a\":1}\n\ndata: [DONE]\n\n");
    assert!(error.starts_with("data: {\"error\":{") && error.contains("broken"), "{error}");
    let (stream, error) = rendered(&NamedEvents, "/v1/named/policy:generate");
    assert_eq!(stream, "event: delta\ndata: {\"a\":1}\n\nevent: stop\ndata: {}\n\n");
    assert_eq!(error, "event: error\ndata: broken\n\n");
}

#[test]
fn every_client_api_has_its_own_path_and_name() {
    let routes: Vec<Route> = CLIENT_APIS.iter().flat_map(|api| api.routes()).copied().collect();
    let paths: BTreeSet<&str> = routes.iter().map(|route| route.path()).collect();
    let names: BTreeSet<&str> = CLIENT_APIS.iter().map(|api| api.name()).collect();
    assert!(paths.iter().all(|path| path.starts_with('/')), "{paths:?}");
    assert_eq!((paths.len(), names.len()), (routes.len(), CLIENT_APIS.len()));
}

#[test]
fn a_path_has_its_parameter() {
    let found = |path| {
        let route = RouteMatch::find(&NamedEvents, path)?;
        Some((route.endpoint(), route.parameter))
    };
    assert_eq!(found("/v1/named/policy:generate"), Some(("named", "policy")));
    assert_eq!(found("/v1/named/a/b:1:generate"), Some(("named", "a/b:1")));
    assert_eq!(found("/v1/named/policy:count"), Some(("count_tokens", "policy")));
    for path in ["/v1/named/:generate", "/v1/named/policy:other", "/v1/named", "/v1/named:count"] {
        assert_eq!(found(path), None, "{path}");
    }
    let route = RouteMatch::find(&NamedEvents, "/v1/named/policy:generate").unwrap();
    assert_eq!(route.route.axum_pattern(), "/v1/named/{*rest}");
    let call = route.parse(br#"{"messages":[{"role":"user"}]}"#).unwrap();
    assert_eq!(call.model(), Some("policy"));
}

#[test]
fn a_path_without_parameter_matches_as_a_whole() {
    let endpoint = |path| at_path(path).map(|route| route.endpoint());
    assert_eq!(endpoint("/v1/messages"), Some("messages"));
    assert_eq!(endpoint("/v1/messages/count_tokens"), Some("count_tokens"));
    assert_eq!(endpoint("/v1/messages/"), None);
}
