//! `reward_filter`: drops low rewards.

use rollway_experience::Experience;
use serde_json::Value;

use super::{MISSING_REWARD, NAN_REWARD};
use crate::pipeline::{ArgumentError, Operator, OperatorArguments, OperatorError, OperatorOutput};

pub(super) const NAME: &str = "reward_filter";

const BELOW_THRESHOLD: &str = "below_threshold";

/// Keeps experiences whose reward is the threshold or more.
#[derive(Clone, Debug)]
pub struct RewardFilter {
    pub threshold: f64,
}

impl RewardFilter {
    pub(super) fn from_args(args: &Value) -> Result<Self, ArgumentError> {
        let mut args = OperatorArguments::new(NAME, args)?;
        let threshold = args.number("threshold", "a number", |_| true)?.unwrap_or(0.0);
        args.finish()?;
        Ok(Self { threshold })
    }
}

impl Operator for RewardFilter {
    fn name(&self) -> &str {
        NAME
    }

    fn process(&mut self, experiences: Vec<Experience>) -> Result<OperatorOutput, OperatorError> {
        Ok(OperatorOutput::filter(experiences, |experience| match experience.reward {
            None => Some(MISSING_REWARD),
            Some(reward) if reward.is_nan() => Some(NAN_REWARD),
            Some(reward) => (reward < self.threshold).then_some(BELOW_THRESHOLD),
        }))
    }
}
