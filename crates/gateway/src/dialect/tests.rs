//! What dialects make of servers' answers. The servers are played by [`server`], which answers a
//! body as the real ones do: what a client gets through the gateway is compared with what the same
//! server says to the client's own body.

mod server;
mod shapes;

use proptest::prelude::*;
use serde_json::{Value, json};

use self::server::{Said, said};
use super::{Engine, Misread, Reader, Source};
use crate::answer::{Answer, End};
use crate::call::{Call, Kind};
use crate::sse::Parser;

const ID: &str = "turn-1";
const NAME: &str = "ours";

const NOW: Source = Source { version: Some(3) };

pub(super) fn call(kind: Kind, more: Value) -> Call {
    let mut body = match kind {
        Kind::Chat => json!({ "messages": [{ "role": "user", "content": "Hi" }] }),
        Kind::Completion => json!({ "prompt": "Hi" }),
    };
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    Call::parse(kind, body.to_string().as_bytes()).unwrap()
}

fn reader(engine: Engine, call: &Call) -> Box<dyn Reader> {
    engine.dialect().reader(call, ID, NAME)
}

/// Sends what a server says through a reader: the client's answer, and the record's.
fn through(engine: Engine, call: &Call, said: &Said, cuts: &[usize]) -> (Vec<Value>, Answer) {
    let outgoing = engine.dialect().outgoing(call, "theirs", "request-1");
    assert_eq!(outgoing.body["model"], "theirs");
    assert_eq!(outgoing.body["stream"] == true, outgoing.stream);
    let mut reader = reader(engine, call);
    let answered = server::answer(engine, call.kind, &outgoing.body, said);
    let mut got = Vec::new();
    if outgoing.stream {
        let text: String = answered.iter().map(|event| format!("data: {event}\n\n")).collect();
        let mut parser = Parser::default();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
        places.push(text.len());
        places.sort_unstable();
        let mut from = 0;
        for to in places {
            for event in parser.feed(&text.as_bytes()[from..to], 1 << 20).unwrap() {
                got.extend(reader.event(&event, NOW).unwrap());
            }
            from = to;
        }
        assert!(!parser.is_torn());
    } else {
        got = reader.whole(answered[0].to_string().as_bytes(), NOW).unwrap();
    }
    let got = got.iter().map(|part| serde_json::from_slice(part).unwrap()).collect();
    (got, reader.finish(End::Complete).unwrap())
}

/// What the server says to the client's own body, under the gateway's names.
fn direct(engine: Engine, call: &Call, said: &Said) -> Vec<Value> {
    let mut answered = server::answer(engine, call.kind, &Value::Object(call.body.clone()), said);
    for part in &mut answered {
        part["id"] = ID.into();
        part["model"] = NAME.into();
    }
    answered
}

/// Checks an answer against what was said, and by whom its versions were told.
fn check(answer: &Answer, said: &Said, kind: Kind, tells_version: impl Fn(usize) -> bool) {
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

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Chat), Just(Kind::Completion)]
}

