//! Staleness of the experiences of a step.

use rollway_core::metrics::Metrics;

/// Versions between the experiences of a step and the newest weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Staleness {
    pub(crate) mean: f64,
    pub(crate) max: f64,
}

impl Staleness {
    /// Returns the staleness of a step. `None`: its experiences have no versions.
    pub(crate) fn of(metrics: &Metrics, newest: u64) -> Option<Self> {
        let mean = metrics.get("rollout/model_version")?;
        let oldest = metrics.get("rollout/model_version/min").unwrap_or(mean);
        let newest = newest as f64;
        Some(Self { mean: (newest - mean).max(0.0), max: (newest - oldest).max(0.0) })
    }
}
