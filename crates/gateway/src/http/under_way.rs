//! Calls of runs that are under way now: what somebody who looks at a run wants to know.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::access::RunName;
use crate::call_observer::{CallEnded, CallWatcher};

/// A call that has not ended.
#[derive(Clone, Debug)]
pub struct UnderWay {
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
pub(crate) struct CallBoard {
    calls: Mutex<HashMap<u64, Vec<(u64, UnderWay)>>>,
    /// Who wants to know as well.
    next: Option<Arc<dyn CallWatcher>>,
}

impl CallBoard {
    pub(crate) fn new(next: Option<Arc<dyn CallWatcher>>) -> Self {
        Self { calls: Mutex::default(), next }
    }

    /// Returns the calls of an attempt, the oldest first.
    pub(crate) fn of(&self, attempt: u64) -> Vec<UnderWay> {
        let calls = self.calls();
        let theirs = calls.get(&attempt).into_iter().flatten();
        theirs.map(|(_, call)| call.clone()).collect()
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<u64, Vec<(u64, UnderWay)>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallWatcher for CallBoard {
    fn began(&self, run: RunName, call: u64, model: Option<&str>) {
        let model_name = model.map(Arc::from);
        let one = UnderWay { run: run.run, model: model_name, server: None, since: Instant::now() };
        self.calls().entry(run.attempt).or_default().push((call, one));
        if let Some(next) = &self.next {
            next.began(run, call, model);
        }
    }

    fn traceparent(&self, run: RunName, call: u64) -> Option<String> {
        self.next.as_ref()?.traceparent(run, call)
    }

    fn sent(&self, run: RunName, call: u64, server: &str) {
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

    fn ended(&self, run: RunName, call: u64, ended: CallEnded) {
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
