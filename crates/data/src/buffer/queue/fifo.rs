//! FIFO store: samples numbered in order of arrival.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::disk::{Disk, StoredQueue, failed};
use super::options::{QueueFullPolicy, QueueOptions};
use super::seen_ids::{IdHash, SeenIds, sample_name};
use super::store::{
    InsertOutcome, NewWriteBatch, QueueStore, QueueUsage, ReaderId, TakeOutcome, check_seek, weight,
};
use crate::Sample;
use crate::buffer::Result;
use rollway_ledger::log::{LogPosition, SegmentLog};

/// FIFO store. A position is the number of a sample.
#[derive(Debug)]
pub(super) struct FifoStore {
    options: QueueOptions,
    disk: Option<Disk>,
    /// Write batches by the number of their first sample; removed when all samples are gone.
    batches: BTreeMap<u64, FifoEntry>,
    /// Number of the next sample.
    next: u64,
    /// End of the readable samples.
    durable: u64,
    /// No sample before it is unread.
    cursor: u64,
    /// Samples held by readers, in the order of reading.
    held: BTreeMap<ReaderId, Vec<u64>>,
    /// End of the acknowledged samples.
    acknowledged: u64,
    usage: QueueUsage,
}

#[derive(Debug)]
struct FifoEntry {
    key: IdHash,
    slots: Vec<FifoSlot>,
    /// Samples in memory; empty if none is.
    memory: Vec<Option<Sample>>,
    unread: usize,
    left: usize,
}

#[derive(Debug)]
struct FifoSlot {
    name: IdHash,
    version: u64,
    state: FifoState,
    /// Position on disk.
    at: Option<LogPosition>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FifoState {
    Unread,
    Held,
    Gone,
}

impl FifoEntry {
    fn new(key: IdHash, slots: Vec<FifoSlot>, memory: Vec<Option<Sample>>) -> Self {
        Self { key, memory, unread: slots.len(), left: slots.len(), slots }
    }
}

impl FifoStore {
    pub(super) fn open(options: &QueueOptions, seen: &mut SeenIds) -> Result<Self> {
        let (disk, found) = match (&options.path, &options.when_full) {
            (Some(folder), _) => {
                let (disk, found) = Disk::durable(folder, options)?;
                (Some(disk), found)
            }
            (None, QueueFullPolicy::Spill { folder, .. }) => {
                (Some(Disk::scratch(folder, options)?), StoredQueue::default())
            }
            (None, QueueFullPolicy::Wait { .. } | QueueFullPolicy::Replace) => {
                (None, StoredQueue::default())
            }
        };
        let mut fifo = Self {
            options: options.clone(),
            disk,
            batches: BTreeMap::new(),
            next: 0,
            durable: 0,
            cursor: 0,
            held: BTreeMap::new(),
            acknowledged: found.acknowledged,
            usage: QueueUsage::default(),
        };
        fifo.recover(found, seen);
        Ok(fifo)
    }

    fn recover(&mut self, found: StoredQueue, seen: &mut SeenIds) {
        for batch in found.batches {
            let slot = |sample: super::disk::FoundSample| {
                let name = sample_name(&sample.id);
                seen.enter(name);
                let (version, at) = (sample.version, Some(sample.at));
                FifoSlot { name, version, state: FifoState::Unread, at }
            };
            let slots: Vec<FifoSlot> = batch.samples.into_iter().map(slot).collect();
            seen.enter(batch.key);
            self.next = batch.first;
            self.insert(FifoEntry::new(batch.key, slots, Vec::new()));
        }
        // The log contains these removals already.
        let disk = self.disk.take();
        for (number, name) in found.removals {
            self.next = self.next.max(number.map_or(0, |number| number + 1));
            match number {
                Some(number) if self.find(number).is_some() => self.remove(number, seen),
                _ if seen.enter(name) => seen.leave(name),
                _ => {}
            }
        }
        self.disk = disk;
        self.durable = self.next;
    }

    fn fits_in_memory(&self, weight: usize) -> bool {
        self.usage.bytes + weight <= self.options.bytes_max
    }

    fn fits(&self, weight: usize) -> bool {
        self.usage.write_batches < self.options.capacity && self.fits_in_memory(weight)
    }

