//! Selection bias: dispatched runs compared with those that are trained on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Lengths and durations of runs by outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BiasReport {
    /// `tokens`, `seconds`.
    pub fields: Vec<String>,
    /// By field, then by group: `dispatched`, `trained`, `failed`, `cancelled`.
    pub groups: BTreeMap<String, FieldBias>,
}

pub type FieldBias = BTreeMap<String, BiasGroup>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BiasGroup {
    pub count: u64,
    pub mean: Option<f64>,
    pub p10: Option<f64>,
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    /// All groups of a field have the same bins.
    pub histogram: Vec<HistogramBin>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistogramBin {
    pub from: f64,
    /// Exclusive.
    pub to: f64,
    pub count: u64,
}
