//! `explorer.limits`: bounds of the scheduler's memory.

use rollway_core::CoreLimits as Core;

section! {
    /// Bounds of the scheduler's memory. Excess is refused or dropped, and counted.
    pub struct LimitsConfig {
        /// Batches that are neither finalized nor aborted.
        #[schemars(range(min = 1))]
        pub batches: u32 = Core::default().batches,
        /// Tasks that have not ended, over all batches.
        #[schemars(range(min = 1))]
        pub open_tasks: u64 = Core::default().open_tasks,
        /// Runs of one task.
        #[schemars(range(min = 1))]
        pub runs_per_task: u32 = Core::default().runs_per_task,
        /// Requests that wait for a condition.
        #[schemars(range(min = 1))]
        pub waiters: u32 = Core::default().waiters,
        /// Runners of the pool.
        #[schemars(range(min = 1))]
        pub runners: u32 = Core::default().runners,
        /// Bytes of experiences held. Batches behind the first one may fill half of it, so that the
        /// first can always finish.
        #[schemars(range(min = 1))]
        pub payload_bytes: u64 = Core::default().payload_bytes,
        /// Bytes of the experiences of one run.
        #[schemars(range(min = 1))]
        pub payload_bytes_per_run: u64 = Core::default().payload_bytes_per_run,
        /// Bytes of one error message; longer ones are truncated.
        #[schemars(range(min = 1))]
        pub message_bytes: u32 = Core::default().message_bytes,
        /// Metrics of one run; further ones are dropped.
        pub metrics_per_run: u32 = Core::default().metrics_per_run,
        /// Bytes of the name of a metric. A run with a longer one fails as `invalid_output`.
        #[schemars(range(min = 1))]
        pub metric_name_bytes: u32 = 256,
        /// Finalized and aborted batches whose result is remembered.
        pub terminal_batches: u32 = Core::default().terminal_batches,
        /// Workflows with their own dynamic timeout.
        #[schemars(range(min = 1))]
        pub workflows: u32 = Core::default().workflows,
    }
}

impl LimitsConfig {
    pub(super) fn to_core(&self) -> Core {
        Core {
            batches: self.batches,
            open_tasks: self.open_tasks,
            runs_per_task: self.runs_per_task,
            waiters: self.waiters,
            runners: self.runners,
            payload_bytes: self.payload_bytes,
            payload_bytes_per_run: self.payload_bytes_per_run,
            message_bytes: self.message_bytes,
            metrics_per_run: self.metrics_per_run,
            terminal_batches: self.terminal_batches,
            workflows: self.workflows,
        }
    }
}
