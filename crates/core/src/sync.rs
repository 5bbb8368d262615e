//! Where explorers and the trainer of a job meet, as decisions: who is there, which weights are the
//! newest, who waits for them and what comes of it.
//!
//! ```text
//!  explorer ── wait ──► Ask n ──┐                        ┌── Training
//!                               ├─► Board ◄── trainer ───┼── Idle { seen: n }
//!  explorer ◄── Outcome ────────┘      ◄── published ────┴── Done, Failed
//! ```
//!
//! Whether a trainer that waits for experiences knows of those that were just delivered is what a
//! wait turns on: if it does, there will be no newer weights, if not, there may. Every wait has a
//! number. A trainer that is idle names the last number that it had heard of *before* it looked for
//! experiences in vain. What was delivered before a wait began was there to be found by a look that
//! began later, so a number that is at least the wait's settles it, however many explorers there
//! are and whatever the buffer held before.
//!
//! Versions of weights never go backwards, and nothing here waits for ever: whatever is open has a
//! deadline, and [`SyncCore::next_deadline`] names the next one.

mod member;
mod messages;
mod transfer;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Time;
use crate::sync::member::{AnyMember, MemberPresence as _, MemberRecord, TrainerSlot};
pub use crate::sync::member::{
    ExplorerMember, ExplorerPresence, HeartbeatReply, JoinRefusal, Joined, LeaveReason, MemberId,
    MemberRole, SyncView, TrainerMember, TrainerPresence,
};
pub use crate::sync::transfer::{TensorSpec, TransferGroup};

/// How many explorers a board remembers, and how many waits are open at once.
const MAX_EXPLORERS: usize = 4096;
const MAX_WAITS: usize = 16_384;

/// The number of a wait. Later ones have larger numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId(pub u64);

/// What an explorer waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightWait {
    /// Its name.
    pub explorer: String,
    /// The version that it has.
    pub have: u64,
    /// Versions before this one are not enough while the trainer can still get there.
    /// [`WeightWait::LAST`]: only its last ones are, for which it must have ended.
    pub at_least: u64,
    /// Whether the trainer is asked to publish.
    pub demand: bool,
    /// How long it waits.
    pub timeout: Duration,
    /// How long it has waited for this before, if it asks again.
    pub waited: Duration,
}

impl WeightWait {
    /// Asks for the last weights of a trainer, whatever it is at meanwhile.
    pub const LAST: u64 = u64::MAX;
}

/// What came of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// There are weights of this version.
    New(u64),
    /// The trainer has nothing newer, and waits for experiences itself.
    NothingNew,
    /// The trainer is done; its last version, if that is newer.
    TrainerDone(Option<u64>),
    /// The trainer failed, or is gone; in words.
    TrainerFailed(String),
    /// Time is up; in words: who was there and what they did.
    TimedOut(String),
}

/// What the trainer should know of those who wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitSummary {
    /// The last wait that began.
    pub ask: WaitId,
    /// How many waits are open.
    pub waiting: usize,
    /// The smallest version that would satisfy one who demands weights; none if nobody does.
    pub wanted: Option<u64>,
}

/// An open wait.
#[derive(Clone, Debug)]
struct ActiveWait {
    want: WeightWait,
    began: Time,
    until: Time,
}

/// Who is there, which weights are the newest, and who waits.
#[derive(Clone, Debug)]
pub struct SyncCore {
    /// How long somebody who says nothing is believed to be there.
    lease: Duration,
    /// Seats and waits have numbers after this one,
    first: u64,
    /// up to this one.
    last: u64,
    /// The last wait that began.
    ask: WaitId,
    newest: Option<u64>,
    explorers: BTreeMap<String, MemberRecord<ExplorerPresence>>,
    /// How many experiences explorers have submitted, by name.
    submitted: BTreeMap<String, u64>,
    trainer: Option<TrainerSlot>,
    waits: BTreeMap<WaitId, ActiveWait>,
    /// Waits that are over, and that nobody has been told of.
    over: Vec<(WaitId, WaitOutcome)>,
}

impl SyncCore {
    /// Returns an empty board. `first` is below every number that it gives out: boards of the same
    /// job have different ones, so that nobody takes a number of one for that of another.
    pub fn new(lease: Duration, first: u64) -> Self {
        Self {
            lease,
            first,
            last: first,
            ask: WaitId(first),
            newest: None,
            explorers: BTreeMap::new(),
            submitted: BTreeMap::new(),
            trainer: None,
            waits: BTreeMap::new(),
            over: Vec::new(),
        }
    }

