//! Metric keys: which aggregation a suffix asks for, and columns of equal keys.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::Metrics;
use super::numpy::Stat;

/// How the values of one metric become one value, as a key's suffix says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aggregation {
    /// The mean: no suffix, or `:mean`.
    Mean,
    /// `:sum`.
    Sum,
    /// `:max`.
    Max,
    /// `:min`.
    Min,
    /// `:last`, in the order of the list.
    Last,
}

impl Aggregation {
    /// Returns the word of the suffix.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Min => "min",
            Self::Last => "last",
        }
    }

    /// Combines values given in their order; no values give NaN, and 0 as a sum.
    pub(super) fn of(self, values: &[f64]) -> f64 {
        match self {
            Self::Mean => Stat::Mean.of(values),
            Self::Sum => Stat::Sum.of(values),
            Self::Max => Stat::Max.of(values),
            Self::Min => Stat::Min.of(values),
            Self::Last => values.last().copied().unwrap_or(f64::NAN),
        }
    }
}

/// Splits a key into its name and its aggregation.
///
/// An unknown suffix belongs to the name, as does one with no name before it.
pub fn parse_key(key: &str) -> (&str, Aggregation) {
    let Some((name, suffix)) = key.rsplit_once(':') else { return (key, Aggregation::Mean) };
    let aggregation = match suffix {
        "mean" => Aggregation::Mean,
        "sum" => Aggregation::Sum,
        "max" => Aggregation::Max,
        "min" => Aggregation::Min,
        "last" => Aggregation::Last,
        _ => return (key, Aggregation::Mean),
    };
    if name.is_empty() { (key, Aggregation::Mean) } else { (name, aggregation) }
}

/// Returns the key that the level above parses back into the same name and aggregation.
pub(super) fn canonical(name: &str, aggregation: Aggregation) -> Cow<'_, str> {
    if aggregation == Aggregation::Mean {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(format!("{name}:{}", aggregation.name()))
    }
}

/// The values of every metric in the order of the list they come from; no column is empty.
pub(super) type Columns<'a> = BTreeMap<(&'a str, Aggregation), Vec<f64>>;

/// Sorts the values of a list into columns; what an element does not carry is skipped.
pub(super) fn columns(list: &[Metrics]) -> Columns<'_> {
    let mut columns = Columns::new();
    for metrics in list {
        for (key, value) in metrics.iter() {
            columns.entry(parse_key(key)).or_default().push(value);
        }
    }
    columns
}

/// Combines every column by its own aggregation, keeping the suffixes.
pub(super) fn combine(list: &[Metrics]) -> Metrics {
    columns(list)
        .into_iter()
        .map(|((name, aggregation), values)| {
            (canonical(name, aggregation), aggregation.of(&values))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_suffixes_are_suffixes() {
        assert_eq!(parse_key("reward"), ("reward", Aggregation::Mean));
        assert_eq!(parse_key("reward:mean"), ("reward", Aggregation::Mean));
        assert_eq!(parse_key("tool:grep:sum"), ("tool:grep", Aggregation::Sum));
        assert_eq!(parse_key("tool:grep"), ("tool:grep", Aggregation::Mean));
        assert_eq!(parse_key(":max"), (":max", Aggregation::Mean));
    }
}
