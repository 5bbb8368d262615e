//! What is to be written, and where it will be: decided in memory, so that a run's place is known
//! before its bytes are on the disk.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::codec::Put;
use super::record::{Entry, JobNote, Trajectory};
use super::row::RecordPosition;

/// What every file begins with.
pub(super) const MAGIC: &[u8; 8] = b"rwhist2\n";

/// Bytes before the bytes of a frame: their number and their checksum.
pub(super) const FRAME: usize = 8;

/// A file of runs that has grown beyond this is followed by another.
const SEGMENT: u32 = 16 << 20;

/// Trajectories are in this many files, so that dropping the oldest drops a part of all.
const PARTS: u64 = 8;

/// What is to be written.
#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    is_kept: bool,
    entries: Vec<Entry>,
    /// Records of runs.
    pub(super) runs: Put,
    /// Where the frame of these will begin.
    frame: RecordPosition,
    /// Whether the file of runs has a gap, after which nobody reads.
    is_torn: bool,
    /// Runs in each file that are not forgotten.
    segments: BTreeMap<u32, u64>,
    trajectories: Vec<(Trajectory, Bytes)>,
    /// Bytes and runs of each file of trajectories.
    parts: BTreeMap<u32, (u64, u64)>,
    part: u32,
    max_trajectory_bytes: u64,
    /// Files that nobody needs.
    remove: Vec<Old>,
    /// Trajectories that there was no room for.
    pub(super) trajectories_dropped: u64,
}

/// A file that nobody needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Old {
    Runs(u32),
    Trajectories(u32),
}

/// What is written at once.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) entries: Vec<Entry>,
    pub(super) runs: Vec<u8>,
    /// Where the frame of these begins.
    pub(super) frame: RecordPosition,
    pub(super) trajectories: Vec<(Trajectory, Bytes)>,
    pub(super) remove: Vec<Old>,
}

impl WriteQueue {
    /// Goes on after what was read.
    pub(super) fn keep(&mut self, max_trajectory_bytes: u64) {
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

    pub(super) fn note(&mut self, at: f64, what: JobNote) {
        if self.is_kept {
            self.entries.push(Entry { at, what });
        }
    }

    /// Where the next record will be.
    pub(super) fn place(&self) -> RecordPosition {
        let offset = self.frame.offset as usize + FRAME + self.runs.0.len();
        RecordPosition { segment: self.frame.segment, offset: offset as u32 }
    }

    /// A run is in a file.
    pub(super) fn wrote(&mut self, segment: u32) {
        *self.segments.entry(segment).or_default() += 1;
    }

    /// A file of runs was found.
    pub(super) fn is_there(&mut self, segment: u32) {
        self.segments.entry(segment).or_default();
    }

    /// A file of trajectories was found.
    pub(super) fn found(&mut self, part: u32, bytes: u64, runs: u64) {
        let known = self.parts.entry(part).or_default();
        known.0 += bytes;
        known.1 += runs;
    }

    /// A run that was in a file is forgotten.
    pub(super) fn forgot(&mut self, segment: u32) {
        if let Some(runs) = self.segments.get_mut(&segment) {
            *runs = runs.saturating_sub(1);
        }
        while let Some((oldest, 0)) = self.segments.first_key_value().map(|(at, runs)| (*at, *runs))
            && oldest < self.frame.segment
        {
            self.segments.remove(&oldest);
            self.remove.push(Old::Runs(oldest));
        }
    }

    /// Says where experiences will be; none: there is no room.
    pub(super) fn trajectory(&mut self, payload: Bytes) -> Option<Trajectory> {
        let bytes = u32::try_from(payload.len()).ok();
        let most = self.max_trajectory_bytes / PARTS;
        let Some(bytes) = bytes.filter(|bytes| self.is_kept && u64::from(*bytes) <= most) else {
            self.trajectories_dropped += u64::from(self.is_kept);
            return None;
        };
        let mut used = self.parts.entry(self.part).or_default().0;
        if used > 0 && used + u64::from(bytes) > most {
            self.part += 1;
            used = 0;
        }
        self.found(self.part, bytes.into(), 1);
        let offset = MAGIC.len() as u64 + used;
        let trajectory = Trajectory { segment: self.part, offset, bytes };
        self.trajectories.push((trajectory, payload));
        self.make_room();
        Some(trajectory)
    }

    /// Drops the oldest trajectories while there are too many.
    fn make_room(&mut self) {
        let all = |parts: &BTreeMap<u32, (u64, u64)>| parts.values().map(|(it, _)| it).sum::<u64>();
        while self.parts.len() > 1 && all(&self.parts) > self.max_trajectory_bytes {
            let Some((oldest, (_, runs))) = self.parts.pop_first() else { return };
            self.trajectories_dropped += runs;
            self.remove.push(Old::Trajectories(oldest));
        }
    }

    /// Something could not be written: what comes goes to new files.
    pub(super) fn renew(&mut self) {
        self.part += 1;
        // Records that were put aside meanwhile have their place already.
        self.is_torn = !self.runs.0.is_empty();
        if !self.is_torn {
            self.begin(self.frame.segment + 1);
        }
    }

    /// Whether experiences that were written are still there.
    pub(super) fn has(&self, trajectory: &Trajectory) -> bool {
        self.parts.contains_key(&trajectory.segment)
    }

    /// Takes everything, to be written as it is.
    pub(super) fn take(&mut self) -> Taken {
        let runs = std::mem::take(&mut self.runs.0);
        let frame = self.frame;
        if !runs.is_empty() {
            let end = self.frame.offset as usize + FRAME + runs.len();
            self.frame.offset = u32::try_from(end).unwrap_or(u32::MAX);
        }
        if self.frame.offset > SEGMENT || std::mem::take(&mut self.is_torn) {
            self.begin(frame.segment + 1);
        }
        Taken {
            entries: std::mem::take(&mut self.entries),
            runs,
            frame,
            trajectories: std::mem::take(&mut self.trajectories),
            remove: std::mem::take(&mut self.remove),
        }
    }
}
