//! Weights of the experiences of a run with branches, drift or sub-agents.

use std::collections::BTreeMap;

use super::merge_plan::ThreadOrigin;

/// Weights by the origin of an experience. They are multiplied, and `info.weight` of the
/// experience.
#[derive(Clone, Debug, PartialEq)]
pub struct ExperienceWeights {
    /// True if the weights of the experiences of a run sum to 1.
    pub per_run: bool,
    /// Of experiences that branch off from a turn that another one continues.
    pub branch: f64,
    /// Of experiences that continue a turn with other tokens.
    pub drift: f64,
    /// By the agent that a client names by header.
    pub agents: BTreeMap<String, f64>,
}

impl Default for ExperienceWeights {
    fn default() -> Self {
        Self { per_run: false, branch: 1.0, drift: 1.0, agents: BTreeMap::new() }
    }
}

impl ExperienceWeights {
    /// Returns the weights of the experiences of a run, given origin and agent of each. `None`: no
    /// weights are configured.
    pub(super) fn of<'a>(
        &self,
        experiences: impl Iterator<Item = (Option<ThreadOrigin>, Option<&'a str>)>,
    ) -> Option<Vec<f64>> {
        if *self == Self::default() {
            return None;
        }
        let weight = |(origin, agent): (Option<ThreadOrigin>, Option<&str>)| {
            let by_origin = match origin {
                None => 1.0,
                Some(ThreadOrigin::Branch(_)) => self.branch,
                Some(ThreadOrigin::Drift(_)) => self.drift,
            };
            by_origin * agent.and_then(|agent| self.agents.get(agent)).copied().unwrap_or(1.0)
        };
        let mut weights: Vec<f64> = experiences.map(weight).collect();
        let sum: f64 = weights.iter().sum();
        if self.per_run && sum > 0.0 {
            for weight in &mut weights {
                *weight /= sum;
            }
        }
        Some(weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRANCH: Option<ThreadOrigin> = Some(ThreadOrigin::Branch(None));
    const DRIFT: Option<ThreadOrigin> = Some(ThreadOrigin::Drift(None));

    #[test]
    fn factors_are_multiplied_and_scaled_to_one_per_run() {
        let agents = BTreeMap::from([("title".to_owned(), 0.0), ("search".to_owned(), 0.5)]);
        let mut weights = ExperienceWeights { per_run: false, branch: 0.5, drift: 2.0, agents };
        let run = [(None, None), (BRANCH, None), (DRIFT, Some("search")), (None, Some("title"))];
        assert_eq!(weights.of(run.into_iter()), Some(vec![1.0, 0.5, 1.0, 0.0]));
        weights.per_run = true;
        assert_eq!(weights.of(run.into_iter()), Some(vec![0.4, 0.2, 0.4, 0.0]));
        let only_titles = [(None, Some("title"))];
        assert_eq!(weights.of(only_titles.into_iter()), Some(vec![0.0]));
        assert_eq!(ExperienceWeights::default().of(run.into_iter()), None);
    }
}
