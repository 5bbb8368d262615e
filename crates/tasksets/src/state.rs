//! How far a job is with its tasks: everything that decides which come next.

use serde::{Deserialize, Serialize};

use rollway_config::SelectorType;

/// Version of the state that is written and read. Version 2: orders are drawn with ChaCha8; the
/// cursors of version 1 point into the orders of another generator.
pub(super) const VERSION: u32 = 2;

/// How far a job is with its tasks. As JSON it is exact: the same state gives the same tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TasksetState {
    /// The version of this layout.
    pub version: u32,
    /// Batches that were given out.
    pub steps: u64,
    /// Tasks that were given out.
    pub taken: u64,
    /// The tasksets, in the order of the configuration.
    pub sets: Vec<SetState>,
}

/// How far a job is with one taskset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetState {
    /// Its name, for people.
    pub name: String,
    pub rows: u64,
    /// A hash of what was in its files.
    pub fingerprint: String,
    pub selector: SelectorState,
}

/// How far a selector is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectorState {
    pub selector_type: SelectorType,
    pub seed: u64,
    /// The fields by which it goes.
    pub feature_keys: Vec<String>,
    /// Rows that were given out.
    pub taken: u64,
    /// What it learned, if it is one that learns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimates: Option<EstimateState>,
}

/// What a selector learned about the rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EstimateState {
    /// How much the features count, and where the model stands if that is known.
    #[serde(with = "packed")]
    pub coefficients: Vec<f64>,
    /// The first parameter of the distribution of each row.
    #[serde(with = "packed")]
    pub alphas: Vec<f64>,
    /// The second one.
    #[serde(with = "packed")]
    pub betas: Vec<f64>,
}

impl EstimateState {
    /// Tells whether it can be what was learned about so many rows.
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

/// Numbers as their bits in base 64: short, and exactly the same when they are read again.
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
