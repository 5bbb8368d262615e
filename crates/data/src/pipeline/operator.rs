//! Interface of operators, also for users.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::error::Error;

use rollway_core::metrics::{Metrics, PassRates};
use rollway_experience::Experience;

/// A transformation of the experiences of a batch: filter, change, derive, count.
///
/// The pipeline may repeat a call after a fault or a crash. The output must therefore follow from
/// the experiences alone: no randomness, no clock, no totals across calls; ids of derived
/// experiences follow from their sources.
pub trait Operator: Send {
    /// Returns the name in metrics and errors.
    fn name(&self) -> &str;

    /// Prepares before the first call. May be repeated after an error.
    fn prepare(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    /// Processes experiences. After an error the same experiences come again unchanged.
    fn process(&mut self, experiences: Vec<Experience>) -> Result<OperatorOutput, OperatorError>;

    /// Releases resources of `prepare`.
    fn close(&mut self) {}
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperatorOutput {
    /// Experiences for the next operator, with distinct ids.
    pub experiences: Vec<Experience>,
    /// Metrics under names without a prefix.
    pub metrics: Metrics,
    /// Dropped experiences by reason; the unexplained rest is counted as [`Self::UNEXPLAINED`].
    pub dropped: BTreeMap<Cow<'static, str>, usize>,
    /// Pass rates for the task selectors; usually empty.
    pub selector: PassRates,
}

impl OperatorOutput {
    /// Reason for experiences dropped without one.
    pub const UNEXPLAINED: &'static str = "unexplained";

    /// Returns experiences without anything else.
    pub fn new(experiences: Vec<Experience>) -> Self {
        Self { experiences, ..Self::default() }
    }

    /// Keeps, in order, the experiences without a drop reason.
    pub fn filter<R: Into<Cow<'static, str>>>(
        mut experiences: Vec<Experience>,
        mut reason: impl FnMut(&Experience) -> Option<R>,
    ) -> Self {
        let mut dropped = BTreeMap::new();
        experiences.retain(|experience| match reason(experience) {
            None => true,
            Some(reason) => {
                *dropped.entry(reason.into()).or_default() += 1;
                false
            }
        });
        Self { experiences, dropped, ..Self::default() }
    }
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct OperatorError(Box<dyn Error + Send + Sync>);

impl OperatorError {
    /// Wraps a message or another error.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(error.into())
    }

    /// Returns the wrapped error.
    pub fn into_inner(self) -> Box<dyn Error + Send + Sync> {
        self.0
    }
}
