//! Report of a batch: balanced counts, and metrics under stable names.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rollway_core::metrics::{Metrics, PassRates};
use rollway_experience::{ModelVersions, VersionSpan};

/// Outcome of one call.
///
/// `submitted + added` equals [`dropped_count`](Self::dropped_count) `+ stored + known` plus the
/// part of `displaced` from this call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineReport {
    pub metrics: Metrics,
    /// Pass rates for the task selectors.
    pub selector: PassRates,
    pub submitted: usize,
    /// Experiences derived by operators.
    pub added: usize,
    /// Experiences dropped before the output, in pipeline order.
    pub dropped: Vec<DroppedExperiences>,
    /// Experiences newly stored.
    pub stored: usize,
    /// Experiences that the output had already.
    pub known: usize,
    /// Experiences dropped by the output for lack of room, new or old, by reason.
    pub displaced: BTreeMap<&'static str, usize>,
}

impl PipelineReport {
    pub fn dropped_count(&self) -> usize {
        self.dropped.iter().map(|dropped| dropped.count).sum()
    }
}

/// Experiences dropped by one operator for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedExperiences {
    /// Label of the operator, or `decode`.
    pub operator: String,
    pub reason: String,
    /// Never 0.
    pub count: usize,
}

/// Steps of the pipeline itself. Operators of these names get the label `NAME#2`.
pub(super) const DECODE: &str = "decode";
pub(super) const SAVE_INPUT: &str = "save_input";
pub(super) const WRITE: &str = "write";
pub(super) const TOTAL: &str = "total";

pub(super) const DUPLICATE_ID: &str = "duplicate_id";
/// A payload that cannot be decoded, counted as one experience.
pub(super) const INVALID: &str = "invalid";

const PREFIX: &str = "experience_pipeline";

/// Returns the labels of operators: the first of a name by its name, the others with `#2`, `#3` and
/// so on.
pub(super) fn labels<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut taken = BTreeSet::from([DECODE, SAVE_INPUT, WRITE, TOTAL].map(str::to_owned));
    let mut label = |name| {
        let label = free(name, |label| taken.contains(label));
        taken.insert(label.clone());
        label
    };
    names.into_iter().map(&mut label).collect()
}

/// Collects the metrics of a call. Names are never overwritten; the pipeline's own names take
/// precedence.
#[derive(Default)]
pub(super) struct MetricsBuilder {
    own: Metrics,
    /// In pipeline order.
    operators: Vec<(String, f64)>,
}

impl MetricsBuilder {
    pub(super) fn count(&mut self, name: &str, count: usize) {
        self.own.set(format!("{PREFIX}/{name}"), count as f64);
    }

    /// Sets mean over tokens, minimum and maximum of the model versions; nothing if none is known.
    pub(super) fn versions<'a>(&mut self, all: impl Iterator<Item = &'a ModelVersions>) {
        let known = |run: &VersionSpan| Some((run.version? as f64, f64::from(run.tokens)));
        let runs: Vec<(f64, f64)> = all.flat_map(|it| it.spans()).filter_map(known).collect();
        if runs.is_empty() {
            return;
        }
        let tokens: f64 = runs.iter().map(|(_, tokens)| tokens).sum();
        let sum: f64 = runs.iter().map(|(version, tokens)| version * tokens).sum();
        let oldest = runs.iter().map(|(version, _)| *version).fold(f64::INFINITY, f64::min);
        let newest = runs.iter().map(|(version, _)| *version).fold(0.0, f64::max);
        for (stat, value) in [("mean", sum / tokens), ("min", oldest), ("max", newest)] {
            self.own.set(format!("{PREFIX}/model_version/{stat}"), value);
        }
    }

    /// Sets the duration of a step in seconds.
    pub(super) fn time(&mut self, step: &str, time: Duration) {
        self.own.set(format!("time/{PREFIX}/{step}"), time.as_secs_f64());
    }

    /// Adds the metrics of an operator. Those of the second operator of a name end in `#2` like its
    /// label, even without a conflict: a name never changes its owner.
    pub(super) fn operator(&mut self, label: &str, name: &str, metrics: &Metrics) {
        let suffix = label.strip_prefix(name).unwrap_or_default();
        for (key, value) in metrics.iter() {
            let is_whole = key.starts_with("time/") || key.starts_with(&format!("{PREFIX}/"));
            let name = if is_whole { key.to_string() } else { format!("{PREFIX}/{key}") };
            self.operators.push((name + suffix, value));
        }
    }

    pub(super) fn finish(self) -> Metrics {
        let mut metrics = self.own;
        for (key, value) in self.operators {
            metrics.set(free(&key, |key| metrics.get(key).is_some()), value);
        }
        metrics
    }
}

/// Returns the name, or the name with the first free number.
fn free(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2..).map(|number| format!("{name}#{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(|name| !taken(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_has_a_label_of_its_own() {
        let names = ["a", "b", "a", "write", "a"];
        assert_eq!(labels(names), ["a", "b", "a#2", "write#2", "a#3"]);
        // Conflicts with an explicit suffix are resolved, too.
        assert_eq!(labels(["a#2", "a", "a"]), ["a#2", "a", "a#3"]);
    }
}
