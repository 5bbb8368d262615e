//! Invariants of the whole state, checked independently of the code that maintains them.

use super::{BatchOwner, CoreBatch, CorePhase, CoreTask, RunPhase, RunnerPhase, TaskPhase};
use crate::{BatchState, Core, DeadlineReason, RunTally, RunnerId};

/// Returns an error unless a condition holds.
macro_rules! require {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

impl Core {
    /// Searches the whole state for contradictions. Cost is linear in the state: for tests and the
    /// simulator.
    ///
    /// # Errors
    /// Describes the contradiction.
    pub fn check(&self) -> Result<(), String> {
        require!(self.counters.balanced(), "counters do not add up: {:?}", self.counters);
        self.check_batches()?;
        self.check_runners()?;
        self.check_waiters()?;
        self.check_leases()
    }

    fn check_batches(&self) -> Result<(), String> {
        let (mut open, mut held, mut bytes) = (0, 0, 0);
        let (mut pending, mut running, mut slices) = (0, 0, 0);
        for batch in self.batches.iter() {
            let name = &batch.id;
            let key = &batch.key;
            let found = self.batches.get(key).is_some_and(|found| found.key == *key);
            require!(found, "batch {name} is not found under {key}");
            let rank = batch.rank();
            let active = self.queues.order.contains(&rank);
            require!(active != batch.terminal(), "batch {name} is in the wrong set");
            require!(
                self.queues.fresh.contains(&rank) == (active && batch.has_fresh())
                    && self.queues.retrying.contains(&rank)
                        == (active && !batch.retries.is_empty())
                    && self.queues.suspects.contains(&rank)
                        == (active && !batch.suspects.is_empty()),
                "batch {name} is to be dispatched or not, contrary to its queue"
            );
            require!(
                batch.terminal() == self.terminal.contains(key),
                "batch {name} is remembered or not, contrary to its state"
            );
            held += self.check_batch(batch)?;
            let counted = batch.count_slices(self.max_runs_per_attempt());
            require!(counted == batch.slices, "batch {name} has {counted} slices left");
            slices += counted;
            open += batch.open;
            bytes += batch.held_bytes;
            pending += batch.runs.pending;
            running += batch.runs.running;
        }
        for (id, key) in &self.ids {
            let right = self.batches.get(key).is_some_and(|batch| batch.id == *id);
            require!(right, "the name {id} points to {key}, which is another batch or none");
        }
        let (queues, counters) = (&self.queues, &self.counters);
        let counted_tasks = counters.train.tasks.open + counters.eval.tasks.open;
        for (what, sum, kept) in [
            ("open tasks", open, queues.open_tasks),
            ("counted open tasks", open, counted_tasks),
            ("slices", slices, queues.slices),
            ("held payloads", held, counters.payloads_held),
            ("held bytes", bytes, counters.payload_bytes_held),
            ("pending runs", pending, counters.runs.pending),
            ("running runs", running, counters.runs.running),
        ] {
            require!(sum == kept, "{sum} {what} in batches, not {kept}");
        }
        // While records are restored, changes are applied at the end.
        let applied = self.changed.is_empty() || self.phase == CorePhase::New;
        require!(applied, "changed batches were not checked");
        Ok(())
    }

    /// Returns the number of payloads that the batch holds.
    fn check_batch(&self, batch: &CoreBatch) -> Result<u64, String> {
        let name = &batch.id;
        require!(batch.runs.balanced(), "runs of batch {name} do not add up: {:?}", batch.runs);
        if batch.terminal() {
            require!(batch.open == 0, "batch {name} is closed with open tasks");
            require!(batch.held_bytes == 0, "batch {name} is closed with payloads");
            require!(batch.waiters.is_empty(), "batch {name} is closed with waiters");
            require!(batch.leases.is_empty(), "batch {name} is closed with deliveries");
            return Ok(0);
        }
        let mut tally = RunTally::default();
        let (mut open, mut held, mut bytes, mut free) = (0, 0, 0, 0);
        for (at, task) in batch.tasks.iter().enumerate() {
            open += u64::from(task.open());
            let payloads = self.check_task(batch, at as u32, task, &mut tally)?;
            held += payloads.0;
            bytes += payloads.1;
            free +=
                u64::from(matches!(&task.body, TaskPhase::Ended(ended) if ended.lease.is_none()));
        }
        require!(open == batch.open, "batch {name} has {open} open tasks, not {}", batch.open);
        require!(bytes == batch.held_bytes, "batch {name} holds {bytes} bytes");
        require!(tally.pending == batch.runs.pending, "batch {name}: {tally:?} {:?}", batch.runs);
        require!(tally.running == batch.runs.running, "batch {name}: {tally:?} {:?}", batch.runs);
        let taken = batch.delivered > 0 && matches!(batch.owner, BatchOwner::Coordinator(_));
        require!(taken || free == batch.results.len() as u64, "batch {name}: {free} results");
        let ended = batch.ended.total();
        require!(ended + open == batch.tasks.len() as u64, "batch {name}: {ended} tasks ended");
        check_life_cycle(batch)?;
        let attempts = self.pool.runners.iter().filter_map(|slot| slot.attempt());
        let attempts = attempts.filter(|attempt| attempt.batch == batch.key).count() as u32;
        require!(attempts == batch.attempts, "batch {name} has {attempts} attempts");
        Ok(held)
    }

    /// Returns the number of payloads that the task holds, and their bytes.
    fn check_task(
        &self,
        batch: &CoreBatch,
        at: u32,
        task: &CoreTask,
        tally: &mut RunTally,
    ) -> Result<(u64, u64), String> {
        let name = format!("{}/{at}", batch.id);
        let work = match &task.body {
            TaskPhase::Fresh => {
                tally.pending += u64::from(task.total);
                require!(batch.is_fresh(at, 0), "task {name} waits but was passed over");
                return Ok((0, 0));
            }
            TaskPhase::Ended(ended) => {
                let bytes = ended.payloads.iter().map(|payload| payload.bytes).sum();
                return Ok((ended.payloads.len() as u64, bytes));
            }
            TaskPhase::Gone => return Ok((0, 0)),
            TaskPhase::Working(work) => work,
        };
        let (mut unfinished, mut held, mut bytes) = (0, 0, 0);
        for (run, state) in work.runs.iter().enumerate() {
            match state.state {
                RunPhase::Pending => {
                    unfinished += 1;
                    tally.pending += 1;
                    let queues = self.queue_count(batch, at, run as u32);
                    require!(queues == 1, "run {name}/{run} waits in {queues} queues");
                }
                RunPhase::InFlight(attempt) => {
                    unfinished += 1;
                    tally.running += 1;
                    let on = self.pool.runners.iter().filter_map(|slot| slot.attempt());
                    let on = on.filter(|current| current.id == attempt).count();
                    require!(on == 1, "run {name}/{run} is in flight on {on} runners");
                }
                RunPhase::Succeeded | RunPhase::Failed(_) | RunPhase::Cancelled(_) => {}
            }
            held += u64::from(state.payload.is_some());
            bytes += state.payload.map_or(0, |payload| payload.bytes);
        }
        require!(unfinished > 0, "task {name} is active without open runs");
        require!(unfinished == work.unfinished, "task {name} has {unfinished} unfinished runs");
        Ok((held, bytes))
    }

    fn queue_count(&self, batch: &CoreBatch, task: u32, run: u32) -> usize {
        let paused = self.queues.paused.values().filter(|(key, _)| *key == batch.key);
        let retries =
            batch.retries.iter().chain(&batch.suspects).chain(paused.map(|(_, retry)| retry));
        let again = retries.filter(|retry| retry.task.0 == task && retry.run.0 == run).count();
        usize::from(batch.is_fresh(task, run)) + again
    }

    fn check_runners(&self) -> Result<(), String> {
        let (mut alive, mut working) = (0, 0);
        for (at, slot) in self.pool.runners.iter().enumerate() {
            let runner = RunnerId(at as u32);
            alive += u32::from(slot.is_alive());
            working += u32::from(slot.attempt().is_some());
            let isolated = self.pool.isolated.contains(&runner);
            require!(!isolated || slot.is_alive(), "{runner} is isolated without a process");
            let idle = self.pool.idle.contains(&(slot.idle_since, runner));
            require!(
                idle == matches!(slot.phase, RunnerPhase::Idle),
                "runner {runner} is among the idle or not, contrary to its state"
            );
            require!(
                self.pool.retired_slots.contains(&runner)
                    == matches!(slot.phase, RunnerPhase::Retired),
                "runner {runner} is free or not, contrary to its state"
            );
            for (reason, at) in [
                (DeadlineReason::Runner(runner), slot.timer),
                (DeadlineReason::HeartbeatTimeout(runner), slot.heartbeat_deadline),
            ] {
                let set = at.is_none_or(|at| self.timers.contains(reason, at));
                require!(set, "runner {runner} has a timer that is not set");
            }
            let timed = slot.timer.is_some();
            let idle = matches!(slot.phase, RunnerPhase::Idle | RunnerPhase::Retired);
            let stopped = self.phase != CorePhase::Running;
            require!(timed || idle || stopped || slot.waits, "runner {runner} could wait for ever");
            let starting = matches!(slot.phase, RunnerPhase::Starting);
            require!(starting || !slot.waits, "runner {runner} waits for a start that is over");
        }
        require!(alive == self.pool.alive, "{alive} runners are alive, not {}", self.pool.alive);
        require!(working == self.pool.working, "{working} runners work, not {}", self.pool.working);
        if self.phase == CorePhase::Running {
            let counted = self.pool.runners.iter().filter(|slot| slot.counted()).count() as u32;
            require!(
                counted == self.pool.target_runners,
                "{counted} runners are kept, not {}",
                self.pool.target_runners
            );
        }
        let half = self.config.limits.payload_bytes / 2;
        let room = self.counters.payload_bytes_held < half;
        let waiting = !self.queues.fresh.is_empty();
        let stuck =
            self.phase == CorePhase::Running && room && waiting && !self.pool.idle.is_empty();
        require!(!stuck, "a runner is idle while fresh runs wait");
        Ok(())
    }

    fn check_waiters(&self) -> Result<(), String> {
        let in_batches: usize = self.batches.iter().map(|batch| batch.waiters.len()).sum();
        let stops = self.stopping.as_ref().map_or(0, |stopping| stopping.waiters.len());
        let kept = in_batches + self.waiters.all.len() + self.waiters.start.len() + stops;
        require!(
            kept == self.waiters.requests.len(),
            "{} requests wait, {kept} kept",
            self.waiters.requests.len()
        );
        let open = self.counters.requests - self.counters.answers - self.counters.abandoned;
        require!(open == self.waiters.requests.len() as u64, "{open} requests are unanswered");
        let in_batches = self.batches.iter().flat_map(|batch| &batch.waiters);
        let timers = in_batches.map(|waiter| (waiter.request, waiter.timer));
        let all = self.waiters.all.iter().map(|waiter| (waiter.request, waiter.timer));
        for (request, timer) in timers.chain(all) {
            let set =
                timer.is_none_or(|at| self.timers.contains(DeadlineReason::Waiter(request), at));
            require!(set, "request {request} has a timer that is not set");
        }
        Ok(())
    }

    fn check_leases(&self) -> Result<(), String> {
        let listed: usize = self.batches.iter().map(|batch| batch.leases.len()).sum();
        require!(listed == self.leases.len(), "{listed} deliveries, {} kept", self.leases.len());
        for (id, lease) in &self.leases {
            let Some(batch) = self.batches.get(&lease.batch) else {
                return Err(format!("delivery {id} is of no batch"));
            };
            for task in &lease.tasks {
                let right = match &batch.tasks[task.0 as usize].body {
                    TaskPhase::Ended(ended) => ended.lease == Some(*id),
                    TaskPhase::Fresh | TaskPhase::Working(_) | TaskPhase::Gone => false,
                };
                require!(right, "delivery {id} claims task {}/{task}", batch.id);
            }
        }
        let most =
            self.pool.runners.len() * 2 + self.waiters.requests.len() + self.queues.paused.len();
        let most = most + self.leases.len() + 3;
        require!(self.timers.len() <= most, "{} timers, at most {most}", self.timers.len());
        Ok(())
    }
}

fn check_life_cycle(batch: &CoreBatch) -> Result<(), String> {
    let name = &batch.id;
    if let BatchOwner::Coordinator(state) = batch.owner {
        let delivering = state == BatchState::Finalizing || state == BatchState::Aborted;
        require!(delivering || batch.leases.is_empty(), "batch {name} delivers while {state}");
        let empty = batch.tasks.is_empty();
        require!(empty || state != BatchState::Pending, "batch {name} has tasks and pends");
    }
    Ok(())
}
