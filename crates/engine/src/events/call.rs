//! The gateway's calls, told to those who observe.

use std::sync::Arc;

use rollway_core::{AttemptId, RunId};
use rollway_gateway::access::RunName;
use rollway_gateway::gateway::{CallEnded, CallWatcher};

use super::{Call, Moment, Observers, Seen, What, now};

/// Translates.
#[derive(Debug)]
pub(super) struct Calls(pub(super) Observers);

impl Calls {
    fn tell(&self, run: RunName, call: u64, moment: Moment) {
        let (attempt, run) = (AttemptId(run.attempt), RunId(run.run));
        let what = What::Call(Call { attempt, run, call, moment });
        self.0.tell(&[Seen { at: now(), what }]);
    }
}

impl CallWatcher for Calls {
    fn began(&self, run: RunName, call: u64, model: Option<&str>) {
        self.tell(run, call, Moment::Began { model: Arc::from(model.unwrap_or_default()) });
    }

    fn traceparent(&self, run: RunName, call: u64) -> Option<String> {
        let (attempt, run) = (AttemptId(run.attempt), RunId(run.run));
        self.0.0.iter().find_map(|observer| observer.traceparent(attempt, run, call))
    }

    fn sent(&self, run: RunName, call: u64, server: &str) {
        self.tell(run, call, Moment::Sent { server: Arc::from(server) });
    }

    fn ended(&self, run: RunName, call: u64, ended: CallEnded) {
        let CallEnded { status, prompt_tokens, answer_tokens, version } = ended;
        self.tell(run, call, Moment::Ended { status, prompt_tokens, answer_tokens, version });
    }
}
