//! Rules of a number of workers that is scaled by demand.

use super::Check;
use crate::{ClusterBackend, Mode};

const MIN: &str = "cluster.min_workers";
const MAX: &str = "cluster.max_workers";
const IDLE_TIMEOUT_KEY: &str = "cluster.idle_timeout";

impl Check<'_> {
    pub(super) fn scaling(&mut self) {
        let cluster = &self.given.cluster;
        let (min, max) = (cluster.min_workers, cluster.max_workers);
        let key = match (min, max) {
            (None, None) => return self.fixed_size(),
            (Some(_), _) => MIN,
            (None, Some(_)) => MAX,
        };
        if cluster.backend != ClusterBackend::Ray {
            let message = "only `cluster.backend: ray` scales the number of workers";
            let hint = match cluster.backend {
                ClusterBackend::Manual => "start and end workers yourself, or remove the key",
                ClusterBackend::Local | ClusterBackend::Ray => {
                    "remove the key, or set `cluster.backend: ray`"
                }
            };
            return self.add_problem(key, message, hint);
        }
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            let message = format!("{min} is more than `cluster.max_workers`: {max}");
            return self.add_problem(MIN, message, "set it to `cluster.max_workers` or less");
        }
        let runners_per_worker = self.given.explorer.runner_per_worker.max(1);
        let model = &self.given.explorer.rollout_model;
        let runners = model.engines().max(1) * self.given.explorer.runner_per_model;
        let workers = runners.div_ceil(runners_per_worker);
        if let (Some(min), None) = (min, max)
            && min > workers
            && self.given.mode != Mode::Serve
        {
            let message = format!("{min} is more than the {workers} workers that all runners need");
            let hint = "lower it, or set `cluster.max_workers` too";
            self.add_problem(MIN, message, hint);
        }
    }

    fn fixed_size(&mut self) {
        if self.is_chosen(IDLE_TIMEOUT_KEY) {
            let message = "has an effect only with `cluster.min_workers` or `cluster.max_workers`";
            self.warn(IDLE_TIMEOUT_KEY, message, "the number of workers is fixed");
        }
    }
}