    /// How long somebody who says nothing is believed to be there.
    pub const fn lease(&self) -> Duration {
        self.lease
    }

    /// Lets somebody in. Whoever has the same name takes the seat over: it was started again.
    ///
    /// # Errors
    /// Another trainer is there, or there are too many explorers.
    pub fn join(&mut self, now: Time, role: MemberRole, name: &str) -> Result<Joined, JoinRefusal> {
        self.tick(now);
        let until = now.after(self.lease);
        let takes_over = match role {
            MemberRole::Explorer => {
                let is_known = self.explorers.contains_key(name);
                if !is_known && self.explorers.len() >= MAX_EXPLORERS {
                    return Err(JoinRefusal::TooMany(MAX_EXPLORERS));
                }
                is_known
            }
            MemberRole::Trainer => match &self.trainer {
                Some(there) if there.name != name && there.seated.state.is_there() => {
                    return Err(JoinRefusal::OtherTrainer(there.name.clone()));
                }
                there => there.is_some(),
            },
        };
        self.last += 1;
        let seat = MemberId(self.last);
        match role {
            MemberRole::Explorer => {
                let member = MemberRecord { seat, until, state: ExplorerPresence::Present };
                self.explorers.insert(name.to_owned(), member);
            }
            MemberRole::Trainer => {
                let seated = MemberRecord { seat, until, state: TrainerPresence::Here };
                self.trainer = Some(TrainerSlot { name: name.to_owned(), seated });
            }
        }
        self.settle();
        Ok(Joined { seat, takes_over })
    }

    /// Hears that somebody is still there.
    pub fn heartbeat(&mut self, now: Time, seat: MemberId) -> HeartbeatReply {
        let until = now.after(self.lease);
        let heard = self.seats().find(|member| member.seat() == seat).map(|it| it.beat(until));
        self.tick(now);
        match heard {
            Some(true) => HeartbeatReply::Known,
            None if (self.first + 1..=self.last).contains(&seat.0) => HeartbeatReply::Replaced,
            Some(false) | None => HeartbeatReply::Unknown,
        }
    }

    /// Hears that somebody leaves, and how. Who has left already has.
    pub fn leave(&mut self, now: Time, seat: MemberId, how: &LeaveReason) {
        self.seats().filter(|member| member.seat() == seat).for_each(|it| it.leave(now, how));
        self.settle();
    }

    fn seats(&mut self) -> impl Iterator<Item = &mut dyn AnyMember> {
        let explorers = self.explorers.values_mut().map(|member| member as &mut dyn AnyMember);
        explorers.chain(self.trainer.iter_mut().map(|it| &mut it.seated as &mut dyn AnyMember))
    }

    /// Hears from the trainer what it is at. False: it is not the trainer.
    pub fn set_trainer_state(&mut self, now: Time, seat: MemberId, state: TrainerPresence) -> bool {
        let until = now.after(self.lease);
        let Some(trainer) = self.trainer.as_mut().filter(|it| it.seated.seat == seat) else {
            return false;
        };
        trainer.seated.until = until;
        trainer.seated.state = state;
        self.settle();
        true
    }

    /// Hears how many experiences an explorer has submitted in all, and returns how many the others
    /// have: the trainer trains on all of them. Whoever has left has submitted what it did.
    pub fn submitted(&mut self, explorer: &str, experiences: u64) -> u64 {
        if self.submitted.len() < MAX_EXPLORERS || self.submitted.contains_key(explorer) {
            self.submitted.insert(explorer.to_owned(), experiences);
        }
        self.elsewhere(explorer)
    }

    /// How many experiences all explorers but this one have submitted.
    pub fn elsewhere(&self, explorer: &str) -> u64 {
        let others = self.submitted.iter().filter(|(name, _)| *name != explorer);
        others.fold(0, |sum, (_, experiences)| sum.saturating_add(*experiences))
    }

    /// Hears of weights. True: they are newer than what was known.
    ///
    /// # Errors
    /// They are older: versions never go backwards.
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

    /// Begins a wait. It is over when [`SyncCore::outcomes`] has it: at once, if there is nothing
    /// to wait for.
    pub fn wait(&mut self, now: Time, want: WeightWait) -> WaitId {
        self.last += 1;
        let ask = WaitId(self.last);
        self.ask = ask;
        if self.waits.len() >= MAX_WAITS {
            let words = format!("{MAX_WAITS} waits are open already; nothing more is waited for");
            self.over.push((ask, WaitOutcome::TimedOut(words)));
            return ask;
        }
        let until = now.after(want.timeout);
        self.waits.insert(ask, ActiveWait { want, began: now, until });
        self.settle();
        ask
    }

