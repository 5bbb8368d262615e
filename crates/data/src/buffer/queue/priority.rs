//! Priority store with reuse.
//!
//! A write batch waits; one at a time is open and read sample by sample; when all are read it rests
//! and waits again, or is spent and stays until acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::options::{QueueOptions, ReplayOptions};
use super::seen_ids::{IdHash, SeenIds};
use super::store::{
    InsertOutcome, NewWriteBatch, QueueStore, QueueUsage, ReaderId, TakeOutcome, check_seek, weight,
};
use crate::Sample;
use crate::buffer::Result;

/// Priority store. A position is the number of samples issued.
#[derive(Debug)]
pub(super) struct PriorityStore {
    capacity: usize,
    bytes_max: usize,
    replay: ReplayOptions,
    rng: ChaCha8Rng,
    /// Write batches by order of arrival.
    batches: BTreeMap<u64, PriorityEntry>,
    next: u64,
    /// Waiting and resting batches by priority; the lowest is replaced first.
    ranks: BTreeSet<(PriorityRank, u64)>,
    /// Waiting batches by priority; the highest is read first.
    waiting: BTreeSet<(PriorityRank, u64)>,
    /// Resting batches by the end of their rest.
    resting: BTreeSet<(Duration, u64)>,
    /// The batch being read.
    open: Option<u64>,
    /// Issued samples that are not acknowledged.
    given: BTreeMap<u64, IssuedSample>,
    /// Number of samples issued.
    position: u64,
    acknowledged: u64,
    now: Duration,
    finished: bool,
    usage: QueueUsage,
}

#[derive(Debug)]
struct PriorityEntry {
    key: IdHash,
    slots: Vec<PrioritySlot>,
    state: PriorityState,
    rank: PriorityRank,
    uses: u64,
    /// Samples left to issue in this use.
    unread: usize,
    /// Samples that are not gone.
    left: usize,
    /// Issued samples that are not acknowledged.
    held: usize,
}

#[derive(Debug)]
struct PrioritySlot {
    name: IdHash,
    unread: bool,
    sample: Option<Sample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PriorityState {
    Waiting,
    Open,
    Resting(Duration),
    Spent,
}

#[derive(Clone, Copy, Debug)]
struct IssuedSample {
    batch: u64,
    at: usize,
    reader: ReaderId,
}

/// A priority with a total order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PriorityRank(f64);

impl Eq for PriorityRank {}

impl PartialOrd for PriorityRank {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PriorityRank {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PriorityEntry {
    /// Version of the oldest remaining sample.
    fn version(&self) -> u64 {
        let samples = self.slots.iter().filter_map(|slot| slot.sample.as_ref());
        samples.map(|sample| sample.model_version).min().unwrap_or(0)
    }

    fn weight(&self) -> usize {
        self.slots.iter().filter_map(|slot| slot.sample.as_ref()).map(weight).sum()
    }
}

impl PriorityStore {
    pub(super) fn new(options: &QueueOptions, replay: &ReplayOptions) -> Self {
        Self {
            capacity: options.capacity,
            bytes_max: options.bytes_max,
            replay: replay.clone(),
            rng: ChaCha8Rng::seed_from_u64(replay.seed),
            batches: BTreeMap::new(),
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
            usage: QueueUsage::default(),
        }
    }

    /// Returns the batches to replace for one of this rank and weight, or the reason to drop it.
    /// Batches that a seek can return to stay.
    fn victims(
        &self,
        rank: PriorityRank,
        weight: usize,
    ) -> std::result::Result<Vec<u64>, &'static str> {
        // Spent batches take bytes but no capacity.
        let mut write_batches = self.ranks.len() + usize::from(self.open.is_some());
        let mut bytes = self.usage.bytes;
        let mut victims = Vec::new();
        let mut candidates = self.ranks.iter().filter(|(_, batch)| self.batches[batch].held == 0);
        while write_batches >= self.capacity || bytes + weight > self.bytes_max {
            let Some((lowest, batch)) = candidates.next() else { return Err("no_room") };
            if *lowest > rank {
                return Err("lower_priority");
            }
            write_batches -= 1;
            bytes -= self.batches[batch].weight();
            victims.push(*batch);
        }
        Ok(victims)
    }

    /// Changes the state of a batch and all indexes.
    fn set_state(&mut self, batch: u64, state: PriorityState) {
        let Some(entry) = self.batches.get_mut(&batch) else { return };
        let rank = (entry.rank, batch);
        let was = std::mem::replace(&mut entry.state, state);
        match was {
            PriorityState::Waiting => _ = self.waiting.remove(&rank),
            PriorityState::Resting(due) => _ = self.resting.remove(&(due, batch)),
            PriorityState::Open => self.open = None,
            PriorityState::Spent => {}
        }
        match state {
            PriorityState::Waiting => _ = self.waiting.insert(rank),
            PriorityState::Resting(due) => _ = self.resting.insert((due, batch)),
            PriorityState::Open => self.open = Some(batch),
            PriorityState::Spent => {}
        }
        if matches!(state, PriorityState::Waiting | PriorityState::Resting(_)) {
            self.ranks.insert(rank);
        } else {
            self.ranks.remove(&rank);
        }
    }

