//! Estimated difficulty of each row for the current model.
//!
//! The features of a row are the pass rates of a weak and a strong model. Observations locate the
//! model between the two, which predicts the pass rates of unseen rows. Observations and
//! predictions update the beta distribution of each row's pass rate.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Beta, Gumbel};

use super::arguments::DifficultyArguments;
use crate::state::EstimateState;

/// Weight of the previous capability estimate.
const ESTIMATE_DECAY: f64 = 0.9;

/// Avoids a division by zero where both models are equally good.
const TINY: f64 = 1e-6;

/// Mean error from which the features count as misleading.
const MISLEADING: f64 = 0.25;

#[derive(Debug)]
pub(super) struct DifficultyEstimates {
    arguments: DifficultyArguments,
    features: Vec<[f64; 2]>,
    rho: f64,
    /// Position of the model: 0 as good as the weak, 1 as good as the strong one.
    capability: Option<f64>,
    alphas: Vec<f64>,
    betas: Vec<f64>,
}

impl DifficultyEstimates {
    pub(super) fn new(features: Vec<[f64; 2]>, arguments: DifficultyArguments) -> Self {
        let ones = vec![1.0; features.len()];
        let rho = arguments.rho;
        Self { arguments, features, rho, capability: None, alphas: ones.clone(), betas: ones }
    }

    /// Returns distinct rows with a pass rate near the target.
    pub(super) fn choose(&self, rng: &mut ChaCha8Rng, count: u32) -> Vec<u32> {
        let DifficultyArguments { target_reward, tau, do_sample, .. } = self.arguments;
        let rates = self.alphas.iter().zip(&self.betas).map(|(alpha, beta)| {
            let mean = alpha / (alpha + beta);
            // Degenerate parameters describe a certain rate.
            let distribution = do_sample.then(|| Beta::new(*alpha, *beta).ok()).flatten();
            distribution.map_or(mean, |beta| rng.sample(beta))
        });
        let mut scores: Vec<f64> = rates.map(|rate| -(target_reward - rate).abs()).collect();
        if let (true, Ok(noise)) = (tau > 0.0, Gumbel::new(0.0, 1.0)) {
            // Gumbel top-k: a sample without replacement of the softmax.
            for score in &mut scores {
                *score = *score / tau + rng.sample(noise);
            }
        }
        let better = |one: &u32, other: &u32| {
            let (a, b) = (scores[*one as usize], scores[*other as usize]);
            b.total_cmp(&a).then(one.cmp(other))
        };
        let mut rows: Vec<u32> = (0..scores.len() as u32).collect();
        let count = count as usize;
        if count < rows.len() {
            rows.select_nth_unstable_by(count, better);
            rows.truncate(count);
        }
        rows.sort_unstable_by(better);
        rows
    }

    /// Updates the estimates with pass rates, at most one per row.
    pub(super) fn update(&mut self, observed: &[(u32, f64)]) {
        if observed.is_empty() {
            return;
        }
        let mean = |of: &dyn Fn(&(u32, f64)) -> f64| {
            observed.iter().map(of).sum::<f64>() / observed.len() as f64
        };
        let feature = |which: usize| mean(&|(row, _)| self.features[*row as usize][which]);
        let (low, high) = (feature(0), feature(1));
        let seen = (mean(&|(_, rate)| *rate) - low) / (high - low + TINY);
        let capability = match self.capability {
            Some(known) => ESTIMATE_DECAY * known + (1.0 - ESTIMATE_DECAY) * seen,
            None => seen,
        };
        self.capability = Some(capability);
        let expected = |[low, high]: [f64; 2]| ((high - low) * capability + low).clamp(0.0, 1.0);
        let error = mean(&|(row, rate)| (expected(self.features[*row as usize]) - rate).abs());
        if self.arguments.adaptive_rho && error >= MISLEADING {
            self.rho *= 0.5;
        }
        let DifficultyArguments { m, lamb, .. } = self.arguments;
        let mut observed = observed.iter().peekable();
        for (row, features) in self.features.iter().enumerate() {
            let seen = observed.next_if(|(at, _)| *at as usize == row).map(|(_, rate)| *rate);
            let prior = seen.unwrap_or_else(|| expected(*features));
            let (passed, failed) = seen.map_or((0.0, 0.0), |rate| (rate * m, (1.0 - rate) * m));
            let move_to = |old: f64, seen: f64, prior: f64| {
                (1.0 - lamb) * old + lamb + (1.0 - self.rho) * seen + self.rho * prior * m
            };
            self.alphas[row] = move_to(self.alphas[row], passed, prior);
            self.betas[row] = move_to(self.betas[row], failed, 1.0 - prior);
        }
    }

