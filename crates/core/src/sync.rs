//! Synchronizer of the explorers and the trainer of a job, as decisions: membership, newest
//! weights, and the outcomes of waits for weights.
//!
//! ```text
//!  explorer ── wait ──► WaitId n ──┐                           ┌── Training
//!                                  ├─► SyncCore ◄── trainer ───┼── Idle { seen: n }
//!  explorer ◄── WaitOutcome ───────┘      ◄── published ───────┴── Done, Failed
//! ```
//!
//! A wait depends on whether an idle trainer has seen the latest experiences: if so, there will be
//! no newer weights. Every wait has a number. An idle trainer reports the last number that it knew
//! *before* it looked for experiences in vain. Experiences delivered before a wait were visible to
//! every later look, so a reported number of at least the wait's decides it, for any number of
//! explorers and any content of the buffer.
//!
//! Versions of weights never decrease. Every wait has a deadline, and [`SyncCore::next_deadline`]
//! returns the next one.

mod member;
mod messages;
mod transfer;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Time;
pub use crate::sync::member::{
    ExplorerMember, ExplorerPresence, HeartbeatReply, JoinRefusal, Joined, LeaveReason, MemberId,
    MemberRole, SyncView, TrainerMember, TrainerPresence,
};
use crate::sync::member::{MemberRecord, TrainerSlot};
pub use crate::sync::transfer::{TensorSpec, TransferGroup};

/// Maximum number of explorers, and of open waits.
const MAX_EXPLORERS: usize = 4096;
const MAX_WAITS: usize = 16_384;

/// Number of a wait. Later waits have larger numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId(pub u64);

/// An explorer's wait for weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightWait {
    pub explorer: String,
    /// Current version of the explorer.
    pub current: u64,
    /// Minimum version while the trainer can still reach it. [`WeightWait::LAST`]: the last version
    /// of the trainer, after its end.
    pub at_least: u64,
    /// True if the trainer is requested to publish.
    pub publish_now: bool,
    pub timeout: Duration,
    /// Time already waited, if the wait continues an earlier one.
    pub waited: Duration,
}

impl WeightWait {
    /// Minimum version of a wait for the trainer's last weights.
    pub const LAST: u64 = u64::MAX;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// Weights of this version are published.
    New(u64),
    /// The trainer has nothing newer, and waits for experiences itself.
    NothingNew,
    /// The trainer is done; its last version, if that is newer.
    TrainerDone(Option<u64>),
    /// The trainer failed or is lost; human-readable reason.
    TrainerFailed(String),
    /// Timeout; human-readable description of the trainer's state.
    TimedOut(String),
}

/// Open waits, as the trainer needs to know them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitSummary {
    /// Last wait that began.
    pub wait: WaitId,
    pub waiting: usize,
    /// Smallest version that satisfies a wait with `publish_now`. `None` without such waits.
    pub demanded: Option<u64>,
}

#[derive(Clone, Debug)]
struct ActiveWait {
    request: WeightWait,
    began: Time,
    until: Time,
}

#[derive(Clone, Debug)]
pub struct SyncCore {
    /// Heartbeat timeout of members.
    heartbeat_timeout: Duration,
    /// Ids of members and waits are above this one,
    first: u64,
    /// up to this one.
    last: u64,
    /// Last wait that began.
    last_wait: WaitId,
    newest: Option<u64>,
    explorers: BTreeMap<String, MemberRecord>,
    /// Experiences submitted by explorers, by name.
    submitted: BTreeMap<String, u64>,
    trainer: Option<TrainerSlot>,
    waits: BTreeMap<WaitId, ActiveWait>,
    /// Outcomes that were not returned yet.
    ended: Vec<(WaitId, WaitOutcome)>,
}

