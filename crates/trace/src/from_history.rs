//! Writes the trace file of a job from its run history.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollway_core::metrics::Metrics;
use rollway_core::{
    AttemptId, BatchId, BatchKey, BatchState, BatchType, FailureKind, Incarnation, RunFailure,
    RunId, RunOutput, RunRange, RunnerId, TaskId,
};
use rollway_engine::RunOutcome;
use rollway_engine::events::{CallEvent, CallEventKind, RunEventKind};
use rollway_telemetry::view::{CallDetail, JobView, RunDetail, RunKey, RunQuery, Timeline};

use super::dropped::{Losses, UntracedCounts};
use super::event::{REWARD, TraceEvent, TraceEventKind};
use super::exporters::SpanExporters;
use super::ids::SpanNamer;
use super::perfetto::PerfettoWriter;
use super::span::Nanos;
use super::span_builder::SpanBuilder;

/// Runs of one query.
const PAGE: usize = 1_000;

/// Maximum delay of the report of a run's end, in seconds.
const REPORT_DELAY_SECONDS: f64 = 1.0;

/// Writes the history of a job as a trace file. Returns the number of runs in it and the counts of
/// what does not fit into `max_bytes`.
///
/// # Errors
/// If the file cannot be written.
pub fn write_trace(
    view: &dyn JobView,
    path: &Path,
    max_bytes: u64,
) -> io::Result<(u64, UntracedCounts)> {
    let mut reader = HistoryReader::default();
    reader.read_batches(view);
    let runs = reader.read_runs(view);
    reader.read_timeline(&view.timeline());
    reader.add_attempts();
    let HistoryReader { mut events, overlaps, .. } = reader;
    // Ends come before begins at the same time.
    events.sort_by_key(|(rank, event)| (event.at, *rank));
    let losses = Arc::new(Losses::default());
    let origin = events.first().map_or(0, |(_, event)| event.at);
    // An existing file is replaced when the new one is complete.
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = PerfettoWriter::open(new.as_ref(), max_bytes, origin, &losses)?;
    let exporters = SpanExporters { file: Some(file), ended: None };
    // The file has no ids of jobs.
    let names = SpanNamer::new("history");
    let mut builder = SpanBuilder::new(names, !overlaps, exporters).without_failure_kinds();
    events.iter().for_each(|(_, event)| builder.apply(event));
    builder.close();
    if let Some(file) = builder.exporters.file {
        file.close();
    }
    std::fs::rename(new, path)?;
    Ok((runs, losses.count()))
}

/// Order of events at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EventRank {
    CallEnded,
    RunEnded,
    AttemptEnded,
    BatchBegan,
    Sent,
    Began,
    Called,
    BatchEnded,
}

#[derive(Debug, Default)]
struct HistoryReader {
    events: Vec<(EventRank, TraceEvent)>,
    /// Key and start of each batch, by its id.
    keys: HashMap<String, (BatchKey, f64)>,
    workflows: HashMap<BatchKey, BTreeMap<u32, Arc<str>>>,
    attempts: BTreeMap<u64, RecordedAttempt>,
    /// Runs of one attempt were executed at the same time.
    overlaps: bool,
}

/// An attempt, put together from its runs.
#[derive(Debug)]
struct RecordedAttempt {
    key: BatchKey,
    task: u32,
    runner: u32,
    incarnation: u32,
    sent: f64,
    began: Option<f64>,
    /// End of its last run. `None`: a run has not ended.
    ended: Option<f64>,
    lost: Option<Arc<str>>,
    runs: BTreeMap<u32, RecordedRun>,
}

#[derive(Debug)]
struct RecordedRun {
    /// Begin of the first call and end of the last.
    calls: Option<(f64, f64)>,
    ended: Option<f64>,
    outcome: Option<RunOutcome>,
}

impl RecordedAttempt {
    /// Returns whether runs overlap by more than the delay of their reports.
    fn overlaps(&self) -> bool {
        let runs = self.runs.values().filter_map(|run| {
            run.calls.map(|(first, last)| (first, last, run.ended.unwrap_or(f64::MAX)))
        });
        let mut runs: Vec<(f64, f64, f64)> = runs.collect();
        runs.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut before = (f64::MIN, f64::MIN);
        runs.into_iter().any(|(first, last, end)| {
            let (called, ended) = before;
            before = (last.max(called), end.max(ended));
            first < called || first + REPORT_DELAY_SECONDS < ended
        })
    }

