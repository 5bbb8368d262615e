//! What every request may need.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use rollway_base::Secret;
use rollway_experience::{Experience, serialize_many};
use rollway_model_api::ClientApi;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::agents::AgentSessions;
use super::calls_in_flight::CallsInFlight;
use super::metrics::{self, GatewayMetrics};
use super::run_sessions::OpenRuns;
use super::turn_store::TurnStore;
use crate::call_observer::CallObserver;
use crate::keys::{KeyRing, RunRef};
use crate::models::Models;
use crate::options::{ExtraMetrics, GatewayOptions, TokenCounts};
use crate::recording::RecordError;

/// The gateway behind the router.
#[derive(Debug)]
pub(crate) struct GatewayState {
    pub(crate) options: GatewayOptions,
    pub(crate) keys: KeyRing,
    pub(crate) models: Models,
    pub(super) runs: OpenRuns,
    pub(super) guests: AgentSessions,
    pub(super) metrics: GatewayMetrics,
    pub(super) history: Option<Arc<dyn TurnStore>>,
    /// Whose numbers are shown below the gateway's own.
    pub(crate) further: OnceLock<Arc<dyn ExtraMetrics>>,
    /// Calls of runs that are under way.
    pub(crate) board: Arc<CallsInFlight>,
    /// Places for calls.
    pub(super) places: Arc<Semaphore>,
    /// What is under way besides connections: streams, and requests that abort others.
    pub(crate) tasks: TaskTracker,
    /// Everything that is under way is to end.
    pub(crate) stopping: CancellationToken,
    /// What the ids of answers begin with, so that those of two gateways differ.
    prefix: String,
    next_id: AtomicU64,
}

impl GatewayState {
    pub(crate) fn new(
        mut options: GatewayOptions,
        models: Models,
        history: Option<Arc<dyn TurnStore>>,
    ) -> io::Result<Self> {
        let board = Arc::new(CallsInFlight::new(options.watcher.take()));
        options.watcher = Some(Arc::clone(&board) as Arc<dyn CallObserver>);
        let stopping = CancellationToken::new();
        let mut prefix = Secret::random()?.reveal().to_owned();
        prefix.truncate(16);
        Ok(Self {
            keys: KeyRing::new(options.admin_key.clone())?,
            runs: OpenRuns::new(options.record, stopping.clone()),
            guests: AgentSessions::new(stopping.clone()),
            metrics: GatewayMetrics::new(models.clone(), history.as_deref()),
            places: Arc::new(Semaphore::new(
                options.limits.max_in_flight.min(Semaphore::MAX_PERMITS),
            )),
            tasks: TaskTracker::new(),
            next_id: AtomicU64::new(1),
            options,
            models,
            history,
            further: OnceLock::new(),
            board,
            stopping,
            prefix,
        })
    }

    /// Returns an id that no other answer has.
    pub(super) fn new_id(&self, api: &dyn ClientApi) -> String {
        let number = self.next_id.fetch_add(1, Ordering::Relaxed);
        format!("{}-{}{number:08x}", api.id_prefix(), self.prefix)
    }

    /// Lets the runs of an attempt in.
    pub(crate) fn open(&self, attempt: u64, first_run: u32, runs: u32) {
        self.runs.open(attempt, first_run, runs);
    }

    /// Ends an attempt.
    pub(crate) fn close(&self, attempt: u64) {
        self.runs.close(attempt);
    }

    /// Returns how many tokens went through.
    pub(crate) fn tokens(&self) -> TokenCounts {
        self.metrics.token_counts()
    }

    /// Returns the numbers as OpenMetrics, without the line that ends them.
    pub(crate) fn metrics(&self) -> String {
        // Writing to a text does not fail.
        metrics::text(self).unwrap_or_default()
    }

    /// Returns the experiences of a run as a payload, from turn `since` on, and the number of
    /// turns.
    pub(crate) fn experiences(&self, run: RunRef, since: u64) -> Result<(Bytes, u64), RecordError> {
        let Some(session) = self.runs.existing(run) else {
            return Ok((serialized(&[])?, 0));
        };
        let recorder = session.recorder();
        let experiences = recorder.experiences(since)?;
        let turns = recorder.turns();
        drop(recorder);
        Ok((serialized(&experiences)?, turns))
    }
}

fn serialized(experiences: &[Experience]) -> Result<Bytes, RecordError> {
    serialize_many(experiences).map_err(|error| RecordError::Misread(error.to_string()))
}
