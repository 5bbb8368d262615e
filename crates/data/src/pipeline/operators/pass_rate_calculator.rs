//! `pass_rate_calculator`: pass rates for the task selectors.

use std::collections::BTreeMap;

use rollway_core::metrics::{Metrics, PassRate, PassRates, Stat};
use rollway_experience::Experience;
use serde_json::Value;

use super::finite;
use crate::pipeline::{ArgumentError, Operator, OperatorArguments, OperatorError, OperatorOutput};

pub(super) const NAME: &str = "pass_rate_calculator";

/// One run in sixteen, with a margin for rounding.
const RARE_PASS_RATE: f64 = 1.0 / 16.0 + 1e-3;
const FREQUENT_PASS_RATE: f64 = 15.0 / 16.0 - 1e-3;

type Judge = fn(f64) -> bool;

/// Reported shares of the tasks.
const RATIOS: [(&str, Judge); 6] = [
    ("selection/valid_ratio", |rate| 0.0 < rate && rate < 1.0),
    ("selection/strict_valid_ratio", |rate| RARE_PASS_RATE < rate && rate < FREQUENT_PASS_RATE),
    ("selection/<1_ratio", |rate| rate < 1.0),
    ("selection/>0_ratio", |rate| rate > 0.0),
    ("selection/<15_16_ratio", |rate| rate < FREQUENT_PASS_RATE),
    ("selection/>1_16_ratio", |rate| rate > RARE_PASS_RATE),
];

/// Averages the rewards of each task; changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct PassRateCalculator;

impl PassRateCalculator {
    pub(super) fn from_args(args: &Value) -> Result<Self, ArgumentError> {
        OperatorArguments::new(NAME, args)?.finish()?;
        Ok(Self)
    }
}

impl Operator for PassRateCalculator {
    fn name(&self) -> &str {
        NAME
    }

    /// Experiences without task index or finite reward are counted and skipped.
    fn process(&mut self, experiences: Vec<Experience>) -> Result<OperatorOutput, OperatorError> {
        let mut tasks: BTreeMap<(u64, u64), Vec<f64>> = BTreeMap::new();
        let (mut without_index, mut without_reward) = (0_usize, 0_usize);
        for experience in &experiences {
            match (task_index(experience), finite(experience.reward)) {
                (None, _) => without_index += 1,
                (Some(_), Err(_)) => without_reward += 1,
                (Some(task), Ok(reward)) => tasks.entry(task).or_default().push(reward),
            }
        }
        let rate = |((taskset_id, index), rewards): (_, Vec<f64>)| {
            let (value, count) = (Stat::Mean.of(&rewards), rewards.len());
            PassRate { taskset_id, index, value, count }
        };
        let selector: PassRates = tasks.into_iter().map(rate).collect();
        let mut metrics = ratios(&selector);
        metrics.set("selection/missing_index_count", without_index as f64);
        metrics.set("selection/missing_reward_count", without_reward as f64);
        Ok(OperatorOutput { metrics, selector, ..OperatorOutput::new(experiences) })
    }
}

/// Returns the shares; empty without tasks.
fn ratios(selector: &PassRates) -> Metrics {
    if selector.is_empty() {
        return Metrics::new();
    }
    let share = |judge: Judge| {
        let count = selector.iter().filter(|rate| judge(rate.value)).count();
        count as f64 / selector.len() as f64
    };
    RATIOS.into_iter().map(|(name, judge)| (name, share(judge))).collect()
}

fn task_index(experience: &Experience) -> Option<(u64, u64)> {
    let index = experience.info.get("task_index")?;
    Some((index.get("taskset_id")?.as_u64()?, index.get("index")?.as_u64()?))
}
