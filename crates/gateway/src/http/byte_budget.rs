//! Bytes that the calls of all clients may hold together.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::keys::RunRef;
use crate::options::ByteLimits;

/// A budget of bytes. One half is open to all; of the other half every client gets the same share,
/// so that one cannot keep all others from their calls.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    limits: ByteLimits,
    usage: Mutex<HeldBytes>,
    /// Notified when bytes are returned.
    returned: Notify,
}

#[derive(Debug, Default)]
struct HeldBytes {
    bytes: u64,
    /// Agents without a run are one client.
    by_client: HashMap<Option<RunRef>, u64>,
}

/// The limit because of which bytes are not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BudgetRefusal {
    /// One call needs more than a run may hold.
    TooLarge(u64),
    /// One call without a run needs more than the half that is open to all.
    TooLargeForAll(u64),
    /// The calls of the run hold its limit.
    Run(u64),
    /// All calls hold the limit, or the run has more than its share.
    Total(u64),
}

/// Bytes of one call. Dropping returns them.
#[derive(Debug)]
pub(super) struct ByteLease {
    budget: Arc<MemoryBudget>,
    client: Option<RunRef>,
    bytes: u64,
}

impl MemoryBudget {
    pub(super) fn new(limits: ByteLimits) -> Arc<Self> {
        Arc::new(Self { limits, usage: Mutex::default(), returned: Notify::new() })
    }

    pub(super) fn lease(self: &Arc<Self>, client: Option<RunRef>) -> ByteLease {
        ByteLease { budget: Arc::clone(self), client, bytes: 0 }
    }

    pub(super) fn used(&self) -> u64 {
        self.usage.lock().bytes
    }

    fn try_take(&self, client: Option<RunRef>, bytes: u64) -> Result<(), BudgetRefusal> {
        let mut usage = self.usage.lock();
        let own = usage.by_client.get(&client).copied().unwrap_or(0);
        if client.is_some() && own.saturating_add(bytes) > self.limits.per_run {
            return Err(BudgetRefusal::Run(self.limits.per_run));
        }
        let clients = usage.by_client.len() as u64 + u64::from(own == 0);
        let half = self.limits.total / 2;
        let share = half / clients.max(1);
        let is_open = usage.bytes.saturating_add(bytes) <= half;
        if !is_open && own.saturating_add(bytes) > share {
            return Err(BudgetRefusal::Total(self.limits.total));
        }
        usage.bytes += bytes;
        *usage.by_client.entry(client).or_default() += bytes;
        Ok(())
    }

    fn return_bytes(&self, client: Option<RunRef>, bytes: u64) {
        let mut usage = self.usage.lock();
        usage.bytes = usage.bytes.saturating_sub(bytes);
        if let Some(own) = usage.by_client.get_mut(&client) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                usage.by_client.remove(&client);
            }
        }
        drop(usage);
        self.returned.notify_waiters();
    }
}

impl ByteLease {
    /// Adds bytes. Waits until they are available, at most until the deadline.
    pub(super) async fn grow(&mut self, bytes: u64, by: Instant) -> Result<(), BudgetRefusal> {
        if bytes == 0 {
            return Ok(());
        }
        let ByteLimits { total, per_run } = self.budget.limits;
        let needed = self.bytes.saturating_add(bytes);
        if self.client.is_some() && needed > per_run {
            return Err(BudgetRefusal::TooLarge(per_run));
        }
        if needed > total / 2 {
            return Err(BudgetRefusal::TooLargeForAll(total / 2));
        }
        while self.budget.try_take(self.client, bytes).is_err() {
            let mut returned = pin!(self.budget.returned.notified());
            returned.as_mut().enable();
            // Bytes may have been returned in between.
            let Err(refusal) = self.budget.try_take(self.client, bytes) else { break };
            timeout_at(by, returned).await.map_err(|_| refusal)?;
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Grows to a number of bytes, in steps, so that small changes cost a comparison.
    pub(super) async fn grow_to(&mut self, bytes: u64, by: Instant) -> Result<(), BudgetRefusal> {
        const STEP: u64 = 16 << 10;
        if bytes <= self.bytes {
            return Ok(());
        }
        self.grow(bytes.next_multiple_of(STEP) - self.bytes, by).await
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns all but a number of bytes.
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        if self.bytes > bytes {
            self.budget.return_bytes(self.client, self.bytes - bytes);
            self.bytes = bytes;
        }
    }
}

impl Drop for ByteLease {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn run(run: u32) -> Option<RunRef> {
        Some(RunRef { attempt: 1, run })
    }

    fn wait_deadline() -> Instant {
        Instant::now() + Duration::from_millis(1)
    }

    #[tokio::test(start_paused = true)]
    async fn empty_leases_and_impossible_ones_hold_nothing() {
        let budget = MemoryBudget::new(ByteLimits { total: 1000, per_run: 800 });
        let mut lease = budget.lease(run(1));
        assert_eq!(lease.grow(0, wait_deadline()).await, Ok(()));
        assert_eq!(lease.grow(900, wait_deadline()).await, Err(BudgetRefusal::TooLarge(800)));
        assert_eq!(lease.grow(600, wait_deadline()).await, Err(BudgetRefusal::TooLargeForAll(500)));
        assert_eq!(lease.grow(300, wait_deadline()).await, Ok(()));
        lease.shrink_to(100);
        assert_eq!((lease.bytes(), budget.used()), (100, 100));
        drop(lease);
        assert!(budget.usage.lock().by_client.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn one_run_cannot_take_the_share_of_others() {
        let budget = MemoryBudget::new(ByteLimits { total: 1000, per_run: 800 });
        let mut greedy = Vec::new();
        loop {
            let mut lease = budget.lease(run(1));
            if lease.grow(100, wait_deadline()).await.is_err() {
                break;
            }
            greedy.push(lease);
        }
        assert_eq!(budget.used(), 500, "alone it may hold half");
        for other in 2..6 {
            let mut lease = budget.lease(run(other));
            assert_eq!(lease.grow(100, wait_deadline()).await, Ok(()), "{other}");
            greedy.push(lease);
        }
        assert!(budget.used() <= 1000);
        drop(greedy);
        assert_eq!(budget.used(), 0);
        assert!(budget.usage.lock().by_client.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_waits_for_returned_bytes() {
        let budget = MemoryBudget::new(ByteLimits { total: 200, per_run: 100 });
        let (mut first, mut second) = (budget.lease(run(1)), budget.lease(run(1)));
        first.grow(90, wait_deadline()).await.unwrap();
        assert_eq!(second.grow(20, wait_deadline()).await, Err(BudgetRefusal::Run(100)));
        assert_eq!(second.grow(101, wait_deadline()).await, Err(BudgetRefusal::TooLarge(100)));
        let waiting = tokio::spawn(async move {
            let outcome = second.grow(20, Instant::now() + Duration::from_secs(9)).await;
            (outcome, second)
        });
        tokio::task::yield_now().await;
        first.shrink_to(0);
        assert_eq!(waiting.await.unwrap().0, Ok(()));
    }
}
