//! What a worker is told, in batches: whoever handles it is woken once for many messages.

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

/// Why nothing more comes from the engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamEnd {
    /// Goodbye was said, and the engine has closed the stream.
    #[error("the stream was closed after a goodbye")]
    Closed,
    /// The engine disconnected this worker.
    #[error("the engine refused this worker: {0}")]
    Refused(ConnectRefusal),
    /// The stream ended or broke without a word, or the engine said what makes no sense.
    #[error("the connection to the engine was lost: {message}")]
    Lost {
        /// In the words of whoever noticed.
        message: Arc<str>,
    },
}

/// The way from the engine. Dropping it breaks the connection.
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

    /// Returns what is cancelled when this is dropped.
    pub(super) fn alive(&self) -> CancellationToken {
        self.alive.token().clone()
    }

    /// Waits for messages and appends up to `limit` of them; returns how many. Can be given up at
    /// any time without losing one. Messages that this version does not know are skipped.
    pub async fn recv_many(
        &mut self,
        messages: &mut Vec<EngineMessage>,
        limit: usize,
    ) -> Result<usize, StreamEnd> {
        std::future::poll_fn(|cx| self.poll_recv_many(cx, messages, limit)).await
    }

    /// Waits for one message.
    pub async fn recv(&mut self) -> Result<EngineMessage, StreamEnd> {
        let mut messages = Vec::with_capacity(1);
        loop {
            self.recv_many(&mut messages, 1).await?;
            if let Some(message) = messages.pop() {
                return Ok(message);
            }
        }
    }

    /// Returns how many messages were skipped.
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
