//! The trace file of a job that has a history, made afterwards.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;

use rollway_core::{
    AttemptId, BatchId, BatchKey, BatchState, BatchType, Incarnation, RunId, RunRange, RunnerId,
    TaskId,
};
use rollway_engine::events::{CallEvent, CallEventKind};

use super::dropped::{Losses, UntracedCounts};
use super::event::{AttemptStart, SpanEnd, Tasks, TraceEvent, TraceEventKind};
use super::perfetto::PerfettoWriter;
use super::span::Nanos;
use rollway_telemetry::view::{self, JobView, RunDetail, RunKey, RunQuery, Timeline};

/// How many runs are asked for at once.
const PAGE: usize = 1_000;

/// How many seconds it may take until the end of a run is heard.
const REPORT_DELAY_SECONDS: f64 = 1.0;

/// Writes what the history of a job tells as a trace file of at most so many bytes. Returns how
/// many runs are in it, and what is not.
///
/// # Errors
/// If the file cannot be written.
pub fn write_trace(
    scene: &dyn JobView,
    path: &Path,
    most: u64,
) -> io::Result<(u64, UntracedCounts)> {
    let mut drawing = Drawing::default();
    drawing.batches(scene);
    let runs = drawing.runs(scene);
    drawing.timeline(&scene.timeline());
    drawing.attempts();
    let Drawing { mut marks, overlaps, .. } = drawing;
    // What ends is told before what begins at the same moment.
    marks.sort_by_key(|(rank, mark)| (mark.at, *rank));
    let losses = Arc::new(Losses::default());
    let origin = marks.first().map_or(0, |(_, mark)| mark.at);
    // A file that is there is replaced when this one is whole.
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut chrome = PerfettoWriter::open(new.as_ref(), most, origin, !overlaps, &losses)?;
    marks.iter().for_each(|(_, mark)| chrome.note(mark));
    chrome.close();
    std::fs::rename(new, path)?;
    Ok((runs, losses.count()))
}

/// In which order things of one moment are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SpanRank {
    CallEnded,
    RunEnded,
    AttemptEnded,
    BatchBegan,
    Given,
    Began,
    Called,
    BatchEnded,
}

#[derive(Debug, Default)]
struct Drawing {
    marks: Vec<(SpanRank, TraceEvent)>,
    /// Every batch by its name, and when it began.
    keys: HashMap<String, (BatchKey, f64)>,
    workflows: HashMap<String, BTreeMap<u32, Arc<str>>>,
    attempts: BTreeMap<u64, Slice>,
    /// Whether runs of one attempt were seen to be executed at the same time.
    overlaps: bool,
}

/// What is known of an attempt from all its runs.
#[derive(Debug)]
struct Slice {
    key: BatchKey,
    task: u32,
    runner: u32,
    life: u32,
    given: f64,
    began: Option<f64>,
    /// When the last of its runs was over; none: one is not.
    ended: Option<f64>,
    lost: Option<Arc<str>>,
    runs: BTreeMap<u32, HistoryPart>,
}

/// A run of an attempt.
#[derive(Debug)]
struct HistoryPart {
    /// From its first call to the end of its last.
    calls: Option<(f64, f64)>,
    over: Option<f64>,
    end: Option<SpanEnd>,
}

impl Slice {
    /// Tells whether some of its runs were executed at the same time. What a run says at its end is
    /// heard a moment later, when the next one may be at work.
    fn overlaps(&self) -> bool {
        let mut before = (f64::MIN, f64::MIN);
        let mut parts: Vec<(f64, f64, f64)> = Vec::new();
        for part in self.runs.values() {
            let Some((first, last)) = part.calls else { continue };
            parts.push((first, last, part.over.unwrap_or(f64::MAX)));
        }
        parts.sort_by(|one, other| one.0.total_cmp(&other.0));
        parts.into_iter().any(|(first, last, over)| {
            let (called, ended) = before;
            before = (last.max(called), over.max(ended));
            first < called || first + REPORT_DELAY_SECONDS < ended
        })
    }

