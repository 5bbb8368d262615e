//! Model-call events of the gateway, as run events.

use std::sync::Arc;

use rollway_core::{AttemptId, RunId};
use rollway_gateway::gateway::{CallEnded, CallObserver};
use rollway_gateway::keys::RunRef;

use super::{CallEvent, CallEventKind, RunEvent, RunEventKind, RunObservers, now};

#[derive(Debug)]
pub(super) struct CallEventAdapter(pub(super) RunObservers);

impl CallEventAdapter {
    fn emit(&self, run: RunRef, call: u64, kind: CallEventKind) {
        let (attempt, run) = (AttemptId(run.attempt), RunId(run.run));
        let what = RunEventKind::Call(CallEvent { attempt, run, call, kind });
        self.0.emit(&[RunEvent { at: now(), what }]);
    }
}

impl CallObserver for CallEventAdapter {
    fn began(&self, run: RunRef, call: u64, model: Option<&str>) {
        self.emit(run, call, CallEventKind::Began { model: Arc::from(model.unwrap_or_default()) });
    }

    fn traceparent(&self, run: RunRef, call: u64) -> Option<String> {
        let (attempt, run) = (AttemptId(run.attempt), RunId(run.run));
        self.0.0.iter().find_map(|observer| observer.traceparent(attempt, run, call))
    }

    fn sent(&self, run: RunRef, call: u64, server: &str) {
        self.emit(run, call, CallEventKind::Sent { server: Arc::from(server) });
    }

    fn ended(&self, run: RunRef, call: u64, ended: CallEnded) {
        let CallEnded { status, prompt_tokens, answer_tokens, version } = ended;
        self.emit(
            run,
            call,
            CallEventKind::Ended { status, prompt_tokens, answer_tokens, version },
        );
    }
}
