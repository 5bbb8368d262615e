//! How long attempts and tasks last, by workflow: a few workflows under their own names, the rest
//! together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rollway_core::BatchKind;

use super::page::Spread;

/// How many workflows have numbers of their own.
const WORKFLOWS: usize = 50;

/// What the others are called together.
const OTHER: &str = "other";

/// Upper bounds, in seconds: from 5 ms to 2 h.
const BOUNDS: [f64; 16] = [
    0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
    7200.0,
];

/// Under which names durations are kept: workflow and kind of batch.
type Name = (Arc<str>, BatchKind);

/// Durations by workflow and kind of batch.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans(BTreeMap<Name, Histogram>);

#[derive(Clone, Debug, Default)]
struct Histogram {
    counts: [u64; BOUNDS.len() + 1],
    sum: f64,
}

impl Spans {
    /// Counts a duration.
    pub(super) fn add(&mut self, name: Name, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = BOUNDS.partition_point(|bound| *bound < seconds);
        let histogram = self.0.entry(name).or_default();
        histogram.counts[at] += 1;
        histogram.sum += seconds;
    }

    /// Returns everything that was counted.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, BatchKind, Spread)> {
        self.0.iter().map(|((workflow, kind), histogram)| {
            let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
            let buckets = bounds.zip(histogram.counts).collect();
            (&**workflow, *kind, Spread { sum: histogram.sum, buckets })
        })
    }
}

/// Which names are used. The first that come have theirs, the rest share one.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    known: BTreeSet<Arc<str>>,
    /// How often one was counted under the shared name.
    pub(super) others: u64,
}

impl Names {
    /// Returns the name under which something is counted.
    pub(super) fn of(&mut self, name: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.known.get(name) {
            return Arc::clone(known);
        }
        if self.known.len() < WORKFLOWS {
            self.known.insert(Arc::clone(name));
            return Arc::clone(name);
        }
        self.others += 1;
        Arc::from(OTHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_workflows_have_names_and_all_are_counted() {
        let (mut names, mut spans) = (Names::default(), Spans::default());
        for number in 0..200 {
            let workflow: Arc<str> = format!("w{number}").into();
            let name = (names.of(&workflow), BatchKind::Train);
            spans.add(name, Duration::from_millis(number));
        }
        let count = |spread: &Spread| spread.buckets.iter().map(|(_, count)| count).sum::<u64>();
        let counts: Vec<_> =
            spans.iter().map(|(name, _, spread)| (name.to_owned(), count(&spread))).collect();
        assert_eq!(counts.len(), WORKFLOWS + 1);
        assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), 200);
        assert!(counts.contains(&(OTHER.to_owned(), 150)));
        assert_eq!(names.others, 150);
    }

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut spans = Spans::default();
        for seconds in [0.005, 0.006, 7200.0, 7201.0] {
            spans.add(("w".into(), BatchKind::Eval), Duration::from_secs_f64(seconds));
        }
        let (_, _, spread) = spans.iter().next().unwrap();
        let filled: Vec<f64> = spread
            .buckets
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(bound, _)| *bound)
            .collect();
        assert_eq!(filled, [0.005, 0.02, 7200.0, f64::INFINITY]);
    }
}
