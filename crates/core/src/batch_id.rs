//! Names of batches and the order in which batches are served.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// The user's name of a batch: a step number, or a text such as `12/gsm8k`.
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
    /// Returns where the batch stands in the order of service; smaller is served first.
    ///
    /// A number comes before the texts that begin with it, these before the next number, and texts
    /// without a number come last. Batches of the same priority are served as they came.
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
                    // More digits than fit are later than anything that is ever counted.
                    number => BatchStep::At(number.parse().unwrap_or(i128::MAX)),
                };
                BatchPriority { step, text: true }
            }
        }
    }

    /// Returns the name under which metrics of an eval batch are reported: what stands behind the
    /// first slash, or everything.
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

/// The sort key of a batch id; see [`BatchId::priority`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchPriority {
    /// The step the batch belongs to.
    pub step: BatchStep,
    /// Texts come after the number they begin with.
    pub text: bool,
}

/// The number in front of a batch id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BatchStep {
    /// This number.
    At(i128),
    /// None: after all numbers.
    Last,
}

impl Ord for BatchStep {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::At(a), Self::At(b)) => a.cmp(b),
            (Self::At(_), Self::Last) => Ordering::Less,
            (Self::Last, Self::At(_)) => Ordering::Greater,
            (Self::Last, Self::Last) => Ordering::Equal,
        }
    }
}

impl PartialOrd for BatchStep {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
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
    fn a_number_beyond_all_bounds_still_comes_before_no_number() {
        let huge = BatchId::from("9".repeat(60).as_str());
        assert!(BatchId::from(i64::MAX).priority() < huge.priority());
        assert!(huge.priority() < BatchId::from("eval").priority());
    }
}