    /// Has each run end before the next one calls.
    fn in_turn(&mut self) {
        let mut next = f64::MAX;
        for part in self.runs.values_mut().rev() {
            part.over = part.over.map(|over| over.min(next));
            next = part.calls.map_or(next, |(first, _)| first.min(next));
        }
    }
}

impl Drawing {
    fn add(&mut self, rank: SpanRank, seconds: f64, fact: TraceEventKind) {
        let at = (seconds.max(0.0) * 1e9) as Nanos;
        self.marks.push((rank, TraceEvent { at, fact }));
    }

    fn batches(&mut self, scene: &dyn JobView) {
        for (number, batch) in scene.batches().into_iter().rev().enumerate() {
            let key = BatchKey(number as u64);
            self.keys.insert(batch.batch.clone(), (key, batch.began));
            let kind = if batch.kind == "eval" { BatchType::Eval } else { BatchType::Train };
            let nobody = Tasks { first: TaskId(0), tasks: Arc::from([]) };
            let id = BatchId::from(batch.batch.as_str());
            let began = TraceEventKind::BatchBegan { batch: id, key, kind, tasks: nobody };
            self.add(SpanRank::BatchBegan, batch.began, began);
            if let Some(ended) = batch.ended {
                let is_aborted = batch.state == "aborted";
                let state = if is_aborted { BatchState::Aborted } else { BatchState::Finalized };
                self.add(SpanRank::BatchEnded, ended, TraceEventKind::BatchIs { key, state });
            }
        }
    }

    /// Takes in every run; returns how many there are.
    fn runs(&mut self, scene: &dyn JobView) -> u64 {
        let mut query = RunQuery { limit: PAGE, ..RunQuery::default() };
        loop {
            let page = scene.runs(&query);
            if page.runs.is_empty() {
                return page.total;
            }
            query.offset += page.runs.len();
            for run in page.runs {
                let key = RunKey { batch: run.batch, task: run.task, run: run.run };
                if let Some(detail) = scene.run(&key) {
                    self.run(&detail);
                }
            }
        }
    }

    fn run(&mut self, detail: &RunDetail) {
        let run = &detail.run;
        let Some((key, batch)) = self.keys.get(&run.batch).copied() else { return };
        let workflows = self.workflows.entry(run.batch.clone()).or_default();
        workflows.entry(run.task).or_insert_with(|| run.workflow.as_str().into());
        for attempt in &detail.attempts {
            let slice = self.attempts.entry(attempt.attempt).or_insert_with(|| Slice {
                key,
                task: run.task,
                runner: attempt.runner,
                life: attempt.life,
                // Within a second of so many digits the one may be rounded below the other.
                given: attempt.given.max(batch),
                began: attempt.began,
                ended: Some(attempt.given),
                lost: None,
                runs: BTreeMap::new(),
            });
            slice.ended = slice.ended.zip(attempt.ended).map(|(one, other)| one.max(other));
            let words: Option<Arc<str>> = attempt.message.as_deref().map(Into::into);
            if attempt.outcome == "lost" {
                slice.lost = Some(words.clone().unwrap_or_else(|| "lost".into()));
            }
            let end = match &*attempt.outcome {
                "succeeded" => Some(SpanEnd::Succeeded { reward: run.reward }),
                "failed" => {
                    Some(SpanEnd::Failed { kind: None, message: words.unwrap_or_default() })
                }
                _ => None,
            };
            let calls = attempt.calls.iter();
            let calls = calls.map(|call| (call.began, call.ended.unwrap_or(call.began)));
            let calls = calls.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
            slice.runs.insert(run.run, HistoryPart { calls, over: attempt.ended, end });
            let id = AttemptId(attempt.attempt);
            for call in &attempt.calls {
                self.call(id, RunId(run.run), call);
            }
        }
    }

