//! State of a connection for its timeouts.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rollway_base::listener::ListenerLimits;

use crate::counters::CloseReason;

/// Moment that did not occur.
const NEVER: u64 = u64::MAX;

/// Requests and moments of one connection. Moments are milliseconds since it was accepted.
#[derive(Debug)]
pub(crate) struct Activity {
    accepted: Instant,
    in_flight: AtomicU32,
    /// Number of requests that began.
    requests: AtomicU32,
    /// End of the last request.
    idle_since: AtomicU64,
    /// First byte of a head that is not complete.
    head_since: AtomicU64,
    /// Begin of a write that is not complete.
    write_since: AtomicU64,
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self {
            accepted: Instant::now(),
            in_flight: AtomicU32::new(0),
            requests: AtomicU32::new(0),
            idle_since: AtomicU64::new(0),
            // The first head is due from the connection on.
            head_since: AtomicU64::new(0),
            write_since: AtomicU64::new(NEVER),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.accepted.elapsed().as_millis()).unwrap_or(NEVER - 1)
    }

    pub(crate) fn request_began(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.head_since.store(NEVER, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn request_ended(&self) {
        self.idle_since.store(self.now(), Ordering::Relaxed);
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) == 0
    }

    /// Time without a request.
    pub(crate) fn idle_millis(&self) -> Option<u64> {
        self.is_idle().then(|| self.now().saturating_sub(self.idle_since.load(Ordering::Relaxed)))
    }

    /// Records the first byte of a head.
    pub(crate) fn head_began(&self) {
        let _ = self.head_since.compare_exchange(
            NEVER,
            self.now(),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    pub(crate) fn write_blocked(&self, is_blocked: bool) {
        if !is_blocked {
            self.write_since.store(NEVER, Ordering::Relaxed);
        } else if self.write_since.load(Ordering::Relaxed) == NEVER {
            self.write_since.store(self.now(), Ordering::Relaxed);
        }
    }

    /// Returns the reason to close the connection now, or the time of the next check.
    pub(crate) fn check(&self, limits: &ListenerLimits) -> Result<Duration, CloseReason> {
        let now = self.now();
        let mut next = limits.header_timeout;
        let mut due = |since: u64, limit: Duration, reason| {
            if since == NEVER {
                return Ok(());
            }
            let left = limit.saturating_sub(Duration::from_millis(now.saturating_sub(since)));
            if left.is_zero() {
                return Err(reason);
            }
            next = next.min(left);
            Ok(())
        };
        due(
            self.write_since.load(Ordering::Relaxed),
            limits.write_timeout,
            CloseReason::WriteTimeout,
        )?;
        if self.is_idle() {
            let head_since = self.head_since.load(Ordering::Relaxed);
            due(head_since, limits.header_timeout, CloseReason::HeaderTimeout)?;
            due(
                self.idle_since.load(Ordering::Relaxed),
                limits.idle_timeout,
                CloseReason::IdleTimeout,
            )?;
        }
        // Timers have a resolution of one millisecond.
        Ok(next.max(Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use rollway_base::listener::ListenerKind;

    use super::*;

    fn limits() -> ListenerLimits {
        ListenerLimits {
            header_timeout: Duration::ZERO,
            idle_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            ..ListenerLimits::of(ListenerKind::MockServer)
        }
    }

    #[test]
    fn the_first_head_is_due_from_the_connection_on() {
        let activity = Activity::new();
        assert_eq!(activity.check(&limits()), Err(CloseReason::HeaderTimeout));
    }

    #[test]
    fn between_requests_the_idle_timeout_counts_until_the_first_byte() {
        let activity = Activity::new();
        activity.request_began();
        assert!(activity.check(&limits()).is_ok(), "a request is in flight");
        activity.request_ended();
        assert!(activity.check(&limits()).is_ok(), "idle");
        activity.head_began();
        assert_eq!(activity.check(&limits()), Err(CloseReason::HeaderTimeout));
        let idle = ListenerLimits {
            idle_timeout: Duration::ZERO,
            ..ListenerLimits::of(ListenerKind::MockServer)
        };
        assert_eq!(activity.check(&idle), Err(CloseReason::IdleTimeout));
    }

    #[test]
    fn a_blocked_write_is_limited_during_a_request() {
        let activity = Activity::new();
        activity.request_began();
        activity.write_blocked(true);
        let limits = ListenerLimits { write_timeout: Duration::ZERO, ..limits() };
        assert_eq!(activity.check(&limits), Err(CloseReason::WriteTimeout));
        activity.write_blocked(false);
        assert!(activity.check(&limits).is_ok());
    }
}
