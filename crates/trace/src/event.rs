//! Events for the trace thread: run events without payloads, and job events.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rollway_core::metrics::Metrics;
use rollway_core::{RunFailure, RunOutput};
use rollway_engine::events::RunEventKind;

use super::span::Nanos;

/// Metric in which runs report their reward.
pub(super) const REWARD: &str = "reward";

/// Messages are truncated to this length.
const MAX_MESSAGE_BYTES: usize = 1024;

#[derive(Clone, Debug)]
pub(super) struct TraceEvent {
    pub(super) at: Nanos,
    pub(super) kind: TraceEventKind,
}

#[derive(Clone, Debug)]
pub(super) enum TraceEventKind {
    Run(RunEventKind),
    StepBegun { step: u64, tasks: u64, runs: u64 },
    StepDone { step: u64, reward: Option<f64> },
    Evaluated { step: u64, version: Option<u64>, set: Arc<str>, score: Option<f64> },
    Synced { step: u64, version: Option<u64>, waited: Nanos, loading: Nanos },
    Trained { step: u64 },
    Info(Arc<str>),
    Stats { pending: u64, running: u64, busy: u32 },
}

impl TraceEventKind {
    /// Copies a run event without its payload, which must not wait in a queue. Of the metrics only
    /// the reward is kept; messages are truncated.
    pub(super) fn of_run(event: &RunEventKind) -> Self {
        Self::Run(match event {
            RunEventKind::RunReported { attempt, run, end } => {
                let end = match end {
                    Ok(RunOutput { metrics, .. }) => {
                        let reward = metrics.get(REWARD).map(|reward| (REWARD, reward));
                        let metrics = reward.into_iter().collect::<Metrics>();
                        Ok(RunOutput { payload: None, metrics })
                    }
                    Err(failure) => {
                        Err(RunFailure { kind: failure.kind, message: truncate(&failure.message) })
                    }
                };
                RunEventKind::RunReported { attempt: *attempt, run: *run, end }
            }
            RunEventKind::AttemptEnded { attempt, lost: Some(message) } => {
                let lost = Some(truncate(message));
                RunEventKind::AttemptEnded { attempt: *attempt, lost }
            }
            event => event.clone(),
        })
    }
}

fn truncate(message: &Arc<str>) -> Arc<str> {
    match message.len() {
        0..=MAX_MESSAGE_BYTES => Arc::clone(message),
        _ => format!("{}…", &message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)]).into(),
    }
}

/// Returns a time in nanoseconds since 1970.
pub(super) fn nanos(at: SystemTime) -> Nanos {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
