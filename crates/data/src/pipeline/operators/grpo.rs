//! `grpo`: advantages of experiences relative to the other experiences of their task.

use rollway_core::metrics::{BATCH_STATS, Metrics, gather_metrics};
use rollway_experience::{Array, Experience};
use serde_json::Value;

use super::{
    ADVANTAGE_OVERFLOW, GROUP_TOO_SMALL, LOW_STD, NO_ACTION_MASK, RewardSpread, finite, groups,
};
use crate::pipeline::{ArgumentError, Operator, OperatorArguments, OperatorError, OperatorOutput};

pub(super) const NAME: &str = "grpo";

/// Sets advantages and returns to (reward − mean of the task) / (standard deviation + epsilon) for
/// the tokens of the model, and to 0 for the others. The standard deviation is over n − 1.
///
/// Equal rewards give 0. With the deviation of the group, a reward alone in its group is divided
/// by 1 + epsilon, or dropped if there is a `std_threshold`.
#[derive(Clone, Debug, PartialEq)]
pub struct Grpo {
    /// Added to the divisor.
    pub epsilon: f64,
    /// Groups with this standard deviation or less are dropped.
    pub std_threshold: Option<f64>,
    pub std_level: StdLevel,
    /// Groups with fewer members are dropped.
    pub min_group_size: usize,
}

/// Scope of the standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdLevel {
    /// Rewards of the task.
    Group,
    /// All rewards of the call.
    Batch,
}

impl Default for Grpo {
    fn default() -> Self {
        let std_level = StdLevel::Group;
        Self { epsilon: 1e-6, std_threshold: None, std_level, min_group_size: 1 }
    }
}

impl Grpo {
    pub(super) fn from_args(args: &Value) -> Result<Self, ArgumentError> {
        let defaults = Self::default();
        let levels = [("group", StdLevel::Group), ("batch", StdLevel::Batch)];
        let natural = "a number, 0 or greater";
        let mut args = OperatorArguments::new(NAME, args)?;
        let grpo = Self {
            epsilon: args.number("epsilon", natural, |e| e >= 0.0)?.unwrap_or(defaults.epsilon),
            std_threshold: args.number("std_threshold", natural, |t| t >= 0.0)?,
            std_level: args.choice("std_cal_level", &levels)?.unwrap_or(defaults.std_level),
            min_group_size: args.count("min_group_size", 1)?.unwrap_or(defaults.min_group_size),
        };
        args.refuse("duplicate_experiences", "no experience is trained twice; leave it out")?;
        args.refuse("rank_penalty", "write an operator that changes rewards before `grpo`")?;
        args.finish()?;
        Ok(grpo)
    }

    /// Returns the drop reason of a group.
    fn drop_reason(&self, spread: &RewardSpread) -> Option<&'static str> {
        if spread.count < self.min_group_size {
            return Some(GROUP_TOO_SMALL);
        }
        let threshold = self.std_threshold?;
        match spread.sample_std() {
            None => Some(GROUP_TOO_SMALL),
            Some(std) => (std <= threshold).then_some(LOW_STD),
        }
    }

    fn advantage(&self, reward: f64, group: &RewardSpread, batch: &RewardSpread) -> f64 {
        let mean = if group.count > 1 { group.mean } else { 0.0 };
        let spread = match self.std_level {
            StdLevel::Group => group,
            StdLevel::Batch => batch,
        };
        let difference = reward - mean;
        // Without an epsilon a difference of 0 would be divided by 0.
        if difference == 0.0 {
            return 0.0;
        }
        difference / (spread.sample_std().unwrap_or(1.0) + self.epsilon)
    }
}

impl Operator for Grpo {
    fn name(&self) -> &str {
        NAME
    }

    fn process(
        &mut self,
        mut experiences: Vec<Experience>,
    ) -> Result<OperatorOutput, OperatorError> {
        let rewards: Vec<_> = experiences.iter().map(reward).collect();
        let all: Vec<f64> = rewards.iter().filter_map(|reward| reward.ok()).collect();
        let batch = RewardSpread::of(&all);
        let mut reasons: Vec<_> = rewards.iter().map(|reward| reward.err()).collect();
        let mut spreads = Vec::new();
        for group in groups(&experiences) {
            let valid = group.iter().filter_map(|&at| Some((at, rewards[at].ok()?)));
            let (members, rewards): (Vec<usize>, Vec<f64>) = valid.unzip();
            let spread = RewardSpread::of(&rewards);
            let reason = self.drop_reason(&spread);
            for (&at, &reward) in members.iter().zip(&rewards) {
                let advantage = self.advantage(reward, &spread, &batch);
                reasons[at] = reason.or_else(|| set(&mut experiences[at], advantage).err());
            }
            spreads.push(spread);
        }
        let mut reasons = reasons.into_iter();
        let outcome = OperatorOutput::filter(experiences, |_| reasons.next().flatten());
        Ok(OperatorOutput { metrics: metrics(&spreads), ..outcome })
    }
}

/// Returns the reward of an experience that can have advantages, or the drop reason.
fn reward(experience: &Experience) -> Result<f64, &'static str> {
    let reward = finite(experience.reward)?;
    experience.action_mask.as_ref().map(|_| reward).ok_or(NO_ACTION_MASK)
}

/// Sets advantages and returns, or returns the drop reason.
fn set(experience: &mut Experience, advantage: f64) -> Result<(), &'static str> {
    let mask = experience.action_mask.as_ref().ok_or(NO_ACTION_MASK)?;
    let advantage = advantage as f32;
    if !advantage.is_finite() {
        return Err(ADVANTAGE_OVERFLOW);
    }
    let advantages: Array<f32> =
        mask.iter().map(|is_own| if is_own { advantage } else { 0.0 }).collect();
    experience.returns = Some(advantages.clone());
    experience.advantages = Some(advantages);
    Ok(())
}

/// Describes the groups with rewards, including dropped ones.
fn metrics(spreads: &[RewardSpread]) -> Metrics {
    let groups: Vec<Metrics> = spreads
        .iter()
        .filter(|spread| spread.count > 0)
        .map(|spread| {
            let std = spread.sample_std().map(|std| ("reward_std", std));
            std.into_iter().chain([("reward_mean", spread.mean)]).collect()
        })
        .collect();
    let mut metrics = gather_metrics(&groups, "group_advantages", &BATCH_STATS);
    let single = spreads.iter().filter(|spread| spread.count == 1).count();
    metrics.set("group_advantages/single_member_groups", single as f64);
    metrics
}
