//! What a configuration file says. Keys and defaults are those that the users of this field know;
//! an unknown key is an error.

use std::path::Path;
use std::time::Duration;

use rollway_core::{Config as Core, DynamicTimeout, FailurePolicy, OverRollout};
use rollway_sim::dice::Rate;
use rollway_sim::job::{Faults, Job};
use serde::Deserialize;

use crate::Failure;

/// A whole configuration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    mode: Mode,
    #[serde(default)]
    buffer: Buffer,
    #[serde(default)]
    algorithm: Algorithm,
    #[serde(default)]
    explorer: Explorer,
    #[serde(default)]
    synchronizer: Synchronizer,
    #[serde(default)]
    simulation: Simulation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Simulate,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Buffer {
    batch_size: u32,
    total_steps: u32,
}

impl Default for Buffer {
    fn default() -> Self {
        Self { batch_size: 1, total_steps: 1 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Algorithm {
    repeat_times: u32,
}

impl Default for Algorithm {
    fn default() -> Self {
        Self { repeat_times: 1 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Explorer {
    runner_per_model: u32,
    max_timeout: f64,
    max_retry_times: u32,
    max_repeat_times_per_runner: Option<u32>,
    over_rollout: Over,
    dynamic_timeout: Dynamic,
}

impl Default for Explorer {
    fn default() -> Self {
        Self {
            runner_per_model: 8,
            max_timeout: 1800.0,
            max_retry_times: 2,
            max_repeat_times_per_runner: None,
            over_rollout: Over::default(),
            dynamic_timeout: Dynamic::default(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Over {
    ratio: f64,
    wait_after_min: f64,
    return_partial_tasks: bool,
}

impl Default for Over {
    fn default() -> Self {
        Self { ratio: 0.0, wait_after_min: 30.0, return_partial_tasks: false }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Dynamic {
    enable: bool,
    warmup_min_steps: u32,
    ratio: f64,
}

impl Default for Dynamic {
    fn default() -> Self {
        Self { enable: false, warmup_min_steps: 1, ratio: 3.0 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Synchronizer {
    sync_interval: u32,
}

impl Default for Synchronizer {
    fn default() -> Self {
        Self { sync_interval: 1 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Simulation {
    seed: u64,
    run_seconds: f64,
    faults: Percents,
}

impl Default for Simulation {
    fn default() -> Self {
        Self { seed: 0, run_seconds: 1.0, faults: Percents::default() }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Percents {
    raise: f64,
    hang: f64,
    crash: f64,
    model_unavailable: f64,
}

/// Reads and checks a configuration.
pub(crate) fn load(path: &Path) -> Result<Config, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::Input(format!("{shown}: {error}\nhint: the path is taken from where you stand"))
    })?;
    let config: Config = serde_saphyr::from_str(&text)
        .map_err(|error| Failure::Input(format!("{shown}: {error}")))?;
    config.job().map_err(|words| Failure::Input(format!("{shown}: {words}")))?;
    Ok(config)
}

impl Config {
    /// Returns the simulated job that the configuration describes.
    pub(crate) fn job(&self) -> Result<Job, String> {
        let Mode::Simulate = self.mode;
        let over = &self.explorer.over_rollout;
        if !(0.0..1.0).contains(&over.ratio) {
            let ratio = over.ratio;
            return Err(format!("explorer.over_rollout.ratio: {ratio} is not in [0, 1)"));
        }
        let batch_size = at_least_one("buffer.batch_size", self.buffer.batch_size)?;
        let min = (f64::from(batch_size) * (1.0 - over.ratio)).ceil() as u32;
        let faults = &self.simulation.faults;
        Ok(Job {
            seed: self.simulation.seed,
            config: self.core()?,
            steps: at_least_one("buffer.total_steps", self.buffer.total_steps)?,
            window: at_least_one("synchronizer.sync_interval", self.synchronizer.sync_interval)?,
            batch_size,
            repeat_times: at_least_one("algorithm.repeat_times", self.algorithm.repeat_times)?,
            min_wait_num: (over.ratio > 0.0).then_some(min),
            run_time: seconds("simulation.run_seconds", self.simulation.run_seconds)?,
            faults: Faults {
                raise: percent("simulation.faults.raise", faults.raise)?,
                hang: percent("simulation.faults.hang", faults.hang)?,
                crash: percent("simulation.faults.crash", faults.crash)?,
                model_unavailable: percent(
                    "simulation.faults.model_unavailable",
                    faults.model_unavailable,
                )?,
            },
        })
    }

    fn core(&self) -> Result<Core, String> {
        let explorer = &self.explorer;
        let max_timeout = seconds("explorer.max_timeout", explorer.max_timeout)?;
        let over = &explorer.over_rollout;
        let wait = seconds("explorer.over_rollout.wait_after_min", over.wait_after_min)?;
        let slice = explorer.max_repeat_times_per_runner;
        let slice = slice
            .map(|most| at_least_one("explorer.max_repeat_times_per_runner", most))
            .transpose()?;
        let dynamic = &explorer.dynamic_timeout;
        if !(dynamic.ratio > 0.0 && dynamic.ratio.is_finite()) {
            let ratio = dynamic.ratio;
            return Err(format!("explorer.dynamic_timeout.ratio: {ratio} is not above 0"));
        }
        Ok(Core {
            runners: at_least_one("explorer.runner_per_model", explorer.runner_per_model)?,
            max_repeat_times_per_runner: slice,
            max_timeout,
            default_timeout: max_timeout.saturating_mul(explorer.max_retry_times.saturating_add(1)),
            failures: FailurePolicy::with_retries(explorer.max_retry_times),
            over_rollout: OverRollout {
                wait_after_min: wait,
                return_partial_tasks: over.return_partial_tasks,
            },
            dynamic_timeout: DynamicTimeout {
                enable: dynamic.enable,
                warmup_min_steps: dynamic.warmup_min_steps,
                ratio: dynamic.ratio,
                ..DynamicTimeout::default()
            },
            ..Core::default()
        })
    }
}

fn at_least_one(key: &str, value: u32) -> Result<u32, String> {
    if value == 0 { Err(format!("{key}: 0 is too few; at least 1 is needed")) } else { Ok(value) }
}

fn seconds(key: &str, value: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| format!("{key}: {value} is no duration; give seconds, 0 or more"))
}

fn percent(key: &str, value: f64) -> Result<Rate, String> {
    if (0.0..=100.0).contains(&value) {
        Ok(Rate((value * 100.0).round() as u32))
    } else {
        Err(format!("{key}: {value} is no percentage; give 0 to 100"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(text: &str) -> Result<Job, String> {
        serde_saphyr::from_str::<Config>(text).map_err(|error| error.to_string())?.job()
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let job = job("mode: simulate").expect("a mode is all that is needed");
        assert_eq!(job.config.runners, 8);
        assert_eq!(job.config.max_timeout, Duration::from_secs(1800));
        assert_eq!(job.config.default_timeout, Duration::from_secs(5400));
        assert_eq!((job.batch_size, job.repeat_times, job.min_wait_num), (1, 1, None));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("mode: dream", "dream"),
            ("mode: simulate\nexplorer:\n  max_timout: 5", "max_timout"),
            ("mode: simulate\nexplorer:\n  max_timeout: -5", "explorer.max_timeout: -5"),
            ("mode: simulate\nbuffer:\n  batch_size: 0", "buffer.batch_size: 0"),
            ("mode: simulate\nexplorer:\n  over_rollout:\n    ratio: 1.0", "ratio: 1"),
            ("mode: simulate\nsimulation:\n  faults:\n    hang: 101", "faults.hang: 101"),
        ] {
            let words = job(text).expect_err(text);
            assert!(words.contains(word), "{words}");
        }
    }
}
