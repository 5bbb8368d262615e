//! Messages about waits without weights: state of the trainer, and what to do.

use std::time::Duration;

use crate::Time;
use crate::sync::member::{TrainerPresence, TrainerSlot};
use crate::sync::{ActiveWait, SyncCore, WeightWait};

pub(super) fn heartbeats_missing(timeout: Duration) -> String {
    format!(
        "no heartbeat for more than {} s, and no replacement joined; check its log and restart the \
         job, which resumes",
        timeout.as_secs_f64()
    )
}

impl SyncCore {
    /// Describes a wait that timed out.
    pub(super) fn timeout_message(&self, wait: &ActiveWait, now: Time) -> String {
        let request = &wait.request;
        let waited = (request.waited + now.since(wait.began)).as_secs_f64();
        let demanded = match request.at_least.max(request.current.saturating_add(1)) {
            WeightWait::LAST => "the trainer's last weights were not published".to_owned(),
            version => format!("weights of version {version} were not published"),
        };
        let newest = match self.newest {
            Some(newest) => format!("the newest version is {newest}"),
            None => "no weights were published".to_owned(),
        };
        let trainer = match &self.trainer {
            None => "no trainer joined: check that it runs and has this job's folder or this \
                     synchronizer's address"
                .to_owned(),
            Some(trainer) => format!("trainer {:?} {}", trainer.name, activity(trainer)),
        };
        format!(
            "{demanded} within {waited:.1} s (`synchronizer.sync_timeout`): {newest}; {trainer}"
        )
    }
}

fn activity(trainer: &TrainerSlot) -> &'static str {
    match trainer.member.state {
        TrainerPresence::Present => "is present and does not report its activity",
        TrainerPresence::Training => "is executing a train step: increase the timeout",
        TrainerPresence::Idle { .. } => {
            "waits for experiences: check that it reads the buffer that explorers write to"
        }
        TrainerPresence::Done => "is done",
        TrainerPresence::Failed(_) => "failed",
        TrainerPresence::Lost => "sends no heartbeats: check that it still runs",
    }
}
