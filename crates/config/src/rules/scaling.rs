//! Rules about a number of workers that follows the work.

use super::Check;
use crate::{ClusterBackend, Mode};

const MIN: &str = "cluster.min_workers";
const MAX: &str = "cluster.max_workers";
const IDLE_TIMEOUT_KEY: &str = "cluster.idle_timeout";

impl Check<'_> {
    pub(super) fn scaling(&mut self) {
        let cluster = &self.given.cluster;
        let (min, max) = (cluster.min_workers, cluster.max_workers);
        let (key, _) = match (min, max) {
            (None, None) => return self.nothing_scales(),
            (Some(min), _) => (MIN, min),
            (None, Some(max)) => (MAX, max),
        };
        if cluster.backend != ClusterBackend::Ray {
            let what = "only Ray starts and ends workers as they are needed";
            let hint = match cluster.backend {
                ClusterBackend::Manual => {
                    "start and end them yourself; the job takes whoever comes"
                }
                ClusterBackend::Local | ClusterBackend::Ray => {
                    "leave it out, or set `cluster.backend: ray`"
                }
            };
            return self.wrong(key, what, hint);
        }
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            let what = format!("{min} workers at least are more than {max} at most");
            return self.wrong(MIN, what, "set it to `cluster.max_workers` or less");
        }
        let together = self.given.explorer.runner_per_worker.max(1);
        let model = &self.given.explorer.rollout_model;
        let runners = model.engines().max(1) * self.given.explorer.runner_per_model;
        let workers = runners.div_ceil(together);
        if let (Some(min), None) = (min, max)
            && min > workers
            && self.given.mode != Mode::Serve
        {
            let what = format!("{min} workers at least, and there are runners for {workers}");
            let hint = "set `cluster.max_workers` too: it says how many there may be";
            self.wrong(MIN, what, hint);
        }
    }

    fn nothing_scales(&mut self) {
        if self.is_chosen(IDLE_TIMEOUT_KEY) {
            let what = "only counts with `cluster.min_workers` or `cluster.max_workers`";
            self.warn(
                IDLE_TIMEOUT_KEY,
                what,
                "there are as many workers as there are runners for, always",
            );
        }
    }
}
