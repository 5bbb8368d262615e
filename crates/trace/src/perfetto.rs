//! A file in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.
//!
//! ```text
//! process "job":      steps │ evaluations │ weights │ batches │ notes, and counters
//! process "runners":  one track for each runner: attempt ─► run ─► call
//!                     and further ones for what a runner does at the same time
//! ```
//!
//! Slices are written when they begin and when they end, so that the file of a killed job shows
//! what it was at.

mod file;
mod tracks;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rollway_core::{AttemptId, BatchId, BatchKey, BatchState, BatchType, RunId, RunnerId};
use rollway_engine::events::{CallEvent, CallEventKind};

use self::file::TraceFile;
use self::tracks::{Track, TrackGroup, Tracks, text};
use super::dropped::Losses;
use super::event::{AttemptStart, SpanEnd, Tasks, TraceEvent, TraceEventKind};
use super::span::Nanos;
use rollway_telemetry::TaskWorkflows;

/// Writes what happens to a file.
#[derive(Debug)]
pub(super) struct PerfettoWriter {
    tracks: Tracks,
    in_turn: bool,
    batches: BTreeMap<BatchKey, BatchTrack>,
    attempts: HashMap<AttemptId, AttemptTrack>,
    runners: HashMap<RunnerId, AttemptId>,
    calls: HashMap<u64, (AttemptId, RunId, Track)>,
    steps: HashMap<u64, Track>,
    evals: HashMap<BatchId, Track>,
}

#[derive(Debug)]
struct BatchTrack {
    name: String,
    track: Track,
    workflows: TaskWorkflows,
}

#[derive(Debug)]
struct AttemptTrack {
    given: AttemptStart,
    track: Track,
    /// The runs that have begun and not ended, and where they are shown.
    open: BTreeMap<RunId, Track>,
    /// Runs of which nothing is shown any more.
    shown: BTreeSet<RunId>,
    ended: u32,
}

impl PerfettoWriter {
    /// Opens the file, or goes on in the one that an earlier process has left.
    pub(super) fn open(
        path: &Path,
        most: u64,
        now: Nanos,
        in_turn: bool,
        losses: &Arc<Losses>,
    ) -> io::Result<Self> {
        let file = TraceFile::open(path, most, now, Arc::clone(losses))?;
        Ok(Self {
            tracks: Tracks::new(file),
            in_turn,
            batches: BTreeMap::new(),
            attempts: HashMap::new(),
            runners: HashMap::new(),
            calls: HashMap::new(),
            steps: HashMap::new(),
            evals: HashMap::new(),
        })
    }

