//! Responses of servers through their APIs. The servers are played by [`server`], which answers a
//! body as the real ones do: what a client gets through the gateway is compared with what the same
//! server says to the client's own body.

mod server;
mod shapes;

use proptest::prelude::*;
use rollway_base::ServerKind;
use serde_json::{Value, json};

use self::server::{ScriptedResponse, scripted_response};

use super::{ResponseParseError, ResponseParser, TokenSource, server_api};
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

fn reader(engine: ServerKind, call: &ModelCall) -> Box<dyn ResponseParser> {
    server_api(engine).response_parser(call, ID, NAME)
}

/// Sends what a server says through a reader: the client's answer, and the record's.
fn through(
    engine: ServerKind,
    call: &ModelCall,
    said: &ScriptedResponse,
    cuts: &[usize],
) -> (Vec<Value>, ModelResponse) {
    let outgoing = server_api(engine).upstream_body(call, "theirs", "request-1");
    assert_eq!(outgoing.body["model"], "theirs");
    assert_eq!(outgoing.body["stream"] == true, outgoing.stream);
    let mut reader = reader(engine, call);
    let answered = server::answer(engine, call.kind, &outgoing.body, said);
    let mut got = Vec::new();
    if outgoing.stream {
        let text: String = answered.iter().map(|event| format!("data: {event}\n\n")).collect();
        let mut parser = SseParser::default();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
        places.push(text.len());
        places.sort_unstable();
        let mut from = 0;
        for to in places {
            for event in parser.feed(&text.as_bytes()[from..to], 1 << 20).unwrap() {
                got.extend(reader.parse_event(&event, NOW).unwrap());
            }
            from = to;
        }
        assert!(!parser.is_torn());
    } else {
        got = reader.parse_full(answered[0].to_string().as_bytes(), NOW).unwrap();
    }
    let got = got.iter().map(|part| serde_json::from_slice(part).unwrap()).collect();
    (got, reader.finish(ResponseEnd::Complete).unwrap())
}

/// What the server says to the client's own body, under the gateway's names.
fn direct(engine: ServerKind, call: &ModelCall, said: &ScriptedResponse) -> Vec<Value> {
    let mut answered = server::answer(engine, call.kind, &Value::Object(call.body.clone()), said);
    for part in &mut answered {
        part["id"] = ID.into();
        part["model"] = NAME.into();
    }
    answered
}

/// Checks an answer against what was said, and by whom its versions were told.
fn check(
    answer: &ModelResponse,
    said: &ScriptedResponse,
    kind: CallKind,
    tells_version: impl Fn(usize) -> bool,
) {
    assert_eq!((answer.id.as_str(), answer.model.as_str()), (ID, NAME));
    assert_eq!(answer.prompt.as_ref(), Some(&said.prompt));
    assert_eq!(answer.choices.len(), said.choices.len());
    for (index, (choice, said)) in answer.choices.iter().zip(&said.choices).enumerate() {
        let (tokens, logprobs): (Vec<i32>, Vec<f32>) = said.tokens().into_iter().unzip();
        let versions: Vec<Option<u64>> = match tells_version(index) {
            true => (0..tokens.len()).map(|token| said.version(token).or(NOW.version)).collect(),
            false => vec![NOW.version; tokens.len()],
        };
        assert_eq!(choice.versions.iter().collect::<Vec<_>>(), versions);
        assert_eq!(choice.tokens.as_ref(), Some(&tokens));
        assert_eq!(choice.logprobs.as_ref(), Some(&logprobs));
        assert_eq!(choice.finish_reason.as_deref(), Some(said.finish_reason));
        let reply = match &choice.reply {
            Value::Object(message) => {
                let mut message = message.clone();
                message.retain(|_, value| !value.is_null() && *value != json!([]));
                Value::Object(message)
            }
            text => text.clone(),
        };
        assert_eq!(reply, said.reply(kind));
    }
}

fn kinds() -> impl Strategy<Value = CallKind> {
    prop_oneof![Just(CallKind::Chat), Just(CallKind::Completion)]
}

