//! How the work that was given out differs from the work that is trained on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Lengths and durations of runs by what became of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BiasReport {
    /// What was measured: `tokens`, `seconds`.
    pub fields: Vec<String>,
    /// For each field, the groups by name: `dispatched`, `trained`, `failed`, `cancelled`.
    pub groups: BTreeMap<String, FieldBias>,
}

/// The groups of one field, by name.
pub type FieldBias = BTreeMap<String, BiasGroup>;

/// What was measured of a group of runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BiasGroup {
    /// How many runs.
    pub count: u64,
    pub mean: Option<f64>,
    /// A tenth of the runs have less.
    pub p10: Option<f64>,
    /// Half of the runs have less.
    pub p50: Option<f64>,
    /// Nine tenths of the runs have less.
    pub p90: Option<f64>,
    /// How many runs there are in each range. All groups of a field have the same ranges.
    pub histogram: Vec<HistogramBin>,
}

/// The runs whose value is in a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistogramBin {
    /// From here on,
    pub from: f64,
    /// up to here, and less.
    pub to: f64,
    pub count: u64,
}