    fn push(
        &mut self,
        batch: NewWriteBatch,
        positions: Option<Vec<LogPosition>>,
        seen: &mut SeenIds,
    ) {
        seen.enter(batch.key);
        let mut positions = positions.into_iter().flatten();
        let slot = |(name, sample): &(IdHash, Sample)| {
            seen.enter(*name);
            let (version, at) = (sample.model_version, positions.next());
            FifoSlot { name: *name, version, state: FifoState::Unread, at }
        };
        let slots: Vec<FifoSlot> = batch.samples.iter().map(slot).collect();
        let mut memory = Vec::new();
        if self.fits_in_memory(batch.weight) {
            memory.extend(batch.samples.into_iter().map(|(_, sample)| Some(sample)));
            self.usage.bytes += batch.weight;
            self.usage.bytes_peak = self.usage.bytes_peak.max(self.usage.bytes);
        }
        self.insert(FifoEntry::new(batch.key, slots, memory));
    }

    fn insert(&mut self, entry: FifoEntry) {
        let (first, count) = (self.next, entry.slots.len());
        self.next += count as u64;
        self.usage.unread += count;
        if count > 0 {
            self.usage.write_batches += 1;
            self.batches.insert(first, entry);
        }
    }

    /// Appends a write batch to the files if there is room.
    fn offer_to_disk(&mut self, batch: NewWriteBatch, seen: &mut SeenIds) -> Result<InsertOutcome> {
        let Some(disk) = &mut self.disk else { return Ok(InsertOutcome::Full(String::new())) };
        let (size, limit) = (Disk::size(&batch), disk.bytes_max());
        if size > limit / 2 {
            let message = format!(
                "a write batch of {size} bytes, more than half of max_disk_bytes = {limit}"
            );
            return Ok(InsertOutcome::TooLarge(message));
        }
        let waits = matches!(self.options.when_full, QueueFullPolicy::Wait { .. });
        let (write_batches, capacity) = (self.usage.write_batches, self.options.capacity);
        if waits && write_batches >= capacity {
            return Ok(InsertOutcome::Full(format!(
                "{write_batches} write batches wait (capacity = {capacity})"
            )));
        }
        if disk.bytes() + size > limit {
            let bytes = disk.bytes();
            return Ok(InsertOutcome::Full(format!(
                "{bytes} bytes on disk (max_disk_bytes = {limit})"
            )));
        }
        let stored = batch.samples.len();
        let positions =
            disk.append(self.next, &batch).map_err(|error| failed(&self.options, &error))?;
        self.push(batch, Some(positions), seen);
        Ok(InsertOutcome::Done { stored, dropped: BTreeMap::new() })
    }

    /// Loads a sample. One that is also on disk leaves memory.
    fn load(&mut self, number: u64) -> Result<Option<Sample>> {
        let Some((_, entry, index)) = self.find(number) else { return Ok(None) };
        let at = entry.slots[index].at;
        let sample = match (entry.memory.get_mut(index), at) {
            (Some(sample), Some(_)) => {
                let sample = sample.take();
                self.usage.bytes -= sample.as_ref().map_or(0, weight);
                sample
            }
            (Some(sample), None) => sample.clone(),
            (None, _) => None,
        };
        match (sample, at, &self.disk) {
            (Some(sample), _, _) => Ok(Some(sample)),
            (None, Some(at), Some(disk)) => {
                disk.read(at).map(Some).map_err(|error| failed(&self.options, &error))
            }
            (None, _, _) => Ok(None),
        }
    }

    /// Removes the oldest unread write batches until there is room; returns the number of samples.
    fn make_room(&mut self, weight: usize, seen: &mut SeenIds) -> usize {
        let before = self.usage.unread;
        while !self.fits(weight) && self.usage.unread > 0 {
            let mut number = self.unread_from(self.cursor);
            let batch = self.batches.range(..=number).next_back();
            let end = batch.map_or(0, |(first, entry)| first + entry.slots.len() as u64);
            while number < end {
                self.remove(number, seen);
                number = self.unread_from(number);
            }
        }
        before - self.usage.unread
    }

