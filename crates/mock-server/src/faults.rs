//! What goes wrong at a simulated server, because it was told to.

use std::collections::VecDeque;

use super::options::MockServerOptions;
use super::script::mix;

/// Something that happens to a request for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MockFault {
    /// It is refused with this status.
    Status(u16),
    /// The connection is lost before anything is answered.
    Cut,
    /// The connection is lost once a choice has so many tokens.
    CutAfter(u32),
    /// Nothing ever comes.
    Hang,
    /// Nothing comes any more once a choice has so many tokens.
    HangAfter(u32),
    /// The log-probability of the last token of every choice is left out.
    Misalign,
    /// Token ids are left out although they were asked for.
    NoTokenIds,
    /// The answer ends well, but nothing is said about why the choices ended.
    NoFinish,
}

/// Faults that wait for their requests.
#[derive(Debug)]
pub(super) struct Faults {
    queued: VecDeque<(MockFault, u64)>,
    failing_updates: u64,
    seed: u64,
    fail_rate: f64,
    cut_rate: f64,
    seen: u64,
}

impl Faults {
    pub(super) fn new(options: &MockServerOptions) -> Self {
        Self {
            queued: VecDeque::new(),
            failing_updates: 0,
            seed: mix(options.seed, 7),
            fail_rate: options.fail_rate,
            cut_rate: options.cut_rate,
            seen: 0,
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

    /// What happens to the next request: what is queued, else what the rates say.
    pub(super) fn next(&mut self) -> Option<MockFault> {
        self.seen += 1;
        if let Some((fault, times)) = self.queued.front_mut() {
            let fault = *fault;
            *times -= 1;
            if *times == 0 {
                self.queued.pop_front();
            }
            return Some(fault);
        }
        let hash = mix(self.seed, self.seen);
        if chance(hash, self.fail_rate) {
            return Some(MockFault::Status(500));
        }
        let hash = mix(hash, 1);
        chance(hash, self.cut_rate).then(|| MockFault::CutAfter(1 + u32::from(hash as u8 % 8)))
    }

    /// Whether the update of the weights that is about to happen fails.
    pub(super) fn update_fails(&mut self) -> bool {
        let fails = self.failing_updates > 0;
        self.failing_updates = self.failing_updates.saturating_sub(1);
        fails
    }
}

/// Whether something happens that happens with that probability.
pub(super) fn chance(hash: u64, rate: f64) -> bool {
    ((hash >> 11) as f64) < rate * (1_u64 << 53) as f64
}
