//! Responses of inference servers of each kind: whole bodies, streams, and replies of their control
//! endpoints, as the gateway takes them.

use bytes::BytesMut;
use rollway_base::ServerKind;
use rollway_model_api::client_api::{CLIENT_APIS, at_path};
use rollway_model_api::replay::StreamCapture;
use rollway_model_api::server_api::{
    ExactStep, LookupStep, PromptLookup, RecordedPrefix, ServerLoad, server_api,
};
use rollway_model_api::sse::SseParser;
use rollway_model_api::{
    CallKind, ModelCall, ModelResponse, ResponseEnd, ResponseParseError, ResponseParser,
    TokenSource,
};
use serde_json::{Value, json};

use crate::FuzzTarget;
use crate::input::{choice, with_bytes};

pub(crate) const TARGET: FuzzTarget = FuzzTarget {
    name: "server_responses",
    max_bytes: 8192,
    memory: 2 << 20,
    per_byte: 8192,
    parse,
    seeds,
};

/// Maximum bytes of a response, as a limit of the gateway.
const LIMIT: usize = 64 << 10;

const NOW: TokenSource = TokenSource { version: Some(3) };

/// Flags of an input, in its first byte below the kind of the server.
const CHAT: u8 = 4;
const STREAM: u8 = 8;
const IDS: u8 = 16;
const LOGPROBS: u8 = 32;
const TWO: u8 = 64;
/// The input is a reply of a control endpoint.
const CONTROL: u8 = 128;

fn parse(input: &[u8]) {
    let (flags, body) = choice(input);
    let kind = ServerKind::ALL[usize::from(flags) % ServerKind::ALL.len()];
    let call = call(flags);
    if flags & CONTROL > 0 {
        return control(kind, &call, body);
    }
    let request = server_api(kind).upstream_body(&call, "theirs", "request-1");
    let mut parser = server_api(kind).response_parser(&call, "turn-1", "ours");
    let parsed = match request.stream {
        true => stream(&mut *parser, &call, body),
        false => whole(&mut *parser, &call, body),
    };
    let _ = parser.server_error().map(str::len);
    assert!(parser.kept_bytes() <= 4096 * (body.len() + 64), "{}", parser.kept_bytes());
    parser.set_prompt(vec![1, 2]);
    let end = match parsed {
        Ok(()) => ResponseEnd::Complete,
        Err(_) => ResponseEnd::Aborted,
    };
    if let Ok(response) = parser.finish(end) {
        check(&response);
    }
}

fn call(flags: u8) -> ModelCall {
    let has = |flag| flags & flag > 0;
    let chat = has(CHAT);
    let mut body = match chat {
        true => json!({ "messages": [{ "role": "user", "content": "Hi" }] }),
        false => json!({ "prompt": "Hi" }),
    };
    body["stream"] = has(STREAM).into();
    body["return_token_ids"] = has(IDS).into();
    body["n"] = if has(TWO) { 2.into() } else { 1.into() };
    if has(LOGPROBS) {
        body["logprobs"] = if chat { true.into() } else { 0.into() };
    }
    let kind = if chat { CallKind::Chat } else { CallKind::Completion };
    let api = at_path(kind.path()).expect("OpenAI's APIs are client APIs");
    api.parse(body.to_string().as_bytes()).expect("a valid call")
}

/// Feeds a stream in parts, and renders its events for the clients of all APIs.
fn stream(
    parser: &mut dyn ResponseParser,
    call: &ModelCall,
    body: &[u8],
) -> Result<(), ResponseParseError> {
    let mut events = SseParser::default();
    let mut renderers: Vec<_> = CLIENT_APIS.iter().map(|api| api.stream_renderer(call)).collect();
    let (mut capture, mut out) = (StreamCapture::new(call), BytesMut::new());
    for part in body.chunks(body.len() / 3 + 1) {
        let events = events.feed(part, LIMIT).map_err(|error| ResponseParseError(error.0))?;
        for event in events {
            if event == "[DONE]" {
                return Ok(());
            }
            for part in parser.parse_event(&event, NOW)? {
                for renderer in &mut renderers {
                    renderer.event(&part, &mut out);
                }
                capture.take(part, &mut renderers[0], &mut out);
            }
        }
    }
    match capture.is_finished() && !events.has_incomplete_event() {
        true => Ok(()),
        false => Err(ResponseParseError("it ended early".to_owned())),
    }
}

