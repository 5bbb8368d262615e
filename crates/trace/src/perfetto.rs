//! Exporter to a file in the Trace Event Format, for ui.perfetto.dev and chrome://tracing.
//!
//! ```text
//! process "job":      steps │ evaluations │ weights │ batches │ notes, and counters
//! process "runners":  one track for each runner: slice of runs ─► run ─► call
//!                     and further tracks for runs and calls that overlap
//! ```
//!
//! Begins and ends are written when they happen, so that the file of a killed job shows its state.

mod file;
mod tracks;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rollway_core::RunnerId;

use self::file::TraceFile;
pub(super) use self::tracks::TrackGroup;
use self::tracks::{MAX_LANES, Track, Tracks, json_string};
use super::dropped::Losses;
use super::ids::SpanId;
use super::span::{AttributeValue, Nanos, Span, SpanKind, SpanStatus};

const UNFINISHED: &str = "\"outcome\":\"unfinished\"";

/// Position of a span in the file.
#[derive(Clone, Copy, Debug)]
pub(super) enum SlicePosition {
    Group(TrackGroup),
    /// A lane of a runner; `container` is the enclosing span.
    Lane {
        runner: RunnerId,
        lane: u32,
        container: Option<SpanId>,
    },
    /// The lane of the enclosing span, or from `lane` on the first without a call.
    Call {
        runner: RunnerId,
        lane: u32,
        container: SpanId,
    },
}

#[derive(Debug)]
pub(super) struct PerfettoWriter {
    tracks: Tracks,
    open: HashMap<SpanId, OpenSlice>,
}

#[derive(Debug)]
struct OpenSlice {
    kind: SpanKind,
    track: Track,
    container: Option<SpanId>,
    /// Number of attributes that were written at its start.
    attributes: usize,
    /// Its slice ended before the span, because the next one began on its lane.
    is_ended: bool,
}

impl PerfettoWriter {
    /// Opens the file, or appends to that of an earlier process.
    pub(super) fn open(
        path: &Path,
        max_bytes: u64,
        now: Nanos,
        losses: &Arc<Losses>,
    ) -> io::Result<Self> {
        let file = TraceFile::open(path, max_bytes, now, Arc::clone(losses))?;
        Ok(Self { tracks: Tracks::new(file), open: HashMap::new() })
    }

    pub(super) fn begin(&mut self, at: Nanos, span: &Span, position: SlicePosition, title: &str) {
        let (track, container) = match position {
            SlicePosition::Group(group) => (self.tracks.lane(group), None),
            SlicePosition::Lane { runner, lane, container } => {
                let track = self.tracks.runner(runner, lane);
                self.end_previous(at, track, container);
                (track, container)
            }
            SlicePosition::Call { runner, lane, container } => {
                let Some(run) = self.open.get(&container).filter(|run| !run.is_ended) else {
                    return;
                };
                let is_call = |open: &&OpenSlice| open.kind == SpanKind::Call;
                let taken = |track| self.open.values().filter(is_call).any(|it| it.track == track);
                let mut track = run.track;
                for lane in lane..MAX_LANES {
                    if !taken(track) {
                        break;
                    }
                    track = self.tracks.runner(runner, lane);
                }
                (track, Some(container))
            }
        };
        self.tracks.begin(at, track, title, &arguments(span, 0));
        if span.kind == SpanKind::Slice
            && let Some(batch) = span.parent.and_then(|batch| self.open.get(&batch))
        {
            self.tracks.flow(at, span.id, batch.track, track);
        }
        let (kind, attributes) = (span.kind, span.attributes.len());
        let slice = OpenSlice { kind, track, container, attributes, is_ended: false };
        self.open.insert(span.id, slice);
    }

    pub(super) fn end(&mut self, at: Nanos, span: &Span) {
        let Some(open) = self.open.remove(&span.id) else { return };
        self.end_children(at, span.id);
        if open.is_ended {
            return self.tracks.instant(at, open.track, "run ended", &arguments(span, 0));
        }
        self.tracks.end(at, open.track, &arguments(span, open.attributes));
        self.tracks.free(open.track);
    }

