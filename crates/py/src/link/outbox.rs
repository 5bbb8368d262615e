//! What a worker has said and not sent yet.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollway_wire::WorkerMessage;
use rollway_wire::worker::{SendError, Sender};
use tokio::time::MissedTickBehavior;

use super::lock;

/// How long small words wait at most for the event loop to send them.
const GATHER: Duration = Duration::from_millis(2);

/// How often nothing may have waited before nobody looks any more.
const QUIET: u32 = 50;

/// What is to be said.
pub(super) struct Outbox {
    sender: Sender,
    words: Mutex<VecDeque<WorkerMessage>>,
    /// Held while words are on their way, so that they stay in order.
    turn: tokio::sync::Mutex<()>,
    /// Whether somebody looks after words that wait for too long.
    watched: AtomicBool,
}

impl Outbox {
    pub(super) fn new(sender: Sender) -> Self {
        let (words, turn) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { sender, words, turn, watched: AtomicBool::new(false) }
    }

    pub(super) fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Keeps a message until it is sent with others. Tells whether [`watch`](Self::watch) has to be
    /// started.
    pub(super) fn gather(&self, message: WorkerMessage) -> bool {
        lock(&self.words).push_back(message);
        !self.watched.swap(true, Ordering::AcqRel)
    }

    /// Sends everything that has gathered, then `last`.
    pub(super) async fn send(&self, last: Option<WorkerMessage>) -> Result<(), SendError> {
        let _turn = self.turn.lock().await;
        let words = std::mem::take(&mut *lock(&self.words));
        for message in words.into_iter().chain(last) {
            self.sender.send(message).await?;
        }
        Ok(())
    }

    /// Sends what has gathered as far as it goes without waiting. Tells whether that was all.
    pub(super) fn try_send(&self) -> Result<bool, SendError> {
        let Ok(_turn) = self.turn.try_lock() else {
            return Ok(false);
        };
        let mut words = lock(&self.words);
        while let Some(message) = words.pop_front() {
            if let Some(message) = self.sender.try_send(message)? {
                words.push_front(message);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends words that have waited for a moment, until there are none for a while.
    pub(super) async fn watch(self: Arc<Self>) {
        let mut tick = tokio::time::interval(GATHER);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut quiet = 0;
        while quiet < QUIET {
            tick.tick().await;
            quiet = if lock(&self.words).is_empty() { quiet + 1 } else { 0 };
            // That the connection is gone is noticed by whoever listens.
            let _ = self.send(None).await;
        }
        self.watched.store(false, Ordering::Release);
        let _ = self.send(None).await;
    }
}
