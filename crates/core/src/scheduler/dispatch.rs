//! Which runs go out next, and to whom.

use crate::Core;
use crate::batch_id::BatchPriority;
use crate::failure::CancelReason;
use crate::ids::{AttemptId, BatchKey, RunnerId, TaskId};
use crate::scheduler::action::{Action, RunRange};
use crate::scheduler::batch::PendingRetry;
use crate::scheduler::lifecycle::CorePhase;
use crate::scheduler::runner_slot::{RunnerPhase, SlotAttempt};
use crate::scheduler::status::BatchType;
use crate::scheduler::task::{RunPhase, TaskPhase, TaskRuns};
use crate::scheduler::view::DeadlineReason;
use crate::time::Time;

/// How many retries, idle runners and batches are looked at for one that fits. More would make the
/// cost of a dispatch depend on how much is pending; what is passed over is found again when
/// something ahead of it has gone.
const LOOK_AHEAD: usize = 8;

/// The place of a batch in the order of service.
type BatchRank = (BatchPriority, BatchKey);

/// A slice that can go out, and where.
struct DispatchMatch {
    batch: BatchKey,
    task: TaskId,
    runs: RunRange,
    runner: RunnerId,
}

impl Core {
    /// Sends out everything that can go: batches in order, and inside a batch retries before what
    /// was never tried, each first come first served.
    pub(crate) fn dispatch(&mut self, actions: &mut Vec<Action>) {
        if self.phase != CorePhase::Running {
            return;
        }
        while !self.pool.idle.is_empty() {
            self.give_up_for_lack_of_room(actions);
            let fresh = self.first_fresh();
            let found = match (self.next_retry(fresh), fresh) {
                (Some(retry), _) => Some(retry),
                (None, Some(rank)) => self.take_fresh(rank),
                (None, None) => break,
            };
            // None: all that was left in the queue of the batch had ended.
            if let Some(found) = found {
                self.start_attempt(found, actions);
            }
        }
    }

    /// Finds the first batch with fresh work that there is room for.
    pub(crate) fn first_fresh(&self) -> Option<BatchRank> {
        self.queues.fresh.iter().take(LOOK_AHEAD).find(|rank| self.room_for(rank.1)).copied()
    }

    /// Returns the most runs of one task that go out at once.
    pub(crate) fn most_at_once(&self) -> u32 {
        self.config.max_repeat_times_per_runner.unwrap_or(u32::MAX).max(1)
    }

    /// Counts the retries of the first batches that could go out now.
    pub(crate) fn retries_at_hand(&self) -> u64 {
        let batches = self.queues.retrying.iter().take(LOOK_AHEAD);
        let batches = batches.filter(|rank| self.room_for(rank.1));
        batches.map(|rank| self.batches[&rank.1].retries.len() as u64).sum()
    }

    /// Takes the next slice of a batch with fresh work.
    fn take_fresh(&mut self, rank: BatchRank) -> Option<DispatchMatch> {
        let runner = self.pool.idle.first()?.1;
        let most = self.most_at_once();
        let batch = self.batches.get_mut(&rank.1)?;
        let before = batch.slices;
        let found = batch.next_fresh(most);
        self.queues.slices -= before - batch.slices;
        if !batch.has_fresh() {
            self.queues.fresh.remove(&rank);
        }
        let (task, runs) = found?;
        Some(DispatchMatch { batch: rank.1, task, runs, runner })
    }

    /// Finds a retry of a batch up to the one whose fresh work is next.
    fn next_retry(&mut self, fresh: Option<BatchRank>) -> Option<DispatchMatch> {
        let ranks: Vec<BatchRank> = self.queues.retrying.iter().take(LOOK_AHEAD).copied().collect();
        let mut earliest: Option<Time> = None;
        for rank in ranks {
            if fresh.is_some_and(|fresh| fresh < rank) {
                break;
            }
            if !self.room_for(rank.1) {
                continue;
            }
            if let Some(found) = self.match_retry(rank.1, &mut earliest) {
                return Some(found);
            }
        }
        if let Some(at) = earliest {
            self.timers.set(
                DeadlineReason::AnyRunner,
                &mut self.queues.other_runner_until,
                Some(at),
            );
        }
        None
    }

