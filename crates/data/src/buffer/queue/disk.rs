//! Files of a queue: a log of samples and, for a durable queue, a log of removed ones.
//!
//! Each sample is a frame; a frame behind the samples of a write batch commits them, so that a
//! batch is present as a whole or not at all. Removed samples are logged with their ids, which
//! remain known after the samples' files are gone.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, BufMut};

use super::options::QueueOptions;
use super::seen_ids::IdHash;
use super::store::NewWriteBatch;
use crate::Sample;
use crate::buffer::{BufferError, Result};
use rollway_ledger::log::{self, FramePart, LogError, LogPosition, SegmentLog};

type Logged<T> = std::result::Result<T, LogError>;

const SAMPLE: u8 = b's';
const LOT: u8 = b'l';
const REMOVALS: u8 = b'g';

/// Maximum disk overhead of a sample beside payload and id.
const FRAME: u64 = 64;

/// Number of write-batch keys among the numbers of samples.
const NO_NUMBER: u64 = u64::MAX;

/// Bound of the numbers of samples. No queue reaches it, so that sums do not overflow.
const NUMBERS_END: u64 = 1 << 62;

/// Approximate size of the pieces in which the log of removed samples is truncated.
const REMOVAL_CHUNK_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct Disk {
    samples: Arc<SegmentLog>,
    removals: Option<RemovalLog>,
    bytes_max: u64,
    /// Offsets of needed write batches, by their first number.
    batches: BTreeMap<u64, u64>,
    /// Offsets and first numbers of all write batches in the files.
    marks: VecDeque<(u64, u64)>,
    /// Dropped after the logs.
    _scratch: Option<Scratch>,
}

/// A folder that is removed on drop.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "cannot remove the spilled samples");
        }
    }
}

/// Log of removed samples.
#[derive(Debug)]
struct RemovalLog {
    log: Arc<SegmentLog>,
    /// Removed since the last frame.
    fresh: Vec<(u64, IdHash)>,
    /// End offset, number of ids up to it, and latest number among them.
    pieces: VecDeque<(u64, u64, u64)>,
    names: u64,
    names_max: u64,
}

/// Content of a reopened queue.
#[derive(Debug, Default)]
pub(super) struct StoredQueue {
    pub(super) batches: Vec<FoundBatch>,
    /// Removed ids in order; write-batch keys have no number.
    pub(super) removals: Vec<(Option<u64>, IdHash)>,
    /// End of the acknowledged samples.
    pub(super) acknowledged: u64,
}

#[derive(Debug)]
pub(super) struct FoundBatch {
    pub(super) key: IdHash,
    pub(super) first: u64,
    pub(super) samples: Vec<FoundSample>,
}

#[derive(Debug)]
pub(super) struct FoundSample {
    pub(super) id: String,
    pub(super) version: u64,
    pub(super) at: LogPosition,
}

impl Disk {
    /// Opens temporary files.
    pub(super) fn scratch(folder: &Path, options: &QueueOptions) -> Result<Self> {
        let folder = folder.join("spill");
        if folder.exists() {
            // Refused while in use; the content does not matter.
            let opened = SegmentLog::open(&folder, log_options(options), &mut |_, _| {});
            if let Err(error @ LogError::Locked { .. }) = opened {
                return Err(failed(options, &error));
            }
            std::fs::remove_dir_all(&folder).map_err(|error| {
                BufferError::unavailable(
                    options.name.clone(),
                    format!("cannot empty {}: {error}", folder.display()),
                )
            })?;
        }
        let opened = SegmentLog::open(&folder, log_options(options), &mut |_, _| {});
        let (samples, _) = opened.map_err(|error| failed(options, &error))?;
        Ok(Self::new(samples, None, options, Some(Scratch(folder))))
    }

    /// Opens durable files and returns their content.
    pub(super) fn durable(folder: &Path, options: &QueueOptions) -> Result<(Self, StoredQueue)> {
        let mut found = StoredQueue::default();
        let mut reading = Reading::default();
        let opened =
            SegmentLog::open(&folder.join("samples"), log_options(options), &mut |at, frame| {
                reading.visit(at, frame, &mut found);
            });
        let (samples, torn) = opened.map_err(|error| failed(options, &error))?;
        let mut pieces = VecDeque::new();
        let mut names = 0;
        let opened =
            SegmentLog::open(&folder.join("gone"), log_options(options), &mut |at, frame| {
                match read_gone(frame, &mut found) {
                    Some((count, latest)) => {
                        names += count;
                        note_piece(&mut pieces, (at.end(), names, latest));
                    }
                    None => reading.invalid = true,
                }
            });
        let (log, torn_gone) = opened.map_err(|error| failed(options, &error))?;
        for torn in [torn, torn_gone].into_iter().flatten() {
            let path = torn.path.display();
            tracing::warn!(%path, bytes = torn.bytes, "incomplete write of a crashed process \
                                                       truncated");
        }
        if reading.invalid {
            let message = "it has unknown frames; use another folder".to_owned();
            return Err(BufferError::damaged(options.name.clone(), message));
        }
        let names_max = options.known_max as u64;
        let removals =
            RemovalLog { log: Arc::new(log), fresh: Vec::new(), pieces, names, names_max };
        let mut disk = Self::new(samples, Some(removals), options, None);
        for batch in &found.batches {
            disk.note_batch(
                batch.first,
                batch.samples.first().map_or(0, |sample| sample.at.offset),
            );
        }
        Ok((disk, found))
    }