    /// Gives a wait up. Nothing is left of it.
    pub fn abandon(&mut self, ask: WaitId) {
        self.waits.remove(&ask);
        self.over.retain(|(over, _)| *over != ask);
    }

    /// Lets time pass: leases run out, and waits end.
    pub fn tick(&mut self, now: Time) {
        let lease = self.lease;
        self.seats().for_each(|member| member.tick(now, lease));
        self.settle();
        let due: Vec<WaitId> =
            self.waits.iter().filter(|(_, wait)| wait.until <= now).map(|(ask, _)| *ask).collect();
        for ask in due {
            if let Some(wait) = self.waits.remove(&ask) {
                let words = self.in_vain(&wait, now);
                self.over.push((ask, WaitOutcome::TimedOut(words)));
            }
        }
    }

    /// When [`SyncCore::tick`] has something to do, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Time> {
        let explorers = self.explorers.values().filter_map(|member| member.deadline(self.lease));
        let trainer = self.trainer.iter().filter_map(|it| it.seated.deadline(self.lease));
        explorers.chain(trainer).chain(self.waits.values().map(|wait| wait.until)).min()
    }

    /// Returns what waits came to since it was asked last.
    pub fn outcomes(&mut self) -> Vec<(WaitId, WaitOutcome)> {
        std::mem::take(&mut self.over)
    }

    /// The newest version; none if nothing was ever published.
    pub const fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// What the trainer should know of those who wait.
    pub fn wait_summary(&self) -> WaitSummary {
        let demands = self.waits.values().filter(|wait| wait.want.demand);
        // Nobody is helped by the version that they have.
        let wanted =
            demands.map(|wait| wait.want.at_least.max(wait.want.have.saturating_add(1))).min();
        WaitSummary { ask: self.ask, waiting: self.waits.len(), wanted }
    }

    /// Tells whether every explorer that ever came has left for good. Whoever is lost may come
    /// again for as long as a lease is.
    pub fn explorers_left(&self) -> bool {
        let has_left = |member: &MemberRecord<ExplorerPresence>| member.state.has_left();
        !self.explorers.is_empty() && self.explorers.values().all(has_left)
    }

    /// What an explorer is at; none if it never came.
    pub fn explorer(&self, name: &str) -> Option<&ExplorerPresence> {
        self.explorers.get(name).map(|member| &member.state)
    }

    /// Everybody, and what they are at.
    pub fn view(&self) -> SyncView {
        let explorer =
            |(name, member): (&String, &MemberRecord<ExplorerPresence>)| ExplorerMember {
                name: name.clone(),
                state: member.state.clone(),
                waiting: self.waits.values().filter(|wait| wait.want.explorer == *name).count(),
            };
        let trainer = self.trainer.as_ref().map(|trainer| TrainerMember {
            name: trainer.name.clone(),
            state: trainer.seated.state.clone(),
        });
        SyncView {
            newest: self.newest,
            explorers: self.explorers.iter().map(explorer).collect(),
            trainer,
            asked: self.wait_summary(),
        }
    }

    /// Ends the waits that have nothing to wait for.
    fn settle(&mut self) {
        let decided: Vec<(WaitId, WaitOutcome)> = self
            .waits
            .iter()
            .filter_map(|(ask, wait)| Some((*ask, self.decide(*ask, &wait.want)?)))
            .collect();
        decided.iter().for_each(|(ask, _)| drop(self.waits.remove(ask)));
        self.over.extend(decided);
    }

    /// Returns what a wait comes to; none while it goes on.
    fn decide(&self, ask: WaitId, want: &WeightWait) -> Option<WaitOutcome> {
        let newer = self.newest.filter(|version| *version > want.have);
        if let Some(version) = newer.filter(|version| *version >= want.at_least) {
            return Some(WaitOutcome::New(version));
        }
        let trainer = self.trainer.as_ref()?;
        match &trainer.seated.state {
            TrainerPresence::Here | TrainerPresence::Training | TrainerPresence::Lost => None,
            // It looked for experiences after this wait had begun, and found too few.
            TrainerPresence::Idle { seen }
                if (ask..=self.ask).contains(seen) && want.at_least < WeightWait::LAST =>
            {
                Some(newer.map_or(WaitOutcome::NothingNew, WaitOutcome::New))
            }
            TrainerPresence::Idle { .. } => None,
            TrainerPresence::Done => Some(WaitOutcome::TrainerDone(newer)),
            TrainerPresence::Failed(why) => {
                Some(WaitOutcome::TrainerFailed(messages::failed(trainer, why)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