    /// Writes what happened.
    pub(super) fn note(&mut self, mark: &TraceEvent) {
        let at = mark.at;
        match &mark.fact {
            TraceEventKind::BatchBegan { batch, key, kind, tasks } => {
                self.batch_began(at, batch, *key, *kind, tasks);
            }
            TraceEventKind::BatchIs {
                key,
                state: state @ (BatchState::Finalized | BatchState::Aborted),
            } => {
                if let Some(batch) = self.batches.remove(key) {
                    self.tracks.end(at, batch.track, &format!("\"state\":\"{state}\""));
                    self.tracks.free(batch.track);
                }
            }
            TraceEventKind::Given(given) => self.given(at, *given),
            TraceEventKind::Began { attempt } => self.began(at, *attempt),
            TraceEventKind::RunEnded { attempt, run, end } => {
                self.run_ended(at, *attempt, *run, end)
            }
            TraceEventKind::AttemptEnded { attempt, lost } => {
                self.attempt_ended(at, *attempt, lost.as_deref());
            }
            TraceEventKind::Cancelled { attempt, reason } => {
                if let Some(attempt) = self.attempts.get(attempt) {
                    let args = format!("\"reason\":\"{reason:?}\"");
                    self.tracks.instant(at, attempt.track, "cancelled", &args);
                }
            }
            TraceEventKind::Call(call) => self.call(at, call),
            TraceEventKind::StepBegun { step, tasks, runs } => {
                let track = self.tracks.lane(TrackGroup::Steps);
                let args = format!("\"tasks\":{tasks},\"runs\":{runs}");
                self.tracks.begin(at, track, &format!("step {step}"), &args);
                self.steps.insert(*step, track);
            }
            TraceEventKind::StepDone { step, reward } => {
                if let Some(track) = self.steps.remove(step) {
                    self.tracks.end(at, track, &number("reward", *reward));
                    self.tracks.free(track);
                }
            }
            TraceEventKind::Evaluated { step, version, set, score } => {
                self.evaluated(at, *step, *version, set, *score);
            }
            TraceEventKind::Synced { step, version, waited, loading } => {
                let track = self.tracks.lane(TrackGroup::Weights);
                let begin = at.saturating_sub(waited.saturating_add(*loading));
                let args = format!("\"step\":{step}{}", more(&whole("version", *version)));
                self.tracks.begin(begin, track, &format!("weights after step {step}"), &args);
                self.tracks.end(at, track, "");
                self.tracks.free(track);
            }
            TraceEventKind::Trained { step } => {
                let track = self.tracks.fixed(TrackGroup::Notes);
                self.tracks.instant(at, track, &format!("trained step {step}"), "");
            }
            TraceEventKind::Noted(words) => {
                let track = self.tracks.fixed(TrackGroup::Notes);
                self.tracks.instant(at, track, words, "");
            }
            TraceEventKind::Beat { pending, running, busy } => {
                let values = format!("\"in flight\":{running},\"pending\":{pending}");
                self.tracks.counter(at, "runs", &values);
                self.tracks.counter(at, "runners", &format!("\"busy\":{busy}"));
            }
            TraceEventKind::RunOver { .. }
            | TraceEventKind::TaskEnded { .. }
            | TraceEventKind::BatchIs { .. } => {}
        }
    }

    /// Makes everything that was written readable by others.
    pub(super) fn flush(&mut self) {
        self.tracks.file.flush();
    }

    /// Ends the file.
    pub(super) fn close(mut self) {
        self.tracks.file.close();
    }

    fn batch_began(
        &mut self,
        at: Nanos,
        id: &BatchId,
        key: BatchKey,
        kind: BatchType,
        tasks: &Tasks,
    ) {
        if let Some(batch) = self.batches.get_mut(&key) {
            return batch.workflows.add(tasks.first, &tasks.tasks);
        }
        if kind == BatchType::Eval && !self.evals.contains_key(id) {
            let track = self.tracks.lane(TrackGroup::Evals);
            self.tracks.begin(at, track, &format!("eval {id}"), "");
            self.evals.insert(id.clone(), track);
        }
        let track = self.tracks.lane(TrackGroup::Batches);
        let mut workflows = TaskWorkflows::default();
        workflows.add(tasks.first, &tasks.tasks);
        let (name, tasks) = (id.to_string(), workflows.task_count());
        let args = format!("\"batch\":{},\"kind\":\"{kind}\",\"tasks\":{tasks}", text(&name));
        self.tracks.begin(at, track, &format!("batch {name}"), &args);
        let batch = BatchTrack { name, track, workflows };
        self.batches.insert(key, batch);
    }

    fn evaluated(
        &mut self,
        at: Nanos,
        step: u64,
        version: Option<u64>,
        set: &str,
        score: Option<f64>,
    ) {
        let batch = BatchId::from(format!("{step}/{set}").as_str());
        let Some(track) = self.evals.remove(&batch) else { return };
        let (version, score) = (whole("version", version), number("score", score));
        let args = if version.is_empty() { score } else { version + &more(&score) };
        self.tracks.end(at, track, &args);
        self.tracks.free(track);
    }

