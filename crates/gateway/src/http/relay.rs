//! Passes a stream on from a server to a client, and settles it.
//!
//! It is a task of its own, so that a client that does not read cannot keep a call alive beyond its
//! run or its deadline. Whatever ends it, the request at the server ends with it.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use reqwest::Response;
use rollway_model_api::replay::{SavedResponse, StreamCapture};
use rollway_model_api::sse::SseParser;
use rollway_model_api::{
    CallError, ErrorKind, ResponseEnd, ResponseParseError, ResponseParser, StreamRenderer,
    TokenSource,
};
use tokio::sync::mpsc;

use super::calls::CallPermits;
use super::metrics::Timed;
use super::observed_call::ObservedCall;
use super::record_response::{RecordTarget, invalid_response, unrecorded};
use super::response_body::StreamChunk;
use super::upstream::{UpstreamGuard, UpstreamRequest, taken};
use crate::recording::RecordError;

/// A stream under way.
pub(super) struct Relay {
    pub(super) question: UpstreamRequest,
    pub(super) under_way: UpstreamGuard,
    pub(super) reader: Box<dyn ResponseParser>,
    pub(super) keeping: RecordTarget,
    pub(super) pieces: mpsc::Sender<StreamChunk>,
    /// What ends with the call, and is over before the client knows that.
    pub(super) held: (Timed, CallPermits),
    pub(super) gathered: StreamCapture,
    pub(super) renderer: StreamRenderer,
}

/// How a stream ended.
enum RelayOutcome {
    /// The server has said all it had to say; what of it the client has not got.
    Complete(BytesMut),
    /// The client has left.
    Left,
    /// The client is told why it got no more.
    Failed(CallError),
    /// What the server says makes no sense.
    Misread(ResponseParseError),
}

impl Relay {
    /// Passes everything on, then settles.
    pub(super) async fn run(mut self, mut response: Response) {
        let outcome = match self.pump(&mut response).await {
            Ok(rest) => RelayOutcome::Complete(rest),
            Err(outcome) => outcome,
        };
        match outcome {
            RelayOutcome::Complete(rest) => self.complete(rest).await,
            RelayOutcome::Left => self.aborted(None).await,
            RelayOutcome::Failed(error) => self.aborted(Some(error)).await,
            RelayOutcome::Misread(misread) => self.misread(misread),
        }
    }

    /// Passes on what may be passed on before the answer was recorded; returns the rest.
    async fn pump(&mut self, response: &mut Response) -> Result<BytesMut, RelayOutcome> {
        let limit = self.question.app.options.limits.max_answer_bytes;
        let mut parser = SseParser::default();
        let mut bytes = 0;
        loop {
            let Some(chunk) = self.next(response).await? else {
                if self.gathered.is_finished() && !parser.is_torn() {
                    return Ok(self.gathered.take_held());
                }
                return Err(self.broke("it ended before it was complete"));
            };
            bytes += chunk.len();
            if bytes > limit {
                return Err(self.broke(&format!("it has more than {limit} bytes, the limit")));
            }
            let events =
                parser.feed(&chunk, limit).map_err(|malformed| self.broke(&malformed.0))?;
            let mut out = BytesMut::with_capacity(chunk.len());
            for event in events {
                if event == "[DONE]" {
                    out.unsplit(self.gathered.take_held());
                    return Ok(out);
                }
                let source = TokenSource { version: self.under_way.lease().version() };
                let parts = match self.reader.parse_event(&event, source) {
                    Ok(parts) => parts,
                    // It has failed and says so, which is no fault of the recording.
                    Err(misread) if self.reader.server_error().is_some() => {
                        return Err(self.broke(&misread.0));
                    }
                    Err(misread) => return Err(RelayOutcome::Misread(misread)),
                };
                for part in parts {
                    self.gathered.take(part, &mut self.renderer, &mut out);
                }
            }
            if !out.is_empty() {
                self.send(StreamChunk::Some(out.freeze())).await?;
            }
        }
    }

    /// Waits for more, but not beyond any of the limits.
    async fn next(&mut self, response: &mut Response) -> Result<Option<Bytes>, RelayOutcome> {
        let idle = self.question.app.options.limits.idle_timeout;
        let began = Instant::now();
        let by = self.question.deadline.min(tokio::time::Instant::now() + idle);
        let chunk = tokio::select! {
            // What is there already is taken without looking further; whoever sends it on looks.
            biased;
            chunk = tokio::time::timeout_at(by, response.chunk()) => chunk,
            () = self.question.cancelled.cancelled() => {
                return Err(RelayOutcome::Failed(self.question.gone()));
            }
            () = self.pieces.closed() => return Err(RelayOutcome::Left),
            () = self.under_way.lease().aborted() => {
                return Err(RelayOutcome::Failed(taken(self.under_way.lease())));
            }
        };
        self.held.0.upstream += began.elapsed();
        match chunk {
            Ok(Ok(chunk)) => Ok(chunk),
            Ok(Err(error)) => Err(self.broke(&rollway_base::error_chain(&error))),
            Err(_) if by == self.question.deadline => {
                Err(RelayOutcome::Failed(self.question.too_late()))
            }
            Err(_) => Err(self.silent(idle)),
        }
    }