    fn new(
        samples: SegmentLog,
        removals: Option<RemovalLog>,
        options: &QueueOptions,
        scratch: Option<Scratch>,
    ) -> Self {
        Self {
            samples: Arc::new(samples),
            removals,
            bytes_max: options.disk_bytes_max,
            batches: BTreeMap::new(),
            marks: VecDeque::new(),
            _scratch: scratch,
        }
    }

    pub(super) fn is_durable(&self) -> bool {
        self.removals.is_some()
    }

    /// Returns the logs to sync: samples and, if durable, removed samples.
    pub(super) fn logs(&self) -> (Arc<SegmentLog>, Option<Arc<SegmentLog>>) {
        (
            Arc::clone(&self.samples),
            self.removals.as_ref().map(|removals| Arc::clone(&removals.log)),
        )
    }

    /// Returns the bytes of the sample files.
    pub(super) fn bytes(&self) -> u64 {
        self.samples.end() - self.samples.first()
    }

    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Returns the maximum disk size of a write batch.
    pub(super) fn size(batch: &NewWriteBatch) -> u64 {
        let size = |(_, sample): &(IdHash, Sample)| (sample.payload.len() + sample.id.len()) as u64;
        batch.samples.iter().map(|pair| size(pair) + FRAME).sum::<u64>() + FRAME
    }

    /// Appends a write batch, durable after a sync. Returns the positions of its samples.
    pub(super) fn append(&mut self, first: u64, batch: &NewWriteBatch) -> Logged<Vec<LogPosition>> {
        let begin = self.samples.end();
        let mut positions = Vec::with_capacity(batch.samples.len());
        let mut head = Vec::new();
        for (number, (_, sample)) in (first..).zip(&batch.samples) {
            head.clear();
            head.put_u8(SAMPLE);
            head.put_u64_le(number);
            head.put_u64_le(sample.model_version);
            head.put_u8(u8::from(sample.reward.is_some()));
            head.put_f64_le(sample.reward.unwrap_or(0.0));
            head.put_u32_le(sample.id.len() as u32);
            head.put_slice(sample.id.as_bytes());
            positions.push(
                self.samples
                    .append(&[FramePart::Copy(&head), FramePart::Share(&sample.payload)])?,
            );
        }
        head.clear();
        head.put_u8(LOT);
        head.put_u64_le(first);
        head.put_u32_le(batch.samples.len() as u32);
        head.put_u128_le(batch.key);
        self.samples.append(&[FramePart::Copy(&head)])?;
        self.note_batch(first, begin);
        Ok(positions)
    }

    fn note_batch(&mut self, first: u64, offset: u64) {
        self.batches.insert(first, offset);
        self.marks.push_back((offset, first));
    }

    /// Reads a durable sample.
    pub(super) fn read(&self, at: LogPosition) -> Logged<Sample> {
        let frame = self.samples.read(at)?;
        let invalid = || LogError::NotThere { offset: at.offset, first: 0, durable: 0 };
        let (model_version, reward, id, start) = read_sample(&frame).ok_or_else(invalid)?;
        let payload = frame.slice(start..);
        Ok(Sample { id: id.into(), model_version, reward, payload })
    }

    /// Records the removal of a sample.
    pub(super) fn sample_removed(&mut self, number: u64, name: IdHash) {
        if let Some(removals) = &mut self.removals {
            removals.fresh.push((number, name));
        }
    }

    /// Records the removal of the last sample of a write batch.
    pub(super) fn batch_removed(&mut self, first: u64, name: IdHash) {
        self.batches.remove(&first);
        if let Some(removals) = &mut self.removals {
            removals.fresh.push((NO_NUMBER, name));
        }
    }

    /// Appends pending removals, durable after a sync.
    pub(super) fn flush(&mut self, acknowledged: u64) -> Logged<()> {
        let Some(removals) = self.removals.as_mut().filter(|removals| !removals.fresh.is_empty())
        else {
            return Ok(());
        };
        let mut frame = Vec::with_capacity(9 + 24 * removals.fresh.len());
        frame.put_u8(REMOVALS);
        frame.put_u64_le(acknowledged);
        for (number, name) in &removals.fresh {
            frame.put_u64_le(*number);
            frame.put_u128_le(*name);
        }
        let at = removals.log.append(&[FramePart::Copy(&frame)])?;
        removals.names += removals.fresh.len() as u64;
        let numbers = removals.fresh.drain(..).map(|(number, _)| number);
        let latest = numbers.filter(|number| *number != NO_NUMBER).max().unwrap_or(0);
        note_piece(&mut removals.pieces, (at.end(), removals.names, latest));
        Ok(())
    }

