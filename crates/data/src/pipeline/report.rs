//! What the pipeline says about a batch: counts that add up, and metrics under stable names.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rollway_core::metrics::{Metrics, PassRates};
use rollway_experience::{ModelVersions, VersionRun};

/// What became of the experiences of one call.
///
/// `submitted + added` is [`dropped_count`](Self::dropped_count) `+ stored + known`, and what of
/// `displaced` is from this call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineReport {
    /// Numbers for the monitor, named in full.
    pub metrics: Metrics,
    /// What the selectors of tasks should learn.
    pub selector: PassRates,
    /// Experiences in the payloads.
    pub submitted: usize,
    /// Experiences that operators derived.
    pub added: usize,
    /// Experiences that did not get to the output, in the order of the pipeline.
    pub dropped: Vec<DroppedExperiences>,
    /// Experiences that are in the output now and were not before.
    pub stored: usize,
    /// Experiences that the output knew already.
    pub known: usize,
    /// Experiences that had to give way in the output, these or older ones, by reason.
    pub displaced: BTreeMap<&'static str, usize>,
}

impl PipelineReport {
    /// Returns how many experiences did not get to the output.
    pub fn dropped_count(&self) -> usize {
        self.dropped.iter().map(|dropped| dropped.count).sum()
    }
}

/// Experiences that were dropped at one place for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedExperiences {
    /// The operator, as it is called in metrics, or `decode`.
    pub operator: String,
    pub reason: String,
    /// How many; not 0.
    pub count: usize,
}

/// Steps of the pipeline's own. Operators of these names are called `#2`.
pub(super) const DECODE: &str = "decode";
pub(super) const SAVE_INPUT: &str = "save_input";
pub(super) const WRITE: &str = "write";
pub(super) const TOTAL: &str = "total";

/// Why an experience is dropped whose name came before.
pub(super) const DUPLICATE_ID: &str = "duplicate_id";

const PREFIX: &str = "experience_pipeline";

/// Returns what operators are called in metrics: the first of a name by its name, the others with
/// `#2`, `#3` and so on.
pub(super) fn labels<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut taken = BTreeSet::from([DECODE, SAVE_INPUT, WRITE, TOTAL].map(str::to_owned));
    let mut label = |name| {
        let label = free(name, |label| taken.contains(label));
        taken.insert(label.clone());
        label
    };
    names.into_iter().map(&mut label).collect()
}

/// Collects metrics of a call. Nothing that was set is overwritten, and the pipeline's own names
/// are always the pipeline's.
#[derive(Default)]
pub(super) struct MetricsBuilder {
    own: Metrics,
    /// In the order of the pipeline.
    operators: Vec<(String, f64)>,
}

impl MetricsBuilder {
    /// Sets a count of the pipeline's own.
    pub(super) fn count(&mut self, name: &str, count: usize) {
        self.own.set(format!("{PREFIX}/{name}"), count as f64);
    }

    /// Sets which versions of the model made the tokens of the answers: the mean over the tokens,
    /// the oldest and the newest. Nothing where no experience tells.
    pub(super) fn versions<'a>(&mut self, all: impl Iterator<Item = &'a ModelVersions>) {
        let known = |run: &VersionRun| Some((run.version? as f64, f64::from(run.tokens)));
        let runs: Vec<(f64, f64)> = all.flat_map(|it| it.runs()).filter_map(known).collect();
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

    /// Sets how long a step took, in seconds.
    pub(super) fn time(&mut self, step: &str, time: Duration) {
        self.own.set(format!("time/{PREFIX}/{step}"), time.as_secs_f64());
    }

    /// Adds the metrics of an operator. Those of the second operator of a name end in `#2`, like
    /// its label, whether or not the first reports the same: a name never changes its owner.
    pub(super) fn operator(&mut self, label: &str, name: &str, metrics: &Metrics) {
        let suffix = label.strip_prefix(name).unwrap_or_default();
        for (key, value) in metrics.iter() {
            let is_whole = key.starts_with("time/") || key.starts_with("experience_pipeline/");
            let prefix = if is_whole { "" } else { "experience_pipeline/" };
            self.operators.push((format!("{prefix}{key}{suffix}"), value));
        }
    }

    /// Returns all of them.
    pub(super) fn finish(self) -> Metrics {
        let mut metrics = self.own;
        for (key, value) in self.operators {
            metrics.set(free(&key, |key| metrics.get(key).is_some()), value);
        }
        metrics
    }
}

/// Returns the name, or the name with the first number that is not taken.
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
        // Somebody may have had the same idea.
        assert_eq!(labels(["a#2", "a", "a"]), ["a#2", "a", "a#3"]);
    }

    #[test]
    fn names_get_one_prefix_and_are_never_taken_away() {
        let metrics: Metrics =
            [("x", 1.0), ("time/judge", 2.0), ("experience_pipeline/y", 3.0)].into_iter().collect();
        let mut numbers = MetricsBuilder::default();
        numbers.operator("a", "a", &metrics);
        numbers.operator("a#2", "a", &metrics);
        let taken = [("x", 4.0), ("experience_count", 5.0)];
        numbers.operator("b", "b", &taken.into_iter().collect());
        numbers.count("experience_count", 6);
        let metrics = numbers.finish();
        assert_eq!(metrics.get("experience_pipeline/experience_count"), Some(6.0));
        let keys: Vec<String> = metrics.iter().map(|(key, _)| key.to_string()).collect();
        assert_eq!(
            keys,
            [
                "experience_pipeline/experience_count",
                "experience_pipeline/experience_count#2",
                "experience_pipeline/x",
                "experience_pipeline/x#2",
                "experience_pipeline/x#3",
                "experience_pipeline/y",
                "experience_pipeline/y#2",
                "time/judge",
                "time/judge#2",
            ]
        );
    }
}
