//! Live statistics of an explorer, cheap enough to read several times a second.

use std::fmt::{self, Debug};
use std::sync::Arc;

use parking_lot::Mutex;
use rollway_core::{BatchId, Counters, RunId, RunnerState, TaskId};
use rollway_data::buffer::QueueUsage;
use rollway_gateway::gateway::GatewayHandle;
use rollway_gateway::models::ModelView;

use crate::coordinator::{CoreSnapshot, RolloutCoordinator};
use crate::job_wait::{JobWait, JobWaits, WaitReason};
use crate::loop_lag::LoopLag;
use crate::runner_status::RunnerStatus;
use crate::sink::PipelineSink;

/// Live statistics. Cheap to clone; clones share state. They outlive the explorer with its last
/// values.
#[derive(Clone, Debug)]
pub struct LiveStats(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    /// `None` once the explorer has ended.
    source: Option<StatsSource>,
    waits: JobWaits,
    last: StatsSample,
    metrics: Arc<MetricsSnapshot>,
}

#[derive(Clone)]
struct StatsSource {
    coordinator: RolloutCoordinator,
    gateway: GatewayHandle,
    sink: Option<Arc<PipelineSink>>,
}

/// Snapshot of an explorer for metrics.
#[derive(Clone, Debug, Default)]
pub struct MetricsSnapshot {
    pub core: CoreSnapshot,
    pub lag: LoopLag,
    pub buffer: Option<QueueUsage>,
    /// Metrics of the gateway, as OpenMetrics without the end marker.
    pub gateway: String,
}

impl Debug for StatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("coordinator", &self.coordinator).finish_non_exhaustive()
    }
}

/// Counts since the start of the process, and current numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsSample {
    pub pending: u64,
    pub running: u64,
    /// Succeeded runs.
    pub done: u64,
    /// Runs that failed after all retries.
    pub failed: u64,
    pub cancelled: u64,
    pub retried: u64,
    pub runners: u32,
    pub busy: u32,
    pub prompt_tokens: u64,
    pub answer_tokens: u64,
}

impl LiveStats {
    /// Returns statistics of a coordinator; without a gateway they stay empty.
    pub fn new(
        coordinator: RolloutCoordinator,
        gateway: Option<GatewayHandle>,
        sink: Option<Arc<PipelineSink>>,
        waits: JobWaits,
    ) -> Self {
        let source = gateway.map(|gateway| StatsSource { coordinator, gateway, sink });
        let (last, metrics) = (StatsSample::default(), Arc::default());
        Self(Arc::new(Mutex::new(Inner { source, waits, last, metrics })))
    }

    /// Returns the current values, or the last ones of an explorer that has ended.
    pub async fn sample(&self) -> StatsSample {
        let Some(StatsSource { coordinator, gateway, .. }) = self.0.lock().source.clone() else {
            return self.0.lock().last;
        };
        let Ok((counters, states)) = coordinator.counters_and_states().await else {
            return self.0.lock().last;
        };
        let tokens = gateway.tokens();
        let sample = StatsSample {
            prompt_tokens: tokens.prompt,
            answer_tokens: tokens.answer,
            ..StatsSample::of(&counters, &states)
        };
        self.0.lock().last = sample;
        sample
    }

    /// Returns the current wait, with what runners and servers do now. `None`: the job makes
    /// progress, or has ended.
    pub async fn wait(&self) -> Option<JobWait> {
        let (source, waits) = {
            let inner = self.0.lock();
            (inner.source.clone()?, inner.waits.current())
        };
        let (work, others): (Vec<_>, Vec<_>) =
            waits.into_iter().partition(|wait| wait.reason.is_work());
        if let Some(wait) = others.into_iter().next() {
            return Some(wait);
        }
        let mut wait = work.into_iter().next()?;
        let WaitReason::Runs { batch, .. } = &wait.reason else { return Some(wait) };
        let now = source.coordinator.batch_wait(batch.clone()).await?;
        wait.reason = match now.reason {
            // Other runs have not begun, or attempts last as long as usual: this is normal work.
            WaitReason::Runs { .. } if now.pending > 0 || !now.is_overdue => return None,
            reason => reason,
        };
        Some(wait)
    }

    /// Returns the status of every runner, stuck ones first. Empty once the explorer has ended.
    pub async fn runners(&self) -> Vec<RunnerStatus> {
        match self.coordinator() {
            Some(coordinator) => coordinator.runner_states().await.unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// Cancels one run; tells whether it was active.
    pub async fn cancel_run(&self, batch: BatchId, task: TaskId, run: RunId, reason: &str) -> bool {
        match self.coordinator() {
            Some(coordinator) => {
                coordinator.cancel_run(batch, task, run, reason).await.unwrap_or(false)
            }
            None => false,
        }
    }

    /// Returns all models with their servers. Empty once the explorer has ended.
    pub fn models(&self) -> Vec<ModelView> {
        let gateway = self.0.lock().source.as_ref().map(|source| source.gateway.clone());
        gateway.map(|gateway| gateway.models().view()).unwrap_or_default()
    }

    /// Tells whether the explorer still runs.
    pub fn is_live(&self) -> bool {
        self.0.lock().source.is_some()
    }

    /// `None`: the explorer has ended.
    pub fn coordinator(&self) -> Option<RolloutCoordinator> {
        self.0.lock().source.as_ref().map(|source| source.coordinator.clone())
    }

    /// Returns a snapshot for metrics, or the last one of an explorer that has ended.
    pub async fn metrics(&self) -> Arc<MetricsSnapshot> {
        let Some(StatsSource { coordinator, gateway, sink }) = self.0.lock().source.clone() else {
            return Arc::clone(&self.0.lock().metrics);
        };
        let Ok(core) = coordinator.snapshot().await else {
            return Arc::clone(&self.0.lock().metrics);
        };
        let metrics = Arc::new(MetricsSnapshot {
            core,
            lag: coordinator.lag(),
            buffer: sink.and_then(|sink| sink.buffer()?.usage()),
            gateway: gateway.metrics(),
        });
        self.0.lock().metrics = Arc::clone(&metrics);
        metrics
    }

    /// Takes a last sample and releases the explorer.
    pub async fn freeze(&self) {
        self.metrics().await;
        self.sample().await;
        self.detach();
    }

    /// Releases the explorer without a last sample.
    pub fn detach(&self) {
        let source = self.0.lock().source.take();
        drop(source);
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
