//! Recorded requests and tokens, for tests that compare them with what a client received.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;

#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub number: u64,
    /// Id of the response.
    pub id: String,
    pub path: &'static str,
    pub body: Arc<Value>,
    /// Token ids of the prompts; a chat has one.
    pub prompts: Vec<Vec<i32>>,
    /// Choices of the first prompt, then of the next.
    pub choices: Vec<RecordedChoice>,
    /// `None`: still running.
    pub end: Option<RequestEnd>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedChoice {
    pub tokens: Vec<RecordedToken>,
    pub finish_reason: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RecordedToken {
    pub id: i32,
    pub logprob: f32,
    pub version: u64,
    pub version_name: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    Complete,
    Aborted,
    /// The client disconnected.
    Left,
    /// An injected fault.
    Failed,
}

#[derive(Debug)]
pub(super) struct Records {
    records: VecDeque<RecordedRequest>,
    max: usize,
}

impl Records {
    pub(super) const fn new(max: usize) -> Self {
        Self { records: VecDeque::new(), max }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.max > 0
    }

    /// Adds a record, and returns the number of dropped ones.
    pub(super) fn push(&mut self, record: RecordedRequest) -> u64 {
        let mut dropped = 0;
        while self.records.len() >= self.max.max(1) {
            self.records.pop_front();
            dropped += 1;
        }
        self.records.push_back(record);
        dropped
    }

    /// Returns a record by its number. The numbers of records are consecutive.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut RecordedRequest> {
        let first = self.records.front()?.number;
        let index = usize::try_from(number.checked_sub(first)?).ok()?;
        self.records.get_mut(index)
    }

    pub(super) fn all(&self) -> Vec<RecordedRequest> {
        self.records.iter().cloned().collect()
    }
}
