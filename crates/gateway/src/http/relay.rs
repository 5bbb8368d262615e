//! Streams a response from a server to a client, and records it.
//!
//! A relay is a separate task, so that a client that does not read cannot keep a call alive beyond
//! its run or its deadline. When it ends, the request at the server ends too.

use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::Response;
use rollway_model_api::replay::{SavedResponse, StreamCapture};
use rollway_model_api::sse::SseParser;
use rollway_model_api::{
    CallError, ErrorKind, ResponseEnd, ResponseParseError, ResponseParser, StreamRenderer,
    TokenSource,
};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{self, Sleep};

use super::byte_budget::ByteLease;
use super::calls::{CallPermits, confirmed_version};
use super::metrics::CallTimer;
use super::observed_call::ObservedCall;
use super::record_response::RecordTarget;
use super::response_body::StreamChunk;
use super::upstream::{UpstreamGuard, UpstreamRequest, server_withdrawn};
use crate::models::failure_reason;
use rollway_recording::RecordError;

pub(super) struct Relay {
    pub(super) request: UpstreamRequest,
    pub(super) guard: UpstreamGuard,
    pub(super) parser: Box<dyn ResponseParser>,
    pub(super) target: RecordTarget,
    pub(super) chunks: mpsc::Sender<StreamChunk>,
    /// Dropped before the client receives the end of the response.
    pub(super) held: (CallTimer, CallPermits),
    pub(super) capture: StreamCapture,
    pub(super) renderer: StreamRenderer,
    /// Memory of what is kept of the response.
    pub(super) lease: ByteLease,
}

enum StreamFailure {
    Disconnected,
    Failed(CallError),
    Misread(ResponseParseError),
}

/// Reason why a stream ends before its server ends it.
enum EarlyEnd {
    Cancelled,
    Disconnected,
    Withdrawn,
}

/// Conditions that end a stream early. They are registered once, not for every chunk.
struct StreamWaits<'a, E> {
    early_end: Pin<&'a mut E>,
    /// Elapses at or before the idle timeout of the current chunk.
    timer: Pin<&'a mut Sleep>,
}

impl Relay {
    pub(super) async fn run(mut self, mut response: Response) {
        match self.pump(&mut response).await {
            Ok(rest) => self.complete(rest).await,
            Err(StreamFailure::Disconnected) => self.aborted(None).await,
            Err(StreamFailure::Failed(error)) => self.aborted(Some(error)).await,
            Err(StreamFailure::Misread(error)) => self.invalid_response(error),
        }
    }

    /// Forwards events until the recording is due; returns the held-back rest.
    async fn pump(&mut self, response: &mut Response) -> Result<BytesMut, StreamFailure> {
        let (cancelled, chunks) = (self.request.cancelled.clone(), self.chunks.clone());
        let permit = self.guard.shared_permit();
        let early_end = std::pin::pin!(async {
            tokio::select! {
                biased;
                () = cancelled.cancelled() => EarlyEnd::Cancelled,
                () = chunks.closed() => EarlyEnd::Disconnected,
                () = permit.aborted() => EarlyEnd::Withdrawn,
            }
        });
        let idle = self.request.app.options.limits.idle_timeout;
        let by = self.request.deadline.min(time::Instant::now() + idle);
        let timer = std::pin::pin!(time::sleep_until(by));
        self.pump_within(response, StreamWaits { early_end, timer }).await
    }

    async fn pump_within(
        &mut self,
        response: &mut Response,
        mut waits: StreamWaits<'_, impl Future<Output = EarlyEnd>>,
    ) -> Result<BytesMut, StreamFailure> {
        let limit = self.request.app.options.limits.response_body_bytes;
        let mut parser = SseParser::default();
        let mut bytes = 0;
        loop {
            let Some(chunk) = self.next(response, &mut waits).await? else {
                if self.capture.is_finished() && !parser.has_incomplete_event() {
                    return Ok(self.capture.take_held());
                }
                return Err(self.incomplete("it ended early"));
            };
            bytes += chunk.len();
            if bytes > limit {
                return Err(
                    self.incomplete(&format!("it has more than the limit of {limit} bytes"))
                );
            }
            let events =
                parser.feed(&chunk, limit).map_err(|malformed| self.incomplete(&malformed.0))?;
            let mut out = BytesMut::with_capacity(chunk.len());
            for event in events {
                if event == "[DONE]" {
                    out.unsplit(self.capture.take_held());
                    return Ok(out);
                }
                let source = TokenSource { version: self.guard.permit().version() };
                let parts = match self.parser.parse_event(&event, source) {
                    Ok(parts) => parts,
                    // An error of the server is not a failure of the recording.
                    Err(error) if self.parser.server_error().is_some() => {
                        return Err(self.incomplete(&error.0));
                    }
                    Err(error) => return Err(StreamFailure::Misread(error)),
                };
                for part in parts {
                    self.capture.take(part, &mut self.renderer, &mut out);
                }
            }
            let kept = parser.buffered() + self.parser.kept_bytes() + self.capture.kept_bytes();
            let leased = self.request.lease_response(&mut self.lease, kept).await;
            leased.map_err(StreamFailure::Failed)?;
            if !out.is_empty() {
                self.send(StreamChunk::Some(out.freeze())).await?;
            }
        }
    }

