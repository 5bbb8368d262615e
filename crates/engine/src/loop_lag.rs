//! Loop lag of the driver: the time from the arrival of a message to the end of the turn in which
//! it was applied and its actions were ordered. Written by the driver, read by the metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;

/// Largest lag of the histogram in microseconds: an hour.
const MAX_MICROS: u64 = 3_600_000_000;

/// Significant digits of the histogram: a lag is rounded by a sixteenth at most.
const DIGITS: u8 = 1;

/// Lag of the driver since it was started.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopLag {
    /// Of the oldest message of the last turn, or of a current turn that lasts longer.
    pub last: Duration,
    /// Maximum of all messages.
    pub max: Duration,
    /// 99th percentile, rounded up by a sixteenth at most.
    pub p99: Duration,
    pub longest_turn: Duration,
    pub messages: u64,
    pub turns: u64,
    /// Sum over all messages.
    pub sum: Duration,
    /// All messages by their lag in microseconds.
    histogram: Histogram<u64>,
}

impl Default for LoopLag {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_MICROS, DIGITS);
        Self {
            last: Duration::ZERO,
            max: Duration::ZERO,
            p99: Duration::ZERO,
            longest_turn: Duration::ZERO,
            messages: 0,
            turns: 0,
            sum: Duration::ZERO,
            histogram: histogram.expect("the bounds and the precision are valid"),
        }
    }
}

impl LoopLag {
    /// Returns the lag since `earlier`. The longest times have the precision of the histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut lag = self.clone();
        lag.histogram.subtract(&earlier.histogram).expect("counts never become less");
        lag.max = Duration::from_micros(lag.histogram.max()).min(self.max);
        lag.turns -= earlier.turns;
        lag.sum = self.sum.saturating_sub(earlier.sum);
        lag.summarized()
    }

    /// Returns the time within which a share of all messages was applied.
    pub fn within(&self, share: f64) -> Duration {
        Duration::from_micros(self.histogram.value_at_quantile(share)).min(self.max)
    }

    /// Returns the number of messages with a lag below a power of two of microseconds.
    pub fn below(&self, micros: u64) -> u64 {
        self.histogram.count_between(0, micros - 1)
    }

    /// Sets the values that follow from the histogram.
    fn summarized(self) -> Self {
        Self { messages: self.histogram.len(), p99: self.within(0.99), ..self }
    }
}

/// Meter of the driver's lag. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct LoopLagMeter(Arc<LagMeterState>);

#[derive(Debug)]
struct LagMeterState {
    origin: Instant,
    /// Nanoseconds from the origin to the start of the current turn; zero between turns.
    turn: AtomicU64,
    /// Not summarized.
    totals: Mutex<LoopLag>,
}

impl Default for LoopLagMeter {
    fn default() -> Self {
        Self(Arc::new(LagMeterState {
            origin: Instant::now(),
            turn: AtomicU64::new(0),
            totals: Mutex::default(),
        }))
    }
}

impl LoopLagMeter {
    /// Records the start of a turn.
    pub(crate) fn begin(&self, now: Instant) {
        let since = nanos(now.saturating_duration_since(self.0.origin)).max(1);
        self.0.turn.store(since, Ordering::Relaxed);
    }

    /// Records the end of a turn and the arrival times of the messages that it applied.
    pub(crate) fn end(&self, began: Instant, now: Instant, arrived: &mut Vec<Instant>) {
        let mut totals = self.0.totals.lock();
        let mut oldest = Duration::ZERO;
        for at in arrived.drain(..) {
            let age = now.saturating_duration_since(at);
            oldest = oldest.max(age);
            totals.sum += age;
            totals.histogram.saturating_record(nanos(age).div_ceil(1_000).max(1));
        }
        totals.last = oldest;
        totals.max = totals.max.max(oldest);
        totals.longest_turn = totals.longest_turn.max(now.saturating_duration_since(began));
        totals.turns += 1;
        self.0.turn.store(0, Ordering::Relaxed);
    }

    /// Returns the lag up to now; a turn that still lasts counts with its duration so far.
    pub(crate) fn read(&self) -> LoopLag {
        let mut lag = self.0.totals.lock().clone();
        let current = match self.0.turn.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => self.0.origin.elapsed().saturating_sub(Duration::from_nanos(since)),
        };
        lag.last = lag.last.max(current);
        lag.max = lag.max.max(current);
        lag.longest_turn = lag.longest_turn.max(current);
        lag.summarized()
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_late_message_of_a_hundred_sets_the_maximum_but_not_the_p99() {
        let meter = LoopLagMeter::default();
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
        assert_eq!((later.below(8), later.below(16)), (0, 3));
    }
}
