//! How late the driver is: the time from the arrival of a message to the end of the turn in which
//! it was applied and all it led to was ordered. Written by the driver alone, read by anybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Steps of the histogram: four in every doubling of a microsecond, up to about an hour.
const STEPS: usize = 4 * 32;

/// How late the driver has been since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Of the oldest message of the last turn; while a turn lasts longer than that, the turn.
    pub last: Duration,
    /// The longest that any message had to wait.
    pub max: Duration,
    /// Ninety-nine of a hundred messages had to wait for less. Rounded up by a fifth at most.
    pub p99: Duration,
    /// The longest turn.
    pub longest_turn: Duration,
    /// How many messages there were.
    pub messages: u64,
    /// How many turns they took.
    pub turns: u64,
    /// The sum of what all messages had to wait.
    pub sum: Duration,
    /// How many messages had to wait for so long at most, for each step at which there is one.
    pub steps: Vec<(Duration, u64)>,
}

impl Lag {
    /// Returns how late the driver has been since `earlier`. Of the longest times no more is known
    /// than the step that they fall into.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut steps = Vec::new();
        let (mut before, mut all) = (0, 0);
        let mut earlier_steps = earlier.steps.iter().peekable();
        for (step, count) in &self.steps {
            while let Some((_, count)) = earlier_steps.next_if(|(known, _)| known <= step) {
                before = *count;
            }
            if count - before > all {
                all = count - before;
                steps.push((*step, all));
            }
        }
        let max = steps.last().map_or(Duration::ZERO, |(step, _)| (*step).min(self.max));
        let mut lag = Self {
            last: self.last,
            max,
            p99: Duration::ZERO,
            longest_turn: self.longest_turn,
            messages: self.messages - earlier.messages,
            turns: self.turns - earlier.turns,
            sum: self.sum.saturating_sub(earlier.sum),
            steps,
        };
        lag.p99 = lag.within(0.99);
        lag
    }

    /// Returns within which time a share of all messages was applied.
    pub fn within(&self, share: f64) -> Duration {
        let wanted = (self.messages as f64 * share).ceil() as u64;
        let found = self.steps.iter().find(|(_, count)| *count >= wanted);
        found.map_or(Duration::ZERO, |(step, _)| (*step).min(self.max))
    }
}

/// Where the driver writes down how late it is. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct LagMeter(Arc<Marks>);

#[derive(Debug)]
struct Marks {
    origin: Instant,
    /// Nanoseconds from the origin to the beginning of the turn; zero between turns.
    turn: AtomicU64,
    last: AtomicU64,
    max: AtomicU64,
    longest_turn: AtomicU64,
    turns: AtomicU64,
    sum: AtomicU64,
    steps: [AtomicU64; STEPS],
}

impl Default for LagMeter {
    fn default() -> Self {
        Self(Arc::new(Marks {
            origin: Instant::now(),
            turn: AtomicU64::new(0),
            last: AtomicU64::new(0),
            max: AtomicU64::new(0),
            longest_turn: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            steps: [const { AtomicU64::new(0) }; STEPS],
        }))
    }
}

impl LagMeter {
    /// A turn begins.
    pub(crate) fn begin(&self, now: Instant) {
        let since = nanos(now.saturating_duration_since(self.0.origin)).max(1);
        self.0.turn.store(since, Ordering::Relaxed);
    }

    /// The turn is over, in which messages were applied that arrived at these moments.
    pub(crate) fn end(&self, began: Instant, now: Instant, arrived: &mut Vec<Instant>) {
        let marks = &*self.0;
        let mut oldest = 0;
        let mut sum = 0;
        for at in arrived.drain(..) {
            let age = nanos(now.saturating_duration_since(at));
            oldest = oldest.max(age);
            sum += age;
            add(&marks.steps[step(age)], 1);
        }
        marks.last.store(oldest, Ordering::Relaxed);
        marks.max.fetch_max(oldest, Ordering::Relaxed);
        let turn = nanos(now.saturating_duration_since(began));
        marks.longest_turn.fetch_max(turn, Ordering::Relaxed);
        add(&marks.sum, sum);
        add(&marks.turns, 1);
        marks.turn.store(0, Ordering::Relaxed);
    }

