//! What the two kinds of queue have in common, seen from the side that waits and wakes.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::options::SAMPLE_COST;
use super::seen_ids::{IdHash, SeenIds};
use crate::Sample;
use crate::buffer::Result;
use rollway_ledger::log::SegmentLog;

/// Which handle holds what was read and not acknowledged.
pub(super) type ReaderId = u64;

/// What waits to be read, in which order, and what was read and may have to be read again. A data
/// structure: it never waits, and everything is called under the queue's lock.
pub(super) trait QueueStore: Send {
    /// Takes a lot, if there is room.
    fn offer(&mut self, lot: NewWriteBatch, known: &mut SeenIds) -> Result<InsertOutcome>;

    /// Gives the next sample to a reader, which holds it from now on.
    fn take(&mut self, reader: ReaderId, floor: u64, known: &mut SeenIds) -> Result<TakeOutcome>;

    /// Forgets what a reader holds: it has been dealt with.
    fn acknowledge(&mut self, reader: ReaderId, known: &mut SeenIds);

    /// Takes back what a reader holds: it will be read again.
    fn give_back(&mut self, reader: ReaderId);

    /// Returns a position before which everything was acknowledged or is held by this reader.
    fn position(&self, reader: ReaderId) -> u64;

    /// Acknowledges everything before a position and takes back everything that is held after it.
    /// If that cannot be, says what is the matter.
    fn seek(&mut self, position: u64, known: &mut SeenIds) -> std::result::Result<(), String>;

    /// Moves what has rested long enough, and returns how long the next one still rests.
    fn wake(&mut self, now: Duration) -> Option<Duration>;

    /// Says whether data has ended, after which nothing is used again.
    fn finish(&mut self, finished: bool, known: &mut SeenIds);

    /// Tells whether only what this reader itself holds keeps room from writers.
    fn starved_by(&self, reader: ReaderId) -> bool;

    /// Returns what there is.
    fn usage(&self) -> QueueUsage;

    /// Returns the end of what was stored, if a sync of the log of samples is still to make it
    /// durable. Until then nobody can read it.
    fn not_durable(&self) -> Option<u64> {
        None
    }

    /// Says up to where everything is durable.
    fn set_durable(&mut self, _end: u64) {}

    /// Appends what has left to the log of that.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Removes files of what has left, after it was made durable that it has.
    fn free(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the logs of samples and of what has left.
    fn logs(&self) -> Option<(Arc<SegmentLog>, Option<Arc<SegmentLog>>)> {
        None
    }
}

/// A lot of which nothing is known yet.
#[derive(Debug)]
pub(super) struct NewWriteBatch {
    pub(super) key: IdHash,
    pub(super) samples: Vec<(IdHash, Sample)>,
    pub(super) weight: usize,
}

/// What a sample counts in the budget of bytes.
pub(super) fn weight(sample: &Sample) -> usize {
    sample.payload.len() + sample.id.len() + SAMPLE_COST
}

/// What became of an offer.
#[derive(Debug)]
pub(super) enum InsertOutcome {
    /// It was decided; what had to give way is counted.
    Done { stored: usize, dropped: BTreeMap<&'static str, usize> },
    /// There is no room now: the limit that was reached.
    Full(String),
    /// There never will be.
    TooLarge(String),
}

/// What a take came to.
#[derive(Debug)]
pub(super) enum TakeOutcome {
    /// The next sample.
    Given(Sample),
    /// The next sample was too old and is gone for good.
    Stale,
    /// There is none.
    Empty,
}

/// What there is in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueUsage {
    /// Lots with samples that wait to be read.
    pub lots: usize,
    /// Samples that wait to be read.
    pub unread: usize,
    /// Samples that were read and not acknowledged.
    pub held: usize,
    /// Bytes in memory, as the budget counts them.
    pub bytes: usize,
    /// The most that `bytes` ever was.
    pub bytes_peak: usize,
    /// Bytes in files.
    pub disk_bytes: u64,
}

/// Refuses a position before the oldest that is held or after the newest.
pub(super) fn check_seek(
    position: u64,
    held: RangeInclusive<u64>,
    acknowledged: u64,
) -> std::result::Result<(), String> {
    let (oldest, newest) = held.into_inner();
    if position > newest {
        return Err(format!("it lies ahead of the last one, {newest}"));
    }
    if position < oldest.min(acknowledged) {
        return Err(format!(
            "what was read there is acknowledged, the first one is {oldest}; \
             read with keep to be able to return"
        ));
    }
    Ok(())
}