    /// Writes an instant on the track of an open span.
    pub(super) fn instant(
        &mut self,
        at: Nanos,
        span: SpanId,
        name: &str,
        attributes: &[(&str, AttributeValue)],
    ) {
        let Some(open) = self.open.get(&span) else { return };
        let mut args = String::new();
        attributes.iter().for_each(|(name, value)| push_argument(&mut args, name, value));
        self.tracks.instant(at, open.track, name, &args);
    }

    pub(super) fn note(&mut self, at: Nanos, message: &str) {
        let track = self.tracks.fixed(TrackGroup::Notes);
        self.tracks.instant(at, track, message, "");
    }

    pub(super) fn stats(&mut self, at: Nanos, pending: u64, running: u64, busy: u32) {
        let values = format!("\"in flight\":{running},\"pending\":{pending}");
        self.tracks.counter(at, "runs", &values);
        self.tracks.counter(at, "runners", &format!("\"busy\":{busy}"));
    }

    pub(super) fn flush(&mut self) {
        self.tracks.file.flush();
    }

    /// Completes the file.
    pub(super) fn close(mut self) {
        self.tracks.file.close();
    }

    /// Ends the previous run on a lane whose end was not reported yet.
    fn end_previous(&mut self, at: Nanos, track: Track, container: Option<SpanId>) {
        let is_previous = |open: &OpenSlice| {
            !open.is_ended
                && container.is_some()
                && open.container == container
                && open.track == track
        };
        let previous = self.open.iter().find(|(_, open)| is_previous(open)).map(|(id, _)| *id);
        let Some(id) = previous else { return };
        self.end_children(at, id);
        self.tracks.end(at, track, "");
        if let Some(open) = self.open.get_mut(&id) {
            open.is_ended = true;
        }
    }

    /// Ends everything inside of a span.
    fn end_children(&mut self, at: Nanos, container: SpanId) {
        let is_child = |open: &OpenSlice| open.container == Some(container);
        let children = self.open.iter().filter(|(_, open)| is_child(open));
        for id in children.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.end_children(at, id);
            if let Some(open) = self.open.remove(&id).filter(|open| !open.is_ended) {
                self.tracks.end(at, open.track, UNFINISHED);
            }
        }
    }
}

/// Returns the attributes of a span from an index on, and its error.
fn arguments(span: &Span, from: usize) -> String {
    let mut args = String::new();
    for (name, value) in span.attributes.iter().skip(from) {
        if let Some(name) = argument_name(span.kind, name) {
            push_argument(&mut args, name, value);
        }
    }
    if let SpanStatus::Error(message) = &span.status {
        push_argument(&mut args, "message", &message.into());
    }
    args
}

fn push_argument(args: &mut String, name: &str, value: &AttributeValue) {
    let value = match value {
        AttributeValue::Text(text) => json_string(text),
        AttributeValue::Integer(number) => number.to_string(),
        AttributeValue::Float(number) if number.is_finite() => number.to_string(),
        // JSON has no such number.
        AttributeValue::Float(_) => return,
    };
    let comma = if args.is_empty() { "" } else { "," };
    // Writing to a string cannot fail.
    let _ = write!(args, "{comma}\"{name}\":{value}");
}

/// Returns the name of an attribute in the file. `None`: the enclosing slice has it.
fn argument_name(kind: SpanKind, attribute: &'static str) -> Option<&'static str> {
    Some(match attribute {
        "rollway.batch"
        | "rollway.task"
        | "rollway.attempt"
        | "rollway.runner"
        | "rollway.runner.incarnation"
            if matches!(kind, SpanKind::Attempt | SpanKind::Call) =>
        {
            return None;
        }
        "rollway.outcome" if kind == SpanKind::Batch => "state",
        "rollway.batch.kind" => "kind",
        "rollway.eval.set" => "set",
        "rollway.eval.score" => "score",
        "rollway.model.version" => "version",
        "rollway.runner.incarnation" => "incarnation",
        "error.type" => "failure",
        "gen_ai.request.model" => "model",
        "gen_ai.usage.input_tokens" => "prompt_tokens",
        "gen_ai.usage.output_tokens" => "completion_tokens",
        "http.response.status_code" => "status",
        "server.address" => "server",
        other => other.strip_prefix("rollway.").unwrap_or(other),
    })
}
