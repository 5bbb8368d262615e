//! The runs that may call, and what the gateway holds of each.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rollway_model_api::replay::SavedResponse;
use rollway_model_api::{CallError, ErrorKind, ModelCall, ModelResponse};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::keys::RunRef;
use crate::recording::{
    CallDecision, CallNumber, RecordError, Recorder, RecorderCounts,
    RecorderLimits as RecordLimits, RetryHeaders,
};

/// All runs whose attempts are open.
#[derive(Debug)]
pub(super) struct OpenRuns {
    open: Mutex<HashMap<u64, RunAttempt>>,
    limits: RecordLimits,
    next_routing: AtomicU64,
    /// Ends every session when the gateway stops.
    stopping: CancellationToken,
}

/// An attempt that is open. A session is made when its run calls for the first time.
#[derive(Debug, Default)]
struct RunAttempt {
    runs: Vec<Range<u64>>,
    sessions: HashMap<u32, Arc<RunSession>>,
}

impl OpenRuns {
    pub(super) fn new(limits: RecordLimits, stopping: CancellationToken) -> Self {
        Self { open: Mutex::default(), limits, next_routing: AtomicU64::new(1), stopping }
    }

    /// Lets the runs of an attempt in, beside those that are in already.
    pub(super) fn open(&self, attempt: u64, first_run: u32, runs: u32) {
        let first = u64::from(first_run);
        let mut open = self.open.lock();
        open.entry(attempt).or_default().runs.push(first..first + u64::from(runs));
    }

    /// Ends an attempt. What its runs have under way notices that by itself.
    pub(super) fn close(&self, attempt: u64) {
        let closed = self.open.lock().remove(&attempt);
        for session in closed.into_iter().flat_map(|attempt| attempt.sessions.into_values()) {
            session.cancelled.cancel();
        }
    }

    /// Returns the session of a run that is open.
    pub(super) fn session(&self, name: RunRef) -> Result<Arc<RunSession>, CallError> {
        let mut open = self.open.lock();
        let attempt = open.get_mut(&name.attempt).filter(|attempt| attempt.has(name.run));
        let attempt = attempt.ok_or_else(|| over(name))?;
        let session = attempt.sessions.entry(name.run).or_insert_with(|| {
            Arc::new(RunSession {
                name,
                routing: self.next_routing.fetch_add(1, Ordering::Relaxed),
                cancelled: self.stopping.child_token(),
                in_flight: AtomicUsize::new(0),
                recorder: Mutex::new(Recorder::new(self.limits)),
                settled: Notify::new(),
            })
        });
        Ok(Arc::clone(session))
    }

    /// Returns the session of a run, if it has called.
    pub(super) fn existing(&self, name: RunRef) -> Option<Arc<RunSession>> {
        self.open.lock().get(&name.attempt)?.sessions.get(&name.run).cloned()
    }

    /// Checks that a run is open, without making a session of it.
    pub(super) fn check(&self, name: RunRef) -> Result<(), CallError> {
        let open = self.open.lock();
        let known = open.get(&name.attempt).is_some_and(|attempt| attempt.has(name.run));
        if known { Ok(()) } else { Err(over(name)) }
    }

    /// How many runs are open that have called.
    pub(super) fn sessions(&self) -> usize {
        self.open.lock().values().map(|attempt| attempt.sessions.len()).sum()
    }
}

impl RunAttempt {
    fn has(&self, run: u32) -> bool {
        self.runs.iter().any(|runs| runs.contains(&u64::from(run)))
    }
}

fn over(name: RunRef) -> CallError {
    let message = format!(
        "attempt {} is over, and with it run {}: its key opens nothing any more",
        name.attempt, name.run
    );
    CallError::new(ErrorKind::Unauthorized, message)
}

/// What the gateway holds of a run that has called.
#[derive(Debug)]
pub(super) struct RunSession {
    name: RunRef,
    /// What its calls are routed by.
    pub(super) routing: u64,
    /// The run is over, or the gateway stops.
    pub(super) cancelled: CancellationToken,
    in_flight: AtomicUsize,
    recorder: Mutex<Recorder>,
    /// Woken when a call has ended, one way or the other.
    settled: Notify,
}

impl RunSession {
    /// Returns the session of somebody who belongs to no run.
    pub(super) fn of_guest(limits: RecordLimits, cancelled: CancellationToken) -> Self {
        Self {
            name: RunRef { attempt: 0, run: 0 },
            routing: 0,
            cancelled,
            in_flight: AtomicUsize::new(0),
            recorder: Mutex::new(Recorder::new(limits)),
            settled: Notify::new(),
        }
    }

    /// Takes one of the places for calls of this run.
    pub(super) fn enter(self: &Arc<Self>, limit: usize) -> Result<CallPermit, CallError> {
        let place = CallPermit(Arc::clone(self));
        if self.in_flight.fetch_add(1, Ordering::Relaxed) < limit {
            return Ok(place);
        }
        let message = format!(
            "run {} of attempt {} has {limit} calls under way, which is the limit: wait for one \
             to end",
            self.name.run, self.name.attempt
        );
        Err(CallError::new(ErrorKind::TooMany, message).retry_after(1))
    }

    /// Begins a call. If the same call is under way, waits until that has ended.
    pub(super) async fn begin(
        self: &Arc<Self>,
        call: &ModelCall,
        attempted: &RetryHeaders,
    ) -> Result<CallStart, RecordError> {
        loop {
            let settled = self.settled.notified();
            let begun = self.recorder().begin(call, attempted);
            let session = Arc::clone(self);
            return Ok(match begun {
                Ok(CallDecision::New(number)) => {
                    CallStart::New(PendingCall { session, number, is_settled: false })
                }
                Ok(CallDecision::Duplicate(number, kept)) => {
                    CallStart::Again(DeliveryReceipt { session, number, is_signed: false }, kept)
                }
                Err(RecordError::UnderWay) => {
                    settled.await;
                    continue;
                }
                Err(error) => return Err(error),
            });
        }
    }

    /// What was recorded.
    pub(super) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock()
    }
}

/// A place for a call of a run; given back when dropped.
#[derive(Debug)]
pub(super) struct CallPermit(Arc<RunSession>);

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a call begins.
#[derive(Debug)]
pub(super) enum CallStart {
    /// A server is to be asked.
    New(PendingCall),
    /// The client has asked before.
    Again(DeliveryReceipt, SavedResponse),
}

/// A call that is to be recorded. Dropped without a word, it was not answered.
#[derive(Debug)]
pub(super) struct PendingCall {
    session: Arc<RunSession>,
    number: CallNumber,
    is_settled: bool,
}

impl PendingCall {
    /// Records the answer; returns what to sign when the client has it, and what was counted.
    pub(super) fn answered(
        mut self,
        answer: ModelResponse,
        kept: SavedResponse,
    ) -> (DeliveryReceipt, RecordDelta, Result<(), RecordError>) {
        self.is_settled = true;
        let (session, number) = (Arc::clone(&self.session), self.number);
        let mut recorder = session.recorder();
        let before = recorder.counts();
        let result = recorder.answered(number, answer, kept);
        let counted = RecordDelta { before, after: recorder.counts() };
        drop(recorder);
        session.settled.notify_waiters();
        (DeliveryReceipt { session, number, is_signed: false }, counted, result)
    }

    /// The answer cannot be recorded, and with it the whole run.
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

/// What a run's numbers were before and after a call was recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordDelta {
    pub(super) before: RecorderCounts,
    pub(super) after: RecorderCounts,
}

/// Signed when a client has all of an answer; dropped unsigned, the client has not.
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
