//! What came of a wait, for people: who was there, what they did, and what can be done about it.

use std::time::Duration;

use crate::Time;
use crate::sync::member::{TrainerPresence, TrainerSlot};
use crate::sync::{ActiveWait, SyncCore, WeightWait};

/// Says that the trainer ended with an error.
pub(super) fn failed(trainer: &TrainerSlot, why: &str) -> String {
    format!("trainer {:?} failed: {why}", trainer.name)
}

/// Says that nothing was heard of somebody.
pub(super) fn lost(lease: Duration) -> String {
    format!(
        "nothing was heard of it, nor of another in its place, for more than {} s; see its \
         log, and start the job again: it goes on where it was",
        lease.as_secs_f64()
    )
}

impl SyncCore {
    /// Says why a wait ended without anything.
    pub(super) fn in_vain(&self, wait: &ActiveWait, now: Time) -> String {
        let waited = wait.want.waited + now.since(wait.began);
        let want = &wait.want;
        let wanted = match want.at_least.max(want.have.saturating_add(1)) {
            WeightWait::LAST => "the trainer's last weights did not come".to_owned(),
            version => format!("no weights of version {version} came"),
        };
        let newest = match self.newest {
            Some(newest) => format!("the newest are of version {newest}"),
            None => "none were ever published".to_owned(),
        };
        let trainer = match &self.trainer {
            None => "no trainer ever came: see whether it is running and was given this job's \
                     folder or this synchronizer's address"
                .to_owned(),
            Some(trainer) => format!("trainer {:?} {}", trainer.name, doing(trainer)),
        };
        format!(
            "{wanted} within {:.1} s (`synchronizer.sync_timeout`): {newest}; {trainer}",
            waited.as_secs_f64()
        )
    }
}

fn doing(trainer: &TrainerSlot) -> &'static str {
    match trainer.seated.state {
        TrainerPresence::Here => "is there and does not tell what it does",
        TrainerPresence::Training => "is making a step: give it more time",
        TrainerPresence::Idle { .. } => {
            "waits for experiences: see whether it reads the buffer that explorers write to"
        }
        TrainerPresence::Done => "is done",
        TrainerPresence::Failed(_) => "failed",
        TrainerPresence::Lost => "was not heard of lately: see whether it still runs",
    }
}
