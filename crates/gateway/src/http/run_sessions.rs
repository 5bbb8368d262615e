//! Open runs and their sessions.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rollway_model_api::replay::SavedResponse;
use rollway_model_api::server_api::RecordedPrefix;
use rollway_model_api::{CallError, ErrorKind, ModelCall, ModelResponse};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::recorded_bytes::{CountedRecorder, RecordedBytes};
use super::run_budget::{BudgetExhausted, RunUsage};
use super::run_seed::RunSeed;
use crate::keys::RunRef;
use crate::options::RunBudget;
use rollway_recording::{
    CallDecision, CallNumber, RecordError, RecorderCounts, RecorderLimits as RecordLimits,
    RetryHeaders,
};

#[derive(Debug)]
pub(crate) struct OpenRuns {
    open: Mutex<HashMap<u64, RunAttempt>>,
    limits: RecordLimits,
    recorded: Arc<RecordedBytes>,
    seed: Option<u64>,
    next_routing: AtomicU64,
    /// Cancels every session when the gateway stops.
    stopping: CancellationToken,
}

/// An open attempt. A session is created by the first call of its run.
#[derive(Debug, Default)]
struct RunAttempt {
    runs: Vec<Range<u64>>,
    task: Box<str>,
    sessions: HashMap<u32, Arc<RunSession>>,
}

impl OpenRuns {
    pub(super) fn new(
        limits: RecordLimits,
        recorded: Arc<RecordedBytes>,
        seed: Option<u64>,
        stopping: CancellationToken,
    ) -> Self {
        let (open, next_routing) = (Mutex::default(), AtomicU64::new(1));
        Self { open, limits, recorded, seed, next_routing, stopping }
    }

    /// Opens further runs of an attempt.
    pub(crate) fn open(&self, attempt: u64, first_run: u32, runs: u32, task: &str) {
        let first = u64::from(first_run);
        let mut open = self.open.lock();
        let attempt = open.entry(attempt).or_default();
        attempt.runs.push(first..first + u64::from(runs));
        attempt.task = task.into();
    }

    /// Closes an attempt. Calls in flight are cancelled.
    pub(crate) fn close(&self, attempt: u64) {
        let closed = self.open.lock().remove(&attempt);
        for session in closed.into_iter().flat_map(|attempt| attempt.sessions.into_values()) {
            session.cancelled.cancel();
        }
    }

    pub(super) fn session(&self, run: RunRef) -> Result<Arc<RunSession>, CallError> {
        let mut open = self.open.lock();
        let attempt = open.get_mut(&run.attempt).filter(|attempt| attempt.has(run.run));
        let attempt = attempt.ok_or_else(|| closed_error(run))?;
        let session = attempt.sessions.entry(run.run).or_insert_with(|| {
            let routing = self.next_routing.fetch_add(1, Ordering::Relaxed);
            let seed = self.seed.map(|seed| RunSeed::new(seed, &attempt.task, run.run));
            let cancelled = self.stopping.child_token();
            let recorder = self.recorded.recorder(self.limits);
            Arc::new(RunSession::new(run, routing, recorder, cancelled, seed))
        });
        Ok(Arc::clone(session))
    }

    /// Returns the session of a run that has called.
    pub(super) fn existing(&self, run: RunRef) -> Option<Arc<RunSession>> {
        self.open.lock().get(&run.attempt)?.sessions.get(&run.run).cloned()
    }

    /// Checks that a run is open, without creating a session.
    pub(super) fn check(&self, run: RunRef) -> Result<(), CallError> {
        let open = self.open.lock();
        let is_open = open.get(&run.attempt).is_some_and(|attempt| attempt.has(run.run));
        if is_open { Ok(()) } else { Err(closed_error(run)) }
    }

    pub(super) fn sessions(&self) -> usize {
        self.open.lock().values().map(|attempt| attempt.sessions.len()).sum()
    }
}

impl RunAttempt {
    fn has(&self, run: u32) -> bool {
        self.runs.iter().any(|runs| runs.contains(&u64::from(run)))
    }
}

/// Response to an expired run key: a key is valid while its attempt is open.
fn closed_error(run: RunRef) -> CallError {
    let message = format!(
        "attempt {} is closed: the key of its run {} is no longer valid",
        run.attempt, run.run
    );
    CallError::new(ErrorKind::Unauthorized, message)
}

/// Recorder and permits of a run.
#[derive(Debug)]
pub(super) struct RunSession {
    pub(super) run: RunRef,
    pub(super) routing: u64,
    /// The run is closed, or the gateway stops.
    pub(super) cancelled: CancellationToken,
    /// Locked while experiences are merged for the client of the run.
    pub(super) merging: Arc<tokio::sync::Mutex<()>>,
    in_flight: AtomicUsize,
    recorder: Mutex<CountedRecorder>,
    usage: Mutex<RunUsage>,
    seed: Option<RunSeed>,
    /// Notified when a call has ended.
    settled: Notify,
}

impl RunSession {
    /// Returns the session of a call that belongs to no run.
    pub(super) fn of_agent(recorder: CountedRecorder, cancelled: CancellationToken) -> Self {
        Self::new(RunRef { attempt: 0, run: 0 }, 0, recorder, cancelled, None)
    }

