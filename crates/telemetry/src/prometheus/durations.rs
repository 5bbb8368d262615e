//! Durations of attempts and tasks by workflow. The number of workflow labels is limited.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rollway_core::BatchType;

use super::writer::Quantiles;

/// Maximum number of workflow labels.
const MAX_WORKFLOWS: usize = 50;

/// Label of all further workflows.
const OTHER: &str = "other";

/// Upper bounds, in seconds: from 5 ms to 2 h.
const BOUNDS: [f64; 16] = [
    0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
    7200.0,
];

/// Durations by label number and batch type.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans(BTreeMap<(usize, BatchType), Histogram>);

#[derive(Clone, Debug, Default)]
struct Histogram {
    counts: [u64; BOUNDS.len() + 1],
    sum: f64,
}

impl Spans {
    pub(super) fn add(&mut self, name: (usize, BatchType), took: Duration) {
        let seconds = took.as_secs_f64();
        let at = BOUNDS.partition_point(|bound| *bound < seconds);
        let histogram = self.0.entry(name).or_default();
        histogram.counts[at] += 1;
        histogram.sum += seconds;
    }

    /// Returns all histograms in the order of labels.
    pub(super) fn iter<'a>(
        &'a self,
        names: &'a DurationNames,
    ) -> impl Iterator<Item = (&'a str, BatchType, Quantiles)> {
        self.0.iter().map(|((workflow, kind), histogram)| {
            let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
            let buckets = bounds.zip(histogram.counts).collect();
            let workflow = names.list.get(*workflow).map_or(OTHER, |name| name);
            (workflow, *kind, Quantiles { sum: histogram.sum, buckets })
        })
    }
}

/// Workflow labels. The first workflows have their own, the rest share `other`.
#[derive(Clone, Debug)]
pub(super) struct DurationNames {
    /// Number 0 is `other`.
    list: Vec<Arc<str>>,
    numbers: BTreeMap<Arc<str>, usize>,
    /// Last lookup, which is usually the next one too.
    last: (Arc<str>, usize),
    /// Number of durations under `other`.
    pub(super) others: u64,
}

impl Default for DurationNames {
    fn default() -> Self {
        let shared: Arc<str> = OTHER.into();
        let numbers = BTreeMap::from([(Arc::clone(&shared), 0)]);
        Self { list: vec![Arc::clone(&shared)], numbers, last: (shared, 0), others: 0 }
    }
}

impl DurationNames {
    /// Returns the label number of a workflow.
    pub(super) fn label_number(&mut self, name: &Arc<str>) -> usize {
        if Arc::ptr_eq(&self.last.0, name) {
            return self.last.1;
        }
        let number = match self.numbers.get(name) {
            Some(known) => *known,
            None if self.list.len() <= MAX_WORKFLOWS => {
                self.list.push(Arc::clone(name));
                self.numbers.insert(Arc::clone(name), self.list.len() - 1);
                self.list.len() - 1
            }
            None => {
                self.others += 1;
                return 0;
            }
        };
        self.last = (Arc::clone(name), number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workflow_labels_are_limited_and_all_durations_are_counted() {
        let (mut names, mut spans) = (DurationNames::default(), Spans::default());
        for number in 0..200 {
            let workflow: Arc<str> = format!("w{number}").into();
            let name = (names.label_number(&workflow), BatchType::Train);
            spans.add(name, Duration::from_millis(number));
        }
        let count = |spread: &Quantiles| spread.buckets.iter().map(|(_, count)| count).sum::<u64>();
        let counts: Vec<_> =
            spans.iter(&names).map(|(name, _, spread)| (name.to_owned(), count(&spread))).collect();
        assert_eq!(counts.len(), MAX_WORKFLOWS + 1);
        assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), 200);
        assert!(counts.contains(&(OTHER.to_owned(), 150)));
        assert_eq!(names.others, 150);
    }

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut spans = Spans::default();
        for seconds in [0.005, 0.006, 7200.0, 7201.0] {
            spans.add((0, BatchType::Eval), Duration::from_secs_f64(seconds));
        }
        let names = DurationNames::default();
        let (_, _, spread) = spans.iter(&names).next().unwrap();
        let filled: Vec<f64> = spread
            .buckets
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(bound, _)| *bound)
            .collect();
        assert_eq!(filled, [0.005, 0.02, 7200.0, f64::INFINITY]);
    }
}