    fn given(&mut self, at: Nanos, given: AttemptStart) {
        // A runner does one attempt at a time: whatever was there is over.
        if let Some(earlier) = self.runners.insert(given.runner, given.attempt) {
            self.attempt_ended(at, earlier, None);
        }
        let Some(batch) = self.batches.get(&given.key) else { return };
        let track = self.tracks.runner(given.runner, 0);
        let workflow = batch.workflows.of(given.task);
        let task = given.task.0;
        let name = match workflow {
            Some(workflow) => format!("{workflow} {}/{task}", batch.name),
            None => format!("{}/{task}", batch.name),
        };
        let mut args = format!("\"batch\":{},\"task\":{task}", text(&batch.name));
        let (first, last) = (given.runs.first, given.runs.first + given.runs.count.max(1) - 1);
        // Writing to a string cannot fail.
        let _ = write!(
            args,
            ",\"runs\":\"{first}-{last}\",\"attempt\":{},\"life\":{}",
            given.attempt.0, given.life.0
        );
        let from = batch.track;
        self.tracks.begin(at, track, &name, &args);
        self.tracks.flow(at, given.attempt.0, from, track);
        self.attempts.insert(
            given.attempt,
            AttemptTrack { given, track, open: BTreeMap::new(), shown: BTreeSet::new(), ended: 0 },
        );
    }

