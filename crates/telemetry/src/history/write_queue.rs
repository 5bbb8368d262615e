//! Queue of unwritten records. Positions are assigned in memory, before the bytes are on the disk.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::codec::Put;
use super::record::{Entry, JobNote, Trajectory};
use super::row::RecordPosition;

/// Begin of every file.
pub(super) const MAGIC: &[u8; 8] = b"rwhist2\n";

/// Bytes of the length and the checksum of a frame.
pub(super) const FRAME_HEAD: usize = 8;

/// Maximum bytes of a file of runs before the next begins.
const MAX_SEGMENT_BYTES: u32 = 16 << 20;

/// Number of files of trajectories; the oldest is dropped as a whole.
const PARTS: u64 = 8;

#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    is_kept: bool,
    entries: Vec<Entry>,
    pub(super) runs: Put,
    /// Position of the next frame of runs.
    frame: RecordPosition,
    /// The file of runs has a gap, at which reading stops.
    is_torn: bool,
    /// Number of runs of each file that are in memory.
    segments: BTreeMap<u32, u64>,
    trajectories: Vec<(Trajectory, Bytes)>,
    /// Bytes and runs of each file of trajectories.
    parts: BTreeMap<u32, (u64, u64)>,
    part: u32,
    max_trajectory_bytes: u64,
    remove: Vec<ObsoleteFile>,
    pub(super) trajectories_dropped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObsoleteFile {
    Runs(u32),
    Trajectories(u32),
}

/// Records of one write.
#[derive(Debug)]
pub(super) struct HistoryWrite {
    pub(super) entries: Vec<Entry>,
    pub(super) runs: Vec<u8>,
    pub(super) frame: RecordPosition,
    pub(super) trajectories: Vec<(Trajectory, Bytes)>,
    pub(super) remove: Vec<ObsoleteFile>,
}

impl WriteQueue {
    /// Continues after the files of earlier processes.
    pub(super) fn resume_after(&mut self, max_trajectory_bytes: u64) {
        self.is_kept = true;
        self.max_trajectory_bytes = max_trajectory_bytes;
        let last = self.segments.last_key_value().map_or(0, |(last, _)| *last);
        self.begin(last + 1);
        self.part = self.parts.last_key_value().map_or(0, |(last, _)| *last) + 1;
        self.make_room();
    }

    pub(super) const fn is_kept(&self) -> bool {
        self.is_kept
    }

    fn begin(&mut self, segment: u32) {
        self.frame = RecordPosition { segment, offset: MAGIC.len() as u32 };
        self.segments.entry(segment).or_default();
    }

    pub(super) fn note(&mut self, at: f64, note: JobNote) {
        if self.is_kept {
            self.entries.push(Entry { at, note });
        }
    }

    /// Returns the position of the next record.
    pub(super) fn next_position(&self) -> RecordPosition {
        let offset = self.frame.offset as usize + FRAME_HEAD + self.runs.0.len();
        RecordPosition { segment: self.frame.segment, offset: offset as u32 }
    }

    /// Counts a run in a file.
    pub(super) fn add_run(&mut self, segment: u32) {
        *self.segments.entry(segment).or_default() += 1;
    }

    /// Adds an existing file of runs.
    pub(super) fn add_segment(&mut self, segment: u32) {
        self.segments.entry(segment).or_default();
    }

    /// Adds bytes and runs to a file of trajectories.
    pub(super) fn add_part(&mut self, part: u32, bytes: u64, runs: u64) {
        let known = self.parts.entry(part).or_default();
        known.0 += bytes;
        known.1 += runs;
    }

    /// Removes a run from a file, and files without runs.
    pub(super) fn remove_run(&mut self, segment: u32) {
        if let Some(runs) = self.segments.get_mut(&segment) {
            *runs = runs.saturating_sub(1);
        }
        while let Some((oldest, 0)) = self.segments.first_key_value().map(|(at, runs)| (*at, *runs))
            && oldest < self.frame.segment
        {
            self.segments.remove(&oldest);
            self.remove.push(ObsoleteFile::Runs(oldest));
        }
    }

    /// Assigns a position to experiences. `None`: they do not fit.
    pub(super) fn add_trajectory(&mut self, payload: Bytes) -> Option<Trajectory> {
        let bytes = u32::try_from(payload.len()).ok();
        let max = self.max_trajectory_bytes / PARTS;
        let Some(bytes) = bytes.filter(|bytes| self.is_kept && u64::from(*bytes) <= max) else {
            self.trajectories_dropped += u64::from(self.is_kept);
            return None;
        };
        let mut used = self.parts.entry(self.part).or_default().0;
        if used > 0 && used + u64::from(bytes) > max {
            self.part += 1;
            used = 0;
        }
        self.add_part(self.part, bytes.into(), 1);
        let offset = MAGIC.len() as u64 + used;
        let trajectory = Trajectory { segment: self.part, offset, bytes };
        self.trajectories.push((trajectory, payload));
        self.make_room();
        Some(trajectory)
    }

    /// Drops the oldest trajectories above the limit.
    fn make_room(&mut self) {
        let all = |parts: &BTreeMap<u32, (u64, u64)>| parts.values().map(|(it, _)| it).sum::<u64>();
        while self.parts.len() > 1 && all(&self.parts) > self.max_trajectory_bytes {
            let Some((oldest, (_, runs))) = self.parts.pop_first() else { return };
            self.trajectories_dropped += runs;
            self.remove.push(ObsoleteFile::Trajectories(oldest));
        }
    }

    /// Continues in new files after a failed write.
    pub(super) fn renew(&mut self) {
        self.part += 1;
        // Queued records already have their positions.
        self.is_torn = !self.runs.0.is_empty();
        if !self.is_torn {
            self.begin(self.frame.segment + 1);
        }
    }

    /// Returns whether written experiences still exist.
    pub(super) fn has(&self, trajectory: &Trajectory) -> bool {
        self.parts.contains_key(&trajectory.segment)
    }

    /// Takes all records for one write.
    pub(super) fn take(&mut self) -> HistoryWrite {
        let runs = std::mem::take(&mut self.runs.0);
        let frame = self.frame;
        if !runs.is_empty() {
            let end = self.frame.offset as usize + FRAME_HEAD + runs.len();
            self.frame.offset = u32::try_from(end).unwrap_or(u32::MAX);
        }
        if self.frame.offset > MAX_SEGMENT_BYTES || std::mem::take(&mut self.is_torn) {
            self.begin(frame.segment + 1);
        }
        HistoryWrite {
            entries: std::mem::take(&mut self.entries),
            runs,
            frame,
            trajectories: std::mem::take(&mut self.trajectories),
            remove: std::mem::take(&mut self.remove),
        }
    }
}
