//! Calls of runs that are under way now: what somebody who looks at a run wants to know.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::call_observer::{CallEnded, CallObserver};
use crate::keys::RunRef;
use parking_lot::{Mutex, MutexGuard};

/// A call that has not ended.
#[derive(Clone, Debug)]
pub struct CallInFlight {
    /// The run that waits for it.
    pub run: u32,
    /// The model that it asks for; none: the trained one.
    pub model: Option<Arc<str>>,
    /// The server it was sent to last; none: it waits for one.
    pub server: Option<Arc<str>>,
    /// When it came in.
    pub since: Instant,
}

/// Keeps them, by attempt. There are no more than may be under way.
#[derive(Debug, Default)]
pub(crate) struct CallsInFlight {
    calls: Mutex<HashMap<u64, Vec<(u64, CallInFlight)>>>,
    /// Who wants to know as well.
    next: Option<Arc<dyn CallObserver>>,
}

impl CallsInFlight {
    pub(crate) fn new(next: Option<Arc<dyn CallObserver>>) -> Self {
        Self { calls: Mutex::default(), next }
    }

    /// Returns the calls of an attempt, the oldest first.
    pub(crate) fn of(&self, attempt: u64) -> Vec<CallInFlight> {
        let calls = self.calls();
        let theirs = calls.get(&attempt).into_iter().flatten();
        theirs.map(|(_, call)| call.clone()).collect()
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<u64, Vec<(u64, CallInFlight)>>> {
        self.calls.lock()
    }
}

impl CallObserver for CallsInFlight {
    fn began(&self, run: RunRef, call: u64, model: Option<&str>) {
        let model_name = model.map(Arc::from);
        let one =
            CallInFlight { run: run.run, model: model_name, server: None, since: Instant::now() };
        self.calls().entry(run.attempt).or_default().push((call, one));
        if let Some(next) = &self.next {
            next.began(run, call, model);
        }
    }

    fn traceparent(&self, run: RunRef, call: u64) -> Option<String> {
        self.next.as_ref()?.traceparent(run, call)
    }

    fn sent(&self, run: RunRef, call: u64, server: &str) {
        let mut calls = self.calls();
        let theirs = calls.get_mut(&run.attempt).into_iter().flatten();
        for (_, one) in theirs.filter(|(id, _)| *id == call) {
            one.server = Some(Arc::from(server));
        }
        drop(calls);
        if let Some(next) = &self.next {
            next.sent(run, call, server);
        }
    }

    fn ended(&self, run: RunRef, call: u64, ended: CallEnded) {
        let mut calls = self.calls();
        if let Some(theirs) = calls.get_mut(&run.attempt) {
            theirs.retain(|(id, _)| *id != call);
            if theirs.is_empty() {
                calls.remove(&run.attempt);
            }
        }
        drop(calls);
        if let Some(next) = &self.next {
            next.ended(run, call, ended);
        }
    }
}
