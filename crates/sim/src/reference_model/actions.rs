//! Effects of actions on the model.

use rollway_core::{
    Action, AttemptCancelReason, AttemptId, BatchKey, BatchType, CancelReason, DropReason,
    Incarnation, LeaseId, Payload, RequestId, Response, RunnerId, Suspicion, TaskId, TaskResult,
    Time,
};

use super::{
    AttemptState, ModelAttempt, ModelLease, ModelSlot, PayloadState, Phase, ReferenceModel,
    RequestState, RunState,
};

impl ReferenceModel {
    pub fn action(&mut self, now: Time, action: &Action) {
        match action {
            Action::StartRunner { runner, incarnation, isolated } => {
                self.begin_life(now, *runner, *incarnation, *isolated);
            }
            Action::StopRunner { runner, incarnation } => {
                if self.alive(*runner, *incarnation).is_some() {
                    self.end_life(now, *runner, self.stop_cause(now, *runner));
                }
            }
            Action::StartAttempt { .. } => self.add_attempt(now, action),
            Action::CancelAttempt { attempt, reason, .. } => self.cancel(now, *attempt, *reason),
            Action::DropPayload { payload, reason } => self.drop_payload(payload, *reason),
            // The acknowledgement of the lease is known as an input.
            Action::ReleasePayloads(_) => {}
            Action::Deliver { lease, batch, results } => {
                self.add_lease(now, *lease, *batch, results, true);
            }
            Action::Respond { request, answer } => self.answered(now, *request, answer),
            // Known from earlier events.
            Action::AppendRecord(_) => {}
            Action::DropTasks { batch } => {
                if let Some(record) = self.batches.get_mut(batch) {
                    record.forgotten = true;
                    let train = record.kind == BatchType::Train && !record.tasks.is_empty();
                    self.train_batches += u32::from(train);
                    if self.active.get(&record.id) == Some(batch) {
                        self.active.remove(&record.id);
                    }
                }
                for lease in self.leases.values_mut().filter(|lease| lease.batch == *batch) {
                    lease.open = false;
                }
            }
        }
    }

    /// An idle runner of a pool with a fixed number of runners is stopped because it is silent, or
    /// for isolation.
    fn stop_cause(&self, now: Time, runner: RunnerId) -> Suspicion {
        let silence = self.config.supervision.heartbeat_timeout;
        let isolates = self.slots.get(&runner).is_some_and(|slot| {
            let silent = silence.is_some_and(|silence| now >= slot.last_report.after(silence));
            slot.phase == Phase::Idle && !silent
        });
        if isolates && self.fitted() { Suspicion::Neighbour } else { Suspicion::None }
    }

    fn begin_life(
        &mut self,
        now: Time,
        runner: RunnerId,
        incarnation: Incarnation,
        isolated: bool,
    ) {
        let before = self.slots.get(&runner);
        let slot = ModelSlot {
            incarnation,
            phase: Phase::Starting,
            isolated,
            caused: false,
            start_failures: before.map_or(0, |slot| slot.start_failures),
            fruitless: before.map_or(0, |slot| slot.fruitless),
            fruitful: false,
            ended: now,
            since: now,
            last_report: now,
        };
        self.slots.insert(runner, slot);
    }

    fn add_attempt(&mut self, now: Time, action: &Action) {
        let Action::StartAttempt {
            runner, incarnation, attempt, batch, task, runs, timeout, ..
        } = action
        else {
            return;
        };
        if let Some(slot) = self.slots.get_mut(runner) {
            slot.phase = Phase::Given(*attempt);
        }
        let outstanding: Vec<u32> = runs.iter().map(|run| run.0).collect();
        for run in &outstanding {
            let Some(run) = self.run_mut(*batch, *task, *run) else { continue };
            run.state = RunState::Given;
            run.tries += 1;
            run.last = Some(*attempt);
        }
        let record = ModelAttempt {
            runner: *runner,
            incarnation: *incarnation,
            batch: *batch,
            task: *task,
            outstanding,
            count: runs.count,
            sound: true,
            state: AttemptState::Current,
            since: now,
            begun: false,
            timeout: *timeout,
        };
        self.attempts.insert(*attempt, record);
    }

    fn cancel(&mut self, now: Time, id: AttemptId, reason: AttemptCancelReason) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.state = AttemptState::Cancelling(reason);
        attempt.since = now;
        // A cancel on request names its run; the others return.
        if !matches!(reason, AttemptCancelReason::Runs(why) if why != CancelReason::Requested) {
            return;
        }
        let (batch, task, left) = (attempt.batch, attempt.task, attempt.outstanding.clone());
        for run in left {
            if let Some(run) = self.run_mut(batch, task, run) {
                run.state = RunState::Cancelled;
            }
        }
    }

    fn drop_payload(&mut self, payload: &Payload, reason: DropReason) {
        let Some(kept) = self.payloads.get_mut(&payload.id) else { return };
        kept.state = PayloadState::Dropped(reason);
        let kept = *kept;
        if !kept.accepted {
            return;
        }
        self.hold(kept, false);
        if let Some((batch, ..)) = kept.origin
            && let Some(batch) = self.batches.get_mut(&batch)
        {
            batch.dropped[reason] += 1;
        }
    }

    fn add_lease(
        &mut self,
        now: Time,
        lease: LeaseId,
        batch: BatchKey,
        results: &[TaskResult],
        to_sink: bool,
    ) {
        let payloads: Vec<Payload> =
            results.iter().flat_map(|result| result.payloads.iter().copied()).collect();
        let tasks: Vec<TaskId> = results.iter().map(|result| result.task).collect();
        for payload in &payloads {
            if let Some(kept) = self.payloads.get_mut(&payload.id) {
                kept.state = PayloadState::Leased(lease);
            }
        }
        let record = ModelLease { batch, tasks, payloads, to_sink, since: now, open: true };
        self.leases.insert(lease, record);
    }

    fn answered(&mut self, now: Time, request: RequestId, answer: &Response) {
        self.open.remove(&request);
        let batch = self.batch_of(request);
        let Some(asked) = self.requests.get_mut(&request) else { return };
        asked.state = RequestState::Answered;
        if let Response::Collected(collected) = answer
            && let (Some(lease), Some(batch)) = (collected.lease, batch)
        {
            self.add_lease(now, lease, batch, &collected.results, false);
        }
    }
}