fn wishes(kind: CallKind, [stream, ids, logprobs, usage]: [bool; 4], choices: usize) -> ModelCall {
    let mut wishes = json!({ "stream": stream, "return_token_ids": ids, "n": choices });
    if logprobs {
        wishes["logprobs"] = if kind == CallKind::Chat { true.into() } else { 0.into() };
    }
    if usage && stream {
        wishes["stream_options"] = json!({ "include_usage": true });
    }
    call(kind, wishes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn vllm_is_recorded_and_the_client_sees_only_what_it_asked_for(
        kind in kinds(),
        wanted in any::<[bool; 4]>(),
        said in scripted_response(),
        cuts in prop::collection::vec(any::<usize>(), 0..20),
    ) {
        let call = wishes(kind, wanted, said.choices.len());
        let (got, answer) = through(ServerKind::Vllm, &call, &said, &cuts);
        check(&answer, &said, kind, |_| true);
        prop_assert_eq!(got, direct(ServerKind::Vllm, &call, &said));
        let whole = through(ServerKind::Vllm, &call, &said, &[]);
        prop_assert_eq!(whole.1, answer);
    }

    #[test]
    fn sglang_is_recorded_and_the_client_sees_only_what_it_asked_for(
        kind in kinds(),
        [stream, ids, logprobs, usage] in any::<[bool; 4]>(),
        said in scripted_response(),
        cuts in prop::collection::vec(any::<usize>(), 0..20),
    ) {
        // Chats do not bring `token_ids`, and streams of them not what we compare with.
        let text = kind == CallKind::Completion;
        let call = wishes(kind, [stream && text, ids && text, logprobs, usage], said.choices.len());
        let (got, answer) = through(ServerKind::Sglang, &call, &said, &cuts);
        let of_first = !call.stream;
        check(&answer, &said, kind, |index| kind == CallKind::Chat || (of_first && index == 0));
        prop_assert_eq!(got, direct(ServerKind::Sglang, &call, &said));
    }

    #[test]
    fn a_stream_made_from_a_whole_answer_says_the_same(
        usage in any::<bool>(),
        logprobs in any::<bool>(),
        said in scripted_response(),
    ) {
        let call = wishes(CallKind::Chat, [true, false, logprobs, usage], said.choices.len());
        let (events, answer) = through(ServerKind::Sglang, &call, &said, &[]);
        check(&answer, &said, CallKind::Chat, |_| true);
        // A client puts the events together like those of any other server.
        let mut client = reader(ServerKind::Openai, &call);
        let mut shown = 0;
        for event in &events {
            prop_assert_eq!(event["object"].as_str(), Some("chat.completion.chunk"));
            prop_assert_eq!(event["usage"].is_object(), event["choices"] == json!([]));
            let choice = &event["choices"][0];
            shown += choice["logprobs"]["content"].as_array().map_or(0, Vec::len);
            prop_assert!(choice.get("meta_info").is_none());
            client.parse_event(&event.to_string(), NOW).unwrap();
        }
        let tokens: usize = said.choices.iter().map(|choice| choice.tokens().len()).sum();
        prop_assert_eq!(shown, if logprobs { tokens } else { 0 });
        let ended_with_usage = events.last().unwrap()["usage"]["completion_tokens"] == tokens;
        prop_assert_eq!(ended_with_usage, usage);
        let seen = client.finish(ResponseEnd::Complete).unwrap();
        prop_assert!(seen.prompt.is_none());
        for (choice, said) in seen.choices.iter().zip(&said.choices) {
            prop_assert!(choice.tokens.is_none() && choice.logprobs.is_none());
            prop_assert_eq!(choice.finish_reason.as_deref(), Some(said.finish_reason));
            prop_assert_eq!(&choice.reply, &said.reply(CallKind::Chat));
        }
    }

    #[test]
    fn plain_servers_are_asked_and_heard_word_by_word(
        kind in kinds(),
        wanted in any::<[bool; 4]>(),
        said in scripted_response(),
    ) {
        let call = wishes(kind, wanted, said.choices.len());
        let outgoing = server_api(ServerKind::Openai).upstream_body(&call, "theirs", "request-1");
        let mut sent = call.body.clone();
        sent.insert("model".to_owned(), "theirs".into());
        prop_assert_eq!(&outgoing.body, &Value::Object(sent));
        let mut reader = reader(ServerKind::Openai, &call);
        let answered = server::answer(ServerKind::Vllm, kind, &outgoing.body, &said);
        let mut got: Vec<Value> = Vec::new();
        for part in answered {
            let part = part.to_string();
            let parts = match call.stream {
                true => reader.parse_event(&part, NOW).unwrap(),
                false => reader.parse_full(part.as_bytes(), NOW).unwrap(),
            };
            got.extend(parts.iter().map(|part| serde_json::from_slice::<Value>(part).unwrap()));
        }
        prop_assert_eq!(got, direct(ServerKind::Vllm, &call, &said));
        let answer = reader.finish(ResponseEnd::Complete).unwrap();
        for (choice, said) in answer.choices.iter().zip(&said.choices) {
            prop_assert!(choice.tokens.is_none() && choice.versions.tokens() == 0);
            prop_assert_eq!(choice.finish_reason.as_deref(), Some(said.finish_reason));
        }
    }

    #[test]
    fn whatever_is_left_of_an_aborted_stream_fits_together(
        engine in prop_oneof![Just(ServerKind::Vllm), Just(ServerKind::Sglang)],
        said in scripted_response(),
        stop in any::<prop::sample::Index>(),
    ) {
        let call = wishes(CallKind::Completion, [true, false, false, false], said.choices.len());
        let outgoing = server_api(engine).upstream_body(&call, "theirs", "request-1");
        let answered = server::answer(engine, call.kind, &outgoing.body, &said);
        let stop = stop.index(answered.len());
        let mut reader = reader(engine, &call);
        for event in &answered[..stop] {
            reader.parse_event(&event.to_string(), NOW).unwrap();
        }
        let answer = reader.finish(ResponseEnd::Aborted).unwrap();
        prop_assert_eq!(answer.end, ResponseEnd::Aborted);
        for (choice, said) in answer.choices.iter().zip(&said.choices) {
            let count = choice.versions.tokens();
            prop_assert_eq!(choice.tokens.as_ref().map_or(0, Vec::len) as u64, count);
            prop_assert_eq!(choice.logprobs.as_ref().map_or(0, Vec::len) as u64, count);
            let tokens: Vec<i32> = said.tokens().iter().map(|token| token.0).collect();
            prop_assert!(tokens.starts_with(choice.tokens.as_deref().unwrap_or(&[])));
        }
    }

    #[test]
    fn no_words_of_a_server_make_it_panic(
        engine in proptest::sample::select(vec![
            ServerKind::Vllm, ServerKind::Sglang, ServerKind::Openai,
        ]),
        kind in kinds(),
        stream in any::<bool>(),
        said in scripted_response(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        end in prop_oneof![Just(ResponseEnd::Complete), Just(ResponseEnd::Aborted)],
    ) {
        let call = wishes(kind, [stream, false, false, false], said.choices.len());
        let outgoing = server_api(engine).upstream_body(&call, "theirs", "request-1");
        let mut reader = reader(engine, &call);
        for part in server::answer(engine, kind, &outgoing.body, &said) {
            let mut bytes = part.to_string().into_bytes();
            for (place, byte) in &damage {
                let place = place.index(bytes.len());
                bytes[place] = *byte;
            }
            let read: Result<_, ResponseParseError> = match str::from_utf8(&bytes) {
                Ok(text) if outgoing.stream => reader.parse_event(text, NOW),
                _ => reader.parse_full(&bytes, NOW),
            };
            drop(read);
        }
        if let Ok(answer) = reader.finish(end) {
            for choice in answer.choices {
                let count = choice.versions.tokens();
                prop_assert_eq!(choice.tokens.map_or(0, |tokens| tokens.len()) as u64, count);
                prop_assert_eq!(choice.logprobs.map_or(0, |all| all.len()) as u64, count);
            }
        }
    }
}
