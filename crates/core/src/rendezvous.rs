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
//! deadline, and [`Board::next_deadline`] names the next one.

mod member;
mod transfer;
mod words;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Time;
pub use crate::rendezvous::member::{
    Beat, Entered, ExplorerState, ExplorerView, Left, Refused, Role, SeatId, TrainerState,
    TrainerView, View,
};
use crate::rendezvous::member::{Member, Presence as _, Seated, Trainer};
pub use crate::rendezvous::transfer::{TensorSpec, TransferGroup};

/// How many explorers a board remembers, and how many waits are open at once.
const MAX_EXPLORERS: usize = 4096;
const MAX_WAITS: usize = 16_384;

/// The number of a wait. Later ones have larger numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ask(pub u64);

/// What an explorer waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Its name.
    pub explorer: String,
    /// The version that it has.
    pub have: u64,
    /// Versions before this one are not enough while the trainer can still get there.
    /// [`Want::LAST`]: only its last ones are, for which it must have ended.
    pub at_least: u64,
    /// Whether the trainer is asked to publish.
    pub demand: bool,
    /// How long it waits.
    pub timeout: Duration,
    /// How long it has waited for this before, if it asks again.
    pub waited: Duration,
}

impl Want {
    /// Asks for the last weights of a trainer, whatever it is at meanwhile.
    pub const LAST: u64 = u64::MAX;
}

/// What came of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
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
pub struct Asked {
    /// The last wait that began.
    pub ask: Ask,
    /// How many waits are open.
    pub waiting: usize,
    /// The smallest version that would satisfy one who demands weights; none if nobody does.
    pub wanted: Option<u64>,
}

/// An open wait.
#[derive(Clone, Debug)]
struct Wait {
    want: Want,
    began: Time,
    until: Time,
}

/// Who is there, which weights are the newest, and who waits.
#[derive(Clone, Debug)]
pub struct Board {
    /// How long somebody who says nothing is believed to be there.
    lease: Duration,
    /// Seats and waits have numbers after this one,
    first: u64,
    /// up to this one.
    last: u64,
    /// The last wait that began.
    ask: Ask,
    newest: Option<u64>,
    explorers: BTreeMap<String, Member<ExplorerState>>,
    /// How many experiences explorers have submitted, by name.
    submitted: BTreeMap<String, u64>,
    trainer: Option<Trainer>,
    waits: BTreeMap<Ask, Wait>,
    /// Waits that are over, and that nobody has been told of.
    over: Vec<(Ask, Outcome)>,
}

