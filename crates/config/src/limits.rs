//! `explorer.limits`: the bounds of everything that is kept.

use rollway_core::CoreLimits as Core;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The bounds of everything that is kept. What exceeds them is refused or dropped, and counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Batches that are neither finalized nor aborted.
    #[schemars(range(min = 1))]
    pub batches: u32,
    /// Tasks that have not ended, over all batches.
    #[schemars(range(min = 1))]
    pub open_tasks: u64,
    /// Runs of one task.
    #[schemars(range(min = 1))]
    pub runs_per_task: u32,
    /// Requests that wait for something.
    #[schemars(range(min = 1))]
    pub waiters: u32,
    /// Runners that are kept alive.
    #[schemars(range(min = 1))]
    pub runners: u32,
    /// Bytes of experiences held. Batches behind the first one may fill half of it, so that the
    /// first can always be finished.
    #[schemars(range(min = 1))]
    pub payload_bytes: u64,
    /// Bytes of the experiences of one run.
    #[schemars(range(min = 1))]
    pub payload_bytes_per_run: u64,
    /// Bytes of one error message; longer ones are cut.
    #[schemars(range(min = 1))]
    pub message_bytes: u32,
    /// Metrics of one run; further ones are dropped.
    pub metrics_per_run: u32,
    /// Finalized and aborted batches whose result is remembered.
    pub terminal_batches: u32,
    /// Workflows that the dynamic timeout tells apart.
    #[schemars(range(min = 1))]
    pub workflows: u32,
}

impl LimitsConfig {
    pub(super) fn to_core(&self) -> Core {
        let Self {
            batches,
            open_tasks,
            runs_per_task,
            waiters,
            runners,
            payload_bytes,
            payload_bytes_per_run,
            message_bytes,
            metrics_per_run,
            terminal_batches,
            workflows,
        } = *self;
        Core {
            batches,
            open_tasks,
            runs_per_task,
            waiters,
            runners,
            payload_bytes,
            payload_bytes_per_run,
            message_bytes,
            metrics_per_run,
            terminal_batches,
            workflows,
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let Core {
            batches,
            open_tasks,
            runs_per_task,
            waiters,
            runners,
            payload_bytes,
            payload_bytes_per_run,
            message_bytes,
            metrics_per_run,
            terminal_batches,
            workflows,
            ..
        } = Core::default();
        Self {
            batches,
            open_tasks,
            runs_per_task,
            waiters,
            runners,
            payload_bytes,
            payload_bytes_per_run,
            message_bytes,
            metrics_per_run,
            terminal_batches,
            workflows,
        }
    }
}
