//! The way into a simulated server for tests: to see what it saw and made, and to make it fail.

use std::sync::Arc;
use std::time::Duration;

use super::faults::MockFault;
use super::generation_state::{GenerationState, MockCounts, Speed};
use super::record::{RecordedRequest, RequestEnd};

/// A way into a server. Clones lead to the same one.
#[derive(Clone, Debug)]
pub struct MockControl {
    pub(super) state: Arc<GenerationState>,
}

impl MockControl {
    /// What goes on, in numbers.
    pub fn counts(&self) -> MockCounts {
        *self.state.counts.borrow()
    }

    /// Waits until the numbers are as wanted.
    pub async fn wait_for(&self, mut wanted: impl FnMut(&MockCounts) -> bool) -> MockCounts {
        let mut counts = self.state.counts.subscribe();
        loop {
            let now = *counts.borrow_and_update();
            // The sender lives in the engine, so that it never goes away before us.
            if wanted(&now) || counts.changed().await.is_err() {
                return now;
            }
        }
    }

    /// Waits until no request is begun any more: a pause, a sleep or an update.
    pub async fn wait_until_closed(&self) {
        // The sender lives in the engine, so that it never goes away before us.
        let _ = self.state.gate.subscribe().wait_for(|gate| !gate.admits()).await;
    }

    /// The requests for answers that were taken in, oldest first, with what was said to them. Of
    /// one that is being answered, what was said until it last came to a halt.
    pub fn records(&self) -> Vec<RecordedRequest> {
        self.state.lock().records.all()
    }

    /// The record of the answer with that id.
    pub fn record(&self, id: &str) -> Option<RecordedRequest> {
        self.records().into_iter().rev().find(|record| record.id == id)
    }

    /// The ids of the answers that ended in that way.
    pub fn ended(&self, how: RequestEnd) -> Vec<String> {
        let records = self.records().into_iter().filter(|record| record.end == Some(how));
        records.map(|record| record.id).collect()
    }

    /// What was called: method, path and query, oldest first; as many as there are records at most.
    pub fn calls(&self) -> Vec<String> {
        self.state.lock().calls.iter().cloned().collect()
    }

    /// The version of the weights.
    pub fn version(&self) -> u64 {
        self.state.gate.borrow().version
    }

    /// What the server calls them.
    pub fn version_name(&self) -> String {
        self.state.version_name()
    }

    /// Replaces the weights behind everybody's back.
    pub fn set_version(&self, version: u64, name: &str) {
        self.state.gate.send_modify(|gate| {
            gate.version = version;
            gate.name = name.into();
        });
    }

    /// Lets something happen to the next `times` requests for answers.
    pub fn inject(&self, fault: MockFault, times: u64) {
        self.state.lock().faults.queue(fault, times);
    }

    /// Lets the next updates of the weights fail.
    pub fn fail_updates(&self, times: u64) {
        self.state.lock().faults.fail_updates(times);
    }

    /// Says whether the server is well when it is asked.
    pub fn set_healthy(&self, is_healthy: bool) {
        self.state.lock().healthy = is_healthy;
    }

    /// Changes the speed of answers that are begun from now on.
    pub fn set_speed(&self, first_token: Duration, tokens_per_second: f64) {
        self.state.lock().speed = Speed::new(first_token, tokens_per_second);
    }

    /// Lets no choice have more than `tokens` tokens, until [`Self::release`]. Answers that wait
    /// for that are counted as frozen.
    pub fn hold(&self, tokens: u32) {
        self.state.gate.send_modify(|gate| gate.hold = Some(tokens));
    }

    /// Lets held answers go on.
    pub fn release(&self) {
        self.state.gate.send_modify(|gate| gate.hold = None);
    }
}
