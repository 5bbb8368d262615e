//! Metrics of steps, evaluations and the trainer.

use serde::{Deserialize, Serialize};

/// A metric with its first and last value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MetricRow {
    pub name: String,
    /// Number of values.
    pub count: u64,
    pub first: f64,
    pub last: f64,
    /// Step of the last value.
    pub step: u64,
}

/// Values of a metric by step; thinned out when there are many.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MetricSeries {
    pub name: String,
    pub points: Vec<(u64, f64)>,
}
