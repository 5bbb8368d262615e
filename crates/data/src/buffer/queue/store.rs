//! Interface of the FIFO and the priority store.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::options::SAMPLE_COST;
use super::seen_ids::{IdHash, SeenIds};
use crate::Sample;
use crate::buffer::Result;
use rollway_ledger::log::SegmentLog;

/// Identifies the reader that holds samples.
pub(super) type ReaderId = u64;

/// Order and content of a queue. A data structure: it never waits, and all calls are made under the
/// queue's lock.
pub(super) trait QueueStore: Send {
    /// Stores a write batch if there is room.
    fn offer(&mut self, batch: NewWriteBatch, seen: &mut SeenIds) -> Result<InsertOutcome>;

    /// Issues the next sample to a reader, which holds it.
    fn take(&mut self, reader: ReaderId, floor: u64, seen: &mut SeenIds) -> Result<TakeOutcome>;

    /// Removes the samples that a reader holds.
    fn acknowledge(&mut self, reader: ReaderId, seen: &mut SeenIds);

    /// Returns the samples that a reader holds to the queue.
    fn give_back(&mut self, reader: ReaderId);

    /// Returns a position before which everything is acknowledged or held by this reader.
    fn position(&self, reader: ReaderId) -> u64;

    /// Acknowledges everything before a position and takes back everything held after it. An error
    /// describes why that is impossible.
    fn seek(&mut self, position: u64, seen: &mut SeenIds) -> std::result::Result<(), String>;

    /// Ends due rests; returns the time until the next one ends.
    fn end_cooldowns(&mut self, now: Duration) -> Option<Duration>;

    /// Sets whether data has ended; then nothing is reused.
    fn finish(&mut self, finished: bool, seen: &mut SeenIds);

    /// Returns whether only samples held by this reader keep writers waiting.
    fn is_blocked_by(&self, reader: ReaderId) -> bool;

    fn usage(&self) -> QueueUsage;

    /// Returns the end of the stored samples if a sync is still to make them durable and so
    /// readable.
    fn not_durable(&self) -> Option<u64> {
        None
    }

    /// Sets the end of the durable samples.
    fn set_durable(&mut self, _end: u64) {}

    /// Appends pending removals to their log.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Removes unneeded files after the removals are durable.
    fn free(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the logs of samples and of removals.
    fn logs(&self) -> Option<(Arc<SegmentLog>, Option<Arc<SegmentLog>>)> {
        None
    }
}

/// A write batch without known ids.
#[derive(Debug)]
pub(super) struct NewWriteBatch {
    pub(super) key: IdHash,
    pub(super) samples: Vec<(IdHash, Sample)>,
    pub(super) weight: usize,
}

/// Bytes of a sample in the memory budget.
pub(super) fn weight(sample: &Sample) -> usize {
    sample.payload.len() + sample.id.len() + SAMPLE_COST
}

#[derive(Debug)]
pub(super) enum InsertOutcome {
    /// Decided; dropped samples are counted by reason.
    Done { stored: usize, dropped: BTreeMap<&'static str, usize> },
    /// No room at present: the limit reached.
    Full(String),
    /// Larger than a limit.
    TooLarge(String),
}

#[derive(Debug)]
pub(super) enum TakeOutcome {
    Given(Sample),
    /// The next sample was too old and is removed.
    Stale,
    Empty,
}

/// Fill level of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueUsage {
    /// Write batches with unread samples.
    pub write_batches: usize,
    /// Unread samples.
    pub unread: usize,
    /// Samples read and not acknowledged.
    pub held: usize,
    /// Bytes in memory, as counted by the budget.
    pub bytes: usize,
    /// Maximum of `bytes` so far.
    pub bytes_peak: usize,
    pub disk_bytes: u64,
    /// Writers that wait for room.
    pub waiting_writers: usize,
}

/// Refuses a position before the oldest held sample or behind the newest.
pub(super) fn check_seek(
    position: u64,
    held: RangeInclusive<u64>,
    acknowledged: u64,
) -> std::result::Result<(), String> {
    let (oldest, newest) = held.into_inner();
    if position > newest {
        return Err(format!("it is after the newest position, {newest}"));
    }
    if position < oldest.min(acknowledged) {
        return Err(format!(
            "samples before {oldest} are acknowledged; read with keep to be able to return to them"
        ));
    }
    Ok(())
}
