//! Effects of inputs on the model.

use std::time::Duration;

use rollway_core::{
    Action, AttemptCancelReason, AttemptId, BatchKey, BatchType, CancelReason, DeliveryOutcome,
    FailureKind, Incarnation, Input, LeaseId, Payload, Request, RequestId, Response, RunFailure,
    RunId, RunOutcome, RunOutput, RunnerId, RunnerReport, Suspicion, TaskId, TaskSpec, Time,
};

use super::{
    AttemptState, ModelBatch, ModelPayload, ModelRequest, ModelRun, ModelTask, PayloadState, Phase,
    Pool, ReferenceModel, RequestState, RunState,
};

impl ReferenceModel {
    /// Applies one input. `accepted`: whether the core did not ignore it. The actions are used only
    /// for the key of a new batch, since other actions of the same step may refer to it.
    pub fn input(&mut self, now: Time, input: &Input, actions: &[Action], accepted: bool) {
        match input {
            Input::Requested { request, what } if accepted => {
                self.on_request(now, *request, what, actions);
            }
            Input::RequestAbandoned { request } => {
                if self.open.remove(request).is_some()
                    && let Some(asked) = self.requests.get_mut(request)
                {
                    asked.state = RequestState::Withdrawn;
                }
            }
            Input::Report { runner, incarnation, report } => {
                self.reported(now, *runner, *incarnation, report, accepted);
            }
            Input::DeliveryDone { lease, delivery } if accepted => self.delivered(*lease, delivery),
            Input::TimePassed => self.expire_leases(now),
            Input::Restore(record) if accepted => self.recorded(record),
            Input::Requested { .. } | Input::DeliveryDone { .. } | Input::Restore(_) => {}
        }
    }

    fn on_request(&mut self, now: Time, request: RequestId, what: &Request, actions: &[Action]) {
        let asked = ModelRequest { what: what.clone(), at: now, state: RequestState::Open };
        self.requests.insert(request, asked);
        self.open.insert(request, now);
        let answer = actions.iter().find_map(|action| match action {
            Action::Respond { request: to, answer } if *to == request => Some(answer),
            _ => None,
        });
        match (what, answer) {
            (Request::Submit { tasks, .. }, Some(Response::Submitted { batch })) => {
                self.add_batch(*batch, what);
                self.add_tasks(*batch, tasks);
            }
            (
                Request::Schedule { tasks, .. },
                Some(Response::Scheduled { batch: Some(key), .. }),
            ) => {
                if !self.batches.contains_key(key) {
                    self.add_batch(*key, what);
                }
                self.add_tasks(*key, tasks);
            }
            (_, Some(Response::Refused(_))) => {}
            (Request::Start, _) => self.pool = Pool::Running,
            (Request::Stop { .. }, _) => {
                self.pool = Pool::Stopped;
                self.refitted = true;
                for batch in self.batches.values_mut().filter(|batch| !batch.forgotten) {
                    batch.given_up = true;
                }
            }
            (Request::CancelRun { batch, task, run }, Some(Response::RunCancelled(true))) => {
                if let Some(key) = self.active.get(batch).copied() {
                    self.cancel_run(key, *task, run.0);
                }
            }
            (Request::Abort { batch, keep_partial_results, .. }, _) => {
                let key = self.active.get(batch);
                if let Some(batch) = key.and_then(|key| self.batches.get_mut(key)) {
                    batch.given_up = true;
                    batch.forgone |= !keep_partial_results;
                }
            }
            _ => {}
        }
    }

    /// Cancels one run. If it was about to be charged for its attempt, no run is.
    fn cancel_run(&mut self, batch: BatchKey, task: TaskId, id: u32) {
        let in_turn = self.config.runs_in_turn;
        let Some(run) = self.run_mut(batch, task, id) else { return };
        let given = run.state == RunState::Given;
        let last = run.last.filter(|_| given);
        (run.state, run.requested) = (RunState::Cancelled, true);
        self.requested += 1;
        let Some(attempt) = last.and_then(|last| self.attempts.get_mut(&last)) else { return };
        let first = attempt.outstanding.first() == Some(&id);
        attempt.outstanding.retain(|outstanding| *outstanding != id);
        let cancelling = matches!(attempt.state, AttemptState::Cancelling(_));
        if cancelling && in_turn && first {
            attempt.state =
                AttemptState::Cancelling(AttemptCancelReason::Runs(CancelReason::Requested));
        }
    }

    pub(super) fn add_batch(&mut self, key: BatchKey, what: &Request) {
        let (Request::Submit { batch: id, kind, .. } | Request::Schedule { batch: id, kind, .. }) =
            what
        else {
            return;
        };
        let (submitted, min_wait_num) = match what {
            Request::Submit { min_wait_num, .. } => (true, *min_wait_num),
            _ => (false, None),
        };
        let batch = ModelBatch {
            id: id.clone(),
            kind: *kind,
            submitted,
            min_wait_num,
            tasks: Vec::new(),
            given_up: false,
            forgone: false,
            forgotten: false,
            held_bytes: 0,
            delivered: 0,
            dropped: rollway_core::ByDropReason::default(),
        };
        self.batches.insert(key, batch);
        self.active.insert(id.clone(), key);
        self.latest.insert(id.clone(), key);
    }

