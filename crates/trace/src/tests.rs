//! Traces of scripted events.

use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use rollway_core::metrics::Metrics;
use rollway_core::{
    AttemptCancelReason, BatchId, BatchKey, BatchState, BatchType, CancelReason, FailureKind,
    Incarnation, RunEnd, RunFailure, RunOutput, RunRange, RunnerId, Status as TaskStatus, TaskId,
};
use rollway_engine::RunOutcome;
use rollway_engine::events::{CallEvent, CallEventKind, RunEventKind};
use rollway_telemetry::history::{HistoryOptions, RunHistory, live_view};
use serde_json::Value;

use super::span::{AttributeValue, Span, SpanStatus};
use super::*;

/// An event some milliseconds after a fixed time.
fn event(millis: u64, what: RunEventKind) -> RunEvent {
    let at = UNIX_EPOCH + Duration::from_secs(1_000_000) + Duration::from_millis(millis);
    RunEvent { at, what }
}

const KEY: BatchKey = BatchKey(1);

fn batch(tasks: usize) -> RunEvent {
    let tasks = vec![("work".into(), 2); tasks].into();
    let (batch, kind, first) = (BatchId::from("3/math"), BatchType::Eval, TaskId(0));
    event(0, RunEventKind::BatchBegan { batch, key: KEY, kind, first, tasks })
}

fn sent(millis: u64, attempt: u64, task: u32, runs: RunRange, runner: u32) -> RunEvent {
    let (attempt, task, runner) = (AttemptId(attempt), TaskId(task), RunnerId(runner));
    let (incarnation, timeout) = (Incarnation(1), Duration::from_secs(9));
    event(
        millis,
        RunEventKind::AttemptSent { attempt, key: KEY, task, runs, runner, incarnation, timeout },
    )
}

fn reported(millis: u64, attempt: u64, run: u32, end: RunOutcome) -> RunEvent {
    event(millis, RunEventKind::RunReported { attempt: AttemptId(attempt), run: RunId(run), end })
}

fn run_ended(millis: u64, task: u32, run: u32, how: RunEnd) -> RunEvent {
    event(millis, RunEventKind::RunEnded { key: KEY, task: TaskId(task), run: RunId(run), how })
}

fn attempt_ended(millis: u64, attempt: u64, lost: Option<&str>) -> RunEvent {
    let lost = lost.map(Into::into);
    event(millis, RunEventKind::AttemptEnded { attempt: AttemptId(attempt), lost })
}

fn task_ended(millis: u64, task: u32) -> RunEvent {
    let (task, status) = (TaskId(task), Arc::new(TaskStatus::default()));
    event(millis, RunEventKind::TaskEnded { key: KEY, task, status, dropped: None })
}

fn count(events: &[TraceEvent], wanted: fn(&RunEventKind) -> bool) -> usize {
    let is_wanted =
        |event: &&TraceEvent| matches!(&event.kind, TraceEventKind::Run(event) if wanted(event));
    events.iter().filter(is_wanted).count()
}

const TWO: RunRange = RunRange { first: 0, count: 2 };
const SECOND: RunRange = RunRange { first: 1, count: 1 };

fn success(reward: f64) -> RunOutcome {
    let mut metrics = Metrics::new();
    metrics.set("reward", reward);
    Ok(RunOutput { payload: None, metrics })
}

fn spans(all: &[RunEvent], is_closed: bool) -> Vec<Span> {
    let names = SpanNamer::new("p/j");
    let mut events = Vec::new();
    TraceSampler::unbounded(names.clone()).sample(all, true, &mut events);
    let exporters = SpanExporters { file: None, ended: Some(Vec::new()) };
    let mut builder = SpanBuilder::new(names, true, exporters);
    events.iter().for_each(|event| builder.apply(event));
    if is_closed {
        builder.close();
    }
    builder.exporters.take_ended()
}

fn text<'a>(span: &'a Span, name: &str) -> Option<&'a str> {
    span.attributes.iter().find_map(|(known, value)| match value {
        AttributeValue::Text(text) if *known == name => Some(&**text),
        _ => None,
    })
}

