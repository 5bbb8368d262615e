//! How many runners are wanted when their number follows the work.
//!
//! ```text
//!  work waits ──► as many as could work on it, at once           (at most `max`)
//!  less needed ─► for `quiet` never so many: one step fewer, and again a quarter of that later,
//!                 down to the most that were needed within it    (at least `min`)
//! ```
//!
//! What was needed within the quiet time is remembered, so that work that comes in bursts keeps the
//! runners that the next burst needs. Nobody who works is ever cut: runners that are too many go
//! when they are done.

use std::time::Duration;

use crate::Core;
use crate::scheduler::action::Action;
use crate::scheduler::lifecycle::CorePhase;
use crate::scheduler::view::DeadlineReason;

/// Into how many parts the quiet time is divided; its end is known to a part.
const PARTS: u32 = 4;

/// A step down takes one part in so many of what is too many, and one worker at least.
const SHARE: u32 = 8;

/// Between which numbers the pool of runners follows the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalingBounds {
    /// The fewest runners.
    pub min: u32,
    /// The most runners.
    pub max: u32,
    /// How many runners come and go together: those of one worker.
    pub runners_per_worker: u32,
    /// For how long a runner must not have been needed before it goes.
    pub idle_timeout: Duration,
}

impl ScalingBounds {
    /// Returns the number of whole workers that offers at least this many runners, as far as the
    /// bounds allow. If they contradict each other, the most counts.
    pub fn fit(&self, runners: u32) -> u32 {
        let together = self.runners_per_worker.max(1);
        let whole = runners.div_ceil(together).saturating_mul(together);
        whole.max(self.min).min(self.max)
    }

    /// Returns how often it is looked whether there are too many.
    pub fn part(&self) -> Duration {
        (self.idle_timeout / PARTS).max(Duration::from_millis(1))
    }
}

/// How much there is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolLoad {
    /// Runners that work.
    pub working: u32,
    /// Further runners that what waits could keep busy now.
    pub waiting: u64,
}

impl PoolLoad {
    /// Returns how many runners would have something to do.
    pub fn needed(self) -> u32 {
        u32::try_from(u64::from(self.working) + self.waiting).unwrap_or(u32::MAX)
    }
}

/// Decides how many runners are wanted.
#[derive(Clone, Debug)]
pub struct Scaler {
    bounds: ScalingBounds,
    /// The most that were needed in each part of the quiet time, the current one first.
    peaks: [u32; PARTS as usize],
}

impl Scaler {
    /// Returns a scaler that has seen nothing.
    pub const fn new(bounds: ScalingBounds) -> Self {
        Self { bounds, peaks: [0; PARTS as usize] }
    }

    /// Looks at what there is to do, whenever that may have changed. Returns how many runners are
    /// wanted: never fewer than before.
    pub fn look(&mut self, load: PoolLoad, wanted: u32) -> u32 {
        let needed = load.needed();
        self.peaks[0] = self.peaks[0].max(needed);
        let more = load.waiting > 0 && needed > wanted;
        if more { self.bounds.fit(needed).max(wanted) } else { wanted }
    }

    /// A part of the quiet time is over. Returns how many runners are wanted: never more than
    /// before.
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
        // Whole workers go, also if the pool did not consist of such.
        self.bounds.fit(wanted.saturating_sub(step)).clamp(enough, wanted)
    }
}

impl Core {
    /// Returns the number of runners to keep.
    pub const fn wanted(&self) -> u32 {
        self.pool.target_runners
    }

    /// Lets the number of runners follow the work, if it is to.
    pub(crate) fn scale(&mut self, actions: &mut Vec<Action>) {
        if self.phase != CorePhase::Running || self.pool.scaler.is_none() {
            return;
        }
        let load = self.load();
        // With what this input has led to: time that passed may have brought work.
        let is_over = std::mem::take(&mut self.pool.part_over);
        let Some(scaler) = &mut self.pool.scaler else { return };
        let mut wanted = scaler.look(load, self.pool.target_runners);
        if is_over {
            wanted = scaler.part_over(load, wanted);
        }
        self.want(wanted, actions);
        if let Some(bounds) = self.config.scaling
            && self.pool.target_runners > bounds.min
            && self.pool.scale_timer.is_none()
        {
            let at = self.now.after(bounds.part());
            self.timers.set(DeadlineReason::Scaling, &mut self.pool.scale_timer, Some(at));
        }
    }

    /// A part of the quiet time is over; [`scale`](Self::scale) sees to it.
    pub(crate) fn scaling_due(&mut self) {
        self.pool.scale_timer = None;
        self.pool.part_over = true;
    }

    fn want(&mut self, wanted: u32, actions: &mut Vec<Action>) {
        let wanted = wanted.min(self.config.limits.runners);
        if wanted != self.pool.target_runners {
            self.pool.target_runners = wanted;
            self.fit_pool(actions);
        }
    }

    /// Returns how much there is to do for runners. What cannot go out although
    /// somebody is idle is not waiting for runners.
    fn load(&self) -> PoolLoad {
        let held_back = !self.pool.idle.is_empty() || self.first_fresh().is_none();
        let fresh = if held_back { 0 } else { self.queues.slices };
        let retries = if self.pool.idle.is_empty() { self.retries_at_hand() } else { 0 };
        let working = self.pool.working;
        // Runs may have ended before they were dispatched.
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
    fn work_that_waits_brings_whole_workers_at_once_and_no_more_than_the_most() {
        let mut scaler = Scaler::new(BOUNDS);
        assert_eq!(scaler.look(busy(4, 0), 4), 4, "nothing waits");
        assert_eq!(scaler.look(busy(4, 1), 4), 8);
        assert_eq!(scaler.look(busy(8, 13), 8), 24);
        assert_eq!(scaler.look(busy(24, 1_000_000_000_000), 24), 64);
    }

    #[test]
    fn runners_go_step_by_step_when_none_was_needed_for_the_quiet_time() {
        let mut scaler = Scaler::new(BOUNDS);
        let mut wanted = scaler.look(busy(4, 60), 4);
        let mut seen = Vec::new();
        for _ in 0..24 {
            wanted = scaler.part_over(busy(0, 0), wanted);
            seen.push(wanted);
        }
        // The part in which they were needed, and all of the quiet time behind it.
        assert!(seen[..4].iter().all(|wanted| *wanted == 64), "{seen:?}");
        assert_eq!(seen[4..8], [60, 56, 52, 48], "one worker at a time");
        assert_eq!(seen.last(), Some(&4));
    }

    #[test]
    fn bursts_keep_what_the_next_one_needs() {
        let mut scaler = Scaler::new(BOUNDS);
        let mut wanted = scaler.look(busy(4, 60), 4);
        for part in 0..100 {
            // Sixteen runners are busy for a moment, every third part.
            if part % 3 == 0 {
                wanted = scaler.look(busy(16, 0), wanted);
            }
            wanted = scaler.part_over(busy(0, 0), wanted);
        }
        assert_eq!(wanted, 16);
    }

    #[test]
    fn many_go_faster_than_few() {
        let bounds = ScalingBounds { min: 1, max: 10_000, runners_per_worker: 1, ..BOUNDS };
        let mut scaler = Scaler::new(bounds);
        let mut wanted = scaler.look(busy(0, 10_000), 1);
        let mut parts = 0;
        while wanted > 1 {
            wanted = scaler.part_over(busy(0, 0), wanted);
            parts += 1;
        }
        assert!(parts < 80, "{parts} parts");
    }
}