    pub(super) fn add_tasks(&mut self, key: BatchKey, specs: &[TaskSpec]) {
        let Some(batch) = self.batches.get_mut(&key) else { return };
        for spec in specs {
            let runs = vec![ModelRun::default(); spec.repeat_times as usize];
            self.submitted += u64::from(spec.repeat_times);
            batch.tasks.push(ModelTask { spec: *spec, runs, suspected_losses: 0, handed: 0 });
        }
    }

    fn reported(
        &mut self,
        now: Time,
        runner: RunnerId,
        incarnation: Incarnation,
        report: &RunnerReport,
        accepted: bool,
    ) {
        if let RunnerReport::RunFinished { attempt, run, outcome } = report {
            self.receive(*attempt, *run, outcome, accepted);
        }
        if self.alive(runner, incarnation).is_none() {
            return;
        }
        if let Some(slot) = self.slots.get_mut(&runner) {
            slot.last_report = now;
        }
        if !accepted {
            return;
        }
        match report {
            RunnerReport::Ready { after } => self.ready(now, runner, *after),
            RunnerReport::AttemptBegan { attempt } => {
                self.last_progress = now;
                if let Some(attempt) = self.attempts.get_mut(attempt) {
                    attempt.since = now;
                    attempt.begun = true;
                }
            }
            RunnerReport::RunFinished { attempt, run, outcome } => {
                self.last_progress = now;
                self.finish(now, *attempt, *run, outcome);
            }
            RunnerReport::AttemptEnded { attempt } => self.ready(now, runner, Some(*attempt)),
            RunnerReport::StartFailed { .. } => self.end_life(now, runner, Suspicion::None),
            RunnerReport::Lost { suspicion, .. } => self.end_life(now, runner, *suspicion),
            RunnerReport::Heartbeat | RunnerReport::StartBlocked { .. } => {}
        }
    }

    /// Adds a received payload.
    fn receive(&mut self, attempt: AttemptId, run: RunId, outcome: &RunOutcome, accepted: bool) {
        let Ok(RunOutput { payload: Some(payload), .. }) = outcome else { return };
        let origin =
            self.attempts.get(&attempt).map(|attempt| (attempt.batch, attempt.task, run.0));
        let accepted = accepted && payload.bytes <= self.config.limits.payload_bytes_per_run;
        let kept =
            ModelPayload { bytes: payload.bytes, origin, accepted, state: PayloadState::Held };
        if accepted {
            self.hold(kept, true);
        }
        self.payloads.insert(payload.id, kept);
    }

    fn ready(&mut self, now: Time, runner: RunnerId, after: Option<AttemptId>) {
        let Some(slot) = self.slots.get_mut(&runner) else { return };
        match slot.phase {
            Phase::Starting if after.is_none() => {
                slot.phase = Phase::Idle;
                slot.start_failures = 0;
            }
            Phase::Given(attempt) if after == Some(attempt) => {
                slot.phase = Phase::Idle;
                slot.fruitful = true;
                slot.fruitless = 0;
                self.end_attempt(now, attempt, Suspicion::None);
            }
            Phase::Starting | Phase::Idle | Phase::Given(_) | Phase::Over => {}
        }
    }

    fn finish(&mut self, now: Time, id: AttemptId, run: RunId, outcome: &RunOutcome) {
        let most = self.config.limits.payload_bytes_per_run;
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.outstanding.retain(|outstanding| *outstanding != run.0);
        attempt.sound &= match outcome {
            Ok(RunOutput { payload, .. }) => payload.is_none_or(|payload| payload.bytes <= most),
            Err(_) => false,
        };
        let (batch, task) = (attempt.batch, attempt.task);
        let whole = attempt.sound && attempt.begun && attempt.outstanding.is_empty();
        let (took, count) = (now.since(attempt.since), attempt.count);
        if whole {
            self.record_duration(batch, task, count, took);
        }
        let suspected_losses = self.task(batch, task).map_or(0, |task| task.suspected_losses);
        let Some(record) = self.run_mut(batch, task, run.0) else { return };
        match outcome {
            Ok(RunOutput { payload: Some(Payload { bytes, .. }), .. }) if *bytes > most => {
                record.fail(now, FailureKind::InvalidOutput, 0);
            }
            Ok(RunOutput { payload, .. }) => {
                let label = Self::label(id, run.0);
                let payload = payload.map(|payload| payload.id);
                record.state = RunState::Succeeded { label, payload };
                self.succeeded += 1;
            }
            Err(RunFailure { kind, .. }) => {
                record.fail(now, *kind, suspected_losses);
            }
        }
    }

