//! Metric keys: aggregation by suffix, and columns of equal keys.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::Metrics;
use super::numpy::Stat;
use crate::failure::names;

names!(
    /// Aggregation of the values of one metric, chosen by the suffix of its key.
    Aggregation {
        /// Also without a suffix.
        Mean = "mean",
        Sum = "sum",
        Max = "max",
        Min = "min",
        /// Last in the order of the list.
        Last = "last",
    }
);

impl Aggregation {
    /// Combines values in their order; no values give NaN, and 0 as a sum.
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
    match Aggregation::ALL.iter().find(|aggregation| aggregation.name() == suffix) {
        Some(aggregation) if !name.is_empty() => (name, *aggregation),
        _ => (key, Aggregation::Mean),
    }
}

/// Returns the key that the level above parses back into the same name and aggregation.
pub(super) fn canonical(name: &str, aggregation: Aggregation) -> Cow<'_, str> {
    if aggregation == Aggregation::Mean {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(format!("{name}:{}", aggregation.name()))
    }
}

/// Values of every metric in the order of the list; no column is empty.
pub(super) type Columns<'a> = BTreeMap<(&'a str, Aggregation), Vec<f64>>;

/// Sorts the values of a list into columns; missing values are skipped.
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
    fn only_known_suffixes_are_split_off() {
        assert_eq!(parse_key("reward"), ("reward", Aggregation::Mean));
        assert_eq!(parse_key("reward:mean"), ("reward", Aggregation::Mean));
        assert_eq!(parse_key("tool:grep:sum"), ("tool:grep", Aggregation::Sum));
        assert_eq!(parse_key("tool:grep"), ("tool:grep", Aggregation::Mean));
        assert_eq!(parse_key(":max"), (":max", Aggregation::Mean));
    }
}
