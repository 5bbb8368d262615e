//! State shared by all requests.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use rollway_experience::{Experience, serialize_many};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::agents::AgentSessions;
use super::byte_budget::MemoryBudget;
use super::calls_in_flight::CallsInFlight;
use super::exact_history::ExactSupport;
use super::metrics::{self, GatewayMetrics};
use super::recorded_bytes::RecordedBytes;
use super::run_sessions::OpenRuns;
use super::turn_store::TurnStore;
use crate::call_observer::CallObserver;
use crate::keys::{KeyRing, RunRef};
use crate::models::Models;
use crate::options::{ExtraMetrics, GatewayOptions};
use rollway_recording::RecordError;

#[derive(Debug)]
pub(crate) struct GatewayState {
    pub(crate) options: GatewayOptions,
    pub(crate) keys: KeyRing,
    pub(crate) models: Models,
    pub(crate) runs: OpenRuns,
    pub(super) agents: AgentSessions,
    pub(crate) metrics: GatewayMetrics,
    pub(super) history: Option<Arc<dyn TurnStore>>,
    /// Metrics of others that `GET /metrics` appends.
    pub(crate) further: OnceLock<Arc<dyn ExtraMetrics>>,
    pub(crate) calls_in_flight: Arc<CallsInFlight>,
    pub(super) exact_support: ExactSupport,
    pub(super) permits: Arc<Semaphore>,
    pub(super) recorded: Arc<RecordedBytes>,
    pub(super) requests: Arc<MemoryBudget>,
    pub(super) responses: Arc<MemoryBudget>,
    /// Background tasks: streams and aborts.
    pub(crate) tasks: TaskTracker,
    /// Cancels everything in flight.
    pub(crate) stopping: CancellationToken,
}

impl GatewayState {
    pub(crate) fn new(
        mut options: GatewayOptions,
        models: Models,
        history: Option<Arc<dyn TurnStore>>,
    ) -> io::Result<Self> {
        let calls_in_flight = Arc::new(CallsInFlight::new(options.watcher.take()));
        options.watcher = Some(Arc::clone(&calls_in_flight) as Arc<dyn CallObserver>);
        let stopping = CancellationToken::new();
        let recorded = RecordedBytes::new(options.limits.recorded_bytes);
        Ok(Self {
            keys: KeyRing::new(options.admin_key.clone(), options.agent_key.clone())?,
            runs: OpenRuns::new(
                options.record,
                Arc::clone(&recorded),
                options.seed,
                stopping.clone(),
            ),
            agents: AgentSessions::new(Arc::clone(&recorded), stopping.clone()),
            recorded,
            metrics: GatewayMetrics::new(models.clone(), history.as_deref()),
            permits: Arc::new(Semaphore::new(options.limits.calls.min(Semaphore::MAX_PERMITS))),
            requests: MemoryBudget::new(options.limits.request_bytes),
            responses: MemoryBudget::new(options.limits.response_bytes),
            tasks: TaskTracker::new(),
            options,
            models,
            history,
            further: OnceLock::new(),
            calls_in_flight,
            exact_support: ExactSupport::default(),
            stopping,
        })
    }

    /// Returns the metrics as OpenMetrics, without the final line.
    pub(crate) fn metrics(&self) -> String {
        // Writing to a string cannot fail.
        metrics::text(self).unwrap_or_default()
    }

    /// Returns the experiences of a run from turn `since` on as a payload, and the number of turns.
    pub(crate) fn experiences(&self, run: RunRef, since: u64) -> Result<(Bytes, u64), RecordError> {
        let Some(session) = self.runs.existing(run) else {
            return Ok((serialized(&[])?, 0));
        };
        let recorder = session.recorder();
        let experiences = recorder.weighted_experiences(since, &self.options.weights)?;
        let turns = recorder.turns();
        drop(recorder);
        Ok((serialized(&experiences)?, turns))
    }

    /// Returns the model versions of the recorded tokens of a run. `None`: no turn was recorded.
    pub(crate) fn recorded_versions(&self, run: RunRef) -> Option<BTreeSet<u64>> {
        self.runs.existing(run)?.recorder().versions().cloned()
    }
}

fn serialized(experiences: &[Experience]) -> Result<Bytes, RecordError> {
    serialize_many(experiences).map_err(|error| RecordError::Misread(error.to_string()))
}