/// Parses a whole body, and renders it for the clients of all APIs.
fn whole(
    parser: &mut dyn ResponseParser,
    call: &ModelCall,
    body: &[u8],
) -> Result<(), ResponseParseError> {
    for part in parser.parse_full(body, NOW)? {
        serde_json::from_slice::<Value>(&part).expect("a parsed body is JSON");
        for api in CLIENT_APIS {
            let _ = api.render_body(call, part.clone());
        }
    }
    Ok(())
}

/// Checks that the recorded parts of a complete response are consistent.
fn check(response: &ModelResponse) {
    if response.end != ResponseEnd::Complete {
        return;
    }
    for choice in &response.choices {
        assert!(choice.finish_reason.is_some(), "complete without a reason");
        let Some(tokens) = &choice.tokens else { continue };
        let length = tokens.len() as u64;
        assert_eq!(choice.versions.tokens(), length, "{response:?}");
        if let Some(logprobs) = &choice.logprobs {
            assert_eq!(logprobs.len() as u64, length, "{response:?}");
        }
    }
}

/// Takes a reply wherever the gateway takes one: each lookup in turn, with this reply to all of its
/// requests.
fn control(kind: ServerKind, call: &ModelCall, body: &[u8]) {
    const STEPS: usize = 8;
    let api = server_api(kind);
    if let Some(metrics) = api.load_metrics() {
        let _ = ServerLoad::parse(&String::from_utf8_lossy(body), metrics);
    }
    let Ok(reply) = serde_json::from_slice::<Value>(body) else { return };
    let _ = api.version_name(&reply).map(str::len);
    let lookups = [api.prompt_lookup(call), api.token_count(call, "theirs")];
    for mut lookup in lookups.into_iter().flatten() {
        let mut step = PromptLookup::start(&mut *lookup);
        for _ in 0..STEPS {
            let Ok(LookupStep::Request(_)) = step else { break };
            step = lookup.reply(&reply);
        }
    }
    let prefix = RecordedPrefix { tokens: vec![1, 2, 3], messages: 1 };
    let Some(mut exact) = api.exact_prompt(call, "theirs", "request-1", prefix) else { return };
    let mut step = Ok(exact.start());
    for _ in 0..STEPS {
        let Ok(ExactStep::Request(_) | ExactStep::Generate(_)) = step else { break };
        step = exact.reply(reply.clone());
    }
}

/// Full responses of chats of each kind of server, in the order of [`ServerKind::ALL`], and one of
/// a completion.
const RESPONSES: &str = include_str!("../../seeds/server_responses.jsonl");

/// Events of a stream.
const EVENTS: &str = include_str!("../../seeds/server_events.jsonl");

const CONTROL_REPLIES: &str = include_str!("../../seeds/control_replies.jsonl");

const LOAD_METRICS: &str = include_str!("../../seeds/load_metrics.txt");

fn seeds() -> Vec<Vec<u8>> {
    let events: String = EVENTS.lines().map(|event| format!("data: {event}\n\n")).collect();
    let stream = events + "data: [DONE]\n\n";
    let responses: Vec<&str> = RESPONSES.lines().collect();
    let replies: Vec<&str> = CONTROL_REPLIES.lines().chain([LOAD_METRICS]).collect();
    let mut seeds = Vec::new();
    for kind in 0..4_u8 {
        let seed = |flags: u8, body: &str| with_bytes(kind | flags, body);
        let chat = responses[usize::from(kind)];
        seeds.push(seed(CHAT, chat));
        seeds.push(seed(CHAT | IDS | LOGPROBS, chat));
        seeds.push(seed(LOGPROBS, responses[4]));
        seeds.push(seed(CHAT | STREAM, &stream));
        seeds.push(seed(CHAT | STREAM | LOGPROBS | IDS, &stream));
        seeds.extend(
            replies.iter().flat_map(|reply| [CHAT, CONTROL | CHAT].map(|flags| seed(flags, reply))),
        );
    }
    seeds
}
