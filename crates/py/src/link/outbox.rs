//! What a worker has said and not sent yet.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rollway_protocol::WorkerMessage;
use rollway_protocol::worker_client::{EngineSender, WorkerSendError};

/// What is to be said.
pub(super) struct LinkOutbox {
    sender: EngineSender,
    words: Mutex<VecDeque<WorkerMessage>>,
    /// Held while words are on their way, so that they stay in order.
    turn: tokio::sync::Mutex<()>,
    /// Whether somebody looks after words that wait for too long.
    watched: AtomicBool,
}

impl LinkOutbox {
    pub(super) fn new(sender: EngineSender) -> Self {
        let (words, turn) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { sender, words, turn, watched: AtomicBool::new(false) }
    }

    pub(super) fn sender(&self) -> &EngineSender {
        &self.sender
    }

    /// Keeps a message until it is sent with others. Tells whether nobody watches yet.
    pub(super) fn gather(&self, message: WorkerMessage) -> bool {
        self.words.lock().push_back(message);
        !self.watched.swap(true, Ordering::AcqRel)
    }

    /// Whoever watched does so no more. Tells whether nothing waits.
    pub(super) fn unwatched(&self) -> bool {
        self.watched.store(false, Ordering::Release);
        !self.waits()
    }

    /// Tells whether something waits to be sent.
    pub(super) fn waits(&self) -> bool {
        !self.words.lock().is_empty()
    }

    /// Sends everything that has gathered, then `last`.
    pub(super) async fn send(&self, last: Option<WorkerMessage>) -> Result<(), WorkerSendError> {
        let _turn = self.turn.lock().await;
        let words = std::mem::take(&mut *self.words.lock());
        for message in words.into_iter().chain(last) {
            self.sender.send(message).await?;
        }
        Ok(())
    }

    /// Sends what has gathered as far as it goes without waiting. Tells whether that was all.
    pub(super) fn try_send(&self) -> Result<bool, WorkerSendError> {
        let Ok(_turn) = self.turn.try_lock() else {
            return Ok(false);
        };
        let mut words = self.words.lock();
        while let Some(message) = words.pop_front() {
            if let Some(message) = self.sender.try_send(message)? {
                words.push_front(message);
                return Ok(false);
            }
        }
        Ok(true)
    }
}
