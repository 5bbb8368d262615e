//! Calls of runs in flight, by attempt.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::call_observer::{CallEnded, CallObserver};
use crate::keys::RunRef;
use parking_lot::{Mutex, MutexGuard};

#[derive(Clone, Debug)]
pub struct CallInFlight {
    pub run: u32,
    /// `None`: the trained model.
    pub model: Option<Arc<str>>,
    /// Server of the last request. `None`: it waits for one.
    pub server: Option<Arc<str>>,
    pub since: Instant,
}

/// Observer that records calls in flight and passes all events to the next observer.
#[derive(Debug, Default)]
pub(crate) struct CallsInFlight {
    calls: Mutex<HashMap<u64, Vec<(u64, CallInFlight)>>>,
    next: Option<Arc<dyn CallObserver>>,
}

impl CallsInFlight {
    pub(crate) fn new(next: Option<Arc<dyn CallObserver>>) -> Self {
        Self { calls: Mutex::default(), next }
    }

    pub(crate) fn of(&self, attempt: u64) -> Vec<CallInFlight> {
        let calls = self.calls();
        let calls_of_attempt = calls.get(&attempt).into_iter().flatten();
        calls_of_attempt.map(|(_, call)| call.clone()).collect()
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<u64, Vec<(u64, CallInFlight)>>> {
        self.calls.lock()
    }
}

impl CallObserver for CallsInFlight {
    fn began(&self, run: RunRef, call: u64, model: Option<&str>) {
        let model_name = model.map(Arc::from);
        let record =
            CallInFlight { run: run.run, model: model_name, server: None, since: Instant::now() };
        self.calls().entry(run.attempt).or_default().push((call, record));
        if let Some(next) = &self.next {
            next.began(run, call, model);
        }
    }

    fn traceparent(&self, run: RunRef, call: u64) -> Option<String> {
        self.next.as_ref()?.traceparent(run, call)
    }

    fn sent(&self, run: RunRef, call: u64, server: &str) {
        let mut calls = self.calls();
        let calls_of_attempt = calls.get_mut(&run.attempt).into_iter().flatten();
        for (_, record) in calls_of_attempt.filter(|(id, _)| *id == call) {
            record.server = Some(Arc::from(server));
        }
        drop(calls);
        if let Some(next) = &self.next {
            next.sent(run, call, server);
        }
    }

    fn ended(&self, run: RunRef, call: u64, ended: CallEnded) {
        let mut calls = self.calls();
        if let Some(calls_of_attempt) = calls.get_mut(&run.attempt) {
            calls_of_attempt.retain(|(id, _)| *id != call);
            if calls_of_attempt.is_empty() {
                calls.remove(&run.attempt);
            }
        }
        drop(calls);
        if let Some(next) = &self.next {
            next.ended(run, call, ended);
        }
    }
}
