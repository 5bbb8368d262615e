//! Families of metrics, written one after the other.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Names and values of labels.
pub(super) type Labels<'a> = &'a [(&'static str, &'a str)];

type Result = std::result::Result<(), fmt::Error>;

/// What metrics are written on.
pub(super) struct MetricsPage<'a>(pub(super) DescriptorEncoder<'a>);

impl MetricsPage<'_> {
    /// Begins a family of counters. Its name gets `_total`.
    pub(super) fn counters(&mut self, name: &str, help: &str, each: impl Each<u64>) -> Result {
        self.family(name, help, None, MetricType::Counter, |family| {
            each.each(&mut |labels, value| {
                write(family, labels, |mut metric| {
                    metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
                })
            })
        })
    }

    /// Writes a counter.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> Result {
        self.counters(name, help, |put: Put<'_, u64>| put(&[], value))
    }

    /// Writes a counter of seconds.
    pub(super) fn seconds_counter(&mut self, name: &str, help: &str, value: f64) -> Result {
        self.family(name, help, Some(&Unit::Seconds), MetricType::Counter, |family| {
            family.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    /// Begins a family of gauges.
    pub(super) fn gauges(&mut self, name: &str, help: &str, each: impl Each<f64>) -> Result {
        self.gauges_in(name, help, None, each)
    }

    /// Writes a gauge, if there is anything to write.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: Option<f64>) -> Result {
        self.gauges(name, help, one(value))
    }

    /// Writes a gauge of seconds, if there is anything to write.
    pub(super) fn seconds(&mut self, name: &str, help: &str, value: Option<f64>) -> Result {
        self.gauges_in(name, help, Some(&Unit::Seconds), one(value))
    }

    /// Writes a gauge of bytes, if there is anything to write.
    pub(super) fn bytes(&mut self, name: &str, help: &str, value: Option<f64>) -> Result {
        self.gauges_in(name, help, Some(&Unit::Bytes), one(value))
    }

    /// Begins a family of histograms of seconds.
    pub(super) fn histograms(
        &mut self,
        name: &str,
        help: &str,
        each: impl Each<Quantiles>,
    ) -> Result {
        self.family(name, help, Some(&Unit::Seconds), MetricType::Histogram, |family| {
            each.each(&mut |labels, Quantiles { sum, buckets }| {
                write(family, labels, |mut metric| {
                    let count = buckets.iter().map(|(_, count)| count).sum();
                    metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
                })
            })
        })
    }

    /// Writes what does not change.
    pub(super) fn info(&mut self, name: &str, help: &str, labels: Labels<'_>) -> Result {
        self.family(name, help, None, MetricType::Info, |family| family.encode_info(&labels))
    }

    fn gauges_in(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        each: impl Each<f64>,
    ) -> Result {
        self.family(name, help, unit, MetricType::Gauge, |family| {
            each.each(&mut |labels, value| {
                write(family, labels, |mut metric| metric.encode_gauge(&value))
            })
        })
    }

    fn family(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        kind: MetricType,
        write: impl FnOnce(&mut MetricEncoder<'_>) -> Result,
    ) -> Result {
        write(&mut self.0.encode_descriptor(name, help, unit, kind)?)
    }
}

/// How long many things lasted: the sum, and how many are up to each bound and above the one
/// before.
#[derive(Clone, Debug, Default)]
pub(super) struct Quantiles {
    pub(super) sum: f64,
    pub(super) buckets: Vec<(f64, u64)>,
}

/// What values are put through.
pub(super) type Put<'a, T> = &'a mut dyn FnMut(Labels<'_>, T) -> Result;

/// Puts every value of a family.
pub(super) trait Each<T> {
    fn each(self, put: Put<'_, T>) -> Result;
}

impl<T, F: FnOnce(Put<'_, T>) -> Result> Each<T> for F {
    fn each(self, put: Put<'_, T>) -> Result {
        self(put)
    }
}

fn one(value: Option<f64>) -> impl FnOnce(Put<'_, f64>) -> Result {
    move |put: Put<'_, f64>| value.map_or(Ok(()), |value| put(&[], value))
}

fn write(
    family: &mut MetricEncoder<'_>,
    labels: Labels<'_>,
    write: impl FnOnce(MetricEncoder<'_>) -> Result,
) -> Result {
    write(family.encode_family(&labels)?)
}
