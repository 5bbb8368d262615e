//! How runs end, as spans say it.

use std::sync::Arc;

use super::span::{AttributeValue, SpanStatus};

/// How a run, or an attempt at it, ended.
#[derive(Clone, Debug)]
pub(super) enum SpanOutcome {
    Unfinished,
    Succeeded { reward: Option<f64> },
    Failed { kind: &'static str, message: Arc<str> },
    Cancelled { reason: String },
}

impl SpanOutcome {
    /// Adds how it went to attributes; returns it as a status.
    pub(super) fn tell(&self, attributes: &mut Vec<(&'static str, AttributeValue)>) -> SpanStatus {
        match self {
            Self::Unfinished => {
                attributes.push(unfinished());
                SpanStatus::Open
            }
            Self::Succeeded { reward } => {
                attributes.push(("rollway.outcome", "succeeded".into()));
                attributes.extend(reward.map(|reward| ("rollway.reward", reward.into())));
                SpanStatus::Well
            }
            Self::Failed { kind, message } => {
                attributes.push(("rollway.outcome", "failed".into()));
                attributes.push(("error.type", (*kind).into()));
                SpanStatus::Badly(Arc::clone(message))
            }
            Self::Cancelled { reason } => {
                attributes.push(("rollway.outcome", "cancelled".into()));
                attributes.push(("rollway.cancelled", reason.as_str().into()));
                SpanStatus::Open
            }
        }
    }
}

/// The outcome of what had not ended when the job did.
pub(super) fn unfinished() -> (&'static str, AttributeValue) {
    ("rollway.outcome", "unfinished".into())
}
