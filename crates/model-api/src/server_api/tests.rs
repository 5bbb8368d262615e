//! Responses of servers through their APIs. [`server`] renders scripted responses as the real
//! servers do; the response through the gateway is compared with the direct one.

mod server;
mod shapes;

use proptest::prelude::*;
use rollway_base::ServerKind;
use serde_json::{Value, json};

use self::server::{ScriptedResponse, scripted_response};

use super::{ResponseParseError, ResponseParser, TokenSource, server_api, weight_control};
use crate::client_api::at_path;
use crate::model_call::{CallKind, ModelCall};
use crate::response::{ModelResponse, ResponseEnd};
use crate::sse::SseParser;

const ID: &str = "turn-1";
const NAME: &str = "ours";

const NOW: TokenSource = TokenSource { version: Some(3) };

pub(super) fn call(kind: CallKind, more: Value) -> ModelCall {
    let mut body = match kind {
        CallKind::Chat => json!({ "messages": [{ "role": "user", "content": "Hi" }] }),
        CallKind::Completion => json!({ "prompt": "Hi" }),
    };
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    at_path(kind.path()).unwrap().parse(body.to_string().as_bytes()).unwrap()
}

fn parser_of(kind_of_server: ServerKind, call: &ModelCall) -> Box<dyn ResponseParser> {
    server_api(kind_of_server).response_parser(call, ID, NAME)
}

/// Sends a scripted response through a parser: returns the client's response and the recorded one.
fn parse_response(
    kind_of_server: ServerKind,
    call: &ModelCall,
    script: &ScriptedResponse,
    cuts: &[usize],
) -> (Vec<Value>, ModelResponse) {
    let outgoing = server_api(kind_of_server).upstream_body(call, "theirs", "request-1");
    assert_eq!(outgoing.body["model"], "theirs");
    assert_eq!(outgoing.body["stream"] == true, outgoing.stream);
    let mut parser_of = parser_of(kind_of_server, call);
    let sent = server::answer(kind_of_server, call.kind, &outgoing.body, script);
    let mut forwarded = Vec::new();
    if outgoing.stream {
        let text: String = sent.iter().map(|event| format!("data: {event}\n\n")).collect();
        let mut parser = SseParser::default();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
        places.push(text.len());
        places.sort_unstable();
        let mut from = 0;
        for to in places {
            for event in parser.feed(&text.as_bytes()[from..to], 1 << 20).unwrap() {
                forwarded.extend(parser_of.parse_event(&event, NOW).unwrap());
            }
            from = to;
        }
        assert!(!parser.has_incomplete_event());
    } else {
        forwarded = parser_of.parse_full(sent[0].to_string().as_bytes(), NOW).unwrap();
    }
    let forwarded = forwarded.iter().map(|part| serde_json::from_slice(part).unwrap()).collect();
    (forwarded, parser_of.finish(ResponseEnd::Complete).unwrap())
}

/// Returns the server's response to the client's own body, under the gateway's names.
fn direct(kind_of_server: ServerKind, call: &ModelCall, script: &ScriptedResponse) -> Vec<Value> {
    let mut sent =
        server::answer(kind_of_server, call.kind, &Value::Object(call.body.clone()), script);
    for part in &mut sent {
        part["id"] = ID.into();
        part["model"] = NAME.into();
    }
    sent
}

fn check(
    response: &ModelResponse,
    script: &ScriptedResponse,
    kind: CallKind,
    has_version: impl Fn(usize) -> bool,
) {
    assert_eq!((response.id.as_str(), response.model.as_str()), (ID, NAME));
    assert_eq!(response.prompt.as_ref(), Some(&script.prompt));
    assert_eq!(response.choices.len(), script.choices.len());
    for (index, (choice, script)) in response.choices.iter().zip(&script.choices).enumerate() {
        let (tokens, logprobs): (Vec<i32>, Vec<f32>) = script.tokens().into_iter().unzip();
        let versions: Vec<Option<u64>> = match has_version(index) {
            true => (0..tokens.len()).map(|token| script.version(token).or(NOW.version)).collect(),
            false => vec![NOW.version; tokens.len()],
        };
        assert_eq!(choice.versions.iter().collect::<Vec<_>>(), versions);
        assert_eq!(choice.tokens.as_ref(), Some(&tokens));
        assert_eq!(choice.logprobs.as_ref(), Some(&logprobs));
        assert_eq!(choice.finish_reason.as_deref(), Some(script.finish_reason));
        let reply = match &choice.reply {
            Value::Object(message) => {
                let mut message = message.clone();
                message.retain(|_, value| !value.is_null() && *value != json!([]));
                Value::Object(message)
            }
            text => text.clone(),
        };
        assert_eq!(reply, script.reply(kind));
    }
}

