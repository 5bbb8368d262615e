//! Adam with gradient clipping by norm.

/// Hyperparameters of the optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub learning_rate: f32,
    /// Maximum norm of the gradient.
    pub max_norm: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
}

impl Default for Rate {
    fn default() -> Self {
        Self { learning_rate: 5e-4, max_norm: 1.0, beta1: 0.9, beta2: 0.99 }
    }
}

/// State of the optimizer.
#[derive(Clone, Debug)]
pub(crate) struct Adam {
    pub(crate) means: Vec<f32>,
    pub(crate) squares: Vec<f32>,
    pub(crate) steps: u64,
}

impl Adam {
    pub(crate) fn new(parameters: usize) -> Self {
        Self { means: vec![0.0; parameters], squares: vec![0.0; parameters], steps: 0 }
    }

    /// Updates the parameters. Returns the norm of the gradient before clipping.
    pub(crate) fn step(&mut self, values: &mut [f32], gradient: &[f32], rate: &Rate) -> f32 {
        let norm = gradient.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        let norm = norm as f32;
        let clip = if norm > rate.max_norm { rate.max_norm / norm } else { 1.0 };
        self.steps += 1;
        let steps = self.steps as f32;
        let (mean, square) = (1.0 - rate.beta1.powf(steps), 1.0 - rate.beta2.powf(steps));
        let moments = self.means.iter_mut().zip(&mut self.squares);
        for ((value, gradient), (m, s)) in values.iter_mut().zip(gradient).zip(moments) {
            let gradient = gradient * clip;
            *m = rate.beta1 * *m + (1.0 - rate.beta1) * gradient;
            *s = rate.beta2 * *s + (1.0 - rate.beta2) * gradient * gradient;
            *value -= rate.learning_rate * (*m / mean) / ((*s / square).sqrt() + 1e-8);
        }
        norm
    }
}
