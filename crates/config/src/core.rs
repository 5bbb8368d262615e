//! Conversion to the configuration of the core.

use rollway_core::{CoreConfig, DynamicTimeout, OverRollout, ScalingBounds};

use super::Config;
use super::cluster::ClusterBackend;
use super::explorer::ConcurrentMode;

impl Config {
    /// Returns the configuration of the core for this many supervised runners. The default timeout
    /// of a wait is the longest time that a task may need with all its retries.
    pub fn to_core(&self, runners: u32) -> CoreConfig {
        let explorer = &self.explorer;
        let max_timeout = explorer.max_timeout.0;
        let scaling = self.scaling(runners);
        let (train, eval) = explorer.batch.to_core();
        // `ratio` of `over_rollout` is part of each batch: see `min_wait_num`.
        let (over_rollout, dynamic) = (&explorer.over_rollout, &explorer.dynamic_timeout);
        CoreConfig {
            runners_per_worker: self.explorer.runner_per_worker.max(1),
            // A scaled pool starts with the minimum.
            runners: scaling.map_or(runners, |bounds| bounds.min),
            scaling,
            max_repeat_times_per_runner: explorer.max_repeat_times_per_runner,
            runs_in_turn: explorer.concurrent_mode == ConcurrentMode::Sequential,
            max_timeout,
            default_timeout: max_timeout.saturating_mul(explorer.max_retry_times.saturating_add(1)),
            failures: explorer.failures.to_core(explorer.max_retry_times),
            over_rollout: OverRollout {
                wait_after_min: over_rollout.wait_after_min.into(),
                return_partial_tasks: over_rollout.return_partial_tasks,
            },
            train,
            eval,
            dynamic_timeout: DynamicTimeout {
                enable: dynamic.enable,
                warmup_min_steps: dynamic.warmup_min_steps,
                min_samples: dynamic.min_samples,
                window: dynamic.window,
                ratio: dynamic.ratio,
                floor: dynamic.floor.into(),
            },
            supervision: explorer.supervision.to_core(),
            delivery_timeout: explorer.delivery_timeout.into(),
            limits: explorer.limits.to_core(),
            ledger: false,
            epoch: 0,
        }
    }

    /// Returns the bounds of the number of runners, in whole workers. `None`: the number is fixed.
    fn scaling(&self, runners: u32) -> Option<ScalingBounds> {
        let cluster = &self.cluster;
        let (min, max) = (cluster.min_workers, cluster.max_workers);
        if cluster.backend != ClusterBackend::Ray || min.or(max).is_none() {
            return None;
        }
        let runners_per_worker = self.explorer.runner_per_worker.max(1);
        let runners_of = |workers: u32| workers.saturating_mul(runners_per_worker);
        let max = max.map_or(runners, runners_of);
        let min = runners_of(min.unwrap_or(1)).min(max);
        let idle_timeout = cluster.idle_timeout.into();
        Some(ScalingBounds { min, max, runners_per_worker, idle_timeout })
    }
}