    /// Removes unneeded files; the removals must be durable.
    pub(super) fn free(&mut self) -> Logged<()> {
        let needed = self.batches.values().next().copied().unwrap_or_else(|| self.samples.end());
        if needed > self.samples.first() {
            self.samples.remove_before(needed)?;
        }
        // Removals stay recorded while the samples are in the files.
        let first = self.samples.first();
        while self.marks.get(1).is_some_and(|(offset, _)| *offset <= first) {
            self.marks.pop_front();
        }
        let Some(removals) = &mut self.removals else { return Ok(()) };
        let kept = self.marks.front().map_or(NO_NUMBER, |(_, number)| *number);
        let mut needless = 0;
        while let Some((end, names, latest)) = removals.pieces.front() {
            if removals.names - names < removals.names_max || *latest >= kept {
                break;
            }
            needless = *end;
            removals.pieces.pop_front();
        }
        if needless > 0 {
            removals.log.remove_before(needless)?;
        }
        Ok(())
    }
}

/// Extends the last piece, or starts another if that is large enough.
fn note_piece(pieces: &mut VecDeque<(u64, u64, u64)>, (end, names, latest): (u64, u64, u64)) {
    let start = pieces.iter().rev().nth(1).map_or(0, |(end, ..)| *end);
    match pieces.back_mut() {
        Some(last) if last.0 < start + REMOVAL_CHUNK_BYTES => {
            *last = (end, names, last.2.max(latest))
        }
        _ => pieces.push_back((end, names, latest)),
    }
}

/// Samples that await the frame of their write batch.
#[derive(Debug, Default)]
struct Reading {
    samples: Vec<FoundSample>,
    /// Number behind the last write batch; those of later ones are not smaller.
    next: u64,
    invalid: bool,
}

impl Reading {
    fn visit(&mut self, at: LogPosition, mut frame: &[u8], found: &mut StoredQueue) {
        if let Some((version, _, id, _)) = read_sample(frame) {
            self.samples.push(FoundSample { id: id.to_owned(), version, at });
        } else if frame.len() == 29 && frame.get_u8() == LOT {
            let (first, count) = (frame.get_u64_le(), frame.get_u32_le() as usize);
            let key = frame.get_u128_le();
            // Extra samples belong to a batch that a crash interrupted; missing ones were removed
            // with an older segment.
            let there = count.min(self.samples.len());
            let samples = self.samples.split_off(self.samples.len() - there);
            self.samples.clear();
            if first < self.next || first >= NUMBERS_END {
                self.invalid = true;
                return;
            }
            self.next = first + count as u64;
            let first = first + (count - there) as u64;
            found.batches.push(FoundBatch { key, first, samples });
        } else {
            self.invalid = true;
        }
    }
}

/// Parses a sample frame: fields, id and start of the payload.
fn read_sample(frame: &[u8]) -> Option<(u64, Option<f64>, &str, usize)> {
    const FIXED: usize = 1 + 8 + 8 + 1 + 8 + 4;
    let (mut head, rest) = frame.split_at_checked(FIXED)?;
    if head.get_u8() != SAMPLE {
        return None;
    }
    let _number = head.get_u64_le();
    let version = head.get_u64_le();
    let judged = head.get_u8() == 1;
    let reward = Some(head.get_f64_le()).filter(|_| judged);
    let length = head.get_u32_le() as usize;
    let id = std::str::from_utf8(rest.get(..length)?).ok()?;
    Some((version, reward, id, FIXED + length))
}

/// Parses a frame of removals: number of ids and latest number.
fn read_gone(mut frame: &[u8], found: &mut StoredQueue) -> Option<(u64, u64)> {
    if frame.len() % 24 != 9 || frame.get_u8() != REMOVALS {
        return None;
    }
    found.acknowledged = found.acknowledged.max(frame.get_u64_le());
    let (mut count, mut latest) = (0, 0);
    while frame.has_remaining() {
        let number = Some(frame.get_u64_le()).filter(|number| *number != NO_NUMBER);
        if number.is_some_and(|number| number >= NUMBERS_END) {
            return None;
        }
        found.removals.push((number, frame.get_u128_le()));
        latest = latest.max(number.unwrap_or(0));
        count += 1;
    }
    Some((count, latest))
}

fn log_options(options: &QueueOptions) -> log::LogOptions {
    let segment_bytes = (options.disk_bytes_max / 8).clamp(64 << 10, 64 << 20);
    log::LogOptions { segment_bytes, ..log::LogOptions::new("queue", options.name.clone()) }
}

/// Converts an error of the log.
pub(super) fn failed(options: &QueueOptions, error: &LogError) -> BufferError {
    let (storage, message) = (options.name.clone(), error.to_string());
    match error {
        LogError::TooLarge { .. } => BufferError::full(storage, message),
        LogError::Foreign { .. }
        | LogError::Version { .. }
        | LogError::Other { .. }
        | LogError::Missing { .. }
        | LogError::NotThere { .. }
        | LogError::Short { .. }
        | LogError::Damaged { .. } => BufferError::damaged(storage, message),
        LogError::Io { .. } | LogError::Locked { .. } | LogError::Closed => {
            BufferError::unavailable(storage, message)
        }
    }
}