    /// Returns how late the driver has been.
    pub(crate) fn read(&self) -> Lag {
        let marks = &*self.0;
        let get = |mark: &AtomicU64| mark.load(Ordering::Relaxed);
        let mut messages = 0;
        let mut steps = Vec::new();
        for (at, count) in marks.steps.iter().enumerate() {
            let count = get(count);
            messages += count;
            if count > 0 {
                steps.push((Duration::from_nanos(bound(at)), messages));
            }
        }
        let under_way = match get(&marks.turn) {
            0 => 0,
            since => nanos(marks.origin.elapsed()).saturating_sub(since),
        };
        let mut lag = Lag {
            last: Duration::from_nanos(get(&marks.last).max(under_way)),
            max: Duration::from_nanos(get(&marks.max).max(under_way)),
            p99: Duration::ZERO,
            longest_turn: Duration::from_nanos(get(&marks.longest_turn).max(under_way)),
            messages,
            turns: get(&marks.turns),
            sum: Duration::from_nanos(get(&marks.sum)),
            steps,
        };
        lag.p99 = lag.within(0.99);
        lag
    }
}

/// Adds what nobody else writes.
fn add(mark: &AtomicU64, more: u64) {
    mark.store(mark.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the step that an age falls into.
fn step(nanos: u64) -> usize {
    let micros = nanos.div_ceil(1_000).max(1);
    let doublings = micros.ilog2();
    let quarter = if doublings < 2 { 0 } else { (micros >> (doublings - 2)) & 3 };
    (doublings as usize * 4 + quarter as usize).min(STEPS - 1)
}

/// Returns the longest age of a step.
fn bound(step: usize) -> u64 {
    let (doublings, quarter) = (step / 4, step as u64 % 4);
    let first = 1_u64 << doublings;
    let above = if doublings < 2 { first * 2 } else { first + first / 4 * (quarter + 1) };
    (above - 1) * 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_fall_into_steps_that_bound_them_closely() {
        for micros in [1, 2, 3, 4, 5, 7, 8, 100, 1_000, 65_535, 65_536, 3_000_000] {
            let age = micros * 1_000;
            let most = bound(step(age));
            assert!(most >= age, "{micros} µs is above its step");
            let close = micros < 8 || most as f64 <= age as f64 * 1.25;
            assert!(close, "{micros} µs is told as {most} ns");
            assert!(step(most) == step(age) && step(most + 1) > step(age), "{micros} µs");
        }
    }

    #[test]
    fn one_late_message_of_a_hundred_is_the_maximum_and_not_the_p99() {
        let meter = LagMeter::default();
        let began = meter.0.origin;
        let now = began + Duration::from_secs(1);
        let mut arrived = vec![now - Duration::from_micros(90); 99];
        arrived.push(began);
        meter.begin(began);
        meter.end(began, now, &mut arrived);
        let lag = meter.read();
        assert_eq!((lag.messages, lag.turns), (100, 1));
        assert_eq!(lag.max, Duration::from_secs(1));
        assert_eq!(lag.last, lag.max);
        assert!(lag.p99 >= Duration::from_micros(90) && lag.p99 < Duration::from_micros(120));
        assert_eq!(lag.sum, Duration::from_micros(90 * 99 + 1_000_000));

        let mut arrived = vec![now - Duration::from_micros(10); 3];
        meter.end(began, now, &mut arrived);
        let later = meter.read().since(&lag);
        assert_eq!((later.messages, later.turns), (3, 1));
        assert!(later.max >= Duration::from_micros(10) && later.max < Duration::from_micros(15));
        assert_eq!(later.steps.len(), 1);
    }
}
