//! Receives messages of the engine, in batches: one wake-up for many messages.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_core::Stream as _;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Streaming;

use crate::codec::DecodedFrame;
use crate::convert::DefinitionCache;
use crate::message::EngineMessage;
use crate::proto::{self, engine_message::Kind};
use crate::refusal::ConnectRefusal;
use crate::status_message::status_message;

/// Reason for the end of the stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamEnd {
    /// The engine closed the stream after a goodbye.
    #[error("the stream was closed after a goodbye")]
    Closed,
    #[error("the engine refused this worker: {0}")]
    Refused(ConnectRefusal),
    /// The stream ended or broke, or a message of the engine was invalid.
    #[error("the connection to the engine was lost: {message}")]
    Lost { message: Arc<str> },
}

/// Receiving half of a connection. Dropping it disconnects.
#[derive(Debug)]
pub struct EngineReceiver {
    stream: Streaming<DecodedFrame<proto::EngineMessage>>,
    definitions: DefinitionCache,
    unknown: u64,
    ended: Option<StreamEnd>,
    goodbye: Arc<AtomicBool>,
    alive: DropGuard,
}

impl EngineReceiver {
    pub(super) fn new(
        stream: Streaming<DecodedFrame<proto::EngineMessage>>,
        goodbye: Arc<AtomicBool>,
    ) -> Self {
        let alive = CancellationToken::new();
        Self {
            stream,
            definitions: DefinitionCache::default(),
            unknown: 0,
            ended: None,
            goodbye,
            alive: alive.drop_guard(),
        }
    }

    /// Returns a token that is cancelled when this is dropped.
    pub(super) fn alive(&self) -> CancellationToken {
        self.alive.token().clone()
    }

    /// Waits for messages, appends up to `limit` of them and returns their number. Cancel-safe.
    /// Unknown messages are skipped and counted.
    pub async fn recv_many(
        &mut self,
        messages: &mut Vec<EngineMessage>,
        limit: usize,
    ) -> Result<usize, StreamEnd> {
        std::future::poll_fn(|cx| self.poll_recv_many(cx, messages, limit)).await
    }

    pub async fn recv(&mut self) -> Result<EngineMessage, StreamEnd> {
        let mut messages = Vec::with_capacity(1);
        loop {
            self.recv_many(&mut messages, 1).await?;
            if let Some(message) = messages.pop() {
                return Ok(message);
            }
        }
    }

    /// Returns the number of skipped messages.
    pub fn unknown_messages(&self) -> u64 {
        self.unknown
    }

    fn poll_recv_many(
        &mut self,
        cx: &mut Context<'_>,
        messages: &mut Vec<EngineMessage>,
        limit: usize,
    ) -> Poll<Result<usize, StreamEnd>> {
        let mut count = 0;
        while count < limit {
            if let Some(ended) = &self.ended {
                if count > 0 {
                    break;
                }
                return Poll::Ready(Err(ended.clone()));
            }
            match Pin::new(&mut self.stream).poll_next(cx) {
                Poll::Pending if count > 0 => break,
                Poll::Pending => return Poll::Pending,
                Poll::Ready(next) => match self.take(next) {
                    Ok(Some(message)) => {
                        messages.push(message);
                        count += 1;
                    }
                    Ok(None) => {}
                    Err(ended) => self.ended = Some(ended),
                },
            }
        }
        Poll::Ready(Ok(count))
    }

    fn take(
        &mut self,
        next: Option<Result<DecodedFrame<proto::EngineMessage>, tonic::Status>>,
    ) -> Result<Option<EngineMessage>, StreamEnd> {
        let lost = |message: String| StreamEnd::Lost { message: message.into() };
        let message = match next {
            Some(Ok(DecodedFrame { message: Ok(message), .. })) => message,
            Some(Ok(DecodedFrame { message: Err(error), .. })) => {
                return Err(lost(format!("the engine's message cannot be decoded: {error}")));
            }
            Some(Err(_)) | None if self.goodbye.load(Ordering::Acquire) => {
                return Err(StreamEnd::Closed);
            }
            Some(Err(status)) => return Err(lost(status_message(&status))),
            None => return Err(lost("the engine closed the stream".to_owned())),
        };
        match message.kind {
            Some(Kind::Refused(refused)) => Err(StreamEnd::Refused(refused.into())),
            Some(kind) => self
                .definitions
                .resolve(kind)
                .map_err(|invalid| lost(format!("the engine's message is not valid: {invalid}"))),
            None => {
                self.unknown += 1;
                Ok(None)
            }
        }
    }
}
