//! What attempts usually take, and how long one may last because of it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::ids::WorkflowId;
use crate::scheduler::config::DynamicTimeout;

/// Recent durations of successful train attempts, per workflow and number of runs.
///
/// Failures teach nothing: fast ones would shorten the timeout until healthy attempts fail too.
#[derive(Clone, Debug, Default)]
pub(crate) struct DurationStats {
    /// Train batches that were seen whole.
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
    /// Learns from one attempt; returns false if there are too many kinds of work to learn another.
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

    /// Returns how long an attempt at `runs` runs may last. Where that number of runs has not been
    /// seen often enough, more runs are the next best guide: fewer do not take longer.
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

    /// Returns how long attempts at `runs` runs have taken lately, if any has succeeded. Where that
    /// number of runs has not been seen, more runs are the next best guide, and then fewer.
    pub(crate) fn lately(&self, workflow: WorkflowId, runs: u32) -> Option<Duration> {
        let more = self.recent.range((workflow, runs)..=(workflow, u32::MAX)).next();
        let found = more.or_else(|| self.recent.range((workflow, 0)..(workflow, runs)).next_back());
        found.and_then(|(_, recent)| recent.mean()).map(Duration::from_nanos)
    }

    /// Returns the longest that any attempt may last.
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
    fn follows_recent_work_between_floor_and_cap() {
        let (mut usual, config) = (DurationStats::default(), config());
        let cap = Duration::from_secs(100);
        for _ in 0..4 {
            usual.observe((SOLVE, 8), Duration::from_secs(2), &config, 16);
        }
        assert_eq!(usual.timeout(SOLVE, 8, &config, cap), cap, "no batch was seen whole yet");
        usual.steps = 1;
        assert_eq!(usual.timeout(SOLVE, 8, &config, cap), Duration::from_secs(6));
        assert_eq!(usual.timeout(SOLVE, 3, &config, cap), Duration::from_secs(6));
        assert_eq!(usual.timeout(SOLVE, 9, &config, cap), cap, "more runs may take longer");
        assert_eq!(usual.timeout(WorkflowId(1), 8, &config, cap), cap);
        for _ in 0..4 {
            usual.observe((SOLVE, 8), Duration::from_millis(1), &config, 16);
        }
        assert_eq!(usual.timeout(SOLVE, 8, &config, cap), config.floor);
        for _ in 0..4 {
            usual.observe((SOLVE, 8), Duration::from_secs(90), &config, 16);
        }
        assert_eq!(usual.timeout(SOLVE, 8, &config, cap), cap);
    }

    #[test]
    fn what_attempts_took_lately_is_known_from_the_first_and_guessed_from_neighbours() {
        let (mut usual, config) = (DurationStats::default(), config());
        assert_eq!(usual.lately(SOLVE, 2), None);
        for (runs, seconds) in [(2, 1), (2, 3), (8, 10)] {
            usual.observe((SOLVE, runs), Duration::from_secs(seconds), &config, 16);
        }
        let lately = |runs| usual.lately(SOLVE, runs).map(|took| took.as_secs());
        assert_eq!([1, 2, 3, 8, 9].map(lately), [2, 2, 10, 10, 10].map(Some));
        assert_eq!(usual.lately(WorkflowId(1), 2), None);
    }

    #[test]
    fn knows_a_bounded_number_of_kinds() {
        let (mut usual, config) = (DurationStats::default(), config());
        assert!(usual.observe((SOLVE, 1), Duration::ZERO, &config, 1));
        assert!(!usual.observe((WorkflowId(1), 1), Duration::ZERO, &config, 1));
        assert!(usual.observe((SOLVE, 1), Duration::ZERO, &config, 1));
    }
}