fn kinds() -> impl Strategy<Value = CallKind> {
    prop_oneof![Just(CallKind::Chat), Just(CallKind::Completion)]
}

fn call_for(
    kind: CallKind,
    [stream, ids, logprobs, usage]: [bool; 4],
    choices: usize,
) -> ModelCall {
    let mut requested_call = json!({ "stream": stream, "return_token_ids": ids, "n": choices });
    if logprobs {
        requested_call["logprobs"] = if kind == CallKind::Chat { true.into() } else { 0.into() };
    }
    if usage && stream {
        requested_call["stream_options"] = json!({ "include_usage": true });
    }
    call(kind, requested_call)
}

#[test]
fn only_kinds_that_update_weights_have_requests_for_it() {
    for kind in ServerKind::ALL {
        assert_eq!(server_api(kind).weight_control().is_ok(), kind.updates_weights(), "{kind}");
    }
    let error = weight_control(ServerKind::Openai).map(drop).unwrap_err();
    assert!(error.ends_with("cannot update its weights: train with vllm or sglang"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn vllm_is_recorded_and_the_client_gets_only_requested_fields(
        kind in kinds(),
        wanted in any::<[bool; 4]>(),
        script in scripted_response(),
        cuts in prop::collection::vec(any::<usize>(), 0..20),
    ) {
        let call = call_for(kind, wanted, script.choices.len());
        let (forwarded, response) = parse_response(ServerKind::Vllm, &call, &script, &cuts);
        check(&response, &script, kind, |_| true);
        prop_assert_eq!(forwarded, direct(ServerKind::Vllm, &call, &script));
        let whole = parse_response(ServerKind::Vllm, &call, &script, &[]);
        prop_assert_eq!(whole.1, response);
    }

    #[test]
    fn sglang_is_recorded_and_the_client_gets_only_requested_fields(
        kind in kinds(),
        [stream, ids, logprobs, usage] in any::<[bool; 4]>(),
        script in scripted_response(),
        cuts in prop::collection::vec(any::<usize>(), 0..20),
    ) {
        // Chats do not bring `token_ids`, and streams of them not what we compare with.
        let text = kind == CallKind::Completion;
        let fields = [stream && text, ids && text, logprobs, usage];
        let call = call_for(kind, fields, script.choices.len());
        let (forwarded, response) = parse_response(ServerKind::Sglang, &call, &script, &cuts);
        let of_first = !call.stream;
        check(&response, &script, kind, |index| kind == CallKind::Chat || (of_first && index == 0));
        prop_assert_eq!(forwarded, direct(ServerKind::Sglang, &call, &script));
    }

    #[test]
    fn a_synthesized_stream_equals_the_full_response(
        usage in any::<bool>(),
        logprobs in any::<bool>(),
        script in scripted_response(),
    ) {
        let call = call_for(CallKind::Chat, [true, false, logprobs, usage], script.choices.len());
        let (events, response) = parse_response(ServerKind::Sglang, &call, &script, &[]);
        check(&response, &script, CallKind::Chat, |_| true);
        // A client puts the events together like those of any other server.
        let mut client = parser_of(ServerKind::Openai, &call);
        let mut shown = 0;
        for event in &events {
            prop_assert_eq!(event["object"].as_str(), Some("chat.completion.chunk"));
            prop_assert_eq!(event["usage"].is_object(), event["choices"] == json!([]));
            let choice = &event["choices"][0];
            shown += choice["logprobs"]["content"].as_array().map_or(0, Vec::len);
            prop_assert!(choice.get("meta_info").is_none());
            client.parse_event(&event.to_string(), NOW).unwrap();
        }
        let tokens: usize = script.choices.iter().map(|choice| choice.tokens().len()).sum();
        prop_assert_eq!(shown, if logprobs { tokens } else { 0 });
        let ended_with_usage = events.last().unwrap()["usage"]["completion_tokens"] == tokens;
        prop_assert_eq!(ended_with_usage, usage);
        let seen = client.finish(ResponseEnd::Complete).unwrap();
        prop_assert!(seen.prompt.is_none());
        for (choice, script) in seen.choices.iter().zip(&script.choices) {
            prop_assert!(choice.tokens.is_none() && choice.logprobs.is_none());
            prop_assert_eq!(choice.finish_reason.as_deref(), Some(script.finish_reason));
            prop_assert_eq!(&choice.reply, &script.reply(CallKind::Chat));
        }
    }

    #[test]
    fn plain_servers_get_and_send_everything_unchanged(
        kind in kinds(),
        wanted in any::<[bool; 4]>(),
        script in scripted_response(),
    ) {
        let call = call_for(kind, wanted, script.choices.len());
        let outgoing = server_api(ServerKind::Openai).upstream_body(&call, "theirs", "request-1");
        let mut sent = call.body.clone();
        sent.insert("model".to_owned(), "theirs".into());
        prop_assert_eq!(&outgoing.body, &Value::Object(sent));
        let mut parser_of = parser_of(ServerKind::Openai, &call);
        let sent = server::answer(ServerKind::Vllm, kind, &outgoing.body, &script);
        let mut forwarded: Vec<Value> = Vec::new();
        for part in sent {
            let part = part.to_string();
            let parts = match call.stream {
                true => parser_of.parse_event(&part, NOW).unwrap(),
                false => parser_of.parse_full(part.as_bytes(), NOW).unwrap(),
            };
            forwarded.extend(parts.iter().map(|p| serde_json::from_slice::<Value>(p).unwrap()));
        }
        prop_assert_eq!(forwarded, direct(ServerKind::Vllm, &call, &script));
        let response = parser_of.finish(ResponseEnd::Complete).unwrap();
        for (choice, script) in response.choices.iter().zip(&script.choices) {
            prop_assert!(choice.tokens.is_none() && choice.versions.tokens() == 0);
            prop_assert_eq!(choice.finish_reason.as_deref(), Some(script.finish_reason));
        }
    }

    #[test]
    fn aborted_streams_are_consistent(
        kind_of_server in prop_oneof![Just(ServerKind::Vllm), Just(ServerKind::Sglang)],
        script in scripted_response(),
        stop in any::<prop::sample::Index>(),
    ) {
        let fields = [true, false, false, false];
        let call = call_for(CallKind::Completion, fields, script.choices.len());
        let outgoing = server_api(kind_of_server).upstream_body(&call, "theirs", "request-1");
        let sent = server::answer(kind_of_server, call.kind, &outgoing.body, &script);
        let stop = stop.index(sent.len());
        let mut parser_of = parser_of(kind_of_server, &call);
        for event in &sent[..stop] {
            parser_of.parse_event(&event.to_string(), NOW).unwrap();
        }
        let response = parser_of.finish(ResponseEnd::Aborted).unwrap();
        prop_assert_eq!(response.end, ResponseEnd::Aborted);
        for (choice, script) in response.choices.iter().zip(&script.choices) {
            let count = choice.versions.tokens();
            prop_assert_eq!(choice.tokens.as_ref().map_or(0, Vec::len) as u64, count);
            prop_assert_eq!(choice.logprobs.as_ref().map_or(0, Vec::len) as u64, count);
            let tokens: Vec<i32> = script.tokens().iter().map(|token| token.0).collect();
            prop_assert!(tokens.starts_with(choice.tokens.as_deref().unwrap_or(&[])));
        }
    }

    #[test]
    fn no_response_of_a_server_makes_it_panic(
        kind_of_server in proptest::sample::select(vec![
            ServerKind::Vllm, ServerKind::Sglang, ServerKind::Openai,
        ]),
        kind in kinds(),
        stream in any::<bool>(),
        script in scripted_response(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        end in prop_oneof![Just(ResponseEnd::Complete), Just(ResponseEnd::Aborted)],
    ) {
        let call = call_for(kind, [stream, false, false, false], script.choices.len());
        let outgoing = server_api(kind_of_server).upstream_body(&call, "theirs", "request-1");
        let mut parser_of = parser_of(kind_of_server, &call);
        for part in server::answer(kind_of_server, kind, &outgoing.body, &script) {
            let mut bytes = part.to_string().into_bytes();
            for (place, byte) in &damage {
                let place = place.index(bytes.len());
                bytes[place] = *byte;
            }
            let read: Result<_, ResponseParseError> = match str::from_utf8(&bytes) {
                Ok(text) if outgoing.stream => parser_of.parse_event(text, NOW),
                _ => parser_of.parse_full(&bytes, NOW),
            };
            drop(read);
        }
        if let Ok(response) = parser_of.finish(end) {
            for choice in response.choices {
                let count = choice.versions.tokens();
                prop_assert_eq!(choice.tokens.map_or(0, |tokens| tokens.len()) as u64, count);
                prop_assert_eq!(choice.logprobs.map_or(0, |all| all.len()) as u64, count);
            }
        }
    }
}