    fn new(
        run: RunRef,
        routing: u64,
        recorder: CountedRecorder,
        cancelled: CancellationToken,
        seed: Option<RunSeed>,
    ) -> Self {
        Self {
            run,
            routing,
            cancelled,
            merging: Arc::default(),
            in_flight: AtomicUsize::new(0),
            recorder: Mutex::new(recorder),
            usage: Mutex::new(RunUsage::new()),
            seed,
            settled: Notify::new(),
        }
    }

    /// Takes a permit for a call.
    pub(super) fn enter(self: &Arc<Self>, limit: usize) -> Result<CallPermit, CallError> {
        let permit = CallPermit(Arc::clone(self));
        if self.in_flight.fetch_add(1, Ordering::Relaxed) < limit {
            return Ok(permit);
        }
        let message = format!(
            "run {} of attempt {} has {limit} calls under way, which is the limit: wait for one \
             to end",
            self.run.run, self.run.attempt
        );
        Err(CallError::new(ErrorKind::TooMany, message).retry_after(1))
    }

    /// Begins a call. If the same call is in flight, waits for its end first.
    pub(super) async fn begin(
        self: &Arc<Self>,
        call: &ModelCall,
        retry: &RetryHeaders,
    ) -> Result<CallStart, RecordError> {
        loop {
            let settled = self.settled.notified();
            let begun = self.recorder().begin_counted(call, retry);
            let session = Arc::clone(self);
            return Ok(match begun {
                Ok(CallDecision::New(number)) => {
                    CallStart::New(PendingCall { session, number, is_settled: false })
                }
                Ok(CallDecision::Duplicate(number, saved)) => {
                    CallStart::Again(DeliveryReceipt { session, number, is_signed: false }, saved)
                }
                Err(RecordError::UnderWay) => {
                    settled.await;
                    continue;
                }
                Err(error) => return Err(error),
            });
        }
    }

    /// Charges a call to the budget of the run.
    pub(super) fn charge_call(
        &self,
        budget: &RunBudget,
        call: &mut ModelCall,
    ) -> Result<(), BudgetExhausted> {
        self.usage.lock().charge_call(budget, call)
    }

    /// Notes whether the servers failed to answer the last call.
    pub(super) fn note_last_call(&self, is_unavailable: bool) {
        self.usage.lock().is_unavailable = is_unavailable;
    }

    pub(super) fn usage(&self) -> RunUsage {
        *self.usage.lock()
    }

    pub(super) fn recorder(&self) -> MutexGuard<'_, CountedRecorder> {
        self.recorder.lock()
    }
}

#[derive(Debug)]
pub(super) struct CallPermit(Arc<RunSession>);

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) enum CallStart {
    New(PendingCall),
    Again(DeliveryReceipt, SavedResponse),
}

/// A call to be recorded. Dropping it means that no server answered.
#[derive(Debug)]
pub(super) struct PendingCall {
    session: Arc<RunSession>,
    number: CallNumber,
    is_settled: bool,
}

impl PendingCall {
    /// Completes the sampling parameters of the call by its seed, and notes them.
    pub(super) fn set_sampling(&self, call: &mut ModelCall) {
        if let Some(seed) = self.session.seed
            && !call.has("seed")
        {
            call.body.insert("seed".to_owned(), seed.of_call(self.number.0).into());
        }
        self.session.recorder().note_sampling(self.number, call);
    }

    /// Returns the recorded turn that the call continues.
    pub(super) fn recorded_prefix(&self) -> Option<RecordedPrefix> {
        self.session.recorder().recorded_prefix(self.number)
    }

    /// Records a response; returns the receipt for the client and the change of the counts.
    pub(super) fn answered(
        mut self,
        response: ModelResponse,
        saved: SavedResponse,
    ) -> (DeliveryReceipt, RecordDelta, Result<(), RecordError>) {
        self.is_settled = true;
        let (session, number) = (Arc::clone(&self.session), self.number);
        session.usage.lock().charge_tokens(&response);
        let mut recorder = session.recorder();
        let before = recorder.counts();
        let result = recorder.answered(number, response, saved);
        let result = recorder.enforce_total().and(result);
        let counted = RecordDelta { before, after: recorder.counts() };
        drop(recorder);
        session.settled.notify_waiters();
        (DeliveryReceipt { session, number, is_signed: false }, counted, result)
    }

    /// Fails the recording of the run.
    pub(super) fn failed(mut self, error: RecordError) {
        self.is_settled = true;
        self.session.recorder().failed(self.number, error);
        self.session.settled.notify_waiters();
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if !self.is_settled {
            self.session.recorder().upstream_failed(self.number);
            self.session.settled.notify_waiters();
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RecordDelta {
    pub(super) before: RecorderCounts,
    pub(super) after: RecorderCounts,
}

/// Signed when the client has the complete response. Dropping it unsigned means that it has not.
#[derive(Debug)]
pub(super) struct DeliveryReceipt {
    session: Arc<RunSession>,
    number: CallNumber,
    is_signed: bool,
}

impl DeliveryReceipt {
    pub(super) fn sign(mut self) {
        self.is_signed = true;
        self.session.recorder().delivered(self.number);
    }
}

impl Drop for DeliveryReceipt {
    fn drop(&mut self) {
        if !self.is_signed {
            self.session.recorder().client_disconnected(self.number);
        }
    }
}