fn wishes(kind: Kind, [stream, ids, logprobs, usage]: [bool; 4], choices: usize) -> Call {
    let mut wishes = json!({ "stream": stream, "return_token_ids": ids, "n": choices });
    if logprobs {
        wishes["logprobs"] = if kind == Kind::Chat { true.into() } else { 0.into() };
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
        said in said(),
        cuts in prop::collection::vec(any::<usize>(), 0..20),
    ) {
        let call = wishes(kind, wanted, said.choices.len());
        let (got, answer) = through(Engine::Vllm, &call, &said, &cuts);
        check(&answer, &said, kind, |_| true);
        prop_assert_eq!(got, direct(Engine::Vllm, &call, &said));
        let whole = through(Engine::Vllm, &call, &said, &[]);
        prop_assert_eq!(whole.1, answer);
    }

    #[test]
    fn sglang_is_recorded_and_the_client_sees_only_what_it_asked_for(
        kind in kinds(),
        [stream, ids, logprobs, usage] in any::<[bool; 4]>(),
        said in said(),
        cuts in prop::collection::vec(any::<usize>(), 0..20),
    ) {
        // Chats do not bring `token_ids`, and streams of them not what we compare with.
        let text = kind == Kind::Completion;
        let call = wishes(kind, [stream && text, ids && text, logprobs, usage], said.choices.len());
        let (got, answer) = through(Engine::Sglang, &call, &said, &cuts);
        let of_first = !call.stream;
        check(&answer, &said, kind, |index| kind == Kind::Chat || (of_first && index == 0));
        prop_assert_eq!(got, direct(Engine::Sglang, &call, &said));
    }

    #[test]
    fn a_stream_made_from_a_whole_answer_says_the_same(
        usage in any::<bool>(),
        logprobs in any::<bool>(),
        said in said(),
    ) {
        let call = wishes(Kind::Chat, [true, false, logprobs, usage], said.choices.len());
        let (events, answer) = through(Engine::Sglang, &call, &said, &[]);
        check(&answer, &said, Kind::Chat, |_| true);
        // A client puts the events together like those of any other server.
        let mut client = reader(Engine::OpenAi, &call);
        let mut shown = 0;
        for event in &events {
            prop_assert_eq!(event["object"].as_str(), Some("chat.completion.chunk"));
            prop_assert_eq!(event["usage"].is_object(), event["choices"] == json!([]));
            let choice = &event["choices"][0];
            shown += choice["logprobs"]["content"].as_array().map_or(0, Vec::len);
            prop_assert!(choice.get("meta_info").is_none());
            client.event(&event.to_string(), NOW).unwrap();
        }
        let tokens: usize = said.choices.iter().map(|choice| choice.tokens().len()).sum();
        prop_assert_eq!(shown, if logprobs { tokens } else { 0 });
        let ended_with_usage = events.last().unwrap()["usage"]["completion_tokens"] == tokens;
        prop_assert_eq!(ended_with_usage, usage);
        let seen = client.finish(End::Complete).unwrap();
        prop_assert!(seen.prompt.is_none());
        for (choice, said) in seen.choices.iter().zip(&said.choices) {
            prop_assert!(choice.tokens.is_none() && choice.logprobs.is_none());
            prop_assert_eq!(choice.finish_reason.as_deref(), Some(said.finish_reason));
            prop_assert_eq!(&choice.reply, &said.reply(Kind::Chat));
        }
    }

    #[test]
    fn plain_servers_are_asked_and_heard_word_by_word(
        kind in kinds(),
        wanted in any::<[bool; 4]>(),
        said in said(),
    ) {
        let call = wishes(kind, wanted, said.choices.len());
        let outgoing = Engine::OpenAi.dialect().outgoing(&call, "theirs", "request-1");
        let mut sent = call.body.clone();
        sent.insert("model".to_owned(), "theirs".into());
        prop_assert_eq!(&outgoing.body, &Value::Object(sent));
        let mut reader = reader(Engine::OpenAi, &call);
        let answered = server::answer(Engine::Vllm, kind, &outgoing.body, &said);
        let mut got: Vec<Value> = Vec::new();
        for part in answered {
            let part = part.to_string();
            let parts = match call.stream {
                true => reader.event(&part, NOW).unwrap(),
                false => reader.whole(part.as_bytes(), NOW).unwrap(),
            };
            got.extend(parts.iter().map(|part| serde_json::from_slice::<Value>(part).unwrap()));
        }
        prop_assert_eq!(got, direct(Engine::Vllm, &call, &said));
        let answer = reader.finish(End::Complete).unwrap();
        for (choice, said) in answer.choices.iter().zip(&said.choices) {
            prop_assert!(choice.tokens.is_none() && choice.versions.tokens() == 0);
            prop_assert_eq!(choice.finish_reason.as_deref(), Some(said.finish_reason));
        }
    }

    #[test]
    fn whatever_is_left_of_an_aborted_stream_fits_together(
        engine in prop_oneof![Just(Engine::Vllm), Just(Engine::Sglang)],
        said in said(),
        stop in any::<prop::sample::Index>(),
    ) {
        let call = wishes(Kind::Completion, [true, false, false, false], said.choices.len());
        let outgoing = engine.dialect().outgoing(&call, "theirs", "request-1");
        let answered = server::answer(engine, call.kind, &outgoing.body, &said);
        let stop = stop.index(answered.len());
        let mut reader = reader(engine, &call);
        for event in &answered[..stop] {
            reader.event(&event.to_string(), NOW).unwrap();
        }
        let answer = reader.finish(End::Aborted).unwrap();
        prop_assert_eq!(answer.end, End::Aborted);
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
        engine in prop_oneof![Just(Engine::Vllm), Just(Engine::Sglang), Just(Engine::OpenAi)],
        kind in kinds(),
        stream in any::<bool>(),
        said in said(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        end in prop_oneof![Just(End::Complete), Just(End::Aborted)],
    ) {
        let call = wishes(kind, [stream, false, false, false], said.choices.len());
        let outgoing = engine.dialect().outgoing(&call, "theirs", "request-1");
        let mut reader = reader(engine, &call);
        for part in server::answer(engine, kind, &outgoing.body, &said) {
            let mut bytes = part.to_string().into_bytes();
            for (place, byte) in &damage {
                let place = place.index(bytes.len());
                bytes[place] = *byte;
            }
            let read: Result<_, Misread> = match str::from_utf8(&bytes) {
                Ok(text) if outgoing.stream => reader.event(text, NOW),
                _ => reader.whole(&bytes, NOW),
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
