//! Writes metric families.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

pub(super) type Labels<'a> = &'a [(&'static str, &'a str)];

type Result = std::result::Result<(), fmt::Error>;

pub(super) struct MetricsPage<'a>(pub(super) DescriptorEncoder<'a>);

impl MetricsPage<'_> {
    /// Writes a family of counters; the name gets `_total`.
    pub(super) fn counters(
        &mut self,
        name: &str,
        help: &str,
        each: impl FnOnce(Put<'_, u64>) -> Result,
    ) -> Result {
        self.family(name, help, None, MetricType::Counter, |family| {
            each(&mut |labels, value| {
                write(family, labels, |mut metric| {
                    metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
                })
            })
        })
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> Result {
        self.counters(name, help, |put: Put<'_, u64>| put(&[], value))
    }

    pub(super) fn seconds_counter(&mut self, name: &str, help: &str, value: f64) -> Result {
        self.family(name, help, Some(&Unit::Seconds), MetricType::Counter, |family| {
            family.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    pub(super) fn gauges(
        &mut self,
        name: &str,
        help: &str,
        each: impl FnOnce(Put<'_, f64>) -> Result,
    ) -> Result {
        self.gauges_in(name, help, None, each)
    }

    /// Writes a gauge. `None`: the family is empty.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: Option<f64>) -> Result {
        self.gauges(name, help, one(value))
    }

    pub(super) fn seconds(&mut self, name: &str, help: &str, value: Option<f64>) -> Result {
        self.gauges_in(name, help, Some(&Unit::Seconds), one(value))
    }

    pub(super) fn bytes(&mut self, name: &str, help: &str, value: Option<f64>) -> Result {
        self.gauges_in(name, help, Some(&Unit::Bytes), one(value))
    }

    /// Writes a family of histograms in seconds.
    pub(super) fn histograms(
        &mut self,
        name: &str,
        help: &str,
        each: impl FnOnce(Put<'_, Quantiles>) -> Result,
    ) -> Result {
        self.family(name, help, Some(&Unit::Seconds), MetricType::Histogram, |family| {
            each(&mut |labels, Quantiles { sum, buckets }| {
                write(family, labels, |mut metric| {
                    let count = buckets.iter().map(|(_, count)| count).sum();
                    metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
                })
            })
        })
    }

    /// Writes constant labels.
    pub(super) fn info(&mut self, name: &str, help: &str, labels: Labels<'_>) -> Result {
        self.family(name, help, None, MetricType::Info, |family| family.encode_info(&labels))
    }

    fn gauges_in(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        each: impl FnOnce(Put<'_, f64>) -> Result,
    ) -> Result {
        self.family(name, help, unit, MetricType::Gauge, |family| {
            each(&mut |labels, value| {
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

/// Histogram: sum, and counts by upper bound.
#[derive(Clone, Debug, Default)]
pub(super) struct Quantiles {
    pub(super) sum: f64,
    pub(super) buckets: Vec<(f64, u64)>,
}

/// Writes one value of a family.
pub(super) type Put<'a, T> = &'a mut dyn FnMut(Labels<'_>, T) -> Result;

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