    /// Sets the use count and recomputes the priority of a batch that neither waits nor rests.
    fn set_uses(&mut self, batch: u64, uses: u64) {
        let Some(entry) = self.batches.get_mut(&batch) else { return };
        entry.uses = uses;
        entry.rank = PriorityRank(self.replay.priority.of(entry.version(), uses, &mut self.rng));
    }

    /// Ends a use of a batch whose samples have all been issued.
    fn close_batch(&mut self, batch: u64, seen: &mut SeenIds) {
        let Some(entry) = self.batches.get(&batch) else { return };
        let uses = entry.uses + 1;
        self.set_state(batch, PriorityState::Spent);
        self.set_uses(batch, uses);
        let again = !self.finished && self.replay.priority.allows(uses);
        match self.replay.reuse_cooldown_time.filter(|_| again) {
            Some(rest) => {
                self.mark_unread(batch, |_| true);
                self.set_state(batch, PriorityState::Resting(self.now.saturating_add(rest)));
            }
            None => self.remove_if_done(batch, seen),
        }
    }

    /// Marks samples of a batch as unread.
    fn mark_unread(&mut self, batch: u64, which: impl Fn(usize) -> bool) {
        let Some(entry) = self.batches.get_mut(&batch) else { return };
        for (at, slot) in entry.slots.iter_mut().enumerate() {
            if slot.sample.is_some() && !slot.unread && which(at) {
                slot.unread = true;
                entry.unread += 1;
            }
        }
    }

    fn take_issued(&mut self, reader: ReaderId) -> Vec<(u64, IssuedSample)> {
        self.given.extract_if(.., |_, given| given.reader == reader).collect()
    }

    /// Takes back an issued sample.
    fn take_back(&mut self, given: IssuedSample) {
        self.usage.held -= 1;
        let Some(entry) = self.batches.get_mut(&given.batch) else { return };
        entry.held -= 1;
        let (state, uses) = (entry.state, entry.uses);
        if matches!(state, PriorityState::Spent | PriorityState::Resting(_)) {
            // The use is undone: only returned samples are issued again.
            self.set_state(given.batch, PriorityState::Spent);
            self.clear_unread(given.batch);
            self.set_uses(given.batch, uses.saturating_sub(1));
            self.set_state(given.batch, PriorityState::Waiting);
        }
        self.mark_unread(given.batch, |at| at == given.at);
    }

    fn clear_unread(&mut self, batch: u64) {
        let Some(entry) = self.batches.get_mut(&batch) else { return };
        entry.unread = 0;
        entry.slots.iter_mut().for_each(|slot| slot.unread = false);
    }

    /// Acknowledges an issued sample.
    fn settle(&mut self, given: IssuedSample, seen: &mut SeenIds) {
        self.usage.held -= 1;
        if let Some(entry) = self.batches.get_mut(&given.batch) {
            entry.held -= 1;
        }
        self.remove_if_done(given.batch, seen);
    }

    fn remove_if_done(&mut self, batch: u64, seen: &mut SeenIds) {
        let done = |entry: &PriorityEntry| entry.state == PriorityState::Spent && entry.held == 0;
        if self.batches.get(&batch).is_some_and(done) {
            self.remove_batch(batch, seen);
        }
    }

    /// Removes a batch and returns its number of samples.
    fn remove_batch(&mut self, batch: u64, seen: &mut SeenIds) -> usize {
        self.set_state(batch, PriorityState::Spent);
        let Some(entry) = self.batches.remove(&batch) else { return 0 };
        self.usage.bytes -= entry.weight();
        for slot in entry.slots.iter().filter(|slot| slot.sample.is_some()) {
            seen.leave(slot.name);
        }
        seen.leave(entry.key);
        entry.left
    }

