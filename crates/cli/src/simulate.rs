//! Mode `simulate`: from the configuration to a job in virtual time.

use rollway::config::{Config, Faults};
use rollway_sim::dice::Rate;
use rollway_sim::job::{Faults as Rates, Job};

/// Returns the simulated job that a checked configuration describes.
pub(crate) fn job(config: &Config) -> Job {
    let Faults { raise, hang, crash, model_unavailable } = config.simulation.faults;
    let buffer = &config.buffer;
    Job {
        seed: config.simulation.seed,
        config: config.to_core(config.explorer.runner_per_model),
        steps: buffer.total_steps.unwrap_or(1),
        window: config.synchronizer.sync_interval,
        batch_size: buffer.batch_size,
        repeat_times: config.algorithm.repeat_times,
        min_wait_num: config.explorer.over_rollout.min_wait_num(buffer.batch_size),
        run_time: config.simulation.run_seconds.0,
        faults: Rates {
            raise: rate(raise),
            hang: rate(hang),
            crash: rate(crash),
            model_unavailable: rate(model_unavailable),
        },
    }
}

fn rate(percent: f64) -> Rate {
    Rate((percent * 100.0).round() as u32)
}
