//! Scaling: the number of runners follows the demand, between `min` and `max`.
//!
//! - **Up**: if runs wait, the number rises at once to the runners that could execute them.
//! - **Down**: if fewer runners were needed during the whole `idle_timeout`, a step of surplus
//!   workers is removed, and another one every quarter of that time, down to the peak demand
//!   within the timeout.
//!
//! Keeping the peak leaves the runners of a burst to the next burst. Busy runners are never
//! cancelled: surplus runners retire when their attempt ends.

use std::time::Duration;

use super::CorePhase;
use crate::{Core, DeadlineReason};

/// Number of parts of the idle timeout: its resolution.
const PARTS: u32 = 4;

/// A step down removes this fraction of the surplus workers, and at least one.
const SHARE: u32 = 8;

/// Bounds between which the number of runners follows the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalingBounds {
    pub min: u32,
    pub max: u32,
    /// Runners of one worker, which start and retire together.
    pub runners_per_worker: u32,
    /// Time without need after which a runner retires.
    pub idle_timeout: Duration,
}

impl ScalingBounds {
    /// Returns `runners` rounded up to whole workers, within the bounds. If the bounds contradict
    /// each other, `max` wins.
    pub fn fit(&self, runners: u32) -> u32 {
        let together = self.runners_per_worker.max(1);
        let whole = runners.div_ceil(together).saturating_mul(together);
        whole.max(self.min).min(self.max)
    }

    /// Returns the interval of checks for surplus runners.
    pub fn part(&self) -> Duration {
        (self.idle_timeout / PARTS).max(Duration::from_millis(1))
    }
}

/// Demand for runners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolLoad {
    pub working: u32,
    /// Further runners that waiting runs could use now.
    pub waiting: u64,
}

impl PoolLoad {
    pub fn needed(self) -> u32 {
        u32::try_from(u64::from(self.working) + self.waiting).unwrap_or(u32::MAX)
    }
}

/// Computes the target number of runners.
#[derive(Clone, Debug)]
pub struct Scaler {
    bounds: ScalingBounds,
    /// Peak demand in each part of the idle timeout, the current one first.
    peaks: [u32; PARTS as usize],
}

impl Scaler {
    pub const fn new(bounds: ScalingBounds) -> Self {
        Self { bounds, peaks: [0; PARTS as usize] }
    }

    /// Records the demand, whenever it may have changed. Returns the target: never fewer than
    /// before.
    pub fn record_demand(&mut self, load: PoolLoad, wanted: u32) -> u32 {
        let needed = load.needed();
        self.peaks[0] = self.peaks[0].max(needed);
        let more = load.waiting > 0 && needed > wanted;
        if more { self.bounds.fit(needed).max(wanted) } else { wanted }
    }

    /// Ends a part of the idle timeout. Returns the target: never more than before.
    pub fn part_over(&mut self, load: PoolLoad, wanted: u32) -> u32 {
        self.peaks[0] = self.peaks[0].max(load.needed());
        let most = self.peaks.iter().copied().max().unwrap_or_default();
        self.peaks.rotate_right(1);
        self.peaks[0] = load.needed();
        let enough = self.bounds.fit(most);
        if enough >= wanted {
            return wanted;
        }
        let together = self.bounds.runners_per_worker.max(1);
        let workers = (wanted - enough).div_ceil(together);
        let step = (workers / SHARE).max(1).saturating_mul(together);
        // Whole workers retire, also if the pool did not consist of such.
        self.bounds.fit(wanted.saturating_sub(step)).clamp(enough, wanted)
    }
}

impl Core {
    pub const fn wanted(&self) -> u32 {
        self.pool.target_runners
    }