    /// Opens the batch of the highest priority, the oldest among equals.
    fn open_next(&mut self) -> Option<u64> {
        if self.open.is_none() {
            let (highest, _) = *self.waiting.last()?;
            let (_, batch) = *self.waiting.range((highest, 0)..).next()?;
            self.set_state(batch, PriorityState::Open);
        }
        self.open
    }
}

impl QueueStore for PriorityStore {
    fn offer(&mut self, batch: NewWriteBatch, seen: &mut SeenIds) -> Result<InsertOutcome> {
        let count = batch.samples.len();
        let mut dropped = BTreeMap::new();
        if batch.weight > self.bytes_max {
            let limit = self.bytes_max;
            let message =
                format!("a write batch of {} bytes, and max_bytes = {limit}", batch.weight);
            return Ok(InsertOutcome::TooLarge(message));
        }
        let version = batch.samples.iter().map(|(_, sample)| sample.model_version).min();
        let rank = PriorityRank(self.replay.priority.of(version.unwrap_or(0), 0, &mut self.rng));
        let victims = match self.victims(rank, batch.weight) {
            Ok(victims) => victims,
            Err(reason) => {
                seen.add_unstored(&batch);
                dropped.insert(reason, count);
                return Ok(InsertOutcome::Done { stored: 0, dropped });
            }
        };
        let replaced: usize = victims.into_iter().map(|batch| self.remove_batch(batch, seen)).sum();
        dropped.extend((replaced > 0).then_some(("replaced", replaced)));
        seen.enter(batch.key);
        let slot = |(name, sample)| {
            seen.enter(name);
            PrioritySlot { name, unread: true, sample: Some(sample) }
        };
        let entry = PriorityEntry {
            key: batch.key,
            slots: batch.samples.into_iter().map(slot).collect(),
            state: PriorityState::Spent,
            rank,
            uses: 0,
            unread: count,
            left: count,
            held: 0,
        };
        self.batches.insert(self.next, entry);
        self.set_state(self.next, PriorityState::Waiting);
        self.next += 1;
        self.usage.bytes += batch.weight;
        self.usage.bytes_peak = self.usage.bytes_peak.max(self.usage.bytes);
        Ok(InsertOutcome::Done { stored: count, dropped })
    }

    fn take(&mut self, reader: ReaderId, floor: u64, seen: &mut SeenIds) -> Result<TakeOutcome> {
        let Some(batch) = self.open_next() else { return Ok(TakeOutcome::Empty) };
        let Some(entry) = self.batches.get_mut(&batch) else { return Ok(TakeOutcome::Empty) };
        let Some(at) = entry.slots.iter().position(|slot| slot.unread) else {
            self.close_batch(batch, seen);
            return self.take(reader, floor, seen);
        };
        let slot = &mut entry.slots[at];
        slot.unread = false;
        entry.unread -= 1;
        let exhausted = entry.unread == 0;
        let is_stale = |sample: &mut Sample| sample.model_version < floor;
        let step = if let Some(stale) = slot.sample.take_if(is_stale) {
            seen.leave(slot.name);
            entry.left -= 1;
            self.usage.bytes -= weight(&stale);
            TakeOutcome::Stale
        } else {
            let Some(sample) = slot.sample.clone() else { return Ok(TakeOutcome::Stale) };
            entry.held += 1;
            self.usage.held += 1;
            self.given.insert(self.position, IssuedSample { batch, at, reader });
            self.position += 1;
            TakeOutcome::Given(sample)
        };
        if entry.left == 0 {
            self.remove_batch(batch, seen);
        } else if exhausted {
            self.close_batch(batch, seen);
        }
        Ok(step)
    }

    fn acknowledge(&mut self, reader: ReaderId, seen: &mut SeenIds) {
        for (number, given) in self.take_issued(reader) {
            self.acknowledged = self.acknowledged.max(number + 1);
            self.settle(given, seen);
        }
    }

    fn give_back(&mut self, reader: ReaderId) {
        for (_, given) in self.take_issued(reader) {
            self.take_back(given);
        }
    }

    fn position(&self, reader: ReaderId) -> u64 {
        let other = self.given.iter().find(|(_, given)| given.reader != reader);
        other.map_or(self.position, |(number, _)| *number)
    }

    fn seek(&mut self, position: u64, seen: &mut SeenIds) -> std::result::Result<(), String> {
        let oldest = self.given.first_key_value().map_or(self.position, |(number, _)| *number);
        check_seek(position, oldest..=self.position, self.acknowledged)?;
        let later = self.given.split_off(&position);
        for (number, given) in std::mem::replace(&mut self.given, later) {
            self.acknowledged = self.acknowledged.max(number + 1);
            self.settle(given, seen);
        }
        for given in std::mem::take(&mut self.given).into_values() {
            self.take_back(given);
        }
        self.position = position;
        self.acknowledged = self.acknowledged.min(position);
        Ok(())
    }

    fn end_cooldowns(&mut self, now: Duration) -> Option<Duration> {
        self.now = now;
        while let Some(&(due, batch)) = self.resting.first() {
            if due > now {
                return Some(due - now);
            }
            self.set_state(batch, PriorityState::Waiting);
        }
        None
    }

    fn finish(&mut self, finished: bool, seen: &mut SeenIds) {
        self.finished = finished;
        while let Some(&(_, batch)) = self.resting.first().filter(|_| finished) {
            self.clear_unread(batch);
            self.set_state(batch, PriorityState::Spent);
            self.remove_if_done(batch, seen);
        }
    }

    fn is_blocked_by(&self, _reader: ReaderId) -> bool {
        false
    }

    fn usage(&self) -> QueueUsage {
        let unread = |batch: &u64| self.batches.get(batch).map_or(0, |entry| entry.unread);
        let ready = self.waiting.iter().map(|(_, batch)| batch).chain(&self.open);
        QueueUsage {
            write_batches: self.ranks.len(),
            unread: ready.map(unread).sum(),
            ..self.usage
        }
    }
}
