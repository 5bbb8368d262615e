//! Worker messages that are not sent yet.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rollway_protocol::WorkerMessage;
use rollway_protocol::worker_client::{EngineSender, WorkerSendError};

/// Queue of outgoing messages.
pub(super) struct LinkOutbox {
    sender: EngineSender,
    queued: Mutex<VecDeque<WorkerMessage>>,
    /// Held while messages are sent, so that they stay in order.
    turn: tokio::sync::Mutex<()>,
    /// Set while the companion thread checks for messages that wait too long.
    watched: AtomicBool,
}

impl LinkOutbox {
    pub(super) fn new(sender: EngineSender) -> Self {
        let (queued, turn) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { sender, queued, turn, watched: AtomicBool::new(false) }
    }

    pub(super) fn sender(&self) -> &EngineSender {
        &self.sender
    }

    /// Queues a message. Returns `true` if the companion thread must be woken.
    pub(super) fn push(&self, message: WorkerMessage) -> bool {
        self.queued.lock().push_back(message);
        !self.watched.swap(true, Ordering::AcqRel)
    }

    /// Marks the queue as unwatched. Returns `true` if it is empty.
    pub(super) fn end_watch(&self) -> bool {
        self.watched.store(false, Ordering::Release);
        !self.waits()
    }

    /// Returns `true` if messages wait to be sent.
    pub(super) fn waits(&self) -> bool {
        !self.queued.lock().is_empty()
    }

    /// Sends all queued messages, then `last`.
    pub(super) async fn send(&self, last: Option<WorkerMessage>) -> Result<(), WorkerSendError> {
        let _turn = self.turn.lock().await;
        let queued = std::mem::take(&mut *self.queued.lock());
        for message in queued.into_iter().chain(last) {
            self.sender.send(message).await?;
        }
        Ok(())
    }

    /// Sends queued messages as far as possible without waiting. Returns `true` if all were sent.
    pub(super) fn try_send(&self) -> Result<bool, WorkerSendError> {
        let Ok(_turn) = self.turn.try_lock() else {
            return Ok(false);
        };
        let mut queued = self.queued.lock();
        while let Some(message) = queued.pop_front() {
            if let Some(message) = self.sender.try_send(message)? {
                queued.push_front(message);
                return Ok(false);
            }
        }
        Ok(true)
    }
}