    /// Marks an unread sample as held.
    fn hold(&mut self, number: u64, reader: ReaderId) {
        let Some((_, entry, at)) = self.find(number) else { return };
        entry.slots[at].state = FifoState::Held;
        entry.unread -= 1;
        let was_last = entry.unread == 0;
        self.usage.write_batches -= usize::from(was_last);
        self.usage.unread -= 1;
        self.usage.held += 1;
        self.held.entry(reader).or_default().push(number);
    }

    /// Returns a held sample.
    fn release(&mut self, number: u64) {
        let Some((_, entry, at)) = self.find(number) else { return };
        entry.slots[at].state = FifoState::Unread;
        entry.unread += 1;
        let is_first = entry.unread == 1;
        self.usage.write_batches += usize::from(is_first);
        self.usage.unread += 1;
        self.usage.held -= 1;
        self.cursor = self.cursor.min(number);
    }

    /// Removes a sample.
    fn remove(&mut self, number: u64, seen: &mut SeenIds) {
        let Some((first, entry, at)) = self.find(number) else { return };
        let slot = &mut entry.slots[at];
        let unread = std::mem::replace(&mut slot.state, FifoState::Gone) == FifoState::Unread;
        let name = slot.name;
        seen.leave(name);
        entry.unread -= usize::from(unread);
        entry.left -= 1;
        let was_last = unread && entry.unread == 0;
        let sample = entry.memory.get_mut(at).and_then(Option::take);
        let (key, is_done) = (entry.key, entry.left == 0);
        if let Some(disk) = &mut self.disk {
            disk.sample_removed(number, name);
        }
        if is_done {
            seen.leave(key);
            self.batches.remove(&first);
            if let Some(disk) = &mut self.disk {
                disk.batch_removed(first, key);
            }
        }
        self.usage.write_batches -= usize::from(was_last);
        self.usage.unread -= usize::from(unread);
        self.usage.held -= usize::from(!unread);
        self.usage.bytes -= sample.as_ref().map_or(0, weight);
    }

    /// Finds a sample that is not gone: first number and entry of its batch, and its index.
    fn find(&mut self, number: u64) -> Option<(u64, &mut FifoEntry, usize)> {
        let (&first, entry) = self.batches.range_mut(..=number).next_back()?;
        let at = (number - first) as usize;
        let there = entry.slots.get(at).is_some_and(|slot| slot.state != FifoState::Gone);
        there.then_some((first, entry, at))
    }

    /// Returns the first unread number from `number` on, or the next number.
    fn unread_from(&self, number: u64) -> u64 {
        let within = self.batches.range(..=number).next_back();
        let within = within.map(|(first, entry)| (first, entry, (number - first) as usize));
        let after = self.batches.range(number..).map(|(first, entry)| (first, entry, 0));
        let unread = |(first, entry, start): (&u64, &FifoEntry, usize)| {
            let slots = entry.slots.get(start..)?;
            let offset = slots.iter().position(|slot| slot.state == FifoState::Unread)?;
            Some(first + (start + offset) as u64)
        };
        within.into_iter().chain(after).find_map(unread).unwrap_or(self.next)
    }

    /// Returns the number of the oldest sample, or the next number.
    fn oldest(&self) -> u64 {
        let Some((first, entry)) = self.batches.first_key_value() else { return self.next };
        let there = entry.slots.iter().position(|slot| slot.state != FifoState::Gone);
        first + there.unwrap_or(0) as u64
    }
}

impl QueueStore for FifoStore {
    fn offer(&mut self, batch: NewWriteBatch, seen: &mut SeenIds) -> Result<InsertOutcome> {
        let durable = self.disk.as_ref().is_some_and(Disk::is_durable);
        if self.disk.is_some() && (durable || !self.fits(batch.weight)) {
            return self.offer_to_disk(batch, seen);
        }
        let stored = batch.samples.len();
        let mut dropped = BTreeMap::new();
        let QueueOptions { bytes_max, capacity, .. } = self.options;
        if batch.weight > bytes_max {
            let message =
                format!("a write batch of {} bytes, and max_bytes = {bytes_max}", batch.weight);
            return Ok(InsertOutcome::TooLarge(message));
        }
        let replaces = self.options.when_full == QueueFullPolicy::Replace;
        if !self.fits(batch.weight) && replaces {
            let replaced = self.make_room(batch.weight, seen);
            dropped.extend((replaced > 0).then_some(("replaced", replaced)));
            if !self.fits(batch.weight) {
                dropped.insert("no_room", stored);
                seen.add_unstored(&batch);
                return Ok(InsertOutcome::Done { stored: 0, dropped });
            }
        }
        if !self.fits(batch.weight) {
            let QueueUsage { write_batches, bytes, .. } = self.usage;
            return Ok(InsertOutcome::Full(format!(
                "{write_batches} write batches wait (capacity = {capacity}) and {bytes} bytes are \
                 held (max_bytes = {bytes_max})"
            )));
        }
        let all_durable = self.durable == self.next;
        self.push(batch, None, seen);
        if all_durable {
            self.durable = self.next;
        }
        Ok(InsertOutcome::Done { stored, dropped })
    }

