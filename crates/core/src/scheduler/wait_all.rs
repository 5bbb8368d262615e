//! Waiting until no task is open.

use std::time::Duration;

use super::{CorePhase, WaiterLocation};
use crate::{
    BatchKey, CancelReason, Core, DeadlineReason, Refusal, RequestId, Response, Time,
    UnresponsivePolicy,
};

/// A request that waits for all tasks. Its timeout restarts whenever a task ends.
#[derive(Clone, Debug)]
pub(crate) struct WaitAllWaiter {
    pub(crate) request: RequestId,
    since: Time,
    timeout: Duration,
    clear: bool,
    pub(crate) timer: Option<Time>,
}

impl Core {
    pub(crate) fn wait_all(&mut self, request: RequestId, timeout: Option<Duration>, clear: bool) {
        if self.phase == CorePhase::Stopping {
            return self.refuse(request, Refusal::Stopped);
        }
        let timeout = timeout.unwrap_or(self.config.default_timeout);
        let mut waiter = WaitAllWaiter { request, since: self.now, timeout, clear, timer: None };
        let at = Some(self.now.after(timeout));
        self.timers.set(DeadlineReason::Waiter(request), &mut waiter.timer, at);
        self.waiters.all.push(waiter);
        self.waiters.requests.insert(request, WaiterLocation::All);
    }

    pub(crate) fn remove_all_waiter(&mut self, request: RequestId) {
        let waiters = &mut self.waiters.all;
        if let Some(at) = waiters.iter().position(|waiter| waiter.request == request) {
            let mut waiter = waiters.remove(at);
            self.timers.set(DeadlineReason::Waiter(request), &mut waiter.timer, None);
        }
    }

    /// Sets the timer again if a task has ended since; otherwise the wait has timed out, which
    /// [`check_all_waiters`](Self::check_all_waiters) handles.
    pub(crate) fn all_waiter_due(&mut self, request: RequestId) {
        let last = self.progress.last_task_end;
        let waiter = self.waiters.all.iter_mut().find(|waiter| waiter.request == request);
        let Some(waiter) = waiter else { return };
        waiter.timer = None;
        let at = waiter.since.max(last).after(waiter.timeout);
        if at > self.now {
            self.timers.set(DeadlineReason::Waiter(request), &mut waiter.timer, Some(at));
        }
    }

    pub(crate) fn check_all_waiters(&mut self) {
        if self.waiters.all.is_empty() {
            return;
        }
        if self.queues.open_tasks == 0 {
            for mut waiter in std::mem::take(&mut self.waiters.all) {
                self.timers.set(DeadlineReason::Waiter(waiter.request), &mut waiter.timer, None);
                self.answer(waiter.request, Response::AllEnded);
            }
            return;
        }
        // A timer that is not set has expired.
        while let Some(at) = self.waiters.all.iter().position(|waiter| waiter.timer.is_none()) {
            let waiter = self.waiters.all.remove(at);
            let runs = &self.counters.runs;
            let refusal = Refusal::WaitAllTimedOut { pending: runs.pending, running: runs.running };
            if waiter.clear {
                self.truncate_all();
            }
            self.refuse(waiter.request, refusal);
        }
    }

    fn truncate_all(&mut self) {
        let keys: Vec<BatchKey> = self.queues.order.iter().map(|(_, key)| *key).collect();
        for key in keys {
            let reason = CancelReason::TimedOut;
            self.truncate(key, reason, false, UnresponsivePolicy::Replace);
        }
        while let Some(key) = self.changed.pop_first() {
            self.check_batch_waiters(key);
        }
    }
}