impl SyncCore {
    /// Returns an empty synchronizer. All its ids are above `first`, which differs between the
    /// synchronizers of a job, so that their ids are never confused.
    pub fn new(heartbeat_timeout: Duration, first: u64) -> Self {
        Self {
            heartbeat_timeout,
            first,
            last: first,
            last_wait: WaitId(first),
            newest: None,
            explorers: BTreeMap::new(),
            submitted: BTreeMap::new(),
            trainer: None,
            waits: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    /// Returns the heartbeat timeout of members.
    pub const fn heartbeat_timeout(&self) -> Duration {
        self.heartbeat_timeout
    }

    /// Adds a member. A member of the same name is replaced: it was restarted.
    ///
    /// # Errors
    /// Another trainer is there, or there are too many explorers.
    pub fn join(&mut self, now: Time, role: MemberRole, name: &str) -> Result<Joined, JoinRefusal> {
        self.tick(now);
        let until = now.after(self.heartbeat_timeout);
        let takes_over = match role {
            MemberRole::Explorer => {
                let exists = self.explorers.contains_key(name);
                if !exists && self.explorers.len() >= MAX_EXPLORERS {
                    return Err(JoinRefusal::TooMany(MAX_EXPLORERS));
                }
                exists
            }
            MemberRole::Trainer => match &self.trainer {
                Some(present) if present.name != name && present.member.is_present() => {
                    return Err(JoinRefusal::OtherTrainer(present.name.clone()));
                }
                trainer => trainer.is_some(),
            },
        };
        self.last += 1;
        let id = MemberId(self.last);
        let member = MemberRecord { id, until, state: TrainerPresence::Present };
        match role {
            MemberRole::Explorer => {
                self.explorers.insert(name.to_owned(), member);
            }
            MemberRole::Trainer => {
                self.trainer = Some(TrainerSlot { name: name.to_owned(), member });
            }
        }
        self.settle();
        Ok(Joined { member: id, takes_over })
    }

    pub fn heartbeat(&mut self, now: Time, member: MemberId) -> HeartbeatReply {
        let until = now.after(self.heartbeat_timeout);
        let renewed = self.members().find(|it| it.id == member).map(|it| it.renew(until));
        self.tick(now);
        match renewed {
            Some(true) => HeartbeatReply::Known,
            None if (self.first + 1..=self.last).contains(&member.0) => HeartbeatReply::Replaced,
            Some(false) | None => HeartbeatReply::Unknown,
        }
    }

    /// Applies the departure of a member. A member that has left stays unchanged.
    pub fn leave(&mut self, now: Time, member: MemberId, reason: &LeaveReason) {
        self.members().filter(|it| it.id == member).for_each(|it| it.leave(now, reason));
        self.settle();
    }

    fn members(&mut self) -> impl Iterator<Item = &mut MemberRecord> {
        self.explorers.values_mut().chain(self.trainer.iter_mut().map(|it| &mut it.member))
    }

    /// Sets the state of the trainer. Returns false if `member` is not the trainer.
    pub fn set_trainer_state(
        &mut self,
        now: Time,
        member: MemberId,
        state: TrainerPresence,
    ) -> bool {
        let until = now.after(self.heartbeat_timeout);
        let Some(trainer) = self.trainer.as_mut().filter(|it| it.member.id == member) else {
            return false;
        };
        trainer.member.until = until;
        trainer.member.state = state;
        self.settle();
        true
    }

    /// Sets the total experiences submitted by an explorer, and returns those of the others: the
    /// trainer trains on all of them. Explorers that left count too.
    pub fn submitted(&mut self, explorer: &str, experiences: u64) -> u64 {
        if self.submitted.len() < MAX_EXPLORERS || self.submitted.contains_key(explorer) {
            self.submitted.insert(explorer.to_owned(), experiences);
        }
        self.submitted_by_others(explorer)
    }

    /// Returns the experiences submitted by all other explorers.
    pub fn submitted_by_others(&self, explorer: &str) -> u64 {
        let others = self.submitted.iter().filter(|(name, _)| *name != explorer);
        others.fold(0, |sum, (_, experiences)| sum.saturating_add(*experiences))
    }

    /// Sets the newest version. Returns false if it is known already.
    ///
    /// # Errors
    /// The version is older: versions never decrease.
    pub fn published(&mut self, version: u64) -> Result<bool, JoinRefusal> {
        match self.newest {
            Some(newest) if version < newest => Err(JoinRefusal::Older { version, newest }),
            Some(newest) if version == newest => Ok(false),
            _ => {
                self.newest = Some(version);
                self.settle();
                Ok(true)
            }
        }
    }

    /// Begins a wait. It is over when [`SyncCore::outcomes`] contains it, possibly at once.
    pub fn wait(&mut self, now: Time, request: WeightWait) -> WaitId {
        self.last += 1;
        let wait = WaitId(self.last);
        self.last_wait = wait;
        if self.waits.len() >= MAX_WAITS {
            let message = format!("{MAX_WAITS} waits are open, which is the limit");
            self.ended.push((wait, WaitOutcome::TimedOut(message)));
            return wait;
        }
        let until = now.after(request.timeout);
        self.waits.insert(wait, ActiveWait { request, began: now, until });
        self.settle();
        wait
    }

    /// Removes a wait and its outcome.
    pub fn abandon(&mut self, wait: WaitId) {
        self.waits.remove(&wait);
        self.ended.retain(|(id, _)| *id != wait);
    }

    /// Applies the passing of time: heartbeat timeouts and the deadlines of waits.
    pub fn tick(&mut self, now: Time) {
        let heartbeat_timeout = self.heartbeat_timeout;
        self.members().for_each(|member| member.tick(now, heartbeat_timeout));
        self.settle();
        let due: Vec<WaitId> =
            self.waits.iter().filter(|(_, wait)| wait.until <= now).map(|(id, _)| *id).collect();
        for id in due {
            if let Some(wait) = self.waits.remove(&id) {
                let message = self.timeout_message(&wait, now);
                self.ended.push((id, WaitOutcome::TimedOut(message)));
            }
        }
    }

    /// Returns the next time at which [`SyncCore::tick`] has an effect.
    pub fn next_deadline(&self) -> Option<Time> {
        let trainer = self.trainer.iter().map(|it| &it.member);
        let members = self.explorers.values().chain(trainer);
        let deadlines = members.filter_map(|member| member.deadline(self.heartbeat_timeout));
        deadlines.chain(self.waits.values().map(|wait| wait.until)).min()
    }

    pub fn outcomes(&mut self) -> Vec<(WaitId, WaitOutcome)> {
        std::mem::take(&mut self.ended)
    }

    /// Returns the newest version. `None`: nothing was published.
    pub const fn newest(&self) -> Option<u64> {
        self.newest
    }

    pub fn wait_summary(&self) -> WaitSummary {
        let demands = self.waits.values().filter(|wait| wait.request.publish_now);
        // The current version of an explorer never satisfies its wait.
        let demanded = demands
            .map(|wait| wait.request.at_least.max(wait.request.current.saturating_add(1)))
            .min();
        WaitSummary { wait: self.last_wait, waiting: self.waits.len(), demanded }
    }

    /// Returns whether every explorer that ever joined has left for good. A lost explorer may
    /// return within one heartbeat timeout.
    pub fn explorers_left(&self) -> bool {
        !self.explorers.is_empty() && self.explorers.values().all(MemberRecord::has_left)
    }

    /// Returns the state of an explorer. `None`: it never joined.
    pub fn explorer(&self, name: &str) -> Option<ExplorerPresence> {
        self.explorers.get(name).map(|member| (&member.state).into())
    }

    pub fn view(&self) -> SyncView {
        let explorer = |(name, member): (&String, &MemberRecord)| ExplorerMember {
            name: name.clone(),
            state: (&member.state).into(),
            waiting: self.waits.values().filter(|wait| wait.request.explorer == *name).count(),
        };
        let trainer = self.trainer.as_ref().map(|trainer| TrainerMember {
            name: trainer.name.clone(),
            state: trainer.member.state.clone(),
        });
        SyncView {
            newest: self.newest,
            explorers: self.explorers.iter().map(explorer).collect(),
            trainer,
            waits: self.wait_summary(),
        }
    }

    /// Ends the waits whose outcome is decided.
    fn settle(&mut self) {
        let decided: Vec<(WaitId, WaitOutcome)> = self
            .waits
            .iter()
            .filter_map(|(id, wait)| Some((*id, self.decide(*id, &wait.request)?)))
            .collect();
        decided.iter().for_each(|(id, _)| drop(self.waits.remove(id)));
        self.ended.extend(decided);
    }

    /// Returns the outcome of a wait. `None`: it continues.
    fn decide(&self, wait: WaitId, request: &WeightWait) -> Option<WaitOutcome> {
        let newer = self.newest.filter(|version| *version > request.current);
        if let Some(version) = newer.filter(|version| *version >= request.at_least) {
            return Some(WaitOutcome::New(version));
        }
        let trainer = self.trainer.as_ref()?;
        match &trainer.member.state {
            TrainerPresence::Present | TrainerPresence::Training | TrainerPresence::Lost => None,
            // It looked for experiences after this wait had begun, and found too few.
            TrainerPresence::Idle { seen }
                if (wait..=self.last_wait).contains(seen)
                    && request.at_least < WeightWait::LAST =>
            {
                Some(newer.map_or(WaitOutcome::NothingNew, WaitOutcome::New))
            }
            TrainerPresence::Idle { .. } => None,
            TrainerPresence::Done => Some(WaitOutcome::TrainerDone(newer)),
            TrainerPresence::Failed(reason) => {
                let message = format!("trainer {:?} failed: {reason}", trainer.name);
                Some(WaitOutcome::TrainerFailed(message))
            }
        }
    }
}

#[cfg(test)]
mod tests;