    /// Lets the number of runners follow the work, if configured.
    pub(crate) fn scale(&mut self) {
        if self.phase != CorePhase::Running || self.pool.scaler.is_none() {
            return;
        }
        let load = self.load();
        // After all consequences of this input: passed time may have queued retries.
        let is_over = std::mem::take(&mut self.pool.part_over);
        let Some(scaler) = &mut self.pool.scaler else { return };
        let mut wanted = scaler.record_demand(load, self.pool.target_runners);
        if is_over {
            wanted = scaler.part_over(load, wanted);
        }
        self.set_target(wanted);
        if let Some(bounds) = self.config.scaling
            && self.pool.target_runners > bounds.min
            && self.pool.scale_timer.is_none()
        {
            let at = self.now.after(bounds.part());
            self.timers.set(DeadlineReason::Scaling, &mut self.pool.scale_timer, Some(at));
        }
    }

    /// Marks a part of the idle timeout as over, for [`scale`](Self::scale).
    pub(crate) fn scaling_due(&mut self) {
        self.pool.scale_timer = None;
        self.pool.part_over = true;
    }

    fn set_target(&mut self, wanted: u32) {
        let wanted = wanted.min(self.config.limits.runners);
        if wanted != self.pool.target_runners {
            self.pool.target_runners = wanted;
            self.resize_pool();
        }
    }

    /// Returns the demand for runners. Runs that cannot be dispatched although a runner is idle do
    /// not count.
    fn load(&self) -> PoolLoad {
        let held_back = !self.pool.idle.is_empty() || self.first_fresh().is_none();
        let fresh = if held_back { 0 } else { self.queues.slices };
        let retries = if self.pool.idle.is_empty() { self.dispatchable_retries() } else { 0 };
        let working = self.pool.working;
        // Runs may have ended before their dispatch.
        let waiting = (fresh + retries).min(self.counters.runs.pending);
        PoolLoad { working, waiting }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: ScalingBounds = ScalingBounds {
        min: 4,
        max: 64,
        runners_per_worker: 4,
        idle_timeout: Duration::from_secs(60),
    };

    fn busy(working: u32, waiting: u64) -> PoolLoad {
        PoolLoad { working, waiting }
    }

    #[test]
    fn waiting_work_adds_whole_workers_at_once_up_to_the_maximum() {
        let mut scaler = Scaler::new(BOUNDS);
        assert_eq!(scaler.record_demand(busy(4, 0), 4), 4, "nothing waits");
        assert_eq!(scaler.record_demand(busy(4, 1), 4), 8);
        assert_eq!(scaler.record_demand(busy(8, 13), 8), 24);
        assert_eq!(scaler.record_demand(busy(24, 1_000_000_000_000), 24), 64);
    }

    #[test]
    fn idle_runners_retire_step_by_step_after_the_idle_timeout() {
        let mut scaler = Scaler::new(BOUNDS);
        let mut wanted = scaler.record_demand(busy(4, 60), 4);
        let mut seen = Vec::new();
        for _ in 0..24 {
            wanted = scaler.part_over(busy(0, 0), wanted);
            seen.push(wanted);
        }
        // The part with the peak, and the idle timeout after it.
        assert!(seen[..4].iter().all(|wanted| *wanted == 64), "{seen:?}");
        assert_eq!(seen[4..8], [60, 56, 52, 48], "one worker at a time");
        assert_eq!(seen.last(), Some(&4));
    }

    #[test]
    fn bursts_keep_the_runners_of_the_next_burst() {
        let mut scaler = Scaler::new(BOUNDS);
        let mut wanted = scaler.record_demand(busy(4, 60), 4);
        for part in 0..100 {
            // Sixteen runners are busy for a moment, every third part.
            if part % 3 == 0 {
                wanted = scaler.record_demand(busy(16, 0), wanted);
            }
            wanted = scaler.part_over(busy(0, 0), wanted);
        }
        assert_eq!(wanted, 16);
    }

    #[test]
    fn large_pools_shrink_faster_than_small_ones() {
        let bounds = ScalingBounds { min: 1, max: 10_000, runners_per_worker: 1, ..BOUNDS };
        let mut scaler = Scaler::new(bounds);
        let mut wanted = scaler.record_demand(busy(0, 10_000), 1);
        let mut parts = 0;
        while wanted > 1 {
            wanted = scaler.part_over(busy(0, 0), wanted);
            parts += 1;
        }
        assert!(parts < 80, "{parts} parts");
    }
}
