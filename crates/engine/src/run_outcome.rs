//! The result of one run, as its runner reports it.

use std::sync::Arc;

use bytes::Bytes;
use rollway_core::FailureKind;
use rollway_core::metrics::Metrics;

/// How a run ended.
#[derive(Clone, Debug)]
pub enum ReportedOutcome {
    /// Well.
    Succeeded {
        /// Its experiences; none in eval.
        payload: Option<Bytes>,
        /// Its metrics.
        metrics: Metrics,
    },
    /// Badly.
    Failed {
        /// In what way.
        kind: FailureKind,
        /// In the words of whoever noticed.
        message: Arc<str>,
    },
}