#[test]
fn a_run_that_lost_its_runner_has_two_attempts() {
    let reason = AttemptCancelReason::Runs(CancelReason::Aborted);
    let cancelled = RunEventKind::AttemptCancelled { attempt: AttemptId(2), reason };
    let all = [
        batch(1),
        sent(10, 1, 0, TWO, 0),
        reported(20, 1, 0, success(1.0)),
        run_ended(20, 0, 0, RunEnd::Succeeded(())),
        attempt_ended(50, 1, Some("killed")),
        sent(60, 2, 0, SECOND, 1),
        event(70, cancelled),
        run_ended(70, 0, 1, RunEnd::Cancelled(CancelReason::Aborted)),
        task_ended(70, 0),
        attempt_ended(80, 2, None),
        event(90, RunEventKind::BatchStateChanged { key: KEY, state: BatchState::Aborted }),
    ];
    let spans = spans(&all, true);
    let names: Vec<&str> = spans.iter().map(|span| span.kind.name()).collect();
    assert_eq!(names, ["attempt", "run", "attempt", "run", "task", "attempt", "batch", "eval"]);
    let outcomes: Vec<_> = spans.iter().map(|span| text(span, "rollway.outcome")).collect();
    let (ok, failed, cancelled) = (Some("succeeded"), Some("failed"), Some("cancelled"));
    assert_eq!(
        outcomes,
        [ok, ok, failed, cancelled, None, cancelled, Some("aborted"), Some("unfinished")]
    );
    assert_eq!(text(&spans[2], "error.type"), Some("runner_lost"));
    assert_eq!(spans[2].status, SpanStatus::Error("killed".into()));
    // Runs are executed in turn: the second begins at the end of the first.
    let millis = |nanos: u64| nanos / 1_000_000 % 1_000;
    assert_eq!((millis(spans[2].begin), millis(spans[2].end)), (20, 50));
    assert_eq!((millis(spans[3].begin), millis(spans[3].end)), (10, 70));
    assert_eq!(spans[5].parent, Some(spans[3].id));
}

#[test]
fn open_spans_are_exported_as_unfinished_at_the_end() {
    let all = [batch(1), sent(10, 1, 0, TWO, 0), reported(20, 1, 0, success(1.0))];
    assert_eq!(spans(&all, false).len(), 1);
    let spans = spans(&all, true);
    let is_open = |span: &&Span| text(span, "rollway.outcome") == Some("unfinished");
    let open: Vec<&str> = spans.iter().filter(is_open).map(|span| span.kind.name()).collect();
    assert_eq!(open, ["attempt", "run", "batch", "eval"]);
}

#[test]
fn tasks_above_the_rate_limit_are_not_traced_at_all() {
    const TASKS: usize = 5_000;
    let mut sampler = TraceSampler::new(SpanNamer::new("p/j"), 1.0);
    let is_sent = |event: &RunEventKind| matches!(event, RunEventKind::AttemptSent { .. });
    let mut sampled = Vec::new();
    sampler.sample(&[batch(TASKS)], true, &mut sampled);
    let one = |task: usize| {
        let task = u32::try_from(task).unwrap();
        let attempt = u64::from(task);
        let kind = FailureKind::Workflow;
        let failed = Err(RunFailure { kind, message: "no".into() });
        let first = [
            sent(1, attempt, task, TWO, 0),
            reported(1, attempt, 0, failed),
            attempt_ended(1, attempt, None),
        ];
        // Later, when the bucket is full again.
        let again = [sent(9_000, attempt + (1 << 20), task, SECOND, 0), task_ended(9_000, task)];
        first.into_iter().chain(again)
    };
    let all: Vec<RunEvent> = (0..TASKS).flat_map(one).collect();
    let (first, later): (Vec<RunEvent>, Vec<RunEvent>) =
        all.into_iter().partition(|event| event.at < batch(1).at + Duration::from_secs(5));
    sampler.sample(&first, true, &mut sampled);
    let begun = count(&sampled, is_sent);
    assert!((1..TASKS).contains(&begun), "{begun}");
    assert_eq!(sampler.ignored, (TASKS - begun) as u64);
    sampled.clear();
    sampler.sample(&later, true, &mut sampled);
    let is_ended = |event: &RunEventKind| matches!(event, RunEventKind::TaskEnded { .. });
    assert_eq!((count(&sampled, is_sent), count(&sampled, is_ended)), (begun, begun));
}

#[test]
fn events_beyond_the_queue_capacity_are_counted() {
    let shared = TracerShared {
        sampler: Mutex::new(TraceSampler::new(SpanNamer::new("p/j"), 1.0)),
        queue: TraceQueue::default(),
        losses: Arc::default(),
    };
    let (end, thread_end) = channel();
    let tracer = Tracer { shared: Arc::new(shared), thread_end: thread_end.into() };
    for _ in 0..=queue::QUEUE_CAPACITY {
        tracer.on_event(&JobEvent::Info("x".to_owned()));
    }
    assert_eq!(tracer.untraced(), UntracedCounts { facts: 1, ..UntracedCounts::default() });
    end.send(()).unwrap();
}

