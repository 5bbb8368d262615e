//! `reward_shaping_mapper`: changes rewards by entries of `info`.

use rollway_core::metrics::{Metrics, Stat};
use rollway_experience::Experience;
use serde_json::Value;

use crate::pipeline::{ArgumentError, Operator, OperatorArguments, OperatorError, OperatorOutput};

pub(super) const NAME: &str = "reward_shaping_mapper";

/// Applies rules to every reward, in their order.
#[derive(Clone, Debug)]
pub struct RewardShapingMapper {
    pub rules: Vec<ShapingRule>,
}

/// One step: `reward` ∘ `weight · info[stats_key]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapingRule {
    /// Entry of `info`: a number or a boolean (0 or 1).
    pub stats_key: String,
    pub shaping: Shaping,
    /// Factor of the entry.
    pub weight: f64,
}

/// Operation on a reward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shaping {
    Add,
    Sub,
    Mul,
    /// Skipped if the divisor is 0.
    Div,
}

/// Counts of skipped rules.
#[derive(Default)]
struct Skipped {
    missing_reward: usize,
    missing_stats: usize,
    division_by_zero: usize,
}

impl RewardShapingMapper {
    pub(super) fn from_args(args: &Value) -> Result<Self, ArgumentError> {
        let mut args = OperatorArguments::new(NAME, args)?;
        let key = "reward_shaping_configs";
        let list = args.list(key)?.ok_or_else(|| args.missing(key))?;
        let rules = list.into_iter().map(ShapingRule::from_args).collect::<Result<_, _>>()?;
        args.finish()?;
        Ok(Self { rules })
    }

    fn shape(&self, experience: &Experience, mut reward: f64, skipped: &mut Skipped) -> f64 {
        for rule in &self.rules {
            let Some(stats) = experience.info.get(&rule.stats_key).as_ref().and_then(number) else {
                skipped.missing_stats += 1;
                continue;
            };
            let operand = rule.weight * stats;
            match rule.shaping {
                Shaping::Add => reward += operand,
                Shaping::Sub => reward -= operand,
                Shaping::Mul => reward *= operand,
                Shaping::Div if operand == 0.0 => skipped.division_by_zero += 1,
                Shaping::Div => reward /= operand,
            }
        }
        reward
    }
}

impl ShapingRule {
    fn from_args(mut args: OperatorArguments) -> Result<Self, ArgumentError> {
        let operations = [
            ("ADD", Shaping::Add),
            ("SUB", Shaping::Sub),
            ("MUL", Shaping::Mul),
            ("DIV", Shaping::Div),
        ];
        let stats_key = args.text("stats_key")?.ok_or_else(|| args.missing("stats_key"))?;
        let shaping =
            args.choice("op_type", &operations)?.ok_or_else(|| args.missing("op_type"))?;
        let weight = args.number("weight", "a number", |_| true)?.unwrap_or(1.0);
        args.finish()?;
        Ok(Self { stats_key, shaping, weight })
    }
}

impl Operator for RewardShapingMapper {
    fn name(&self) -> &str {
        NAME
    }

    fn process(
        &mut self,
        mut experiences: Vec<Experience>,
    ) -> Result<OperatorOutput, OperatorError> {
        let mut skipped = Skipped::default();
        let mut differences = Vec::with_capacity(experiences.len());
        for experience in &mut experiences {
            let Some(before) = experience.reward else {
                skipped.missing_reward += 1;
                continue;
            };
            let after = self.shape(experience, before, &mut skipped);
            experience.reward = Some(after);
            differences.push(after - before);
        }
        let mut metrics: Metrics = [
            ("reward_shaping/missing_reward_count", skipped.missing_reward as f64),
            ("reward_shaping/missing_stats_count", skipped.missing_stats as f64),
            ("reward_shaping/division_by_zero_count", skipped.division_by_zero as f64),
        ]
        .into_iter()
        .collect();
        if !differences.is_empty() {
            for stat in [Stat::Mean, Stat::Min, Stat::Max] {
                metrics.set(format!("reward_diff/{}", stat.name()), stat.of(&differences));
            }
        }
        Ok(OperatorOutput { metrics, ..OperatorOutput::new(experiences) })
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_bool().map(|truth| f64::from(u8::from(truth))))
}
