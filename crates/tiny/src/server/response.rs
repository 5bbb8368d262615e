//! How a request becomes a response: whole, or as a stream of events, in vLLM's shape.

use std::io;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use rollway_tiny_model::Vocabulary;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::api_error::TinyApiError;
use super::generation_thread::{
    Ending, GeneratedToken, GenerationJob, GenerationThread, Held, TinyChoice, TokenEvent,
};
use super::request::{TinyRequest, TinyRequestKind};

/// An answer in the making. Dropping it before its end aborts it.
#[derive(Debug)]
pub(super) struct TinyResponse {
    ask: TinyRequest,
    model: String,
    vocabulary: Vocabulary,
    said: UnboundedReceiver<TokenEvent>,
    choices: Vec<OpenStream>,
    _held: Held,
}

/// A choice so far.
#[derive(Debug, Default)]
struct OpenStream {
    tokens: usize,
    /// The text that was not told yet, because it might become a stop string.
    kept: String,
    /// How many characters were told.
    told: usize,
    is_over: bool,
}

/// What a choice has more than before.
#[derive(Debug)]
struct StreamPiece {
    choice: usize,
    /// None if it was aborted instead.
    token: Option<GeneratedToken>,
    text: String,
    /// How many characters were told before.
    offset: usize,
    finish: Option<(&'static str, Option<String>)>,
}

/// What comes next.
enum NextChunk {
    Pieces(Vec<StreamPiece>),
    Refused,
    /// Nothing more; the thread has ended if a choice has not.
    Nothing,
}

/// Answers a request.
pub(super) async fn answer(
    brain: &Arc<GenerationThread>,
    (model, vocabulary): (String, Vocabulary),
    ask: TinyRequest,
    choices: Vec<TinyChoice>,
) -> Response {
    let (to, said) = unbounded_channel();
    let open = choices.iter().map(|_| OpenStream::default()).collect();
    let held = brain.add(GenerationJob { names: ask.names.clone(), choices, to });
    let stream = ask.stream;
    let answer = TinyResponse { ask, model, vocabulary, said, choices: open, _held: held };
    if stream { answer.events().await } else { answer.whole().await }
}

fn stopped() -> TinyApiError {
    TinyApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is being stopped")
}

fn refused() -> TinyApiError {
    let message = "too many requests wait already (max_waiting): send fewer at a time";
    TinyApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

impl TinyResponse {
    fn is_over(&self) -> bool {
        self.choices.iter().all(|choice| choice.is_over)
    }

    async fn next(&mut self) -> NextChunk {
        if self.is_over() {
            return NextChunk::Nothing;
        }
        match self.said.recv().await {
            None => NextChunk::Nothing,
            Some(TokenEvent::Refused) => NextChunk::Refused,
            Some(TokenEvent::Token(token)) => {
                let open = &mut self.choices[token.choice];
                NextChunk::Pieces(vec![open.take(token, &self.vocabulary, &self.ask.stops)])
            }
            Some(TokenEvent::Aborted) => {
                let open = self.choices.iter_mut().enumerate().filter(|(_, open)| !open.is_over);
                NextChunk::Pieces(open.map(|(choice, open)| open.abort(choice)).collect())
            }
        }
    }

    /// Answers at once, when all is said.
    async fn whole(mut self) -> Response {
        let mut choices: Vec<Vec<StreamPiece>> = self.choices.iter().map(|_| Vec::new()).collect();
        loop {
            match self.next().await {
                NextChunk::Pieces(pieces) => {
                    for piece in pieces {
                        choices[piece.choice].push(piece);
                    }
                }
                NextChunk::Refused => return refused().into_response(),
                NextChunk::Nothing if !self.is_over() => return stopped().into_response(),
                NextChunk::Nothing => return Json(self.body(&choices)).into_response(),
            }
        }
    }

    /// Answers as it is said. Waits for the first token, so that who is refused is told so.
    async fn events(mut self) -> Response {
        let first = match self.next().await {
            NextChunk::Pieces(pieces) => {
                self.begin().into_iter().chain(self.piece_events(&pieces)).collect()
            }
            NextChunk::Refused => return refused().into_response(),
            NextChunk::Nothing => return stopped().into_response(),
        };
        let state = (self, Some(write(first, false)), false);
        let body = stream::unfold(state, |(mut answer, first, is_over)| async move {
            if let Some(first) = first {
                return Some((Ok(first), (answer, None, false)));
            }
            if is_over {
                return None;
            }
            let (events, is_over) = match answer.next().await {
                NextChunk::Pieces(pieces) => {
                    (Ok(write(answer.piece_events(&pieces), false)), false)
                }
                NextChunk::Nothing if answer.is_over() => (Ok(write(answer.end(), true)), true),
                NextChunk::Nothing | NextChunk::Refused => (Err(io::Error::other("stopped")), true),
            };
            Some((events, (answer, None, is_over)))
        });
        let mut response = Body::from_stream(body).into_response();
        let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }

    /// What every answer and every event of it begins with.
    fn head(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.ask.id,
            "object": object,
            "created": 0,
            "model": self.model,
            "choices": choices,
        })
    }

