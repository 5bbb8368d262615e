//! The tracks of the file: what begins on one ends there, and time goes forwards.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use rollway_core::RunnerId;

use super::file::TraceFile;
use crate::span::Nanos;

/// How many tracks a runner, or a group, may have: more is shown nowhere, and said nowhere.
const LANES: u32 = 1_000;

/// Tracks of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum TrackGroup {
    Steps,
    Evals,
    Weights,
    Batches,
    Notes,
}

impl TrackGroup {
    const fn name(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Evals => "evaluations",
            Self::Weights => "weights",
            Self::Batches => "batches",
            Self::Notes => "notes",
        }
    }
}

/// A track: a row of slices, each inside of another or after it.
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

/// All tracks.
#[derive(Debug)]
pub(super) struct Tracks {
    pub(super) file: TraceFile,
    known: HashMap<Track, TrackState>,
    /// Lanes of groups that are in use.
    taken: BTreeSet<(TrackGroup, u32)>,
    last_count: Nanos,
    line: String,
}

impl Tracks {
    pub(super) fn new(file: TraceFile) -> Self {
        let mut tracks = Self {
            file,
            known: HashMap::new(),
            taken: BTreeSet::new(),
            last_count: 0,
            line: String::new(),
        };
        tracks.name("process_name", false, 0, "job");
        tracks.name("process_name", true, 0, "runners");
        tracks
    }

    /// Returns the first track of a group that nothing is on, and takes it.
    pub(super) fn lane(&mut self, group: TrackGroup) -> Track {
        let lane = (0..LANES - 1).find(|lane| !self.taken.contains(&(group, *lane)));
        let lane = lane.unwrap_or(LANES - 1);
        self.taken.insert((group, lane));
        self.known_as(false, group as u32 * LANES + lane, || match lane {
            0 => group.name().to_owned(),
            lane => format!("{} {}", group.name(), lane + 1),
        })
    }

    /// Gives a track of a group back.
    pub(super) fn free(&mut self, track: Track) {
        let lane = track.number % LANES;
        self.taken.retain(|(group, taken)| *group as u32 != track.number / LANES || *taken != lane);
    }

    /// Returns the one track of a group.
    pub(super) fn fixed(&mut self, group: TrackGroup) -> Track {
        self.known_as(false, group as u32 * LANES, || group.name().to_owned())
    }

    /// Returns a track of a runner.
    pub(super) fn runner(&mut self, runner: RunnerId, lane: u32) -> Track {
        let lane = lane.min(LANES - 1);
        let number = runner.0.saturating_mul(LANES).saturating_add(lane);
        self.known_as(true, number, || match lane {
            0 => format!("runner {}", runner.0),
            lane => format!("runner {} at once {lane}", runner.0),
        })
    }

    pub(super) fn begin(&mut self, at: Nanos, track: Track, name: &str, args: &str) {
        let at = self.pass(at, track, 1);
        let name = text(name);
        self.write("B", at, track, &format!("\"name\":{name},\"args\":{{{args}}}"));
    }

    pub(super) fn end(&mut self, at: Nanos, track: Track, args: &str) {
        if self.known.get(&track).is_none_or(|state| state.depth == 0) {
            return;
        }
        let at = self.pass(at, track, -1);
        self.write("E", at, track, &format!("\"args\":{{{args}}}"));
    }

    pub(super) fn instant(&mut self, at: Nanos, track: Track, name: &str, args: &str) {
        let at = self.pass(at, track, 0);
        let name = text(name);
        self.write("i", at, track, &format!("\"name\":{name},\"s\":\"t\",\"args\":{{{args}}}"));
    }

    pub(super) fn counter(&mut self, at: Nanos, name: &str, values: &str) {
        self.last_count = self.last_count.max(at);
        let track = Track { is_runner: false, number: 0 };
        let rest = format!("\"name\":\"{name}\",\"args\":{{{values}}}");
        self.write("C", self.last_count, track, &rest);
    }

    /// Draws an arrow from what is on a track to what has just begun on another.
    pub(super) fn flow(&mut self, at: Nanos, id: u64, from: Track, to: Track) {
        let rest = |more: &str| {
            format!(
                "\"name\":\"given\",\"cat\":\"flow\",\"id\":\"{}-{id}\"{more}",
                self.file.process
            )
        };
        let (start, finish) = (rest(""), rest(",\"bp\":\"e\""));
        let at = self.pass(at, from, 0).max(self.pass(at, to, 0));
        self.write("s", at, from, &start);
        self.write("f", at, to, &finish);
        let (_, _) = (self.pass(at, from, 0), self.pass(at, to, 0));
    }

    /// Returns a moment that is not before the last one on the track.
    fn pass(&mut self, at: Nanos, track: Track, change: i32) -> Nanos {
        let state = self.known.entry(track).or_default();
        state.last = state.last.max(at);
        state.depth = state.depth.saturating_add_signed(change);
        state.last
    }

    fn known_as(&mut self, is_runner: bool, number: u32, name: impl FnOnce() -> String) -> Track {
        let track = Track { is_runner, number };
        if let Entry::Vacant(place) = self.known.entry(track) {
            place.insert(TrackState::default());
            self.name("thread_name", is_runner, number, &name());
            let sort = format!(
                "{{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":{},\"tid\":{number},\
                 \"args\":{{\"sort_index\":{number}}}}}",
                self.pid(is_runner)
            );
            self.file.write(&sort);
        }
        track
    }

    fn name(&mut self, what: &str, is_runner: bool, number: u32, name: &str) {
        let process = self.file.process;
        let name = match process {
            0 | 1 => name.to_owned(),
            _ if what == "process_name" => format!("{name} (process {process})"),
            _ => name.to_owned(),
        };
        let line = format!(
            "{{\"ph\":\"M\",\"name\":\"{what}\",\"pid\":{},\"tid\":{number},\
             \"args\":{{\"name\":{}}}}}",
            self.pid(is_runner),
            text(&name)
        );
        self.file.write(&line);
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

/// Returns a text as JSON has it.
pub(super) fn text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
