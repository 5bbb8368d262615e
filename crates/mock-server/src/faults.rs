//! Injected faults.

use std::collections::VecDeque;

use super::options::MockServerOptions;
use super::script::mix;

/// Fault of one generation request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MockFault {
    /// Error response with this status.
    Status(u16),
    /// Connection closed before the response.
    Cut,
    /// Connection closed after this many tokens of a choice.
    CutAfter(u32),
    /// No response.
    Hang,
    /// No more events after this many tokens of a choice.
    HangAfter(u32),
    /// No log-probability for the last token of every choice.
    Misalign,
    /// No token ids, although requested.
    NoTokenIds,
    /// A complete response without finish reasons.
    NoFinish,
}

#[derive(Debug)]
pub(super) struct Faults {
    queued: VecDeque<(MockFault, u64)>,
    failing_updates: u64,
    lost_resumes: u64,
    seed: u64,
    fail_rate: f64,
    cut_rate: f64,
    requests: u64,
}

impl Faults {
    pub(super) fn new(options: &MockServerOptions) -> Self {
        Self {
            queued: VecDeque::new(),
            failing_updates: 0,
            lost_resumes: 0,
            seed: mix(options.seed, 7),
            fail_rate: options.fail_rate,
            cut_rate: options.cut_rate,
            requests: 0,
        }
    }

    pub(super) fn queue(&mut self, fault: MockFault, times: u64) {
        if times > 0 {
            self.queued.push_back((fault, times));
        }
    }

    pub(super) fn fail_updates(&mut self, times: u64) {
        self.failing_updates = times;
    }

    pub(super) fn lose_resumes(&mut self, times: u64) {
        self.lost_resumes = times;
    }

    pub(super) fn resume_is_lost(&mut self) -> bool {
        let is_lost = self.lost_resumes > 0;
        self.lost_resumes = self.lost_resumes.saturating_sub(1);
        is_lost
    }

    /// Returns the fault of the next request: a queued one, else by the configured rates.
    pub(super) fn next(&mut self) -> Option<MockFault> {
        self.requests += 1;
        if let Some((fault, times)) = self.queued.front_mut() {
            let fault = *fault;
            *times -= 1;
            if *times == 0 {
                self.queued.pop_front();
            }
            return Some(fault);
        }
        let hash = mix(self.seed, self.requests);
        if chance(hash, self.fail_rate) {
            return Some(MockFault::Status(500));
        }
        let hash = mix(hash, 1);
        chance(hash, self.cut_rate).then(|| MockFault::CutAfter(1 + u32::from(hash as u8 % 8)))
    }

    pub(super) fn update_fails(&mut self) -> bool {
        let fails = self.failing_updates > 0;
        self.failing_updates = self.failing_updates.saturating_sub(1);
        fails
    }
}

pub(super) fn chance(hash: u64, rate: f64) -> bool {
    ((hash >> 11) as f64) < rate * (1_u64 << 53) as f64
}