    fn take(&mut self, reader: ReaderId, floor: u64, seen: &mut SeenIds) -> Result<TakeOutcome> {
        let number = self.unread_from(self.cursor);
        self.cursor = number;
        if number >= self.durable {
            return Ok(TakeOutcome::Empty);
        }
        let Some((_, entry, at)) = self.find(number) else { return Ok(TakeOutcome::Empty) };
        if entry.slots[at].version < floor {
            self.remove(number, seen);
            return Ok(TakeOutcome::Stale);
        }
        let Some(sample) = self.load(number)? else { return Ok(TakeOutcome::Empty) };
        self.hold(number, reader);
        Ok(TakeOutcome::Given(sample))
    }

    fn acknowledge(&mut self, reader: ReaderId, seen: &mut SeenIds) {
        for number in self.held.remove(&reader).unwrap_or_default() {
            self.acknowledged = self.acknowledged.max(number + 1);
            self.remove(number, seen);
        }
    }

    fn give_back(&mut self, reader: ReaderId) {
        for number in self.held.remove(&reader).unwrap_or_default() {
            self.release(number);
        }
    }

    fn position(&self, reader: ReaderId) -> u64 {
        let others = self.held.iter().filter(|(other, _)| **other != reader);
        let held = others.flat_map(|(_, numbers)| numbers.iter().copied());
        held.fold(self.unread_from(self.cursor), u64::min)
    }

    fn seek(&mut self, position: u64, seen: &mut SeenIds) -> std::result::Result<(), String> {
        let oldest = self.oldest();
        check_seek(position, oldest..=self.next, self.acknowledged)?;
        for number in std::mem::take(&mut self.held).into_values().flatten() {
            self.release(number);
        }
        let mut number = self.unread_from(0);
        while number < position {
            self.acknowledged = self.acknowledged.max(number + 1);
            self.remove(number, seen);
            number = self.unread_from(number);
        }
        Ok(())
    }

    fn end_cooldowns(&mut self, _now: Duration) -> Option<Duration> {
        None
    }

    fn finish(&mut self, _finished: bool, _known: &mut SeenIds) {}

    fn is_blocked_by(&self, reader: ReaderId) -> bool {
        self.usage.unread == 0
            && self.held.get(&reader).is_some_and(|numbers| numbers.len() == self.usage.held)
    }

    fn usage(&self) -> QueueUsage {
        QueueUsage { disk_bytes: self.disk.as_ref().map_or(0, Disk::bytes), ..self.usage }
    }

    fn not_durable(&self) -> Option<u64> {
        (self.durable < self.next).then_some(self.next)
    }

    fn set_durable(&mut self, end: u64) {
        self.durable = self.durable.max(end);
    }

    fn flush(&mut self) -> Result<()> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        disk.flush(self.acknowledged).map_err(|error| failed(&self.options, &error))
    }

    fn free(&mut self) -> Result<()> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        disk.free().map_err(|error| failed(&self.options, &error))
    }

    fn logs(&self) -> Option<(Arc<SegmentLog>, Option<Arc<SegmentLog>>)> {
        self.disk.as_ref().map(Disk::logs)
    }
}