fn traced(folder: &std::path::Path, max_bytes: u64, all: &[RunEvent]) -> (PathBuf, UntracedCounts) {
    let mut config = Config::default();
    config.checkpoint_root_dir = folder.display().to_string();
    config.trace.file = true;
    config.trace.max_file_bytes = max_bytes;
    let tracer = Tracer::open(&config, &DropCounters::default()).unwrap().unwrap();
    tracer.observe(all);
    tracer.close();
    // The second call does nothing.
    tracer.close();
    (file(&config), tracer.untraced())
}

fn short_tasks(tasks: u32) -> Vec<RunEvent> {
    let one = |task: u32| {
        let attempt = u64::from(task);
        [sent(1, attempt, task, SECOND, task), attempt_ended(2, attempt, None)]
    };
    [batch(tasks as usize)].into_iter().chain((0..tasks).flat_map(one)).collect()
}

#[test]
fn the_file_respects_its_size_limit() {
    let folder = tempfile::tempdir().unwrap();
    let (path, untraced) = traced(folder.path(), 10_000, &short_tasks(100));
    let text = fs::read_to_string(path).unwrap();
    let events: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(text.len() < 10_200, "{}", text.len());
    let last = events.last().unwrap();
    assert_eq!(last["args"]["lost"], untraced.events);
    assert!(untraced.events > 100, "{untraced:?}");
}

#[test]
fn a_foreign_file_is_moved_aside_and_our_own_is_continued() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = traced(folder.path(), 1 << 20, &short_tasks(1));
    fs::write(&path, "[]\n").unwrap();
    traced(folder.path(), 1 << 20, &short_tasks(1));
    assert_eq!(fs::read_to_string(path.with_extension("json.old")).unwrap(), "[]\n");
    let (path, _) = traced(folder.path(), 1 << 20, &short_tasks(1));
    let events: Vec<Value> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let begins = events.iter().filter(|event| event["name"] == "work 3/math/0").count();
    assert_eq!(begins, 2);
    assert_eq!(events[0]["args"]["processes"], 2);
}

#[test]
fn a_history_is_written_as_a_trace_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.checkpoint_root_dir = folder.path().display().to_string();
    let history = RunHistory::open(&HistoryOptions::of(&config).unwrap()).unwrap();
    let call = |millis, kind| {
        let (attempt, run) = (AttemptId(1), RunId(0));
        event(millis, RunEventKind::Call(CallEvent { attempt, run, call: 4, kind }))
    };
    let ended = CallEventKind::Ended {
        status: 200,
        prompt_tokens: Some(3),
        answer_tokens: Some(5),
        version: Some(7),
    };
    let kind = FailureKind::Timeout;
    let failed = RunEnd::Failed(RunFailure { kind, message: "too long".into() });
    let all = [
        batch(1),
        sent(10, 1, 0, TWO, 0),
        event(11, RunEventKind::AttemptBegan { attempt: AttemptId(1) }),
        call(12, CallEventKind::Began { model: "m".into() }),
        call(14, ended),
        reported(20, 1, 0, success(1.0)),
        run_ended(20, 0, 0, RunEnd::Succeeded(())),
        reported(30, 1, 1, Err(RunFailure { kind, message: "too long".into() })),
        run_ended(30, 0, 1, failed),
        attempt_ended(30, 1, None),
        task_ended(30, 0),
        event(40, RunEventKind::BatchStateChanged { key: KEY, state: BatchState::Finalized }),
    ];
    history.observe(&all);
    let path = folder.path().join("drawn.json");
    // An existing file is replaced.
    fs::write(&path, "old").unwrap();
    let (runs, untraced) = write_trace(&*live_view(history), &path, 1 << 20).unwrap();
    assert_eq!((runs, untraced), (2, UntracedCounts::default()));
    let events: Vec<Value> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
    let names: Vec<&str> = of("B").iter().filter_map(|event| event["name"].as_str()).collect();
    let expected = ["eval 3/math", "batch 3/math", "work 3/math/0", "run 0", "call", "run 1"];
    assert_eq!(names, expected);
    assert_eq!(of("E").len(), names.len(), "everything has ended");
    let args: Vec<String> = of("E").iter().map(|event| event["args"].to_string()).collect();
    assert!(args[0].contains("\"version\":7"), "{args:?}");
    assert!(args[2].contains("too long"), "{args:?}");
}