    fn event_object(&self) -> &'static str {
        match self.ask.kind {
            TinyRequestKind::Chat => "chat.completion.chunk",
            TinyRequestKind::Text => "text_completion",
        }
    }

    /// The events before the first token.
    fn begin(&self) -> Vec<Value> {
        if self.ask.kind == TinyRequestKind::Text {
            return Vec::new();
        }
        let first = |index: usize| {
            let choice = json!({
                "index": index,
                "delta": { "role": "assistant", "content": "" },
                "logprobs": null,
                "finish_reason": null,
            });
            let mut event = self.head(self.event_object(), vec![choice]);
            event["prompt_token_ids"] = self.prompt(0);
            event
        };
        (0..self.choices.len()).map(first).collect()
    }

    /// The events of pieces.
    fn piece_events(&self, pieces: &[StreamPiece]) -> Vec<Value> {
        let event = |piece: &StreamPiece| {
            let one = std::slice::from_ref(piece);
            let mut choice = self.choice(piece.choice, one);
            match self.ask.kind {
                TinyRequestKind::Chat => choice["delta"] = json!({ "content": piece.text }),
                TinyRequestKind::Text => {
                    choice["text"] = piece.text.clone().into();
                    let is_first = self.choices[piece.choice].tokens <= 1;
                    choice["prompt_token_ids"] =
                        if is_first { self.prompt(piece.choice / self.ask.n) } else { Value::Null };
                }
            }
            if let Some(token) = &piece.token {
                choice["weight_version"] = token.version.as_ref().into();
            }
            self.head(self.event_object(), vec![choice])
        };
        pieces.iter().map(event).collect()
    }

    /// The events after the last token.
    fn end(&self) -> Vec<Value> {
        if !self.ask.include_usage {
            return Vec::new();
        }
        let mut event = self.head(self.event_object(), Vec::new());
        event["usage"] = self.usage();
        vec![event]
    }

    /// A whole answer.
    fn body(&self, choices: &[Vec<StreamPiece>]) -> Value {
        let choice = |(index, pieces): (usize, &Vec<StreamPiece>)| {
            let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
            let mut choice = self.choice(index, pieces);
            choice["weight_versions"] = spans(pieces);
            match self.ask.kind {
                TinyRequestKind::Chat => {
                    choice["message"] =
                        json!({ "role": "assistant", "content": text, "refusal": null });
                }
                TinyRequestKind::Text => {
                    choice["text"] = text.into();
                    choice["prompt_token_ids"] = self.prompt(index / self.ask.n);
                }
            }
            choice
        };
        let choices = choices.iter().enumerate().map(choice).collect();
        let object = match self.ask.kind {
            TinyRequestKind::Chat => "chat.completion",
            TinyRequestKind::Text => "text_completion",
        };
        let mut body = self.head(object, choices);
        body["usage"] = self.usage();
        if self.ask.kind == TinyRequestKind::Chat {
            body["prompt_token_ids"] = self.prompt(0);
        }
        body
    }

    /// What a choice and a piece of one have in common.
    fn choice(&self, index: usize, pieces: &[StreamPiece]) -> Value {
        let finish = pieces.last().and_then(|piece| piece.finish.as_ref());
        let tokens = pieces.iter().filter_map(|piece| piece.token.as_ref());
        let ids: Vec<u32> = tokens.map(|token| token.token).collect();
        json!({
            "index": index,
            "logprobs": self.logprobs(pieces),
            "finish_reason": finish.map(|(reason, _)| reason),
            "stop_reason": finish.and_then(|(_, stop)| stop.as_ref()),
            "token_ids": self.ask.ids.then_some(ids),
        })
    }

    fn prompt(&self, prompt: usize) -> Value {
        if self.ask.ids { json!(self.ask.prompts[prompt]) } else { Value::Null }
    }

    fn logprobs(&self, pieces: &[StreamPiece]) -> Value {
        if !self.ask.logprobs {
            return Value::Null;
        }
        let tokens = || pieces.iter().filter_map(|piece| Some((piece, piece.token.as_ref()?)));
        match self.ask.kind {
            TinyRequestKind::Chat => {
                let entry = |(_, token): (&StreamPiece, &GeneratedToken)| {
                    let text = self.name(token.token);
                    let bytes = text.as_bytes().to_vec();
                    let logprob = token.logprob;
                    json!({ "token": text, "logprob": logprob, "bytes": bytes, "top_logprobs": [] })
                };
                json!({ "content": tokens().map(entry).collect::<Vec<_>>() })
            }
            TinyRequestKind::Text => {
                let top = |(_, token): (&StreamPiece, &GeneratedToken)| {
                    let mut top = json!({});
                    top[self.name(token.token)] = token.logprob.into();
                    top
                };
                json!({
                    "text_offset": tokens().map(|(piece, _)| piece.offset).collect::<Vec<_>>(),
                    "token_logprobs": tokens().map(|(_, it)| it.logprob).collect::<Vec<_>>(),
                    "tokens": tokens().map(|(_, it)| self.name(it.token)).collect::<Vec<_>>(),
                    "top_logprobs": tokens().map(top).collect::<Vec<_>>(),
                })
            }
        }
    }

    /// What a token is called.
    fn name(&self, token: u32) -> String {
        match token {
            Vocabulary::BEGIN => "<begin>".to_owned(),
            Vocabulary::END => "<end>".to_owned(),
            token => self.vocabulary.decode(&[token]),
        }
    }

    fn usage(&self) -> Value {
        let prompt: usize = self.ask.prompts.iter().map(Vec::len).sum();
        let said: usize = self.choices.iter().map(|choice| choice.tokens).sum();
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": said,
            "total_tokens": prompt + said,
        })
    }
}

