//! Waiting until nothing is unfinished anywhere.

use std::time::Duration;

use crate::Core;
use crate::failure::CancelReason;
use crate::ids::{BatchKey, RequestId};
use crate::scheduler::action::{Action, Refusal, Response};
use crate::scheduler::completion::PartialPolicy;
use crate::scheduler::core::WaiterLocation;
use crate::scheduler::input::UnresponsivePolicy;
use crate::scheduler::lifecycle::CorePhase;
use crate::scheduler::view::DeadlineReason;
use crate::time::Time;

/// A request that waits for everything. Its time starts anew whenever a task ends.
#[derive(Clone, Debug)]
pub(crate) struct WaitAllWaiter {
    pub(crate) request: RequestId,
    since: Time,
    timeout: Duration,
    clear: bool,
    pub(crate) timer: Option<Time>,
}

impl Core {
    pub(crate) fn wait_all(
        &mut self,
        request: RequestId,
        timeout: Option<Duration>,
        clear: bool,
        actions: &mut Vec<Action>,
    ) {
        if self.phase == CorePhase::Stopping {
            return self.refuse(request, Refusal::Stopped, actions);
        }
        let timeout = timeout.unwrap_or(self.config.default_timeout);
        let mut waiter = WaitAllWaiter { request, since: self.now, timeout, clear, timer: None };
        let at = Some(self.now.after(timeout));
        self.timers.set(DeadlineReason::Waiter(request), &mut waiter.timer, at);
        self.waiters.all.push(waiter);
        self.waiters.requests.insert(request, WaiterLocation::All);
    }

    pub(crate) fn forget_all_waiter(&mut self, request: RequestId) {
        let waiters = &mut self.waiters.all;
        if let Some(at) = waiters.iter().position(|waiter| waiter.request == request) {
            let mut waiter = waiters.remove(at);
            self.timers.set(DeadlineReason::Waiter(request), &mut waiter.timer, None);
        }
    }

    /// Sets the timer again if a task has ended since; otherwise the time is up, which
    /// [`look_at_all_waiters`](Self::look_at_all_waiters) sees.
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

    pub(crate) fn look_at_all_waiters(&mut self, actions: &mut Vec<Action>) {
        if self.waiters.all.is_empty() {
            return;
        }
        if self.queues.open_tasks == 0 {
            for mut waiter in std::mem::take(&mut self.waiters.all) {
                self.timers.set(DeadlineReason::Waiter(waiter.request), &mut waiter.timer, None);
                self.answer(waiter.request, Response::AllEnded, actions);
            }
            return;
        }
        // A timer that is not set has run out.
        while let Some(at) = self.waiters.all.iter().position(|waiter| waiter.timer.is_none()) {
            let waiter = self.waiters.all.remove(at);
            let runs = &self.counters.runs;
            let refusal = Refusal::WaitAllTimedOut { pending: runs.pending, running: runs.running };
            if waiter.clear {
                self.cut_everything(actions);
            }
            self.refuse(waiter.request, refusal, actions);
        }
    }

    fn cut_everything(&mut self, actions: &mut Vec<Action>) {
        let keys: Vec<BatchKey> = self.queues.order.iter().map(|(_, key)| *key).collect();
        for key in keys {
            let why = CancelReason::TimedOut;
            self.truncate(key, why, PartialPolicy::Drop, UnresponsivePolicy::Replace, actions);
        }
        while let Some(key) = self.changed.pop_first() {
            self.look(key, actions);
        }
    }
}