    async fn send(&mut self, piece: StreamChunk) -> Result<(), RelayOutcome> {
        match self.question.within(self.pieces.send(piece)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(RelayOutcome::Left),
            Err(error) => Err(RelayOutcome::Failed(error)),
        }
    }

    fn broke(&self, why: &str) -> RelayOutcome {
        self.question.app.metrics.broken.inc();
        self.under_way.lease().went_wrong(why);
        let server = self.under_way.lease().server().id.0;
        let message = format!("the answer of server {server} broke off: {why}");
        RelayOutcome::Failed(CallError::new(ErrorKind::Upstream, message))
    }

    fn silent(&self, idle: Duration) -> RelayOutcome {
        self.question.app.metrics.broken.inc();
        self.under_way.lease().went_wrong("it fell silent in the middle of an answer");
        let server = self.under_way.lease().server().id.0;
        let message = format!("server {server} said nothing for {idle:?}, which is the limit");
        RelayOutcome::Failed(CallError::new(ErrorKind::UpstreamTimeout, message))
    }

    /// Records the whole answer, and only then lets the client know that it was all.
    async fn complete(self, mut rest: BytesMut) {
        let Self { mut question, under_way, reader, keeping, pieces, held, .. } = self;
        let (gathered, mut renderer) = (self.gathered, self.renderer);
        under_way.lease().went_well();
        let version = under_way.lease().version();
        under_way.ended();
        let app = &question.app;
        let outcome = match reader.finish(ResponseEnd::Complete) {
            Ok(answer) => {
                question.watched.on_response(&answer, version);
                let kept = if keeping.keeps_answers() {
                    gathered.into_saved(&question.call, &answer)
                } else {
                    SavedResponse { stream: true, parts: Vec::new() }
                };
                keeping.record(app, &question.call, answer, kept).await
            }
            Err(misread) if keeping.is_kept() => {
                let error = RecordError::Misread(misread.0);
                keeping.fail(app, error.clone());
                Err(error)
            }
            Err(_) => Ok(None),
        };
        let status = outcome.as_ref().map_or_else(|error| unrecorded(error).kind.status(), |_| 200);
        question.watched.status(status);
        question.watched = ObservedCall::default();
        drop(held);
        let last = match outcome {
            Ok(receipt) => {
                renderer.finish(&mut rest);
                StreamChunk::Last(rest.freeze(), receipt)
            }
            Err(error) => StreamChunk::Last(renderer.error(&unrecorded(&error)), None),
        };
        // A client that is gone by now finds its answer when it asks again.
        let _ = question.within(pieces.send(last)).await;
    }

    /// Records what there is of the answer, if it is for somebody who may still want it.
    async fn aborted(self, why: Option<CallError>) {
        let Self { question, under_way, reader, keeping, pieces, held, mut renderer, .. } = self;
        if let Some(error) = &why {
            question.watched.status(error.kind.status());
        }
        let version = under_way.lease().version();
        // Closes the connection to the server, and tells it where that is not enough.
        drop(under_way);
        let app = &question.app;
        let is_wanted = !question.cancelled.is_cancelled() || app.stopping.is_cancelled();
        if keeping.is_kept() && is_wanted {
            match reader.finish(ResponseEnd::Aborted) {
                Ok(answer) => {
                    question.watched.on_response(&answer, version);
                    let kept = SavedResponse { stream: true, parts: Vec::new() };
                    // What could not be kept was counted, and is an error of the run.
                    let _ = keeping.record(app, &question.call, answer, kept).await;
                }
                Err(misread) => keeping.fail(app, RecordError::Misread(misread.0)),
            }
        }
        drop(held);
        if let Some(error) = why {
            // A client that does not read is not waited for.
            let _ = pieces.try_send(StreamChunk::Last(renderer.error(&error), None));
        }
    }

    fn misread(self, misread: ResponseParseError) {
        let Self { question, under_way, keeping, pieces, held, mut renderer, .. } = self;
        under_way.lease().went_wrong(&misread.0);
        let error = invalid_response(&misread, keeping.is_kept());
        question.watched.status(error.kind.status());
        drop(under_way);
        drop(held);
        if keeping.is_kept() {
            keeping.fail(&question.app, RecordError::Misread(misread.0));
        }
        let _ = pieces.try_send(StreamChunk::Last(renderer.error(&error), None));
    }
}
