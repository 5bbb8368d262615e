//! Built-in operators; none keeps state between calls.

mod grpo;
mod invalid_reward_filter;
mod pass_rate_calculator;
mod reward_filter;
mod reward_shaping_mapper;
mod reward_std_filter;

use std::collections::HashMap;

use rollway_core::metrics::Stat;
use rollway_experience::Experience;
use serde_json::Value;

pub use self::grpo::{Grpo, StdLevel};
pub use self::invalid_reward_filter::InvalidRewardFilter;
pub use self::pass_rate_calculator::PassRateCalculator;
pub use self::reward_filter::RewardFilter;
pub use self::reward_shaping_mapper::{RewardShapingMapper, Shaping, ShapingRule};
pub use self::reward_std_filter::RewardStdFilter;
use super::{ArgumentError, Operator};

type Construct = fn(&Value) -> Result<Box<dyn Operator>, ArgumentError>;

/// Operators of every registry.
pub(super) const BUILT_IN: [(&str, Construct); 6] = [
    (grpo::NAME, |args| Ok(Box::new(Grpo::from_args(args)?))),
    (invalid_reward_filter::NAME, |args| Ok(Box::new(InvalidRewardFilter::from_args(args)?))),
    (pass_rate_calculator::NAME, |args| Ok(Box::new(PassRateCalculator::from_args(args)?))),
    (reward_filter::NAME, |args| Ok(Box::new(RewardFilter::from_args(args)?))),
    (reward_shaping_mapper::NAME, |args| Ok(Box::new(RewardShapingMapper::from_args(args)?))),
    (reward_std_filter::NAME, |args| Ok(Box::new(RewardStdFilter::from_args(args)?))),
];

const MISSING_REWARD: &str = "missing_reward";
const NAN_REWARD: &str = "nan_reward";
const INFINITE_REWARD: &str = "infinite_reward";
const GROUP_TOO_SMALL: &str = "group_too_small";
const LOW_STD: &str = "low_std";
/// The experience has no mask of the tokens of the model, which advantages need.
const NO_ACTION_MASK: &str = "no_action_mask";
/// The advantage does not fit `f32`.
const ADVANTAGE_OVERFLOW: &str = "advantage_overflow";

/// Returns a reward that is finite also as `f32`, the type of trainers, or the drop reason.
fn finite(reward: Option<f64>) -> Result<f64, &'static str> {
    match reward {
        None => Err(MISSING_REWARD),
        Some(reward) if reward.is_nan() => Err(NAN_REWARD),
        Some(reward) if (reward as f32).is_infinite() => Err(INFINITE_REWARD),
        Some(reward) => Ok(reward),
    }
}

/// Returns the indices of each task's experiences, in order of first occurrence.
fn groups(experiences: &[Experience]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut numbers = HashMap::new();
    for (position, experience) in experiences.iter().enumerate() {
        let number =
            *numbers.entry((&experience.eid.batch, &experience.eid.task)).or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
        groups[number].push(position);
    }
    groups
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct RewardSpread {
    count: usize,
    mean: f64,
    /// Over n, as in NumPy.
    std: f64,
}

impl RewardSpread {
    /// Equal rewards have exactly their mean and no deviation; summing would deviate slightly, and
    /// a threshold of 0 would not catch them.
    fn of(rewards: &[f64]) -> Self {
        let count = rewards.len();
        match rewards.split_first() {
            Some((&first, rest)) if rest.iter().all(|&reward| reward == first) => {
                Self { count, mean: first, std: 0.0 }
            }
            _ => Self { count, mean: Stat::Mean.of(rewards), std: Stat::Std.of(rewards) },
        }
    }

    /// Standard deviation over n - 1, as `torch.std`. `None` for fewer than two.
    fn sample_std(&self) -> Option<f64> {
        let count = self.count as f64;
        (self.count > 1).then(|| self.std * (count / (count - 1.0)).sqrt())
    }
}