    /// Waits for the next chunk within all limits.
    async fn next(
        &mut self,
        response: &mut Response,
        waits: &mut StreamWaits<'_, impl Future<Output = EarlyEnd>>,
    ) -> Result<Option<Bytes>, StreamFailure> {
        let idle = self.request.app.options.limits.idle_timeout;
        let began = time::Instant::now();
        let by = self.request.deadline.min(began + idle);
        let chunk = loop {
            tokio::select! {
                // Available data is taken without checking the limits; sending it checks them.
                biased;
                chunk = response.chunk() => break chunk,
                reason = waits.early_end.as_mut() => return Err(self.ended_early(&reason)),
                () = waits.timer.as_mut() => {
                    if time::Instant::now() < by {
                        waits.timer.as_mut().reset(by);
                    } else if by == self.request.deadline {
                        return Err(StreamFailure::Failed(self.request.timeout_error()));
                    } else {
                        return Err(self.idle(idle));
                    }
                }
            }
        };
        self.held.0.upstream += began.elapsed();
        chunk.map_err(|error| self.incomplete(&failure_reason(error)))
    }

    fn ended_early(&self, reason: &EarlyEnd) -> StreamFailure {
        match reason {
            EarlyEnd::Cancelled => StreamFailure::Failed(self.request.cancelled_error()),
            EarlyEnd::Disconnected => StreamFailure::Disconnected,
            EarlyEnd::Withdrawn => StreamFailure::Failed(server_withdrawn(self.guard.permit())),
        }
    }

    async fn send(&mut self, piece: StreamChunk) -> Result<(), StreamFailure> {
        let is_cancelled = self.request.cancelled.is_cancelled();
        let is_in_time = !is_cancelled && time::Instant::now() < self.request.deadline;
        let piece = match self.chunks.try_send(piece) {
            Ok(()) if is_in_time => return Ok(()),
            Ok(()) if is_cancelled => return Err(self.ended_early(&EarlyEnd::Cancelled)),
            Ok(()) => return Err(StreamFailure::Failed(self.request.timeout_error())),
            Err(TrySendError::Closed(_)) => return Err(StreamFailure::Disconnected),
            Err(TrySendError::Full(piece)) => piece,
        };
        match self.request.within(self.chunks.send(piece)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(StreamFailure::Disconnected),
            Err(error) => Err(StreamFailure::Failed(error)),
        }
    }

    /// Failure: the response ended early or is invalid.
    fn incomplete(&self, reason: &str) -> StreamFailure {
        let message = format!("sent an incomplete response: {reason}");
        self.failed(ErrorKind::Upstream, reason, &message)
    }

    /// Failure: the server sent nothing for the idle timeout.
    fn idle(&self, idle: Duration) -> StreamFailure {
        let message = format!("sent nothing for {idle:?}, the idle timeout");
        self.failed(ErrorKind::UpstreamTimeout, "idle timeout in a stream", &message)
    }

    /// Counts the failure of the server.
    fn failed(&self, kind: ErrorKind, reason: &str, message: &str) -> StreamFailure {
        self.request.app.metrics.values.broken.inc();
        self.guard.permit().record_failure(reason);
        let server = self.guard.permit().server().id.0;
        StreamFailure::Failed(CallError::new(kind, format!("server {server} {message}")))
    }

    /// Records the complete response, then sends its end.
    async fn complete(self, mut rest: BytesMut) {
        let Self { mut request, guard, mut parser, target, chunks, held, .. } = self;
        let (capture, mut renderer) = (self.capture, self.renderer);
        guard.permit().record_success();
        let version = confirmed_version(guard.permit(), &mut parser, &target).await;
        guard.ended();
        let is_recorded = target.is_recorded();
        let saved = |response: &_| {
            if is_recorded {
                capture.into_saved(&request.call, response)
            } else {
                SavedResponse { stream: true, parts: Vec::new() }
            }
        };
        let outcome = target.complete(&request, parser, version, saved).await;
        request.observed.status(outcome.as_ref().map_or_else(|error| error.kind.status(), |_| 200));
        request.observed = ObservedCall::default();
        drop(held);
        let last = match outcome {
            Ok(receipt) => {
                renderer.finish(&mut rest);
                StreamChunk::Last(rest.freeze(), receipt)
            }
            Err(error) => StreamChunk::Last(renderer.error(&error), None),
        };
        // A disconnected client gets the saved response when it retries.
        let _ = request.within(chunks.send(last)).await;
    }

    /// Records the partial response, unless its run is closed.
    async fn aborted(self, reason: Option<CallError>) {
        let Self { request, guard, mut parser, target, chunks, held, mut renderer, .. } = self;
        if let Some(error) = &reason {
            request.observed.status(error.kind.status());
        }
        let permit = guard.shared_permit();
        // Closes the connection to the server, and aborts the request where that is not enough.
        drop(guard);
        let app = &request.app;
        let is_open = !request.cancelled.is_cancelled() || app.stopping.is_cancelled();
        if target.is_recorded() && is_open {
            let version = confirmed_version(&permit, &mut parser, &target).await;
            match parser.finish(ResponseEnd::Aborted) {
                Ok(response) => {
                    request.observed.on_response(&response, version);
                    let saved = SavedResponse { stream: true, parts: Vec::new() };
                    // A failure was counted, and is an error of the run.
                    let _ = target.record(app, &request.call, response, saved).await;
                }
                Err(error) => target.fail(app, RecordError::Misread(error.0)),
            }
        }
        drop(permit);
        drop(held);
        if let Some(error) = reason {
            // Does not wait for a client that does not read.
            let _ = chunks.try_send(StreamChunk::Last(renderer.error(&error), None));
        }
    }

    fn invalid_response(self, error: ResponseParseError) {
        let Self { request, guard, target, chunks, held, mut renderer, .. } = self;
        guard.permit().record_failure(&error.0);
        drop(guard);
        drop(held);
        let error = target.reject(&request.app, error);
        request.observed.status(error.kind.status());
        let _ = chunks.try_send(StreamChunk::Last(renderer.error(&error), None));
    }
}
