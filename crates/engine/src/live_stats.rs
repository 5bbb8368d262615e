//! Live numbers of an explorer, for whoever draws them several times a second.

use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollway_core::{BatchId, Counters, RunId, RunnerState, TaskId};
use rollway_data::buffer::QueueUsage;
use rollway_gateway::gateway::GatewayHandle;

use crate::coordinator::{CoreSnapshot, RolloutCoordinator};
use crate::loop_lag::LoopLag;
use crate::runner_status::RunnerStatus;
use crate::sink::PipelineSink;

/// Live numbers. Clones are the same; they outlive the explorer, and stand still then.
#[derive(Clone, Debug)]
pub struct LiveStats(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    /// None once the explorer is gone: a pulse keeps nothing alive.
    source: Option<StatsSource>,
    last: StatsSample,
    whole: Arc<MetricsSnapshot>,
}

#[derive(Clone)]
struct StatsSource {
    coordinator: RolloutCoordinator,
    gateway: GatewayHandle,
    sink: Option<Arc<PipelineSink>>,
}

/// Everything that metrics show of an explorer at one moment.
#[derive(Clone, Debug, Default)]
pub struct MetricsSnapshot {
    pub glance: CoreSnapshot,
    pub lag: LoopLag,
    pub buffer: Option<QueueUsage>,
    /// Metrics of the gateway, as OpenMetrics without the line that ends them.
    pub gateway: String,
}

impl Debug for StatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("coordinator", &self.coordinator).finish_non_exhaustive()
    }
}

/// The numbers of a moment, since the process was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsSample {
    /// Runs that wait for a runner.
    pub pending: u64,
    /// Runs under way.
    pub running: u64,
    /// Runs that ended well.
    pub done: u64,
    /// Runs that failed for good.
    pub failed: u64,
    /// Runs that were cancelled.
    pub cancelled: u64,
    /// Runs that were tried again.
    pub retried: u64,
    /// Runners that are up.
    pub runners: u32,
    /// Runners that execute something.
    pub busy: u32,
    pub prompt_tokens: u64,
    pub answer_tokens: u64,
}

impl LiveStats {
    /// Returns live statistics of a coordinator; without a gateway they stay empty.
    pub fn new(
        coordinator: RolloutCoordinator,
        gateway: Option<GatewayHandle>,
        sink: Option<Arc<PipelineSink>>,
    ) -> Self {
        let source = gateway.map(|gateway| StatsSource { coordinator, gateway, sink });
        let (last, whole) = (StatsSample::default(), Arc::default());
        Self(Arc::new(Mutex::new(Inner { source, last, whole })))
    }

    /// Returns the numbers of now; of an explorer that is gone, those of its end.
    pub async fn sample(&self) -> StatsSample {
        let Some(StatsSource { coordinator, gateway, .. }) = self.lock().source.clone() else {
            return self.lock().last;
        };
        let Ok((counters, states)) = coordinator.counters_and_states().await else {
            return self.lock().last;
        };
        let tokens = gateway.tokens();
        let beat = StatsSample {
            prompt_tokens: tokens.prompt,
            answer_tokens: tokens.answer,
            ..StatsSample::of(&counters, &states)
        };
        self.lock().last = beat;
        beat
    }

    /// Returns every runner with what it does now, those that are stuck first; of an explorer that
    /// is gone, none.
    pub async fn runners(&self) -> Vec<RunnerStatus> {
        match self.coordinator() {
            Some(coordinator) => coordinator.runner_states().await.unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// Cancels one run; tells whether there was one to cancel.
    pub async fn cancel_run(&self, batch: BatchId, task: TaskId, run: RunId, why: &str) -> bool {
        match self.coordinator() {
            Some(coordinator) => {
                coordinator.cancel_run(batch, task, run, why).await.unwrap_or(false)
            }
            None => false,
        }
    }

    /// Tells whether there is an explorer behind these numbers.
    pub fn is_live(&self) -> bool {
        self.lock().source.is_some()
    }

    /// Returns what runs are asked of; none: the explorer is gone.
    pub fn coordinator(&self) -> Option<RolloutCoordinator> {
        self.lock().source.as_ref().map(|source| source.coordinator.clone())
    }

    /// Returns everything that metrics show; of an explorer that is gone, as it was at its end.
    pub async fn metrics(&self) -> Arc<MetricsSnapshot> {
        let Some(StatsSource { coordinator, gateway, sink }) = self.lock().source.clone() else {
            return Arc::clone(&self.lock().whole);
        };
        let Ok(glance) = coordinator.snapshot().await else {
            return Arc::clone(&self.lock().whole);
        };
        let whole = Arc::new(MetricsSnapshot {
            glance,
            lag: coordinator.lag(),
            buffer: sink.and_then(|sink| sink.buffer()?.usage()),
            gateway: gateway.metrics(),
        });
        self.lock().whole = Arc::clone(&whole);
        whole
    }

    /// Lets go of the explorer, whose end these numbers are then.
    pub async fn freeze(&self) {
        self.metrics().await;
        self.sample().await;
        self.detach();
    }

    /// Releases the coordinator without a last sample.
    pub fn detach(&self) {
        let source = self.lock().source.take();
        drop(source);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StatsSample {
    fn of(counters: &Counters, states: &[RunnerState]) -> Self {
        let is_up = |state: &RunnerState| match state {
            RunnerState::Idle | RunnerState::Busy(_) | RunnerState::Cancelling(_) => true,
            RunnerState::Starting | RunnerState::Broken | RunnerState::Stopped => false,
        };
        let is_busy = |state: &RunnerState| matches!(state, RunnerState::Busy(_));
        let count = |is: &dyn Fn(&RunnerState) -> bool| {
            u32::try_from(states.iter().filter(|state| is(state)).count()).unwrap_or(u32::MAX)
        };
        let runs = &counters.runs;
        Self {
            pending: runs.pending,
            running: runs.running,
            done: runs.succeeded,
            failed: runs.failed.total(),
            cancelled: runs.cancelled.total(),
            retried: counters.retries.total(),
            runners: count(&is_up),
            busy: count(&is_busy),
            ..Self::default()
        }
    }
}
