//! What is read of a call, and what is refused.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn parse(kind: Kind, body: &Value) -> Result<Call, CallError> {
    Call::parse(kind, body.to_string().as_bytes())
}

/// A call with one more field.
fn with(kind: Kind, name: &str, value: Value) -> Result<Call, CallError> {
    let mut body = match kind {
        Kind::Chat => json!({ "messages": [{ "role": "user" }] }),
        Kind::Completion => json!({ "prompt": "Hi" }),
    };
    body[name] = value;
    parse(kind, &body)
}

#[test]
fn what_the_gateway_relies_on_is_read() {
    let body = json!({
        "model": "ours", "messages": [{ "role": "user", "content": "Hi" }], "stream": true,
        "stream_options": { "include_usage": true }, "n": 3, "logprobs": true,
        "top_logprobs": 2, "return_token_ids": true, "max_tokens": 5, "anything": { "a": 1 },
    });
    let call = parse(Kind::Chat, &body).unwrap();
    assert_eq!(call.model(), Some("ours"));
    assert_eq!((call.stream, call.choices), (true, 3));
    assert!(call.wants_token_ids() && call.wants_logprobs() && call.wants_usage());
    assert_eq!(Value::Object(call.body), body);
    let nulls = json!({
        "prompt": [1, 2], "model": null, "stream": null, "stream_options": null, "n": null,
        "logprobs": null, "top_logprobs": null, "return_token_ids": null, "max_tokens": null,
        "echo": null, "best_of": null, "tools": null,
    });
    let call = parse(Kind::Completion, &nulls).unwrap();
    assert_eq!((call.model(), call.stream, call.choices), (None, false, 1));
    assert!(!(call.wants_token_ids() || call.wants_logprobs() || call.wants_usage()));
    for prompt in [json!(""), json!(["Hi"]), json!([[7]]), json!([0])] {
        with(Kind::Completion, "prompt", prompt).unwrap();
    }
    assert!(with(Kind::Completion, "logprobs", json!(0)).unwrap().wants_logprobs());
    with(Kind::Completion, "best_of", json!(1)).unwrap();
}

#[test]
fn what_is_wrong_is_refused_by_its_name() {
    use Kind::{Chat, Completion};
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
fn nonsense_is_refused_and_not_fallen_over() {
    let deep = format!("{{\"prompt\":\"Hi\",\"a\":{}1{}}}", "[".repeat(9999), "]".repeat(9999));
    for body in ["", "7", "[]", "null", "{", "{\"a\":1,}", "{\"n\":1e999}", deep.as_str()] {
        let error = Call::parse(Kind::Completion, body.as_bytes()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidRequest, "{body:.20}");
    }
    assert!(Call::parse(Kind::Chat, b"{\"model\":\"\xff\"}").is_err());
    // The last of the same name counts, as for the servers behind us.
    let twice = Call::parse(Kind::Completion, br#"{"prompt":7,"prompt":"Hi"}"#).unwrap();
    assert_eq!(twice.body["prompt"], "Hi");
}

fn fingerprint(kind: Kind, body: &str) -> [u8; 32] {
    Call::parse(kind, body.as_bytes()).unwrap().fingerprint()
}

#[test]
fn a_retry_has_the_same_fingerprint_and_another_call_has_not() {
    let print = |body| fingerprint(Kind::Completion, body);
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
    assert_ne!(fingerprint(Kind::Chat, body), fingerprint(Kind::Completion, body));
}

proptest! {
    #[test]
    fn no_body_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        drop(Call::parse(Kind::Chat, &bytes));
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
        if let Ok(call) = with(Kind::Chat, name, value) {
            prop_assert!((1..=128).contains(&call.choices));
            call.fingerprint();
        }
    }
}
