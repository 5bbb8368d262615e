//! Test interface of a mock server: inspects its state and injects faults.

use std::sync::Arc;
use std::time::Duration;

use super::faults::MockFault;
use super::generation_state::{CachePressure, GenerationState, MockCounts, Speed};
use super::record::{RecordedRequest, RequestEnd};

/// Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct MockControl {
    pub(super) state: Arc<GenerationState>,
}

impl MockControl {
    pub fn counts(&self) -> MockCounts {
        *self.state.counts.borrow()
    }

    /// Waits until the counts satisfy a condition, and returns them.
    pub async fn wait_for(&self, mut wanted: impl FnMut(&MockCounts) -> bool) -> MockCounts {
        let mut counts = self.state.counts.subscribe();
        loop {
            let now = *counts.borrow_and_update();
            // The state owns the sender, so that it outlives the receiver.
            if wanted(&now) || counts.changed().await.is_err() {
                return now;
            }
        }
    }

    /// Waits until requests are no longer admitted: a pause, a sleep or a weight update.
    pub async fn wait_until_closed(&self) {
        // The state owns the sender, so that it outlives the receiver.
        let _ = self.state.gate.subscribe().wait_for(|gate| !gate.admits()).await;
    }

    /// Returns the admitted requests, oldest first. A running request has the tokens up to its last
    /// halt.
    pub fn records(&self) -> Vec<RecordedRequest> {
        self.state.lock().records.all()
    }

    pub fn record(&self, id: &str) -> Option<RecordedRequest> {
        self.records().into_iter().rev().find(|record| record.id == id)
    }

    /// Returns the ids of the responses that ended in this way.
    pub fn ended(&self, end: RequestEnd) -> Vec<String> {
        let records = self.records().into_iter().filter(|record| record.end == Some(end));
        records.map(|record| record.id).collect()
    }

    /// Returns method, path and query of the latest requests to any endpoint, oldest first.
    pub fn calls(&self) -> Vec<String> {
        self.state.lock().calls.iter().cloned().collect()
    }

    pub fn version(&self) -> u64 {
        self.state.gate.borrow().version
    }

    /// Name by which the server reports the version.
    pub fn version_name(&self) -> String {
        self.state.version_name()
    }

    /// Replaces the weights without a request.
    pub fn set_version(&self, version: u64, name: &str) {
        self.state.gate.send_modify(|gate| {
            gate.version = version;
            gate.name = name.into();
        });
    }

    /// Applies a fault to the next `times` generation requests.
    pub fn inject(&self, fault: MockFault, times: u64) {
        self.state.lock().faults.queue(fault, times);
    }

    pub fn fail_updates(&self, times: u64) {
        self.state.lock().faults.fail_updates(times);
    }

    /// Closes the connection of the next `times` resume requests, which have no effect.
    pub fn lose_resumes(&self, times: u64) {
        self.state.lock().faults.lose_resumes(times);
    }

    /// Returns whether generation is paused.
    pub fn is_paused(&self) -> bool {
        !self.state.gate.borrow().admitting
    }

    /// Pauses generation without a request. Running requests are kept.
    pub fn pause(&self) {
        self.state.gate.send_modify(|gate| {
            gate.admitting = false;
            gate.frozen = true;
        });
    }

    pub fn resume(&self) {
        self.state.resume();
    }

    /// Puts the server to sleep without a request. It is not paused, as vLLM is if another program
    /// resumed it while it slept.
    pub fn fall_asleep(&self) {
        self.state.gate.send_modify(|gate| gate.asleep = true);
    }

    /// Wakes the server up without a request.
    pub fn wake_up(&self) {
        self.state.gate.send_modify(|gate| gate.asleep = false);
        self.state.resume();
    }

    pub fn is_healthy(&self) -> bool {
        self.state.lock().healthy
    }

    pub fn set_healthy(&self, is_healthy: bool) {
        self.state.lock().healthy = is_healthy;
    }

    /// Sets the speed of requests that begin from now on.
    pub fn set_speed(&self, first_token: Duration, tokens_per_second: f64) {
        self.state.lock().speed = Speed::new(first_token, tokens_per_second);
    }

    /// Sets the use of the KV cache and the number of preemptions that the server reports.
    pub fn report_cache(&self, usage: f64, preemptions: u64) {
        self.state.lock().cache_pressure = CachePressure { usage, preemptions };
    }

    /// Stops every choice after `tokens` tokens, until [`Self::release`]. Stopped requests are
    /// counted as frozen.
    pub fn hold(&self, tokens: u32) {
        self.state.gate.send_modify(|gate| gate.hold = Some(tokens));
    }

    pub fn release(&self) {
        self.state.gate.send_modify(|gate| gate.hold = None);
    }
}