    fn began(&mut self, at: Nanos, id: AttemptId) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        self.tracks.instant(at, attempt.track, "began", "");
        let runs = attempt.given.runs;
        if self.in_turn {
            self.run_began(at, id, RunId(runs.first));
        } else {
            for run in runs.iter() {
                self.run_began(at, id, run);
            }
        }
    }

    /// Shows a run from now on, in the runner's own track if nothing else is there.
    fn run_began(&mut self, at: Nanos, id: AttemptId, run: RunId) -> Option<Track> {
        let attempt = self.attempts.get(&id)?;
        if let Some(track) = attempt.open.get(&run) {
            return Some(*track);
        }
        if attempt.shown.contains(&run) {
            return None;
        }
        if self.in_turn {
            // That it calls is seen by others than that the one before has ended.
            for earlier in attempt.open.keys().copied().collect::<Vec<_>>() {
                self.run_over(at, id, earlier, "");
            }
        }
        let attempt = self.attempts.get_mut(&id)?;
        let runs = attempt.given.runs;
        let place = run.0.checked_sub(runs.first).filter(|place| *place < runs.count)?;
        let is_alone = runs.count == 1 || self.in_turn;
        let lane = if is_alone { 0 } else { place + 1 };
        let track = self.tracks.runner(attempt.given.runner, lane);
        attempt.open.insert(run, track);
        self.tracks.begin(at, track, &format!("run {}", run.0), &format!("\"run\":{}", run.0));
        Some(track)
    }

    fn run_ended(&mut self, at: Nanos, id: AttemptId, run: RunId, end: &SpanEnd) {
        let args = match end {
            SpanEnd::Succeeded { reward } => {
                format!("\"outcome\":\"succeeded\"{}", more(&number("reward", *reward)))
            }
            SpanEnd::Failed { kind, message } => {
                let failure = kind.map(|kind| format!("\"failure\":\"{}\"", kind.name()));
                let failure = more(&failure.unwrap_or_default());
                format!("\"outcome\":\"failed\"{failure},\"message\":{}", text(message))
            }
        };
        match self.run_began(at, id, run) {
            Some(_) => self.run_over(at, id, run, &args),
            None => {
                let Some(attempt) = self.attempts.get(&id) else { return };
                self.tracks.instant(at, attempt.track, &format!("run {} ended", run.0), &args);
            }
        }
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.ended += 1;
        let (runs, ended) = (attempt.given.runs, attempt.ended);
        if self.in_turn && ended < runs.count {
            self.run_began(at, id, RunId(runs.first + ended));
        }
    }

    /// Ends a run and what it has under way.
    fn run_over(&mut self, at: Nanos, id: AttemptId, run: RunId, args: &str) {
        let calls: Vec<u64> = self.calls_of(id, |of| of == run);
        for call in calls {
            self.call_over(at, call, "\"outcome\":\"unfinished\"");
        }
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.shown.insert(run);
        if let Some(track) = attempt.open.remove(&run) {
            self.tracks.end(at, track, args);
        }
    }

    fn attempt_ended(&mut self, at: Nanos, id: AttemptId, lost: Option<&str>) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        let (track, open) = (attempt.track, attempt.open.keys().copied().collect::<Vec<_>>());
        let runner = attempt.given.runner;
        for run in open {
            self.run_over(at, id, run, "\"outcome\":\"unfinished\"");
        }
        let args = lost.map(|words| format!("\"lost\":{}", text(words)));
        self.tracks.end(at, track, &args.unwrap_or_default());
        self.attempts.remove(&id);
        if self.runners.get(&runner) == Some(&id) {
            self.runners.remove(&runner);
        }
    }

    fn calls_of(&self, id: AttemptId, is_it: impl Fn(RunId) -> bool) -> Vec<u64> {
        let of = |(_, (attempt, run, _)): &(&u64, &(AttemptId, RunId, Track))| {
            *attempt == id && is_it(*run)
        };
        self.calls.iter().filter(of).map(|(call, _)| *call).collect()
    }

    fn call(&mut self, at: Nanos, call: &CallEvent) {
        match &call.moment {
            CallEventKind::Began { model } => {
                let Some(of_run) = self.run_began(at, call.attempt, call.run) else { return };
                let Some(attempt) = self.attempts.get(&call.attempt) else { return };
                // The first call that is under way stands below its run, others beside it.
                let is_taken = |lane: &Track| self.calls.values().any(|(_, _, it)| it == lane);
                let beyond = attempt.given.runs.count + 1;
                let runner = attempt.given.runner;
                let mut track = of_run;
                let mut lane = beyond;
                while is_taken(&track) {
                    track = self.tracks.runner(runner, lane);
                    lane += 1;
                }
                let args = format!(
                    "\"call\":{},\"run\":{},\"model\":{}",
                    call.call,
                    call.run.0,
                    text(model)
                );
                self.tracks.begin(at, track, "call", &args);
                self.calls.insert(call.call, (call.attempt, call.run, track));
            }
            CallEventKind::Sent { server } => {
                if let Some((_, _, track)) = self.calls.get(&call.call) {
                    let args = format!("\"server\":{}", text(server));
                    self.tracks.instant(at, *track, "sent", &args);
                }
            }
            CallEventKind::Ended { status, prompt_tokens, answer_tokens, version } => {
                let mut args = format!("\"status\":{status}");
                let known = [
                    ("prompt_tokens", prompt_tokens),
                    ("answer_tokens", answer_tokens),
                    ("version", version),
                ];
                for (name, value) in known {
                    if let Some(value) = value {
                        let _ = write!(args, ",\"{name}\":{value}");
                    }
                }
                self.call_over(at, call.call, &args);
            }
        }
    }

    fn call_over(&mut self, at: Nanos, call: u64, args: &str) {
        if let Some((_, _, track)) = self.calls.remove(&call) {
            self.tracks.end(at, track, args);
        }
    }
}

/// Returns a number as an argument, if there is one that JSON can say.
fn number(name: &str, value: Option<f64>) -> String {
    match value.filter(|value| value.is_finite()) {
        Some(value) => format!("\"{name}\":{value}"),
        None => String::new(),
    }
}

/// Returns a whole number as an argument, if there is one.
fn whole(name: &str, value: Option<u64>) -> String {
    value.map(|value| format!("\"{name}\":{value}")).unwrap_or_default()
}

/// Returns arguments as more of them.
fn more(args: &str) -> String {
    if args.is_empty() { String::new() } else { format!(",{args}") }
}
