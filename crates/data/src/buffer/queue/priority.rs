//! The most urgent lot first, and again after a rest.
//!
//! A lot waits; one at a time is open and given out sample by sample; when all of it has been given
//! it rests and then waits again, or is spent and stays until it is acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::known::{Known, Name};
use super::options::{Options, Replay};
use super::store::{Fresh, Offer, ReaderId, Step, Store, Usage, check_seek, weight};
use crate::Sample;
use crate::buffer::Result;

/// The queue with priorities. A position is a number of samples given out.
#[derive(Debug)]
pub(super) struct Ranked {
    capacity: usize,
    bytes_max: usize,
    replay: Replay,
    rng: ChaCha8Rng,
    /// By the order in which they came.
    lots: BTreeMap<u64, Entry>,
    next: u64,
    /// Lots that wait or rest, by priority: what gives way, from the lowest.
    ranks: BTreeSet<(Rank, u64)>,
    /// Lots that wait, by priority: what is taken, from the highest.
    waiting: BTreeSet<(Rank, u64)>,
    /// Lots that rest, by the time at which they are back.
    resting: BTreeSet<(Duration, u64)>,
    /// The lot that is being given out.
    open: Option<u64>,
    /// What was given out and not acknowledged.
    given: BTreeMap<u64, Given>,
    /// How many samples have been given out.
    position: u64,
    acknowledged: u64,
    now: Duration,
    finished: bool,
    usage: Usage,
}

#[derive(Debug)]
struct Entry {
    key: Name,
    slots: Vec<Slot>,
    state: State,
    rank: Rank,
    uses: u64,
    /// Samples still to be given out in this use.
    unread: usize,
    /// Samples that are not gone.
    left: usize,
    /// Times that samples of it were given out and not acknowledged.
    held: usize,
}

#[derive(Debug)]
struct Slot {
    name: Name,
    unread: bool,
    sample: Option<Sample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Open,
    Resting(Duration),
    Spent,
}

/// A sample that was given out: which, and to whom.
#[derive(Clone, Copy, Debug)]
struct Given {
    lot: u64,
    at: usize,
    reader: ReaderId,
}

/// A priority, in an order without exceptions.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rank(f64);

impl Eq for Rank {}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Entry {
    /// The version of the oldest sample that is left.
    fn version(&self) -> u64 {
        let samples = self.slots.iter().filter_map(|slot| slot.sample.as_ref());
        samples.map(|sample| sample.model_version).min().unwrap_or(0)
    }

    fn weight(&self) -> usize {
        self.slots.iter().filter_map(|slot| slot.sample.as_ref()).map(weight).sum()
    }
}

impl Ranked {
    pub(super) fn new(options: &Options, replay: &Replay) -> Self {
        Self {
            capacity: options.capacity,
            bytes_max: options.bytes_max,
            replay: replay.clone(),
            rng: ChaCha8Rng::seed_from_u64(replay.seed),
            lots: BTreeMap::new(),
            next: 0,
            ranks: BTreeSet::new(),
            waiting: BTreeSet::new(),
            resting: BTreeSet::new(),
            open: None,
            given: BTreeMap::new(),
            position: 0,
            acknowledged: 0,
            now: options.clock.now(),
            finished: false,
            usage: Usage::default(),
        }
    }