    pub(super) fn state(&self) -> EstimateState {
        let coefficients = std::iter::once(self.rho).chain(self.capability).collect();
        let (alphas, betas) = (self.alphas.clone(), self.betas.clone());
        EstimateState { coefficients, alphas, betas }
    }

    /// Resumes from a state that fits. The configured `rho` counts unless it adapts.
    pub(super) fn restore(&mut self, state: &EstimateState) {
        self.capability = state.coefficients.get(1).copied();
        if self.arguments.adaptive_rho {
            self.rho = state.coefficients[0];
        }
        self.alphas.clone_from(&state.alphas);
        self.betas.clone_from(&state.betas);
    }
}

#[cfg(test)]
mod tests {
    use super::super::arguments;
    use super::*;
    use rollway_config::Args;

    use crate::rng::rng;

    fn arguments(pairs: &[(&str, serde_json::Value)]) -> DifficultyArguments {
        let args: Args = pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        arguments::read(&args).unwrap()
    }

    #[test]
    fn estimates_follow_the_equations() {
        let features = vec![[0.2, 0.6], [0.0, 1.0], [0.5, 0.5]];
        let mut estimates = DifficultyEstimates::new(features, arguments(&[("m", 4.into())]));
        estimates.update(&[(0, 0.5)]);
        let capability = (0.5 - 0.2) / (0.4 + 1e-6);
        assert!((estimates.capability.unwrap() - capability).abs() < 1e-12);
        // 0.8 of the old, 0.2 anew, 0.8 of what was seen, 0.2 of what is expected.
        let expected = |passed: f64, prior: f64| 0.8 + 0.2 + 0.8 * passed + 0.2 * prior * 4.0;
        let alphas = [expected(2.0, 0.5), expected(0.0, capability), expected(0.0, 0.5)];
        let betas = [expected(2.0, 0.5), expected(0.0, 1.0 - capability), expected(0.0, 0.5)];
        let near = |found: &[f64], expected: &[f64]| {
            found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12)
        };
        assert!(near(&estimates.alphas, &alphas), "{:?} {alphas:?}", estimates.alphas);
        assert!(near(&estimates.betas, &betas), "{:?} {betas:?}", estimates.betas);

        estimates.update(&[(1, 1.0)]);
        let capability = 0.9 * capability + 0.1 * (1.0 / (1.0 + 1e-6));
        assert!((estimates.capability.unwrap() - capability).abs() < 1e-12);
    }

    #[test]
    fn features_that_mislead_are_trusted_less() {
        let features = vec![[0.1, 0.9], [0.1, 0.9]];
        let mut adaptive =
            DifficultyEstimates::new(features.clone(), arguments(&[("adaptive_rho", true.into())]));
        adaptive.update(&[(0, 0.0), (1, 1.0)]);
        assert_eq!(adaptive.rho, 0.1);
        let mut fixed = DifficultyEstimates::new(features, arguments(&[]));
        fixed.update(&[(0, 0.0), (1, 1.0)]);
        assert_eq!(fixed.rho, 0.2);
    }

    #[test]
    fn without_chance_the_nearest_rows_are_chosen() {
        let features = vec![[0.0, 1.0]; 4];
        let pairs = [("tau", 0.into()), ("target_reward", 0.5.into())];
        let mut estimates = DifficultyEstimates::new(features, arguments(&pairs));
        estimates.update(&[(0, 1.0), (1, 0.5), (2, 0.0), (3, 0.6)]);
        assert_eq!(estimates.choose(&mut rng(1, 1), 2), [1, 3]);
    }
}
