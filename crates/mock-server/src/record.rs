//! What a simulated server remembers of its requests, for tests that compare it with what somebody
//! else has made of the answers.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;

/// A request for an answer.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub number: u64,
    /// The id of the answer.
    pub id: String,
    /// Where it was sent.
    pub path: &'static str,
    /// What was asked.
    pub body: Arc<Value>,
    /// The prompts in tokens; chats have one.
    pub prompts: Vec<Vec<i32>>,
    /// What was said: the choices of the first prompt, then those of the next.
    pub choices: Vec<RecordedChoice>,
    /// How it ended; none while it goes on.
    pub end: Option<RequestEnd>,
}

/// One choice of an answer as the model made it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedChoice {
    pub tokens: Vec<RecordedToken>,
    /// Why it ended.
    pub finish_reason: Option<&'static str>,
}

/// A token as the model made it.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedToken {
    pub id: i32,
    /// Its log-probability.
    pub logprob: f32,
    /// The weights that made it.
    pub version: u64,
    /// What the server called them.
    pub version_name: Arc<str>,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    /// All was said.
    Complete,
    /// Somebody had it aborted.
    Aborted,
    /// The client left.
    Left,
    /// An injected fault.
    Failed,
}

/// The newest records.
#[derive(Debug)]
pub(super) struct Records {
    kept: VecDeque<RecordedRequest>,
    max: usize,
}

impl Records {
    pub(super) const fn new(max: usize) -> Self {
        Self { kept: VecDeque::new(), max }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.max > 0
    }

    /// Keeps a record; returns how many were dropped for it.
    pub(super) fn push(&mut self, record: RecordedRequest) -> u64 {
        let mut dropped = 0;
        while self.kept.len() >= self.max.max(1) {
            self.kept.pop_front();
            dropped += 1;
        }
        self.kept.push_back(record);
        dropped
    }

    /// The record of that number, if it is still kept. Every number is kept, one after the other.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut RecordedRequest> {
        let first = self.kept.front()?.number;
        let index = usize::try_from(number.checked_sub(first)?).ok()?;
        self.kept.get_mut(index)
    }

    pub(super) fn all(&self) -> Vec<RecordedRequest> {
        self.kept.iter().cloned().collect()
    }
}