    /// Returns the lots that have to give way to one of this rank and weight, or why it gives way
    /// itself. What somebody may still seek back to stays.
    fn victims(&self, rank: Rank, weight: usize) -> std::result::Result<Vec<u64>, &'static str> {
        // Spent lots wait for nothing but an acknowledgement: bytes, and no place in the queue.
        let mut lots = self.ranks.len() + usize::from(self.open.is_some());
        let mut bytes = self.usage.bytes;
        let mut victims = Vec::new();
        let mut candidates = self.ranks.iter().filter(|(_, lot)| self.lots[lot].held == 0);
        while lots >= self.capacity || bytes + weight > self.bytes_max {
            let Some((lowest, lot)) = candidates.next() else { return Err("no_room") };
            if *lowest > rank {
                return Err("lower_priority");
            }
            lots -= 1;
            bytes -= self.lots[lot].weight();
            victims.push(*lot);
        }
        Ok(victims)
    }

    /// Moves a lot to another state, and all the indexes with it.
    fn set_state(&mut self, lot: u64, state: State) {
        let Some(entry) = self.lots.get_mut(&lot) else { return };
        let rank = (entry.rank, lot);
        let was = std::mem::replace(&mut entry.state, state);
        match was {
            State::Waiting => _ = self.waiting.remove(&rank),
            State::Resting(due) => _ = self.resting.remove(&(due, lot)),
            State::Open => self.open = None,
            State::Spent => {}
        }
        match state {
            State::Waiting => _ = self.waiting.insert(rank),
            State::Resting(due) => _ = self.resting.insert((due, lot)),
            State::Open => self.open = Some(lot),
            State::Spent => {}
        }
        if matches!(state, State::Waiting | State::Resting(_)) {
            self.ranks.insert(rank);
        } else {
            self.ranks.remove(&rank);
        }
    }

    /// Counts a use, or takes it back, and works the priority out anew. Only for a lot that neither
    /// waits nor rests.
    fn set_uses(&mut self, lot: u64, uses: u64) {
        let Some(entry) = self.lots.get_mut(&lot) else { return };
        entry.uses = uses;
        entry.rank = Rank(self.replay.priority.of(entry.version(), uses, &mut self.rng));
    }

    /// Decides what becomes of a lot all of which has been given out.
    fn close_lot(&mut self, lot: u64, known: &mut Known) {
        let Some(entry) = self.lots.get(&lot) else { return };
        let uses = entry.uses + 1;
        self.set_state(lot, State::Spent);
        self.set_uses(lot, uses);
        let again = !self.finished && self.replay.priority.allows(uses);
        match self.replay.reuse_cooldown_time.filter(|_| again) {
            Some(rest) => {
                self.mark_unread(lot, |_| true);
                self.set_state(lot, State::Resting(self.now.saturating_add(rest)));
            }
            None => self.forget_if_done(lot, known),
        }
    }

    /// Marks samples of a lot as still to be given out.
    fn mark_unread(&mut self, lot: u64, which: impl Fn(usize) -> bool) {
        let Some(entry) = self.lots.get_mut(&lot) else { return };
        for (at, slot) in entry.slots.iter_mut().enumerate() {
            if slot.sample.is_some() && !slot.unread && which(at) {
                slot.unread = true;
                entry.unread += 1;
            }
        }
    }

    /// Takes back a sample that was given out.
    fn take_back(&mut self, given: Given) {
        self.usage.held -= 1;
        let Some(entry) = self.lots.get_mut(&given.lot) else { return };
        entry.held -= 1;
        let (state, uses) = (entry.state, entry.uses);
        if matches!(state, State::Spent | State::Resting(_)) {
            // The use is undone: only what is taken back is to be given out again.
            self.set_state(given.lot, State::Spent);
            self.clear_unread(given.lot);
            self.set_uses(given.lot, uses.saturating_sub(1));
            self.set_state(given.lot, State::Waiting);
        }
        self.mark_unread(given.lot, |at| at == given.at);
    }

    fn clear_unread(&mut self, lot: u64) {
        let Some(entry) = self.lots.get_mut(&lot) else { return };
        entry.unread = 0;
        entry.slots.iter_mut().for_each(|slot| slot.unread = false);
    }

    /// Says that a sample that was given out has been dealt with.
    fn settle(&mut self, given: Given, known: &mut Known) {
        self.usage.held -= 1;
        if let Some(entry) = self.lots.get_mut(&given.lot) {
            entry.held -= 1;
        }
        self.forget_if_done(given.lot, known);
    }

    fn forget_if_done(&mut self, lot: u64, known: &mut Known) {
        let done = |entry: &Entry| entry.state == State::Spent && entry.held == 0;
        if self.lots.get(&lot).is_some_and(done) {
            self.forget(lot, known);
        }
    }

    /// Lets go of a lot, and returns how many samples it had.
    fn forget(&mut self, lot: u64, known: &mut Known) -> usize {
        self.set_state(lot, State::Spent);
        let Some(entry) = self.lots.remove(&lot) else { return 0 };
        self.usage.bytes -= entry.weight();
        for slot in entry.slots.iter().filter(|slot| slot.sample.is_some()) {
            known.leave(slot.name);
        }
        known.leave(entry.key);
        entry.left
    }

    /// Opens the most urgent lot; among equals the one that came first.
    fn open_next(&mut self) -> Option<u64> {
        if self.open.is_none() {
            let (highest, _) = *self.waiting.last()?;
            let (_, lot) = *self.waiting.range((highest, 0)..).next()?;
            self.set_state(lot, State::Open);
        }
        self.open
    }
}

