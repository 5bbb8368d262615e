//! `reward_std_filter`: drops tasks with similar rewards.

use rollway_experience::Experience;
use serde_json::Value;

use super::{GROUP_TOO_SMALL, LOW_STD, RewardSpread, finite, groups};
use crate::pipeline::{ArgumentError, Operator, OperatorArguments, OperatorError, OperatorOutput};

pub(super) const NAME: &str = "reward_std_filter";

/// Keeps tasks with two or more experiences whose rewards differ by more than the threshold.
#[derive(Clone, Debug)]
pub struct RewardStdFilter {
    /// The standard deviation (over n) that must be exceeded.
    pub threshold: f64,
}

impl RewardStdFilter {
    pub(super) fn from_args(args: &Value) -> Result<Self, ArgumentError> {
        let mut args = OperatorArguments::new(NAME, args)?;
        let threshold = args.number("threshold", "a number, 0 or greater", |t| t >= 0.0)?;
        args.finish()?;
        Ok(Self { threshold: threshold.unwrap_or(0.0) })
    }

    fn drop_reason(&self, rewards: &[f64]) -> Option<&'static str> {
        if rewards.len() < 2 {
            return Some(GROUP_TOO_SMALL);
        }
        (RewardSpread::of(rewards).std <= self.threshold).then_some(LOW_STD)
    }
}

impl Operator for RewardStdFilter {
    fn name(&self) -> &str {
        NAME
    }

    /// Experiences without finite reward are dropped; their task is judged by the others.
    fn process(&mut self, experiences: Vec<Experience>) -> Result<OperatorOutput, OperatorError> {
        let rewards: Vec<_> = experiences.iter().map(|one| finite(one.reward)).collect();
        let mut reasons: Vec<_> = rewards.iter().map(|reward| reward.err()).collect();
        for group in groups(&experiences) {
            let valid: Vec<f64> = group.iter().filter_map(|&at| rewards[at].ok()).collect();
            let reason = self.drop_reason(&valid);
            for at in group {
                reasons[at] = reasons[at].or(reason);
            }
        }
        let mut reasons = reasons.into_iter();
        Ok(OperatorOutput::filter(experiences, |_| reasons.next().flatten()))
    }
}
