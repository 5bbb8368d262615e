//! Maximum number of requests in flight at a server, adapted to the load that it reports. No I/O,
//! no clock.
//!
//! A server that has more requests than it can run keeps them in a queue, or preempts some and
//! computes them again. Requests in the gateway's own queue can still go to another server, do not
//! delay weight updates, and cost the server nothing. So the limit follows what the server runs,
//! plus a short queue that keeps it busy between two reports.

use rollway_model_api::server_api::ServerLoad;

/// Cache usage from which the limit is not raised.
const FULL_CACHE: f64 = 0.9;

/// Bounds of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitBounds {
    pub(super) min: u32,
    pub(super) max: u32,
}

/// Effect of a report on a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitChange {
    Raised,
    Lowered,
    Unchanged,
}

/// Limit of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConcurrencyLimit {
    limit: u32,
    bounds: LimitBounds,
    /// Number of preemptions in the last report. `None`: there was none since the last update.
    preemptions: Option<u64>,
}

impl ConcurrencyLimit {
    pub(super) fn new(bounds: LimitBounds) -> Self {
        let max = bounds.max.max(1);
        let bounds = LimitBounds { min: bounds.min.clamp(1, max), max };
        Self { limit: max, bounds, preemptions: None }
    }

    pub(super) const fn get(&self) -> u32 {
        self.limit
    }

    /// Returns whether it is below its upper bound.
    pub(super) const fn is_adapted(&self) -> bool {
        self.limit < self.bounds.max
    }

    /// Forgets the reports: the server reports no load any more.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.bounds);
    }

    /// Ignores the preemptions until the next report: a weight update preempts all requests.
    pub(super) fn skip_preemptions(&mut self) {
        self.preemptions = None;
    }

    /// Adapts the limit to a report that arrived with `in_flight` requests at the server.
    pub(super) fn adapt(&mut self, in_flight: u32, load: &ServerLoad) -> LimitChange {
        let before = std::mem::replace(&mut self.preemptions, load.preemptions);
        let preempts = matches!((before, load.preemptions), (Some(old), Some(new)) if new > old);
        let used = in_flight.min(self.limit);
        let (queue, allowed) = (load.waiting, queue_target(load.running));
        let wanted = if preempts {
            used - used / 8
        } else if queue > allowed {
            // A request may have several sequences: its share of them counts.
            let kept = load.running.max(1) + allowed;
            let all = load.running.max(1) + queue;
            let share = u64::from(used) * kept;
            u32::try_from(share.div_ceil(all)).unwrap_or(used)
        } else if (self.limit - self.limit / 8..=self.limit).contains(&in_flight)
            && load.cache_usage.is_none_or(|usage| usage < FULL_CACHE)
        {
            self.limit.saturating_add((self.limit / 8).max(1))
        } else {
            self.limit
        };
        let wanted = wanted.clamp(self.bounds.min, self.bounds.max);
        let before = std::mem::replace(&mut self.limit, wanted);
        match wanted.cmp(&before) {
            std::cmp::Ordering::Greater => LimitChange::Raised,
            std::cmp::Ordering::Less => LimitChange::Lowered,
            std::cmp::Ordering::Equal => LimitChange::Unchanged,
        }
    }
}

