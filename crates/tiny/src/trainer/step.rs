//! One training step.

use std::collections::{BTreeMap, HashMap};

use rollway_experience::{Experience, ExperienceKind};
use rollway_tiny_model::{GrpoConfig, ModelTrainer, Rate, TrainSample, TrainStepReport};

/// Hyperparameters of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainConfig {
    pub rate: Rate,
    /// Its temperature is that of the calls that made the samples.
    pub grpo: GrpoConfig,
    /// Added to the divisor of advantages.
    pub epsilon: f64,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self { rate: Rate::default(), grpo: GrpoConfig::default(), epsilon: 1e-6 }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainStepMetrics {
    /// The first is 1. A step without trainable samples counts.
    pub step: u64,
    pub model: TrainStepReport,
    pub experiences: u64,
    pub learned: u64,
    /// Untrained experiences by reason.
    pub skipped: BTreeMap<&'static str, u64>,
    pub tasks: u64,
    /// Mean reward.
    pub reward: Option<f64>,
    /// Oldest model version among the experiences.
    pub oldest_version: Option<u64>,
}

/// Reasons for skipping an experience.
const WRONG_KIND: &str = "wrong_kind";
const NO_LOGPROBS: &str = "no_logprobs";
const NO_REWARD: &str = "no_reward";
/// Longer than the model's context.
const TOO_LONG: &str = "too_long";
const UNKNOWN_TOKEN: &str = "unknown_token";
/// Its numbers are not finite, or not as many as its tokens.
const BROKEN: &str = "broken";
/// No token of the model, or no advantage over the other experiences of the task.
const NOTHING_TO_LEARN: &str = "nothing_to_learn";

/// Makes one step of GRPO. Advantages of the experiences are used as they are; missing ones are
/// computed from the rewards of the same task.
///
/// The same experiences give the same step, bit by bit, in any order and with any assignment to the
/// runs of a task.
pub fn step(
    trainer: &mut ModelTrainer,
    experiences: &[Experience],
    recipe: &TrainConfig,
) -> TrainStepMetrics {
    let mut experiences: Vec<(String, &Experience)> =
        experiences.iter().map(|experience| (experience.eid.tid(), experience)).collect();
    // Sorted by content, not by run.
    experiences.sort_by_cached_key(|(task, experience)| {
        let reward = experience.reward.map(f64::to_bits);
        let logprobs = experience.logprobs.as_ref();
        let logprobs = logprobs.map(|logprobs| logprobs.iter().map(f32::to_bits).collect());
        let logprobs = logprobs.unwrap_or_else(Vec::new);
        (task.clone(), experience.tokens.to_vec(), reward, logprobs, weight(experience).to_bits())
    });
    let mut groups: HashMap<&str, Vec<f64>> = HashMap::new();
    for (task, experience) in &experiences {
        let rewards = groups.entry(task).or_default();
        rewards.extend(experience.reward.filter(|reward| reward.is_finite()));
    }
    let mut report = TrainStepMetrics {
        experiences: experiences.len() as u64,
        tasks: groups.len() as u64,
        reward: mean(experiences.iter().filter_map(|(_, experience)| experience.reward)),
        oldest_version: experiences.iter().filter_map(|(_, it)| oldest(it)).min(),
        ..TrainStepMetrics::default()
    };
    let shape = trainer.weights().shape();
    let mut samples = Vec::with_capacity(experiences.len());
    for (task, experience) in &experiences {
        let rewards = groups.get(task.as_str()).map_or(&[][..], Vec::as_slice);
        match sample(experience, rewards, recipe, (shape.vocabulary, shape.context)) {
            Ok(sample) => samples.push(sample),
            Err(reason) => *report.skipped.entry(reason).or_default() += 1,
        }
    }
    report.learned = samples.len() as u64;
    report.model = trainer.reinforce(&samples, &recipe.grpo, &recipe.rate);
    report
}

/// Converts an experience to a sample, or returns the reason to skip it.
fn sample(
    experience: &Experience,
    rewards: &[f64],
    recipe: &TrainConfig,
    (vocabulary, context): (usize, usize),
) -> Result<TrainSample, &'static str> {
    if experience.kind() == ExperienceKind::Dpo {
        return Err(WRONG_KIND);
    }
    // The last token is not an input of the model.
    if experience.tokens.len() > context + 1 {
        return Err(TOO_LONG);
    }
    let token = |id: i32| u32::try_from(id).ok().filter(|id| (*id as usize) < vocabulary);
    let tokens: Option<Vec<u32>> = experience.tokens.iter().map(token).collect();
    let tokens = tokens.ok_or(UNKNOWN_TOKEN)?;
    let (prompt_length, length) = (experience.prompt_length, experience.response_length());
    if prompt_length == 0 {
        return Err(BROKEN);
    }
    let logprobs = experience.logprobs.as_ref().ok_or(NO_LOGPROBS)?.to_vec();
    let mask = match &experience.action_mask {
        Some(mask) => mask.to_vec(),
        None => vec![true; length],
    };
    let mut advantages = match &experience.advantages {
        Some(advantages) => advantages.to_vec(),
        None => vec![advantage(experience.reward, rewards, recipe.epsilon)?; length],
    };
    let weight = weight(experience);
    advantages.iter_mut().for_each(|advantage| *advantage *= weight);
    if [mask.len(), logprobs.len(), advantages.len()] != [length; 3]
        || !logprobs.iter().chain(&advantages).all(|number| number.is_finite())
    {
        return Err(BROKEN);
    }
    if !mask.iter().zip(&advantages).any(|(own, advantage)| *own && *advantage != 0.0) {
        return Err(NOTHING_TO_LEARN);
    }
    Ok(TrainSample { tokens, prompt_length, mask, logprobs, advantages })
}

/// Weight that the gateway gave an experience of a run with branches or sub-agents.
fn weight(experience: &Experience) -> f32 {
    let weight = experience.info.get("weight").and_then(|weight| weight.as_f64());
    weight.unwrap_or(1.0) as f32
}

/// Advantage over the other experiences of the task, like the operator `grpo`.
fn advantage(reward: Option<f64>, rewards: &[f64], epsilon: f64) -> Result<f32, &'static str> {
    let reward = reward.ok_or(NO_REWARD)?;
    if !reward.is_finite() {
        return Err(BROKEN);
    }
    let count = rewards.len() as f64;
    let (mean, divisor) = match mean(rewards.iter().copied()) {
        Some(mean) if rewards.len() > 1 => {
            let squares: f64 = rewards.iter().map(|reward| (reward - mean).powi(2)).sum();
            (mean, (squares / (count - 1.0)).sqrt())
        }
        _ => (0.0, 1.0),
    };
    let difference = reward - mean;
    Ok(if difference == 0.0 { 0.0 } else { (difference / (divisor + epsilon)) as f32 })
}

fn mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = numbers.fold((0.0, 0_u64), |(sum, count), x| (sum + x, count + 1));
    (count > 0).then(|| sum / count as f64)
}

fn oldest(experience: &Experience) -> Option<u64> {
    experience.model_versions.as_ref().and_then(|versions| versions.oldest())
}
