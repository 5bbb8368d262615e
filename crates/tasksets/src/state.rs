//! Saved progress of a job in its tasksets.

use serde::{Deserialize, Serialize};

use rollway_config::SelectorType;

/// Version of the state. Version 2 draws orders with ChaCha8; cursors of version 1 point into
/// orders of another generator.
pub(super) const VERSION: u32 = 2;

/// Progress of a job in its tasksets. Exact as JSON: the same state gives the same tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TasksetState {
    pub version: u32,
    /// Number of batches returned.
    pub steps: u64,
    /// Number of tasks returned.
    pub taken: u64,
    /// Tasksets in the order of the configuration.
    pub sets: Vec<SetState>,
}

/// Progress in one taskset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetState {
    /// Informational.
    pub name: String,
    pub rows: u64,
    /// Hash of the files' content.
    pub fingerprint: String,
    pub selector: SelectorState,
}

/// Progress of a selector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectorState {
    pub selector_type: SelectorType,
    pub seed: u64,
    pub feature_keys: Vec<String>,
    /// Number of rows returned.
    pub taken: u64,
    /// Estimates of `difficulty_based`; `None` for other selectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimates: Option<EstimateState>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EstimateState {
    /// `rho` and, if known, the capability of the model.
    #[serde(with = "packed")]
    pub coefficients: Vec<f64>,
    /// First parameter of each row's beta distribution.
    #[serde(with = "packed")]
    pub alphas: Vec<f64>,
    /// Second parameter.
    #[serde(with = "packed")]
    pub betas: Vec<f64>,
}

impl EstimateState {
    /// Returns whether these can be the estimates of this many rows.
    pub(super) fn fits(&self, rows: usize) -> bool {
        let all_above_zero = |list: &[f64]| list.iter().all(|it| it.is_finite() && *it > 0.0);
        let rho = self.coefficients.first().copied().unwrap_or(f64::NAN);
        self.alphas.len() == rows
            && self.betas.len() == rows
            && all_above_zero(&self.alphas)
            && all_above_zero(&self.betas)
            && self.coefficients.len() <= 2
            && self.coefficients.iter().all(|it| it.is_finite())
            && (0.0..=1.0).contains(&rho)
    }
}

/// Floats as base64 of their bits: short and exact.
mod packed {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(list: &[f64], to: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = list.iter().flat_map(|number| number.to_le_bytes()).collect();
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = STANDARD.decode(text).map_err(D::Error::custom)?;
        let (numbers, rest) = bytes.as_chunks::<8>();
        match rest {
            [] => Ok(numbers.iter().map(|number| f64::from_le_bytes(*number)).collect()),
            _ => Err(D::Error::custom("numbers of eight bytes each were expected")),
        }
    }
}