    /// Cancels the unsent runs of the first batch if there is no room for what they yield: waiting
    /// could not bring any.
    fn give_up_for_lack_of_room(&mut self, actions: &mut Vec<Action>) {
        let Some((_, key)) = self.queues.order.first().copied() else { return };
        if self.batches[&key].runs.pending > 0 && !self.room_for(key) {
            self.cancel_unsent(key, CancelReason::NoRoom, actions);
        }
    }

    /// Finds a retry and an idle runner other than the one it failed on.
    fn match_retry(&mut self, key: BatchKey, earliest: &mut Option<Time>) -> Option<DispatchMatch> {
        let (now, alive) = (self.now, self.pool.alive);
        let batch = self.batches.get_mut(&key)?;
        let mut found = None;
        for (at, retry) in batch.retries.iter().enumerate().take(LOOK_AHEAD) {
            let mut idle = self.pool.idle.iter().take(LOOK_AHEAD).map(|(_, runner)| *runner);
            let (avoid, until) = retry.avoid;
            let another = idle.find(|runner| *runner != avoid);
            let alone = alive <= u32::from(self.pool.runners[avoid.0 as usize].alive());
            if let Some(runner) = another {
                found = Some((at, runner));
                break;
            }
            if alone || until <= now {
                found = Some((at, avoid));
                break;
            }
            *earliest = Some(earliest.map_or(until, |earliest| earliest.min(until)));
        }
        let (at, runner) = found?;
        let PendingRetry { task, run, .. } = batch.retries.remove(at)?;
        let runs = RunRange { first: run.0, count: 1 };
        if batch.retries.is_empty() {
            self.queues.retrying.remove(&batch.rank());
        }
        Some(DispatchMatch { batch: key, task, runs, runner })
    }

    /// Tells whether a batch may add to the payloads that are held. Those behind the first may
    /// while half of the budget is free; the first one may also while it holds less than half
    /// itself: what others hold can never keep it, which is finalized first, from being finished.
    fn room_for(&self, key: BatchKey) -> bool {
        let batch = &self.batches[&key];
        let (budget, held) = (self.config.limits.payload_bytes, self.counters.payload_bytes_held);
        match batch.kind {
            BatchType::Eval => true,
            BatchType::Train
                if self.queues.order.first().is_some_and(|(_, first)| *first == key) =>
            {
                held < budget || batch.held_bytes < budget / 2
            }
            BatchType::Train => held < budget / 2,
        }
    }

    fn start_attempt(&mut self, found: DispatchMatch, actions: &mut Vec<Action>) {
        let DispatchMatch { batch: key, task: id, runs, runner } = found;
        let attempt = AttemptId(self.serials.attempt);
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let task = &mut batch.tasks[id.0 as usize];
        if matches!(task.body, TaskPhase::Fresh) {
            task.body = TaskPhase::Working(Box::new(TaskRuns::new(task.total)));
        }
        let TaskPhase::Working(work) = &mut task.body else { return };
        for run in runs.iter() {
            work.runs[run.0 as usize].state = RunPhase::InFlight(attempt);
        }
        let kills = work.kills;
        let cap = self.config.max_timeout;
        let timeout = match batch.kind {
            BatchType::Train => {
                self.durations.timeout(task.workflow, runs.count, &self.config.dynamic_timeout, cap)
            }
            BatchType::Eval => cap,
        };
        let count = u64::from(runs.count);
        let [all, of_kind] = self.counters.books(batch.kind);
        for tally in [&mut batch.runs, all, of_kind] {
            tally.pending -= count;
            tally.running += count;
        }
        batch.attempts += 1;
        self.serials.attempt += 1;
        self.counters.attempts_started += 1;
        let life = self.pool.runners[runner.0 as usize].life;
        actions.push(Action::StartAttempt {
            runner,
            life,
            attempt,
            batch: key,
            task: id,
            runs,
            timeout,
            suspected_losses: kills,
        });
        let attempt = SlotAttempt {
            id: attempt,
            batch: key,
            task: id,
            left: runs.count,
            runs,
            succeeded: 0,
            sent: self.now,
            began: None,
            timeout,
        };
        self.enter(runner, RunnerPhase::Busy(attempt));
    }
}
