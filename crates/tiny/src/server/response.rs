//! Rendering of responses in vLLM's format: whole, or as server-sent events.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, future, stream};
use rollway_net::JsonBody;
use rollway_tiny_model::Vocabulary;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::api_error::TinyApiError;
use super::generation_thread::{
    Ending, GeneratedToken, GenerationJob, GenerationThread, JobGuard, TinyChoice, TokenEvent,
};
use super::request::{TinyRequest, TinyRequestKind};

/// A response in progress. Dropping it before its end cancels the generation.
#[derive(Debug)]
pub(super) struct TinyResponse {
    request: TinyRequest,
    model: String,
    vocabulary: Vocabulary,
    events: UnboundedReceiver<TokenEvent>,
    choices: Vec<OpenStream>,
    _guard: JobGuard,
}

/// Progress of a choice.
#[derive(Debug, Default)]
struct OpenStream {
    tokens: usize,
    /// Text held back because it may become a stop text.
    pending: String,
    /// Characters sent.
    sent: usize,
    is_over: bool,
}

/// Next part of a choice.
#[derive(Debug)]
struct StreamPiece {
    choice: usize,
    /// `None`: the choice was aborted.
    token: Option<GeneratedToken>,
    text: String,
    /// Characters sent before.
    offset: usize,
    finish: Option<(&'static str, Option<String>)>,
}

pub(super) async fn respond(
    thread: &Arc<GenerationThread>,
    (model, vocabulary): (String, Vocabulary),
    request: TinyRequest,
    choices: Vec<TinyChoice>,
) -> Response {
    let (sender, events) = unbounded_channel();
    let open = choices.iter().map(|_| OpenStream::default()).collect();
    let ids = request.abort_ids.clone();
    let guard = thread.add(GenerationJob { ids, choices, events: sender });
    let is_stream = request.stream;
    let response =
        TinyResponse { request, model, vocabulary, events, choices: open, _guard: guard };
    let response = if is_stream { response.events().await } else { response.whole().await };
    response.unwrap_or_else(IntoResponse::into_response)
}

impl TinyResponse {
    /// Returns the next pieces. `None`: all choices have ended.
    async fn next(&mut self) -> Result<Option<Vec<StreamPiece>>, TinyApiError> {
        let unavailable = |message| TinyApiError::new(StatusCode::SERVICE_UNAVAILABLE, message);
        if self.choices.iter().all(|choice| choice.is_over) {
            return Ok(None);
        }
        match self.events.recv().await {
            None => Err(unavailable("the server is stopping")),
            Some(TokenEvent::Refused) => Err(unavailable(
                "too many requests are waiting (max_waiting): send fewer at a time",
            )),
            Some(TokenEvent::Token(token)) => {
                let open = &mut self.choices[token.choice];
                Ok(Some(vec![open.take(token, &self.vocabulary, &self.request.stops)]))
            }
            Some(TokenEvent::Aborted) => {
                let open = self.choices.iter_mut().enumerate().filter(|(_, open)| !open.is_over);
                Ok(Some(open.map(|(choice, open)| open.abort(choice)).collect()))
            }
        }
    }

    /// Responds when all choices have ended.
    async fn whole(mut self) -> Result<Response, TinyApiError> {
        let mut choices: Vec<Vec<StreamPiece>> = self.choices.iter().map(|_| Vec::new()).collect();
        while let Some(pieces) = self.next().await? {
            for piece in pieces {
                choices[piece.choice].push(piece);
            }
        }
        Ok(JsonBody(self.body(&choices)).into_response())
    }