impl OpenStream {
    fn take(
        &mut self,
        token: GeneratedToken,
        vocabulary: &Vocabulary,
        stops: &[String],
    ) -> StreamPiece {
        self.tokens += 1;
        self.is_over = token.end.is_some();
        self.kept.extend(vocabulary.character(token.token));
        let finish = token.end.map(|end| match end {
            Ending::End => ("stop", None),
            Ending::Length => ("length", None),
            Ending::Stop(number) => {
                let stop = &stops[number];
                self.kept.truncate(self.kept.len().saturating_sub(stop.len()));
                ("stop", Some(stop.clone()))
            }
        });
        let (choice, offset) = (token.choice, self.told);
        StreamPiece { choice, token: Some(token), text: self.tell(stops), offset, finish }
    }

    fn abort(&mut self, choice: usize) -> StreamPiece {
        self.is_over = true;
        let offset = self.told;
        let finish = Some(("abort", None));
        StreamPiece { choice, token: None, text: self.tell(&[]), offset, finish }
    }

    /// The text that may be told: all of it but what might become a stop string.
    fn tell(&mut self, stops: &[String]) -> String {
        let keep = match self.is_over {
            true => 0,
            false => stops.iter().map(|stop| stop.len() - 1).max().unwrap_or(0),
        };
        let end = self.kept.floor_char_boundary(self.kept.len().saturating_sub(keep));
        let told: String = self.kept.drain(..end).collect();
        self.told += told.chars().count();
        told
    }
}

/// Which tokens are of which version.
fn spans(pieces: &[StreamPiece]) -> Value {
    let mut spans: Vec<(Arc<str>, usize, usize)> = Vec::new();
    let tokens = pieces.iter().filter_map(|piece| piece.token.as_ref());
    for (at, token) in tokens.enumerate() {
        match spans.last_mut() {
            Some((version, _, end)) if *version == token.version => *end = at + 1,
            _ => spans.push((Arc::clone(&token.version), at, at + 1)),
        }
    }
    let span = |(version, start, end): (Arc<str>, usize, usize)| {
        let version = version.as_ref();
        json!({ "version": version, "start": start, "end": end })
    };
    spans.into_iter().map(span).collect()
}

fn write(events: Vec<Value>, is_last: bool) -> Bytes {
    let mut text = String::with_capacity(256 * events.len() + 16);
    for event in events {
        text.push_str("data: ");
        text.push_str(&event.to_string());
        text.push_str("\n\n");
    }
    if is_last {
        text.push_str("data: [DONE]\n\n");
    }
    text.into()
}
