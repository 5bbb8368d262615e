//! Tracks of the file. What begins on a track ends there, and its time does not go backwards.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use rollway_core::RunnerId;

use super::file::TraceFile;
use crate::ids::SpanId;
use crate::span::Nanos;

/// Maximum number of tracks of a runner or a group; the last one is shared.
pub(super) const MAX_LANES: u32 = 1_000;

/// Tracks of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum TrackGroup {
    Steps,
    Evals,
    Weights,
    Batches,
    Notes,
}

impl TrackGroup {
    const fn name(self) -> &'static str {
        ["steps", "evaluations", "weights", "batches", "notes"][self as usize]
    }
}

/// A row of slices, each inside of another or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Track {
    is_runner: bool,
    number: u32,
}

#[derive(Debug, Default)]
struct TrackState {
    last: Nanos,
    depth: u32,
}

#[derive(Debug)]
pub(super) struct Tracks {
    pub(super) file: TraceFile,
    states: HashMap<Track, TrackState>,
    /// Tracks of groups that are in use.
    used: BTreeSet<u32>,
    last_count: Nanos,
    line: String,
}

impl Tracks {
    pub(super) fn new(file: TraceFile) -> Self {
        let mut tracks = Self {
            file,
            states: HashMap::new(),
            used: BTreeSet::new(),
            last_count: 0,
            line: String::new(),
        };
        tracks.name("process_name", false, 0, "job");
        tracks.name("process_name", true, 0, "runners");
        tracks
    }

    /// Reserves the first free track of a group.
    pub(super) fn lane(&mut self, group: TrackGroup) -> Track {
        let first = group as u32 * MAX_LANES;
        let lane = (0..MAX_LANES - 1).find(|lane| !self.used.contains(&(first + lane)));
        let lane = lane.unwrap_or(MAX_LANES - 1);
        self.used.insert(first + lane);
        self.track(false, first + lane, || match lane {
            0 => group.name().to_owned(),
            lane => format!("{} {}", group.name(), lane + 1),
        })
    }

    /// Releases a track of a group.
    pub(super) fn free(&mut self, track: Track) {
        if !track.is_runner {
            self.used.remove(&track.number);
        }
    }

    /// Returns the only track of a group.
    pub(super) fn fixed(&mut self, group: TrackGroup) -> Track {
        self.track(false, group as u32 * MAX_LANES, || group.name().to_owned())
    }

    pub(super) fn runner(&mut self, runner: RunnerId, lane: u32) -> Track {
        let lane = lane.min(MAX_LANES - 1);
        let number = runner.0.saturating_mul(MAX_LANES).saturating_add(lane);
        self.track(true, number, || match lane {
            0 => format!("runner {}", runner.0),
            lane => format!("runner {} at once {lane}", runner.0),
        })
    }

    pub(super) fn begin(&mut self, at: Nanos, track: Track, name: &str, args: &str) {
        let at = self.advance(at, track, 1);
        let name = json_string(name);
        self.write("B", at, track, &format!("\"name\":{name},\"args\":{{{args}}}"));
    }

    pub(super) fn end(&mut self, at: Nanos, track: Track, args: &str) {
        if self.states.get(&track).is_none_or(|state| state.depth == 0) {
            return;
        }
        let at = self.advance(at, track, -1);
        self.write("E", at, track, &format!("\"args\":{{{args}}}"));
    }

    pub(super) fn instant(&mut self, at: Nanos, track: Track, name: &str, args: &str) {
        let at = self.advance(at, track, 0);
        let name = json_string(name);
        self.write("i", at, track, &format!("\"name\":{name},\"s\":\"t\",\"args\":{{{args}}}"));
    }

    pub(super) fn counter(&mut self, at: Nanos, name: &str, values: &str) {
        self.last_count = self.last_count.max(at);
        let track = Track { is_runner: false, number: 0 };
        let rest = format!("\"name\":\"{name}\",\"args\":{{{values}}}");
        self.write("C", self.last_count, track, &rest);
    }

    /// Draws an arrow from the open slice of a track to a slice that has just begun.
    pub(super) fn flow(&mut self, at: Nanos, id: SpanId, from: Track, to: Track) {
        let id =
            format!("\"name\":\"given\",\"cat\":\"flow\",\"id\":\"{}-{id}\"", self.file.process);
        let at = self.advance(at, from, 0).max(self.advance(at, to, 0));
        self.write("s", at, from, &id);
        self.write("f", at, to, &format!("{id},\"bp\":\"e\""));
        self.advance(at, from, 0);
        self.advance(at, to, 0);
    }

    /// Returns a time that is not before the last one of the track.
    fn advance(&mut self, at: Nanos, track: Track, depth_change: i32) -> Nanos {
        let state = self.states.entry(track).or_default();
        state.last = state.last.max(at);
        state.depth = state.depth.saturating_add_signed(depth_change);
        state.last
    }

    fn track(&mut self, is_runner: bool, number: u32, name: impl FnOnce() -> String) -> Track {
        let track = Track { is_runner, number };
        if let Entry::Vacant(entry) = self.states.entry(track) {
            entry.insert(TrackState::default());
            self.name("thread_name", is_runner, number, &name());
            let index = number.to_string();
            self.metadata("thread_sort_index", is_runner, number, "sort_index", &index);
        }
        track
    }

    fn name(&mut self, kind: &str, is_runner: bool, number: u32, name: &str) {
        let process = self.file.process;
        let name = match kind {
            "process_name" if process > 1 => format!("{name} (process {process})"),
            _ => name.to_owned(),
        };
        self.metadata(kind, is_runner, number, "name", &json_string(&name));
    }

    fn metadata(&mut self, kind: &str, is_runner: bool, number: u32, name: &str, value: &str) {
        let pid = self.pid(is_runner);
        self.file.write(&format!(
            "{{\"ph\":\"M\",\"name\":\"{kind}\",\"pid\":{pid},\"tid\":{number},\
             \"args\":{{\"{name}\":{value}}}}}"
        ));
    }

    const fn pid(&self, is_runner: bool) -> u32 {
        2 * self.file.process + if is_runner { 0 } else { 1 }
    }

    fn write(&mut self, phase: &str, at: Nanos, track: Track, rest: &str) {
        let since = at.saturating_sub(self.file.origin);
        let (micros, nanos) = (since / 1_000, since % 1_000);
        let pid = self.pid(track.is_runner);
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        // Writing to a string cannot fail.
        let _ = write!(
            line,
            "{{\"ph\":\"{phase}\",\"ts\":{micros}.{nanos:03},\"pid\":{pid},\"tid\":{},{rest}}}",
            track.number
        );
        self.file.write(&line);
        self.line = line;
    }
}

pub(super) fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