    /// Responds with server-sent events. Waits for the first token, so that a refusal gets its
    /// status.
    async fn events(mut self) -> Result<Response, TinyApiError> {
        let first = self.next().await?.unwrap_or_default();
        let first = self.begin().into_iter().chain(self.piece_events(&first)).collect();
        let rest = stream::unfold(Some(self), |response| async move {
            let mut response = response?;
            match response.next().await {
                Ok(Some(pieces)) => {
                    Some((Ok(write(response.piece_events(&pieces), false)), Some(response)))
                }
                Ok(None) => Some((Ok(write(response.end(), true)), None)),
                Err(_) => Some((Err(io::Error::other("stopped")), None)),
            }
        });
        let first = future::ready(Ok(write(first, false)));
        let body = Body::from_stream(stream::once(first).chain(rest));
        Ok(([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response())
    }

    /// Fields common to responses and events.
    fn head(&self, is_event: bool, choices: Vec<Value>) -> Value {
        let object = match (self.request.kind, is_event) {
            (TinyRequestKind::Text, _) => "text_completion",
            (TinyRequestKind::Chat, true) => "chat.completion.chunk",
            (TinyRequestKind::Chat, false) => "chat.completion",
        };
        let (id, model) = (&self.request.id, &self.model);
        json!({ "id": id, "object": object, "created": 0, "model": model, "choices": choices })
    }

    /// Events before the first token.
    fn begin(&self) -> Vec<Value> {
        if self.request.kind == TinyRequestKind::Text {
            return Vec::new();
        }
        let first = |index: usize| {
            let choice = json!({
                "index": index,
                "delta": { "role": "assistant", "content": "" },
                "logprobs": null,
                "finish_reason": null,
            });
            let mut event = self.head(true, vec![choice]);
            event["prompt_token_ids"] = self.prompt(0);
            event
        };
        (0..self.choices.len()).map(first).collect()
    }

    fn piece_events(&self, pieces: &[StreamPiece]) -> Vec<Value> {
        let event = |piece: &StreamPiece| {
            let mut choice = self.choice(piece.choice, std::slice::from_ref(piece));
            match self.request.kind {
                TinyRequestKind::Chat => choice["delta"] = json!({ "content": piece.text }),
                TinyRequestKind::Text => {
                    choice["text"] = piece.text.clone().into();
                    let is_first = self.choices[piece.choice].tokens <= 1;
                    let prompt = is_first.then(|| self.prompt(piece.choice / self.request.n));
                    choice["prompt_token_ids"] = prompt.unwrap_or_default();
                }
            }
            if let Some(token) = &piece.token {
                choice["weight_version"] = token.version.as_ref().into();
            }
            self.head(true, vec![choice])
        };
        pieces.iter().map(event).collect()
    }

    /// Events after the last token.
    fn end(&self) -> Vec<Value> {
        let mut event = self.head(true, Vec::new());
        event["usage"] = self.usage();
        if self.request.include_usage { vec![event] } else { Vec::new() }
    }

    fn body(&self, choices: &[Vec<StreamPiece>]) -> Value {
        let choice = |(index, pieces): (usize, &Vec<StreamPiece>)| {
            let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
            let mut choice = self.choice(index, pieces);
            choice["weight_versions"] = spans(pieces);
            match self.request.kind {
                TinyRequestKind::Chat => {
                    choice["message"] =
                        json!({ "role": "assistant", "content": text, "refusal": null });
                }
                TinyRequestKind::Text => {
                    choice["text"] = text.into();
                    choice["prompt_token_ids"] = self.prompt(index / self.request.n);
                }
            }
            choice
        };
        let choices = choices.iter().enumerate().map(choice).collect();
        let mut body = self.head(false, choices);
        body["usage"] = self.usage();
        if self.request.kind == TinyRequestKind::Chat {
            body["prompt_token_ids"] = self.prompt(0);
        }
        body
    }

    /// Fields common to a choice and a piece of one.
    fn choice(&self, index: usize, pieces: &[StreamPiece]) -> Value {
        let finish = pieces.last().and_then(|piece| piece.finish.as_ref());
        let tokens = pieces.iter().filter_map(|piece| piece.token.as_ref());
        let ids: Vec<u32> = tokens.map(|token| token.token).collect();
        json!({
            "index": index,
            "logprobs": self.logprobs(pieces),
            "finish_reason": finish.map(|(reason, _)| reason),
            "stop_reason": finish.and_then(|(_, stop)| stop.as_ref()),
            "token_ids": self.request.token_ids.then_some(ids),
        })
    }

    fn prompt(&self, prompt: usize) -> Value {
        if self.request.token_ids { json!(self.request.prompts[prompt]) } else { Value::Null }
    }

    fn logprobs(&self, pieces: &[StreamPiece]) -> Value {
        if !self.request.logprobs {
            return Value::Null;
        }
        let tokens = || pieces.iter().filter_map(|piece| Some((piece, piece.token.as_ref()?)));
        match self.request.kind {
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

    fn name(&self, token: u32) -> String {
        match token {
            Vocabulary::BEGIN => "<begin>".to_owned(),
            Vocabulary::END => "<end>".to_owned(),
            token => self.vocabulary.decode(&[token]),
        }
    }

    fn usage(&self) -> Value {
        let prompt: usize = self.request.prompts.iter().map(Vec::len).sum();
        let completion: usize = self.choices.iter().map(|choice| choice.tokens).sum();
        let total = prompt + completion;
        json!({ "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total })
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
        self.pending.extend(vocabulary.character(token.token));
        let finish = token.end.map(|end| match end {
            Ending::End => ("stop", None),
            Ending::Length => ("length", None),
            Ending::Stop(number) => {
                let stop = &stops[number];
                self.pending.truncate(self.pending.len().saturating_sub(stop.len()));
                ("stop", Some(stop.clone()))
            }
        });
        let (choice, offset) = (token.choice, self.sent);
        StreamPiece { choice, token: Some(token), text: self.release(stops), offset, finish }
    }

    fn abort(&mut self, choice: usize) -> StreamPiece {
        self.is_over = true;
        let offset = self.sent;
        let finish = Some(("abort", None));
        StreamPiece { choice, token: None, text: self.release(&[]), offset, finish }
    }

    /// Returns the text that cannot become part of a stop text.
    fn release(&mut self, stops: &[String]) -> String {
        let held_back = match self.is_over {
            true => 0,
            false => stops.iter().map(|stop| stop.len() - 1).max().unwrap_or(0),
        };
        let end = self.pending.floor_char_boundary(self.pending.len().saturating_sub(held_back));
        let text: String = self.pending.drain(..end).collect();
        self.sent += text.chars().count();
        text
    }
}

/// Runs of tokens with the same version.
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
    let mut text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    if is_last {
        text.push_str("data: [DONE]\n\n");
    }
    text.into()
}
