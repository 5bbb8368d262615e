//! Ids of batches and the order in which batches are served.

use std::fmt;
use std::sync::Arc;

/// User-chosen id of a batch: a step number, or a text such as `12/gsm8k`.
///
/// `Number(1)` and `Text("1")` are different batches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BatchId {
    /// A train batch by convention: the explore step.
    Number(i64),
    /// An eval batch by convention: `<step>/<name>`.
    Text(Arc<str>),
}

impl BatchId {
    /// Returns the sort key of the batch; smaller is served first.
    ///
    /// A number comes before the texts that begin with it, these before the next number, and texts
    /// without a number come last. Batches of equal priority are served in order of arrival.
    pub fn priority(&self) -> BatchPriority {
        match self {
            Self::Number(number) => {
                BatchPriority { step: BatchStep::At(i128::from(*number)), text: false }
            }
            Self::Text(text) => {
                let digits =
                    text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                let step = match &text[..digits] {
                    "" => BatchStep::Last,
                    // Numbers with more digits than fit are larger than every other number.
                    number => BatchStep::At(number.parse().unwrap_or(i128::MAX)),
                };
                BatchPriority { step, text: true }
            }
        }
    }

    /// Returns the name under which metrics of an eval batch are reported: the part behind the
    /// first slash, or the whole id.
    pub fn eval_name(&self) -> String {
        let whole = self.to_string();
        match whole.split_once('/') {
            Some((_, name)) => name.to_owned(),
            None => whole,
        }
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl From<i64> for BatchId {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for BatchId {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

/// Sort key of a batch id; see [`BatchId::priority`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchPriority {
    pub step: BatchStep,
    /// Texts come after the number that they begin with.
    pub text: bool,
}

/// Number at the start of a batch id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BatchStep {
    At(i128),
    /// No number: after all numbers.
    Last,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_the_documented_one() {
        let mut ids: Vec<BatchId> = ["z", "10/x", "2/b", "2", "2/a"].map(BatchId::from).to_vec();
        ids.extend([3, 2, -1, 1].map(BatchId::from));
        ids.sort_by_key(BatchId::priority);
        let order: Vec<String> = ids.iter().map(ToString::to_string).collect();
        // The sort is stable: `2/b`, `2` and `2/a` have one priority and keep their order.
        assert_eq!(order, ["-1", "1", "2", "2/b", "2", "2/a", "3", "10/x", "z"]);
    }

    #[test]
    fn a_number_with_too_many_digits_comes_before_no_number() {
        let huge = BatchId::from("9".repeat(60).as_str());
        assert!(BatchId::from(i64::MAX).priority() < huge.priority());
        assert!(huge.priority() < BatchId::from("eval").priority());
    }
}
