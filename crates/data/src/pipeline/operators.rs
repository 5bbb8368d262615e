//! The operators that come with the pipeline, and what they have in common.
//!
//! None of them keeps anything from one call to the next.

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

/// The operators that every registry begins with.
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

/// Returns the reward if one can calculate with it, else why not.
fn finite(reward: Option<f64>) -> Result<f64, &'static str> {
    match reward {
        None => Err(MISSING_REWARD),
        Some(reward) if reward.is_nan() => Err(NAN_REWARD),
        Some(reward) if reward.is_infinite() => Err(INFINITE_REWARD),
        Some(reward) => Ok(reward),
    }
}

/// Returns the positions of the experiences of each task, in the order of their first members.
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

/// Mean and standard deviation of rewards.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RewardSpread {
    count: usize,
    mean: f64,
    /// Over n, as NumPy has it.
    std: f64,
}

impl RewardSpread {
    /// Equal rewards have exactly their mean and no deviation. Summing them would give a little
    /// more or less, and a threshold of 0 would not catch them.
    fn of(rewards: &[f64]) -> Self {
        let count = rewards.len();
        match rewards.split_first() {
            Some((&first, rest)) if rest.iter().all(|&reward| reward == first) => {
                Self { count, mean: first, std: 0.0 }
            }
            _ => Self { count, mean: Stat::Mean.of(rewards), std: Stat::Std.of(rewards) },
        }
    }

    /// The standard deviation over n - 1, as `torch.std` has it; none for less than two.
    fn sample_std(&self) -> Option<f64> {
        let count = self.count as f64;
        (self.count > 1).then(|| self.std * (count / (count - 1.0)).sqrt())
    }
}