    fn record_duration(&mut self, batch: BatchKey, task: TaskId, count: u32, took: Duration) {
        let Some(batch) = self.batches.get(&batch) else { return };
        let Some(task) = batch.tasks.get(task.0 as usize) else { return };
        if batch.kind == BatchType::Train {
            self.durations.entry((task.spec.workflow, count)).or_default().push(took);
        }
    }

    /// Ends an incarnation and its attempt.
    pub(super) fn end_life(&mut self, now: Time, runner: RunnerId, suspicion: Suspicion) {
        let Some(slot) = self.slots.get_mut(&runner) else { return };
        let phase = std::mem::replace(&mut slot.phase, Phase::Over);
        slot.ended = now;
        slot.caused = suspicion != Suspicion::None;
        slot.start_failures += u32::from(phase == Phase::Starting && !slot.caused);
        slot.fruitless += u32::from(!slot.fruitful && !slot.caused);
        if let Phase::Given(attempt) = phase {
            self.end_attempt(now, attempt, suspicion);
        }
    }

    /// Ends an attempt: its open runs fail in a way that follows from its state.
    fn end_attempt(&mut self, now: Time, id: AttemptId, suspicion: Suspicion) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let state = std::mem::replace(&mut attempt.state, AttemptState::Over);
        let left = std::mem::take(&mut attempt.outstanding);
        let (batch, task) = (attempt.batch, attempt.task);
        let neighbour = suspicion == Suspicion::Neighbour && state == AttemptState::Current;
        let innocent = neighbour
            || state
                == AttemptState::Cancelling(AttemptCancelReason::Runs(CancelReason::Requested));
        let kind = match state {
            _ if neighbour => None,
            AttemptState::Cancelling(AttemptCancelReason::Timeout) => Some(FailureKind::Timeout),
            AttemptState::Cancelling(AttemptCancelReason::BeginTimeout) | AttemptState::Current => {
                Some(FailureKind::RunnerLost)
            }
            AttemptState::Cancelling(AttemptCancelReason::Runs(_)) | AttemptState::Over => None,
        };
        let current = state == AttemptState::Current;
        if current && suspicion == Suspicion::Sole {
            self.add_kill(batch, task);
        }
        let suspect = current && matches!(suspicion, Suspicion::Sole | Suspicion::Shared);
        let suspected_losses = self.task(batch, task).map_or(0, |task| task.suspected_losses);
        // With sequential execution only the first open run is charged.
        let mut blamed = if self.config.runs_in_turn { 1 } else { u32::MAX };
        for run in left {
            let Some(run) = self.run_mut(batch, task, run) else { continue };
            if innocent && run.state == RunState::Given {
                run.state = RunState::Back;
            }
            if let (Some(kind), RunState::Given) = (kind, run.state) {
                match blamed {
                    0 => run.state = RunState::Back,
                    _ => {
                        run.fail(now, kind, suspected_losses);
                        run.suspect |= suspect;
                    }
                }
                blamed = blamed.saturating_sub(1);
            }
        }
    }

    fn add_kill(&mut self, batch: BatchKey, task: TaskId) {
        if let Some(batch) = self.batches.get_mut(&batch)
            && let Some(task) = batch.tasks.get_mut(task.0 as usize)
        {
            task.suspected_losses += 1;
        }
    }

    fn delivered(&mut self, id: LeaseId, delivery: &DeliveryOutcome) {
        let Some(lease) = self.leases.get_mut(&id).filter(|lease| lease.open) else { return };
        lease.open = false;
        let (batch, tasks) = (lease.batch, lease.tasks.clone());
        let arrived = matches!(delivery, DeliveryOutcome::Acknowledged { .. });
        for payload in lease.payloads.clone() {
            let Some(kept) = self.payloads.get_mut(&payload.id) else { continue };
            kept.state = if arrived { PayloadState::Delivered } else { PayloadState::Held };
            if arrived {
                let kept = *kept;
                self.hold(kept, false);
            }
        }
        let Some(batch) = self.batches.get_mut(&batch).filter(|_| arrived) else { return };
        batch.delivered += self.leases[&id].payloads.len() as u64;
        for task in tasks {
            if let Some(task) = batch.tasks.get_mut(task.0 as usize) {
                task.handed += 1;
            }
        }
    }

    /// Fails deliveries that timed out: their payloads are held again.
    fn expire_leases(&mut self, now: Time) {
        let timeout = self.config.delivery_timeout;
        let late = |lease: &super::ModelLease| {
            lease.open && lease.to_sink && lease.since.after(timeout) <= now
        };
        let expired: Vec<LeaseId> =
            self.leases.iter().filter(|(_, lease)| late(lease)).map(|(id, _)| *id).collect();
        for id in expired {
            self.delivered(id, &DeliveryOutcome::Failed { message: "".into() });
        }
    }
}