    fn call(&mut self, attempt: AttemptId, run: RunId, call: &view::CallDetail) {
        let fact =
            |moment| TraceEventKind::Call(CallEvent { attempt, run, call: call.call, moment });
        let model = call.model.as_str().into();
        self.add(SpanRank::Called, call.began, fact(CallEventKind::Began { model }));
        if let (Some(sent), Some(server)) = (call.sent, &call.server) {
            let server = server.as_str().into();
            self.add(SpanRank::Called, sent.max(call.began), fact(CallEventKind::Sent { server }));
        }
        if let Some(ended) = call.ended {
            let moment = CallEventKind::Ended {
                status: call.status.unwrap_or_default(),
                prompt_tokens: call.prompt_tokens,
                answer_tokens: call.answer_tokens,
                version: call.version,
            };
            // Not before it began, though that was at the same moment.
            let rank = if ended > call.began { SpanRank::CallEnded } else { SpanRank::Called };
            self.add(rank, ended, fact(moment));
        }
    }

    fn attempts(&mut self) {
        let attempts = std::mem::take(&mut self.attempts);
        self.overlaps = attempts.values().any(Slice::overlaps);
        for (id, mut slice) in attempts {
            if !self.overlaps {
                slice.in_turn();
            }
            let (Some(first), Some(last)) = (slice.runs.keys().next(), slice.runs.keys().last())
            else {
                continue;
            };
            let (first, count) = (*first, last - first + 1);
            let attempt = AttemptId(id);
            let given = AttemptStart {
                attempt,
                key: slice.key,
                task: TaskId(slice.task),
                runs: RunRange { first, count },
                runner: RunnerId(slice.runner),
                life: Incarnation(slice.life),
            };
            self.add(SpanRank::Given, slice.given, TraceEventKind::Given(given));
            if let Some(began) = slice.began {
                self.add(
                    SpanRank::Began,
                    began.max(slice.given),
                    TraceEventKind::Began { attempt },
                );
            }
            for (run, part) in slice.runs {
                if let (Some(end), Some(over)) = (part.end, part.over) {
                    let fact = TraceEventKind::RunEnded { attempt, run: RunId(run), end };
                    self.add(SpanRank::RunEnded, over, fact);
                }
            }
            if let Some(ended) = slice.ended {
                let fact = TraceEventKind::AttemptEnded { attempt, lost: slice.lost };
                self.add(SpanRank::AttemptEnded, ended, fact);
            }
        }
        self.name_workflows();
    }

    /// Says which workflow each task has, as soon as its batch begins.
    fn name_workflows(&mut self) {
        let mut named: HashMap<BatchKey, Tasks> = HashMap::new();
        for (batch, workflows) in std::mem::take(&mut self.workflows) {
            let Some((key, _)) = self.keys.get(&batch) else { continue };
            let tasks = workflows.keys().next_back().map_or(0, |last| last + 1);
            let name = |task| workflows.get(&task).cloned().unwrap_or_default();
            let tasks = (0..tasks).map(|task| (name(task), 0)).collect();
            named.insert(*key, Tasks { first: TaskId(0), tasks });
        }
        for (_, mark) in &mut self.marks {
            if let TraceEventKind::BatchBegan { key, tasks, .. } = &mut mark.fact
                && let Some(known) = named.remove(key)
            {
                *tasks = known;
            }
        }
    }

    fn timeline(&mut self, timeline: &Timeline) {
        for lane in &timeline.lanes {
            for span in &lane.spans {
                let step = span.step;
                match (&*lane.name, span.end) {
                    ("steps", end) => {
                        let begun = TraceEventKind::StepBegun { step, tasks: 0, runs: 0 };
                        self.add(SpanRank::BatchBegan, span.begin, begun);
                        if let Some(end) = end {
                            let done = TraceEventKind::StepDone { step, reward: None };
                            self.add(SpanRank::BatchEnded, end, done);
                        }
                    }
                    ("syncs", Some(end)) => {
                        let waited = ((end - span.begin).max(0.0) * 1e9) as Nanos;
                        let synced =
                            TraceEventKind::Synced { step, version: None, waited, loading: 0 };
                        self.add(SpanRank::BatchEnded, end, synced);
                    }
                    ("training", Some(end)) => {
                        self.add(SpanRank::BatchEnded, end, TraceEventKind::Trained { step });
                    }
                    ("evals", Some(end)) => {
                        let set = span.name.as_str().into();
                        let done =
                            TraceEventKind::Evaluated { step, version: None, set, score: None };
                        self.add(SpanRank::BatchEnded, end, done);
                    }
                    _ => {}
                }
            }
        }
    }
}