    /// Ends each run before the first call of the next.
    fn serialize_runs(&mut self) {
        let mut next = f64::MAX;
        for run in self.runs.values_mut().rev() {
            run.ended = run.ended.map(|ended| ended.min(next));
            next = run.calls.map_or(next, |(first, _)| first.min(next));
        }
    }
}

impl HistoryReader {
    fn add(&mut self, rank: EventRank, seconds: f64, kind: TraceEventKind) {
        let at = (seconds.max(0.0) * 1e9) as Nanos;
        self.events.push((rank, TraceEvent { at, kind }));
    }

    fn add_run_event(&mut self, rank: EventRank, seconds: f64, event: RunEventKind) {
        self.add(rank, seconds, TraceEventKind::Run(event));
    }

    fn read_batches(&mut self, view: &dyn JobView) {
        for (number, row) in view.batches().into_iter().rev().enumerate() {
            let key = BatchKey(number as u64);
            let kind = if row.kind == "eval" { BatchType::Eval } else { BatchType::Train };
            let batch = BatchId::from(row.batch.as_str());
            let (first, tasks) = (TaskId(0), Arc::from([]));
            let began = RunEventKind::BatchBegan { batch, key, kind, first, tasks };
            self.add_run_event(EventRank::BatchBegan, row.began, began);
            if let Some(ended) = row.ended {
                let is_aborted = row.state == "aborted";
                let state = if is_aborted { BatchState::Aborted } else { BatchState::Finalized };
                let ended_event = RunEventKind::BatchStateChanged { key, state };
                self.add_run_event(EventRank::BatchEnded, ended, ended_event);
            }
            self.keys.insert(row.batch, (key, row.began));
        }
    }

    /// Reads all runs; returns their number.
    fn read_runs(&mut self, view: &dyn JobView) -> u64 {
        let mut query = RunQuery { limit: PAGE, ..RunQuery::default() };
        loop {
            let page = view.runs(&query);
            if page.runs.is_empty() {
                return page.total;
            }
            query.offset += page.runs.len();
            for run in page.runs {
                let key = RunKey { batch: run.batch, task: run.task, run: run.run };
                if let Some(detail) = view.run(&key) {
                    self.read_run(&detail);
                }
            }
        }
    }

    fn read_run(&mut self, detail: &RunDetail) {
        let run = &detail.run;
        let Some((key, batch_began)) = self.keys.get(&run.batch).copied() else { return };
        let workflows = self.workflows.entry(key).or_default();
        workflows.entry(run.task).or_insert_with(|| run.workflow.as_str().into());
        for attempt in &detail.attempts {
            let recorded =
                self.attempts.entry(attempt.attempt).or_insert_with(|| RecordedAttempt {
                    key,
                    task: run.task,
                    runner: attempt.runner,
                    incarnation: attempt.incarnation,
                    // Rounding may put it before its batch.
                    sent: attempt.sent_at.max(batch_began),
                    began: attempt.began,
                    ended: Some(attempt.sent_at),
                    lost: None,
                    runs: BTreeMap::new(),
                });
            recorded.ended = recorded.ended.zip(attempt.ended).map(|(one, other)| one.max(other));
            let message: Arc<str> = attempt.message.as_deref().unwrap_or_default().into();
            let outcome = match &*attempt.outcome {
                "succeeded" => {
                    let reward = run.reward.map(|reward| (REWARD, reward));
                    let metrics = reward.into_iter().collect::<Metrics>();
                    Some(Ok(RunOutput { payload: None, metrics }))
                }
                // The history has no kind of failure, and the builder omits it.
                "failed" => Some(Err(RunFailure::new(FailureKind::Workflow, message))),
                "lost" => {
                    let is_known = attempt.message.is_some();
                    recorded.lost = Some(if is_known { message } else { "lost".into() });
                    None
                }
                _ => None,
            };
            let calls = attempt.calls.iter();
            let calls = calls.map(|call| (call.began, call.ended.unwrap_or(call.began)));
            let calls = calls.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
            recorded.runs.insert(run.run, RecordedRun { calls, ended: attempt.ended, outcome });
            for call in &attempt.calls {
                self.add_call(AttemptId(attempt.attempt), RunId(run.run), call);
            }
        }
    }