impl Store for Ranked {
    fn offer(&mut self, lot: Fresh, known: &mut Known) -> Result<Offer> {
        let count = lot.samples.len();
        let mut dropped = BTreeMap::new();
        if lot.weight > self.bytes_max {
            let limit = self.bytes_max;
            let message = format!("a lot of {} bytes, and bytes_max = {limit}", lot.weight);
            return Ok(Offer::TooLarge(message));
        }
        let version = lot.samples.iter().map(|(_, sample)| sample.model_version).min();
        let rank = Rank(self.replay.priority.of(version.unwrap_or(0), 0, &mut self.rng));
        let victims = match self.victims(rank, lot.weight) {
            Ok(victims) => victims,
            Err(reason) => {
                known.pass(&lot);
                dropped.insert(reason, count);
                return Ok(Offer::Done { stored: 0, dropped });
            }
        };
        let replaced: usize = victims.into_iter().map(|lot| self.forget(lot, known)).sum();
        dropped.extend((replaced > 0).then_some(("replaced", replaced)));
        known.enter(lot.key);
        let slot = |(name, sample)| {
            known.enter(name);
            Slot { name, unread: true, sample: Some(sample) }
        };
        let entry = Entry {
            key: lot.key,
            slots: lot.samples.into_iter().map(slot).collect(),
            state: State::Spent,
            rank,
            uses: 0,
            unread: count,
            left: count,
            held: 0,
        };
        self.lots.insert(self.next, entry);
        self.set_state(self.next, State::Waiting);
        self.next += 1;
        self.usage.bytes += lot.weight;
        self.usage.bytes_peak = self.usage.bytes_peak.max(self.usage.bytes);
        Ok(Offer::Done { stored: count, dropped })
    }

    fn take(&mut self, reader: ReaderId, floor: u64, known: &mut Known) -> Result<Step> {
        let Some(lot) = self.open_next() else { return Ok(Step::Empty) };
        let Some(entry) = self.lots.get_mut(&lot) else { return Ok(Step::Empty) };
        let Some(at) = entry.slots.iter().position(|slot| slot.unread) else {
            self.close_lot(lot, known);
            return self.take(reader, floor, known);
        };
        let slot = &mut entry.slots[at];
        slot.unread = false;
        entry.unread -= 1;
        let exhausted = entry.unread == 0;
        let is_stale = |sample: &mut Sample| sample.model_version < floor;
        let step = if let Some(stale) = slot.sample.take_if(is_stale) {
            known.leave(slot.name);
            entry.left -= 1;
            self.usage.bytes -= weight(&stale);
            Step::Stale
        } else {
            let Some(sample) = slot.sample.clone() else { return Ok(Step::Stale) };
            entry.held += 1;
            self.usage.held += 1;
            self.given.insert(self.position, Given { lot, at, reader });
            self.position += 1;
            Step::Given(sample)
        };
        if entry.left == 0 {
            self.forget(lot, known);
        } else if exhausted {
            self.close_lot(lot, known);
        }
        Ok(step)
    }

    fn acknowledge(&mut self, reader: ReaderId, known: &mut Known) {
        let mine: Vec<(u64, Given)> =
            self.given.extract_if(.., |_, given| given.reader == reader).collect();
        for (number, given) in mine {
            self.acknowledged = self.acknowledged.max(number + 1);
            self.settle(given, known);
        }
    }

    fn give_back(&mut self, reader: ReaderId) {
        let mine: Vec<(u64, Given)> =
            self.given.extract_if(.., |_, given| given.reader == reader).collect();
        for (_, given) in mine {
            self.take_back(given);
        }
    }

    fn position(&self, reader: ReaderId) -> u64 {
        let other = self.given.iter().find(|(_, given)| given.reader != reader);
        other.map_or(self.position, |(number, _)| *number)
    }

    fn seek(&mut self, position: u64, known: &mut Known) -> std::result::Result<(), String> {
        let oldest = self.given.first_key_value().map_or(self.position, |(number, _)| *number);
        check_seek(position, oldest..=self.position, self.acknowledged)?;
        let later = self.given.split_off(&position);
        for (number, given) in std::mem::replace(&mut self.given, later) {
            self.acknowledged = self.acknowledged.max(number + 1);
            self.settle(given, known);
        }
        for given in std::mem::take(&mut self.given).into_values() {
            self.take_back(given);
        }
        self.position = position;
        self.acknowledged = self.acknowledged.min(position);
        Ok(())
    }

    fn wake(&mut self, now: Duration) -> Option<Duration> {
        self.now = now;
        while let Some(&(due, lot)) = self.resting.first() {
            if due > now {
                return Some(due - now);
            }
            self.set_state(lot, State::Waiting);
        }
        None
    }

    fn finish(&mut self, finished: bool, known: &mut Known) {
        self.finished = finished;
        while let Some(&(_, lot)) = self.resting.first().filter(|_| finished) {
            self.clear_unread(lot);
            self.set_state(lot, State::Spent);
            self.forget_if_done(lot, known);
        }
    }

    fn starved_by(&self, _reader: ReaderId) -> bool {
        false
    }

    fn usage(&self) -> Usage {
        let unread = |lot: &u64| self.lots.get(lot).map_or(0, |entry| entry.unread);
        let ready = self.waiting.iter().map(|(_, lot)| lot).chain(&self.open);
        Usage { lots: self.ranks.len(), unread: ready.map(unread).sum(), ..self.usage }
    }
}
