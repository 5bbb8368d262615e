//! Recent durations of attempts, and the dynamic timeout that follows from them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::{DynamicTimeout, WorkflowId};

/// Recent durations of successful train attempts, per workflow and number of runs.
///
/// Failures are not recorded: fast ones would shorten the timeout until healthy attempts fail too.
#[derive(Clone, Debug, Default)]
pub(crate) struct DurationStats {
    /// Complete train batches.
    pub(crate) steps: u32,
    recent: BTreeMap<(WorkflowId, u32), Recent>,
}

#[derive(Clone, Debug, Default)]
struct Recent {
    nanos: VecDeque<u64>,
    // Invariant: the sum of `nanos`. Integers, so that it neither drifts nor depends on order.
    sum: u128,
}

impl DurationStats {
    /// Records an attempt. Returns false if it belongs to one workflow too many.
    pub(crate) fn observe(
        &mut self,
        work: (WorkflowId, u32),
        took: Duration,
        config: &DynamicTimeout,
        kinds_max: u32,
    ) -> bool {
        let full = self.recent.len() >= kinds_max as usize;
        if full && !self.recent.contains_key(&work) {
            return false;
        }
        let recent = self.recent.entry(work).or_default();
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        recent.nanos.push_back(nanos);
        recent.sum += u128::from(nanos);
        while recent.nanos.len() > config.window.max(1) as usize {
            recent.sum -= recent.nanos.pop_front().map_or(0, u128::from);
        }
        true
    }

    /// Returns the timeout of an attempt with `runs` runs. Without enough samples of that number,
    /// larger numbers are used: fewer runs do not take longer.
    pub(crate) fn timeout(
        &self,
        workflow: WorkflowId,
        runs: u32,
        config: &DynamicTimeout,
        cap: Duration,
    ) -> Duration {
        if !self.warm(config) {
            return cap;
        }
        self.recent
            .range((workflow, runs)..=(workflow, u32::MAX))
            .find_map(|(_, recent)| recent.allowed(config))
            .map_or(cap, |allowed| allowed.min(cap))
    }

    /// Returns the mean recent duration of attempts with `runs` runs. Without samples of that
    /// number, larger numbers are used, then smaller ones. `None`: none has succeeded.
    pub(crate) fn recent_mean(&self, workflow: WorkflowId, runs: u32) -> Option<Duration> {
        let more = self.recent.range((workflow, runs)..=(workflow, u32::MAX)).next();
        let found = more.or_else(|| self.recent.range((workflow, 0)..(workflow, runs)).next_back());
        found.and_then(|(_, recent)| recent.mean()).map(Duration::from_nanos)
    }

    /// Returns the longest timeout of any attempt.
    pub(crate) fn longest(&self, config: &DynamicTimeout, cap: Duration) -> Duration {
        if !self.warm(config) {
            return cap;
        }
        let longest = self.recent.values().filter_map(|recent| recent.allowed(config)).max();
        longest.map_or(cap, |allowed| allowed.min(cap))
    }

    fn warm(&self, config: &DynamicTimeout) -> bool {
        config.enable && self.steps >= config.warmup_min_steps
    }
}

impl Recent {
    fn mean(&self) -> Option<u64> {
        let seen = u128::try_from(self.nanos.len()).ok().filter(|seen| *seen > 0)?;
        u64::try_from(self.sum / seen).ok()
    }

    fn allowed(&self, config: &DynamicTimeout) -> Option<Duration> {
        let seen = self.nanos.len();
        if seen < config.min_samples.clamp(1, config.window.max(1)) as usize {
            return None;
        }
        let mean = self.sum as f64 / seen as f64;
        let nanos = (mean * config.ratio).clamp(0.0, u64::MAX as f64);
        Some(Duration::from_nanos(nanos as u64).max(config.floor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOLVE: WorkflowId = WorkflowId(0);

    fn config() -> DynamicTimeout {
        DynamicTimeout { enable: true, min_samples: 2, window: 4, ..DynamicTimeout::default() }
    }

    #[test]
    fn timeout_follows_recent_durations_between_floor_and_cap() {
        let (mut durations, config) = (DurationStats::default(), config());
        let cap = Duration::from_secs(100);
        for _ in 0..4 {
            durations.observe((SOLVE, 8), Duration::from_secs(2), &config, 16);
        }
        assert_eq!(durations.timeout(SOLVE, 8, &config, cap), cap, "no complete batch yet");
        durations.steps = 1;
        assert_eq!(durations.timeout(SOLVE, 8, &config, cap), Duration::from_secs(6));
        assert_eq!(durations.timeout(SOLVE, 3, &config, cap), Duration::from_secs(6));
        assert_eq!(durations.timeout(SOLVE, 9, &config, cap), cap, "more runs may take longer");
        assert_eq!(durations.timeout(WorkflowId(1), 8, &config, cap), cap);
        for _ in 0..4 {
            durations.observe((SOLVE, 8), Duration::from_millis(1), &config, 16);
        }
        assert_eq!(durations.timeout(SOLVE, 8, &config, cap), config.floor);
        for _ in 0..4 {
            durations.observe((SOLVE, 8), Duration::from_secs(90), &config, 16);
        }
        assert_eq!(durations.timeout(SOLVE, 8, &config, cap), cap);
    }

    #[test]
    fn typical_duration_uses_the_nearest_number_of_runs() {
        let (mut durations, config) = (DurationStats::default(), config());
        assert_eq!(durations.recent_mean(SOLVE, 2), None);
        for (runs, seconds) in [(2, 1), (2, 3), (8, 10)] {
            durations.observe((SOLVE, runs), Duration::from_secs(seconds), &config, 16);
        }
        let recent_seconds = |runs| durations.recent_mean(SOLVE, runs).map(|took| took.as_secs());
        assert_eq!([1, 2, 3, 8, 9].map(recent_seconds), [2, 2, 10, 10, 10].map(Some));
        assert_eq!(durations.recent_mean(WorkflowId(1), 2), None);
    }

    #[test]
    fn the_number_of_workflows_is_bounded() {
        let (mut durations, config) = (DurationStats::default(), config());
        assert!(durations.observe((SOLVE, 1), Duration::ZERO, &config, 1));
        assert!(!durations.observe((WorkflowId(1), 1), Duration::ZERO, &config, 1));
        assert!(durations.observe((SOLVE, 1), Duration::ZERO, &config, 1));
    }
}
