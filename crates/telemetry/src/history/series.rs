//! Metrics of steps, evaluations and the trainer as curves.

use std::collections::BTreeMap;

use rollway_core::metrics::Metrics;

use crate::view::{MetricRow, MetricSeries};

/// Maximum number of metrics.
const MAX_METRICS: usize = 1_000;

/// Maximum number of values of a metric in memory. Above it every second one is removed.
const MAX_POINTS: usize = 1_000;

/// Maximum number of values of a metric in a response.
const MAX_SHOWN: usize = 250;

#[derive(Debug, Default)]
pub(super) struct MetricCurves {
    curves: BTreeMap<Box<str>, Curve>,
    /// Number of values of metrics beyond the limit.
    pub(super) left_out: u64,
}

#[derive(Debug, Default)]
struct Curve {
    points: Vec<(u64, f64)>,
    /// Every n-th value is kept.
    stride: u64,
    count: u64,
    first: f64,
    last: (u64, f64),
}

impl Curve {
    fn add(&mut self, step: u64, value: f64) {
        if self.count == 0 {
            (self.first, self.stride) = (value, 1);
        }
        if self.count.is_multiple_of(self.stride) {
            self.points.push((step, value));
        }
        self.count += 1;
        self.last = (step, value);
        if self.points.len() > MAX_POINTS {
            keep_every(&mut self.points, 2);
            self.stride *= 2;
        }
    }
}

/// Keeps every n-th point.
fn keep_every(points: &mut Vec<(u64, f64)>, every: usize) {
    let mut at = 0;
    points.retain(|_| {
        at += 1;
        (at - 1) % every == 0
    });
}

impl MetricCurves {
    pub(super) fn add(&mut self, step: u64, metrics: &BTreeMap<String, f64>) {
        for (name, value) in metrics {
            if !self.curves.contains_key(name.as_str()) && self.curves.len() >= MAX_METRICS {
                self.left_out += 1;
                continue;
            }
            self.curves.entry(name.as_str().into()).or_default().add(step, *value);
        }
    }

    pub(super) fn rows(&self) -> Vec<MetricRow> {
        let curves = self.curves.iter().map(|(name, curve)| MetricRow {
            name: name.to_string(),
            count: curve.count,
            first: curve.first,
            last: curve.last.1,
            step: curve.last.0,
        });
        curves.collect()
    }

    /// Returns the values of known metrics; the last value of each is kept.
    pub(super) fn series(&self, names: &[String]) -> Vec<MetricSeries> {
        let series = |name: &String| {
            let curve = self.curves.get(name.as_str())?;
            let mut points = curve.points.clone();
            let every = points.len().div_ceil(MAX_SHOWN).max(1);
            keep_every(&mut points, every);
            if points.last() != Some(&curve.last) {
                points.push(curve.last);
            }
            Some(MetricSeries { name: name.clone(), points })
        };
        names.iter().filter_map(series).collect()
    }
}

/// Returns the finite values; JSON has no others.
pub(super) fn finite(metrics: &Metrics) -> BTreeMap<String, f64> {
    let known = metrics.iter().filter(|(_, value)| value.is_finite());
    known.map(|(name, value)| (name.to_string(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_curves_are_thinned_out_and_keep_both_ends() {
        let mut curves = MetricCurves::default();
        for step in 1..=12_345_u64 {
            curves.add(step, &BTreeMap::from([("a".to_owned(), step as f64)]));
        }
        let [row] = &curves.rows()[..] else { panic!("one metric") };
        assert_eq!((row.count, row.first, row.last, row.step), (12_345, 1.0, 12_345.0, 12_345));
        let series = curves.series(&["a".to_owned(), "unknown".to_owned()]);
        let points = &series[0].points;
        assert_eq!((series.len(), points[0], points[points.len() - 1].0), (1, (1, 1.0), 12_345));
        assert!((100..=MAX_SHOWN + 1).contains(&points.len()), "{}", points.len());
        assert!(curves.curves["a"].points.len() <= MAX_POINTS);
    }

    #[test]
    fn the_number_of_metrics_is_limited_and_others_are_counted() {
        let mut curves = MetricCurves::default();
        for at in 0..MAX_METRICS + 5 {
            curves.add(1, &BTreeMap::from([(format!("m{at}"), 0.0)]));
        }
        assert_eq!((curves.rows().len(), curves.left_out), (MAX_METRICS, 5));
    }
}