    fn add_call(&mut self, attempt: AttemptId, run: RunId, call: &CallDetail) {
        let event = |kind| {
            let call = CallEvent { attempt, run, call: call.call, kind };
            TraceEventKind::Run(RunEventKind::Call(call))
        };
        let model = call.model.as_str().into();
        self.add(EventRank::Called, call.began, event(CallEventKind::Began { model }));
        if let (Some(sent), Some(server)) = (call.sent, &call.server) {
            let server = server.as_str().into();
            let sent_event = event(CallEventKind::Sent { server });
            self.add(EventRank::Called, sent.max(call.began), sent_event);
        }
        if let Some(ended) = call.ended {
            let kind = CallEventKind::Ended {
                status: call.status.unwrap_or_default(),
                prompt_tokens: call.prompt_tokens,
                answer_tokens: call.answer_tokens,
                version: call.version,
            };
            // A call that ended at its start ends after it.
            let rank = if ended > call.began { EventRank::CallEnded } else { EventRank::Called };
            self.add(rank, ended, event(kind));
        }
    }

    fn add_attempts(&mut self) {
        let attempts = std::mem::take(&mut self.attempts);
        self.overlaps = attempts.values().any(RecordedAttempt::overlaps);
        for (id, mut recorded) in attempts {
            if !self.overlaps {
                recorded.serialize_runs();
            }
            let first = recorded.runs.keys().next().copied().unwrap_or_default();
            let last = recorded.runs.keys().next_back().copied().unwrap_or_default();
            let attempt = AttemptId(id);
            let sent = RunEventKind::AttemptSent {
                attempt,
                key: recorded.key,
                task: TaskId(recorded.task),
                runs: RunRange { first, count: last - first + 1 },
                runner: RunnerId(recorded.runner),
                incarnation: Incarnation(recorded.incarnation),
                timeout: Duration::ZERO,
            };
            self.add_run_event(EventRank::Sent, recorded.sent, sent);
            if let Some(began) = recorded.began {
                let event = RunEventKind::AttemptBegan { attempt };
                self.add_run_event(EventRank::Began, began.max(recorded.sent), event);
            }
            for (run, recorded) in recorded.runs {
                if let (Some(end), Some(ended)) = (recorded.outcome, recorded.ended) {
                    let event = RunEventKind::RunReported { attempt, run: RunId(run), end };
                    self.add_run_event(EventRank::RunEnded, ended, event);
                }
            }
            if let Some(ended) = recorded.ended {
                let event = RunEventKind::AttemptEnded { attempt, lost: recorded.lost };
                self.add_run_event(EventRank::AttemptEnded, ended, event);
            }
        }
        self.add_workflows();
    }

    /// Adds the workflows of tasks to the start of their batches.
    fn add_workflows(&mut self) {
        for (_, event) in &mut self.events {
            let TraceEventKind::Run(RunEventKind::BatchBegan { key, tasks, .. }) = &mut event.kind
            else {
                continue;
            };
            if let Some(workflows) = self.workflows.remove(key) {
                let count = workflows.keys().next_back().map_or(0, |last| last + 1);
                let name = |task| workflows.get(&task).cloned().unwrap_or_default();
                *tasks = (0..count).map(|task| (name(task), 0)).collect();
            }
        }
    }

    fn read_timeline(&mut self, timeline: &Timeline) {
        for lane in &timeline.lanes {
            for span in &lane.spans {
                let step = span.step;
                if lane.name == "steps" {
                    let begun = TraceEventKind::StepBegun { step, tasks: 0, runs: 0 };
                    self.add(EventRank::BatchBegan, span.begin, begun);
                }
                let Some(end) = span.end else { continue };
                let ended = match &*lane.name {
                    "steps" => TraceEventKind::StepDone { step, reward: None },
                    "syncs" => {
                        let waited = ((end - span.begin).max(0.0) * 1e9) as Nanos;
                        TraceEventKind::Synced { step, version: None, waited, loading: 0 }
                    }
                    "training" => TraceEventKind::Trained { step },
                    "evals" => {
                        let set = span.name.as_str().into();
                        TraceEventKind::Evaluated { step, version: None, set, score: None }
                    }
                    _ => continue,
                };
                self.add(EventRank::BatchEnded, end, ended);
            }
        }
    }
}
