//! The contract between the pipeline and its operators, which users write too.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::error::Error;

use rollway_core::metrics::{Metrics, PassRates};
use rollway_experience::Experience;

/// Something that is done to the experiences of a batch: filter, change, derive, count.
///
/// The pipeline may hand in the same experiences again, after a fault or a crash. So the outcome
/// has to follow from the experiences alone: no chance, no clock, no totals over calls, and derived
/// experiences get ids that follow from those they come from.
pub trait Operator: Send {
    /// Returns its short name, which appears in metrics and errors.
    fn name(&self) -> &str;

    /// Gets ready, before the first experiences come. After an error it may be called again.
    fn prepare(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    /// Does its work. After an error the same experiences come again, as they were.
    fn process(&mut self, experiences: Vec<Experience>) -> Result<OperatorOutput, OperatorError>;

    /// Lets go of what `prepare` took. No experiences come after it.
    fn close(&mut self) {}
}

/// What an operator made of experiences.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperatorOutput {
    /// What goes on to the next operator; every id at most once.
    pub experiences: Vec<Experience>,
    /// Numbers for the monitor, under names without a prefix.
    pub metrics: Metrics,
    /// How many experiences are missing from `experiences`, by reason. Those that no reason is
    /// given for are counted as [`Self::UNEXPLAINED`].
    pub dropped: BTreeMap<Cow<'static, str>, usize>,
    /// What the selectors of tasks should learn; usually nothing.
    pub selector: PassRates,
}

impl OperatorOutput {
    /// The reason of experiences that an operator left out without a word.
    pub const UNEXPLAINED: &'static str = "unexplained";

    /// Hands on experiences, with nothing else to say.
    pub fn new(experiences: Vec<Experience>) -> Self {
        Self { experiences, ..Self::default() }
    }

    /// Hands on, in their order, the experiences for which `reason` finds none to drop them.
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

/// Why an operator could not do its work.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct OperatorError(Box<dyn Error + Send + Sync>);

impl OperatorError {
    /// Makes an error of a message or of another error, which [`into_inner`](Self::into_inner)
    /// gives back.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(error.into())
    }

    /// Returns the error that it was made of.
    pub fn into_inner(self) -> Box<dyn Error + Send + Sync> {
        self.0
    }
}
