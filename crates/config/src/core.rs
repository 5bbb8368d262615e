//! What the core is told of a configuration.

use rollway_core::{
    CoreConfig as Core, DynamicTimeout as CoreTimeout, OverRollout as CoreOver, ScalingBounds,
};

use super::Config;
use super::cluster::ClusterBackend;
use super::explorer::{ConcurrentMode, DynamicTimeoutConfig, OverRolloutConfig};

impl Config {
    /// Returns the configuration of the core for this many supervised runners. Whoever waits
    /// without a time waits for as long as a task may need with all its retries.
    pub fn to_core(&self, runners: u32) -> Core {
        let explorer = &self.explorer;
        let max_timeout = explorer.max_timeout.0;
        let scaling = self.scaling(runners);
        Core {
            // A pool that follows the work begins with the fewest.
            runners: scaling.map_or(runners, |bounds| bounds.min),
            scaling,
            max_repeat_times_per_runner: explorer.max_repeat_times_per_runner,
            runs_in_turn: explorer.concurrent_mode == ConcurrentMode::Sequential,
            max_timeout,
            default_timeout: max_timeout.saturating_mul(explorer.max_retry_times.saturating_add(1)),
            failures: explorer.failures.to_core(explorer.max_retry_times),
            over_rollout: explorer.over_rollout.to_core(),
            train: explorer.batch.train.to_core(),
            eval: explorer.batch.eval.to_core(),
            dynamic_timeout: explorer.dynamic_timeout.to_core(),
            supervision: explorer.supervision.to_core(),
            delivery_timeout: explorer.delivery_timeout.into(),
            limits: explorer.limits.to_core(),
            ledger: false,
            epoch: 0,
        }
    }

    /// Returns the bounds between which the number of runners follows the work, if it does: whole
    /// workers, and for so many runners if nothing else is said.
    fn scaling(&self, runners: u32) -> Option<ScalingBounds> {
        let cluster = &self.cluster;
        let (least, most) = (cluster.min_workers, cluster.max_workers);
        if cluster.backend != ClusterBackend::Ray || least.or(most).is_none() {
            return None;
        }
        let together = self.explorer.runner_per_worker.max(1);
        let runners_of = |workers: u32| workers.saturating_mul(together);
        let max = most.map_or(runners, runners_of);
        let min = runners_of(least.unwrap_or(1)).min(max);
        Some(ScalingBounds {
            min,
            max,
            runners_per_worker: together,
            idle_timeout: cluster.idle_timeout.into(),
        })
    }
}

impl OverRolloutConfig {
    fn to_core(&self) -> CoreOver {
        // How many tasks are enough is said with each batch: see `min_wait_num`.
        let Self { ratio: _, wait_after_min, return_partial_tasks } = *self;
        CoreOver { wait_after_min: wait_after_min.into(), return_partial_tasks }
    }
}

impl DynamicTimeoutConfig {
    fn to_core(&self) -> CoreTimeout {
        let Self { enable, warmup_min_steps, ratio, min_samples, window, floor } = *self;
        CoreTimeout { enable, warmup_min_steps, min_samples, window, ratio, floor: floor.into() }
    }
}