impl Board {
    /// Returns an empty board. `first` is below every number that it gives out: boards of the same
    /// job have different ones, so that nobody takes a number of one for that of another.
    pub fn new(lease: Duration, first: u64) -> Self {
        Self {
            lease,
            first,
            last: first,
            ask: Ask(first),
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
    pub fn enter(&mut self, now: Time, role: Role, name: &str) -> Result<Entered, Refused> {
        self.tick(now);
        let until = now.after(self.lease);
        let takes_over = match role {
            Role::Explorer => {
                let is_known = self.explorers.contains_key(name);
                if !is_known && self.explorers.len() >= MAX_EXPLORERS {
                    return Err(Refused::TooMany(MAX_EXPLORERS));
                }
                is_known
            }
            Role::Trainer => match &self.trainer {
                Some(there) if there.name != name && there.seated.state.is_there() => {
                    return Err(Refused::OtherTrainer(there.name.clone()));
                }
                there => there.is_some(),
            },
        };
        self.last += 1;
        let seat = SeatId(self.last);
        match role {
            Role::Explorer => {
                let member = Member { seat, until, state: ExplorerState::Here };
                self.explorers.insert(name.to_owned(), member);
            }
            Role::Trainer => {
                let seated = Member { seat, until, state: TrainerState::Here };
                self.trainer = Some(Trainer { name: name.to_owned(), seated });
            }
        }
        self.settle();
        Ok(Entered { seat, takes_over })
    }

    /// Hears that somebody is still there.
    pub fn beat(&mut self, now: Time, seat: SeatId) -> Beat {
        let until = now.after(self.lease);
        let heard = self.seats().find(|member| member.seat() == seat).map(|it| it.beat(until));
        self.tick(now);
        match heard {
            Some(true) => Beat::Known,
            None if (self.first + 1..=self.last).contains(&seat.0) => Beat::Replaced,
            Some(false) | None => Beat::Unknown,
        }
    }

    /// Hears that somebody leaves, and how. Who has left already has.
    pub fn leave(&mut self, now: Time, seat: SeatId, how: &Left) {
        self.seats().filter(|member| member.seat() == seat).for_each(|it| it.leave(now, how));
        self.settle();
    }

    fn seats(&mut self) -> impl Iterator<Item = &mut dyn Seated> {
        let explorers = self.explorers.values_mut().map(|member| member as &mut dyn Seated);
        explorers.chain(self.trainer.iter_mut().map(|it| &mut it.seated as &mut dyn Seated))
    }

    /// Hears from the trainer what it is at. False: it is not the trainer.
    pub fn trainer(&mut self, now: Time, seat: SeatId, state: TrainerState) -> bool {
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
    pub fn published(&mut self, version: u64) -> Result<bool, Refused> {
        match self.newest {
            Some(newest) if version < newest => Err(Refused::Older { version, newest }),
            Some(newest) if version == newest => Ok(false),
            _ => {
                self.newest = Some(version);
                self.settle();
                Ok(true)
            }
        }
    }

    /// Begins a wait. It is over when [`Board::outcomes`] has it: at once, if there is nothing to
    /// wait for.
    pub fn wait(&mut self, now: Time, want: Want) -> Ask {
        self.last += 1;
        let ask = Ask(self.last);
        self.ask = ask;
        if self.waits.len() >= MAX_WAITS {
            let words = format!("{MAX_WAITS} waits are open already; nothing more is waited for");
            self.over.push((ask, Outcome::TimedOut(words)));
            return ask;
        }
        let until = now.after(want.timeout);
        self.waits.insert(ask, Wait { want, began: now, until });
        self.settle();
        ask
    }

    /// Gives a wait up. Nothing is left of it.
    pub fn abandon(&mut self, ask: Ask) {
        self.waits.remove(&ask);
        self.over.retain(|(over, _)| *over != ask);
    }

    /// Lets time pass: leases run out, and waits end.
    pub fn tick(&mut self, now: Time) {
        let lease = self.lease;
        self.seats().for_each(|member| member.tick(now, lease));
        self.settle();
        let due: Vec<Ask> =
            self.waits.iter().filter(|(_, wait)| wait.until <= now).map(|(ask, _)| *ask).collect();
        for ask in due {
            if let Some(wait) = self.waits.remove(&ask) {
                let words = self.in_vain(&wait, now);
                self.over.push((ask, Outcome::TimedOut(words)));
            }
        }
    }

    /// When [`Board::tick`] has something to do, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Time> {
        let explorers = self.explorers.values().filter_map(|member| member.deadline(self.lease));
        let trainer = self.trainer.iter().filter_map(|it| it.seated.deadline(self.lease));
        explorers.chain(trainer).chain(self.waits.values().map(|wait| wait.until)).min()
    }

    /// Returns what waits came to since it was asked last.
    pub fn outcomes(&mut self) -> Vec<(Ask, Outcome)> {
        std::mem::take(&mut self.over)
    }

    /// The newest version; none if nothing was ever published.
    pub const fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// What the trainer should know of those who wait.
    pub fn asked(&self) -> Asked {
        let demands = self.waits.values().filter(|wait| wait.want.demand);
        // Nobody is helped by the version that they have.
        let wanted =
            demands.map(|wait| wait.want.at_least.max(wait.want.have.saturating_add(1))).min();
        Asked { ask: self.ask, waiting: self.waits.len(), wanted }
    }

    /// Tells whether every explorer that ever came has left for good. Whoever is lost may come
    /// again for as long as a lease is.
    pub fn explorers_left(&self) -> bool {
        let has_left = |member: &Member<ExplorerState>| member.state.has_left();
        !self.explorers.is_empty() && self.explorers.values().all(has_left)
    }

    /// What an explorer is at; none if it never came.
    pub fn explorer(&self, name: &str) -> Option<&ExplorerState> {
        self.explorers.get(name).map(|member| &member.state)
    }

    /// Everybody, and what they are at.
    pub fn view(&self) -> View {
        let explorer = |(name, member): (&String, &Member<ExplorerState>)| ExplorerView {
            name: name.clone(),
            state: member.state.clone(),
            waiting: self.waits.values().filter(|wait| wait.want.explorer == *name).count(),
        };
        let trainer = self.trainer.as_ref().map(|trainer| TrainerView {
            name: trainer.name.clone(),
            state: trainer.seated.state.clone(),
        });
        View {
            newest: self.newest,
            explorers: self.explorers.iter().map(explorer).collect(),
            trainer,
            asked: self.asked(),
        }
    }

    /// Ends the waits that have nothing to wait for.
    fn settle(&mut self) {
        let decided: Vec<(Ask, Outcome)> = self
            .waits
            .iter()
            .filter_map(|(ask, wait)| Some((*ask, self.decide(*ask, &wait.want)?)))
            .collect();
        decided.iter().for_each(|(ask, _)| drop(self.waits.remove(ask)));
        self.over.extend(decided);
    }

    /// Returns what a wait comes to; none while it goes on.
    fn decide(&self, ask: Ask, want: &Want) -> Option<Outcome> {
        let newer = self.newest.filter(|version| *version > want.have);
        if let Some(version) = newer.filter(|version| *version >= want.at_least) {
            return Some(Outcome::New(version));
        }
        let trainer = self.trainer.as_ref()?;
        match &trainer.seated.state {
            TrainerState::Here | TrainerState::Training | TrainerState::Lost => None,
            // It looked for experiences after this wait had begun, and found too few.
            TrainerState::Idle { seen }
                if (ask..=self.ask).contains(seen) && want.at_least < Want::LAST =>
            {
                Some(newer.map_or(Outcome::NothingNew, Outcome::New))
            }
            TrainerState::Idle { .. } => None,
            TrainerState::Done => Some(Outcome::TrainerDone(newer)),
            TrainerState::Failed(why) => Some(Outcome::TrainerFailed(words::failed(trainer, why))),
        }
    }
}

#[cfg(test)]
mod tests;