/// Returns the length of a server's queue that is neither avoided nor shortened.
pub(super) fn queue_target(running: u64) -> u64 {
    (running / 8).max(2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: LimitBounds = LimitBounds { min: 4, max: 1000 };

    fn load(running: u64, waiting: u64) -> ServerLoad {
        ServerLoad { running, waiting, cache_usage: Some(0.5), preemptions: Some(0) }
    }

    #[test]
    fn a_long_queue_lowers_the_limit_to_what_runs() {
        let mut limit = ConcurrencyLimit::new(BOUNDS);
        assert_eq!(limit.adapt(1000, &load(256, 744)), LimitChange::Lowered);
        assert_eq!(limit.get(), 288);
        // Three sequences of each request.
        let mut limit = ConcurrencyLimit::new(BOUNDS);
        limit.adapt(100, &load(96, 204));
        assert_eq!(limit.get(), 36);
    }

    #[test]
    fn a_limit_that_is_reached_is_raised_while_the_cache_has_room() {
        let mut limit = ConcurrencyLimit::new(BOUNDS);
        limit.adapt(1000, &load(64, 936));
        assert_eq!(limit.get(), 72);
        assert_eq!(limit.adapt(30, &load(30, 0)), LimitChange::Unchanged, "it is not reached");
        assert_eq!(limit.adapt(72, &load(72, 0)), LimitChange::Raised);
        assert_eq!(limit.get(), 81);
        let full = ServerLoad { cache_usage: Some(0.97), ..load(81, 0) };
        assert_eq!(limit.adapt(81, &full), LimitChange::Unchanged);
    }

    #[test]
    fn preemptions_lower_the_limit_but_not_those_of_an_update() {
        let mut limit = ConcurrencyLimit::new(BOUNDS);
        let preempted = |count| ServerLoad { preemptions: Some(count), ..load(100, 0) };
        assert_eq!(limit.adapt(100, &preempted(7)), LimitChange::Unchanged, "of an earlier time");
        assert_eq!(limit.adapt(100, &preempted(9)), LimitChange::Lowered);
        assert_eq!(limit.get(), 88);
        limit.skip_preemptions();
        assert_eq!(limit.adapt(50, &preempted(59)), LimitChange::Unchanged);
        // A restarted server begins at zero.
        assert_eq!(limit.adapt(50, &preempted(0)), LimitChange::Unchanged);
        limit.reset();
        assert_eq!(limit.get(), 1000);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn a_limit_stays_within_its_bounds(
            (min, max) in (0_u32..50, 0_u32..50),
            reports in prop::collection::vec(
                (0_u32..2000, 0_u64..2000, 0_u64..2000, 0_u8..100, 0_u64..9),
                0..40,
            ),
        ) {
            let mut limit = ConcurrencyLimit::new(LimitBounds { min, max });
            for (in_flight, running, waiting, percent, preemptions) in reports {
                let cache_usage = Some(f64::from(percent) / 100.0);
                let preemptions = Some(preemptions);
                let load = ServerLoad { running, waiting, cache_usage, preemptions };
                limit.adapt(in_flight, &load);
                prop_assert!(limit.get() >= 1 && limit.get() <= max.max(1));
                prop_assert!(limit.get() >= min.min(max));
            }
        }
    }

    /// A server with a cache for 64 sequences of 32 steps. Each step, every running sequence makes
    /// progress; a sequence needs more cache the longer it is. If the cache is full, the newest
    /// ones are preempted and begin again.
    struct CacheServer {
        running: Vec<u32>,
        waiting: u64,
        finished: u64,
        preemptions: u64,
    }

    const STEPS: u32 = 32;
    const CACHE: u32 = 64 * STEPS;

    impl CacheServer {
        fn step(&mut self) {
            // A sequence is admitted if its prompt fits.
            while self.waiting > 0 && self.used() < CACHE {
                self.waiting -= 1;
                self.running.push(1);
            }
            for length in &mut self.running {
                *length += 1;
            }
            let before = self.running.len();
            self.running.retain(|length| *length < STEPS);
            self.finished += (before - self.running.len()) as u64;
            while self.used() > CACHE && self.running.pop().is_some() {
                self.preemptions += 1;
                self.waiting += 1;
            }
        }

        fn used(&self) -> u32 {
            self.running.iter().sum()
        }

        fn load(&self) -> ServerLoad {
            ServerLoad {
                running: self.running.len() as u64,
                waiting: self.waiting,
                cache_usage: Some(f64::from(self.used()) / f64::from(CACHE)),
                preemptions: Some(self.preemptions),
            }
        }

        fn in_flight(&self) -> u32 {
            self.running.len() as u32 + self.waiting as u32
        }
    }

    /// Returns finished sequences, preemptions and the mean queue of the server after 2,000 steps
    /// with 1,000 callers.
    fn simulate(adapts: bool) -> (u64, u64, u64) {
        let mut limit = ConcurrencyLimit::new(BOUNDS);
        let mut server =
            CacheServer { running: Vec::new(), waiting: 0, finished: 0, preemptions: 0 };
        let mut queued = 0;
        for step in 0..2000 {
            let room = limit.get().min(1000).saturating_sub(server.in_flight());
            server.waiting += u64::from(room);
            server.step();
            queued += server.waiting;
            if adapts && step % 8 == 0 {
                limit.adapt(server.in_flight(), &server.load());
            }
        }
        (server.finished, server.preemptions, queued / 2000)
    }

    #[test]
    fn an_adaptive_limit_prevents_preemptions_without_losing_throughput() {
        let (fixed, fixed_preemptions, fixed_queue) = simulate(false);
        let (adaptive, preemptions, queue) = simulate(true);
        assert!(adaptive >= fixed, "{adaptive} finished instead of {fixed}");
        assert!(preemptions * 4 < fixed_preemptions, "{preemptions} of {fixed_preemptions}");
        assert!(queue * 5 < fixed_queue, "{queue} wait at the server, before {fixed_queue}");
    }
}
