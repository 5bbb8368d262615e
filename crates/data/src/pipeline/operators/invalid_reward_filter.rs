//! `invalid_reward_filter`: drops missing and non-finite rewards.

use rollway_experience::Experience;
use serde_json::Value;

use super::finite;
use crate::pipeline::{ArgumentError, Operator, OperatorArguments, OperatorError, OperatorOutput};

pub(super) const NAME: &str = "invalid_reward_filter";

/// Drops experiences whose reward is absent, NaN or infinite.
#[derive(Clone, Copy, Debug, Default)]
pub struct InvalidRewardFilter;

impl InvalidRewardFilter {
    pub(super) fn from_args(args: &Value) -> Result<Self, ArgumentError> {
        OperatorArguments::new(NAME, args)?.finish()?;
        Ok(Self)
    }
}

impl Operator for InvalidRewardFilter {
    fn name(&self) -> &str {
        NAME
    }

    fn process(&mut self, experiences: Vec<Experience>) -> Result<OperatorOutput, OperatorError> {
        Ok(OperatorOutput::filter(experiences, |experience| finite(experience.reward).err()))
    }
}
