//! Traces of things that were seen, made up here.

use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use rollway_core::metrics::Metrics;
use rollway_core::{
    AttemptCancelReason, BatchId, BatchKey, BatchState, BatchType, CancelReason, FailureKind,
    Incarnation, RunEnd, RunFailure, RunOutput, RunRange, RunnerId, Status as TaskStatus, TaskId,
};
use rollway_engine::RunOutcome;
use rollway_engine::events::RunEventKind;
use serde_json::Value;

use super::span::{Span, SpanStatus};
use super::*;

/// Something seen, so many milliseconds after a moment.
fn seen(millis: u64, what: RunEventKind) -> RunEvent {
    RunEvent {
        at: UNIX_EPOCH + Duration::from_secs(1_000_000) + Duration::from_millis(millis),
        what,
    }
}

const KEY: BatchKey = BatchKey(1);

fn batch(tasks: usize) -> RunEvent {
    let tasks = vec![("work".into(), 2); tasks].into();
    let batch = BatchId::from("3/math");
    seen(
        0,
        RunEventKind::BatchBegan {
            batch,
            key: KEY,
            kind: BatchType::Eval,
            first: TaskId(0),
            tasks,
        },
    )
}

fn given(millis: u64, attempt: u64, task: u32, runs: RunRange, runner: u32) -> RunEvent {
    let (attempt, task, runner) = (AttemptId(attempt), TaskId(task), RunnerId(runner));
    let (life, timeout) = (Incarnation(1), Duration::from_secs(9));
    seen(millis, RunEventKind::AttemptSent { attempt, key: KEY, task, runs, runner, life, timeout })
}

fn run_ended(millis: u64, attempt: u64, run: u32, end: RunOutcome) -> RunEvent {
    seen(millis, RunEventKind::RunReported { attempt: AttemptId(attempt), run: RunId(run), end })
}

fn over(millis: u64, task: u32, run: u32, how: RunEnd) -> RunEvent {
    seen(millis, RunEventKind::RunEnded { key: KEY, task: TaskId(task), run: RunId(run), how })
}

fn attempt_ended(millis: u64, attempt: u64, lost: Option<&str>) -> RunEvent {
    seen(
        millis,
        RunEventKind::AttemptEnded { attempt: AttemptId(attempt), lost: lost.map(Into::into) },
    )
}

fn task_ended(millis: u64, task: u32) -> RunEvent {
    let (task, status) = (TaskId(task), Arc::new(TaskStatus::default()));
    seen(millis, RunEventKind::TaskEnded { key: KEY, task, status, dropped: None })
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
    let mut marks = Vec::new();
    TraceSampler::unbounded(names.clone()).keep(all, true, &mut marks);
    let mut book = SpanBuilder::new(names, true);
    marks.iter().for_each(|mark| book.note(mark));
    let mut spans = book.over();
    if is_closed {
        spans.extend(book.close());
    }
    spans
}

fn text<'a>(span: &'a Span, name: &str) -> Option<&'a str> {
    span.attributes.iter().find_map(|(known, value)| match value {
        span::AttributeValue::Text(text) if *known == name => Some(&**text),
        _ => None,
    })
}

#[test]
fn a_run_that_lost_its_runner_has_two_attempts() {
    let all = [
        batch(1),
        given(10, 1, 0, TWO, 0),
        run_ended(20, 1, 0, success(1.0)),
        over(20, 0, 0, RunEnd::Succeeded(())),
        attempt_ended(50, 1, Some("killed")),
        given(60, 2, 0, SECOND, 1),
        seen(
            70,
            RunEventKind::AttemptCancelled {
                attempt: AttemptId(2),
                reason: AttemptCancelReason::Runs(CancelReason::Aborted),
            },
        ),
        over(70, 0, 1, RunEnd::Cancelled(CancelReason::Aborted)),
        task_ended(70, 0),
        attempt_ended(80, 2, None),
        seen(90, RunEventKind::BatchStateChanged { key: KEY, state: BatchState::Aborted }),
    ];
    let spans = spans(&all, true);
    let names: Vec<&str> = spans.iter().map(|span| span.name).collect();
    assert_eq!(names, ["attempt", "run", "attempt", "run", "task", "attempt", "batch"]);
    let outcomes: Vec<_> = spans.iter().map(|span| text(span, "rollway.outcome")).collect();
    let (well, badly, cancelled) = (Some("succeeded"), Some("failed"), Some("cancelled"));
    assert_eq!(outcomes, [well, well, badly, cancelled, None, cancelled, Some("aborted")]);
    assert_eq!(text(&spans[2], "error.type"), Some("runner_lost"));
    assert_eq!(spans[2].status, SpanStatus::Badly("killed".into()));
    // Runs are executed in turn: the second began when the first had ended.
    let millis = |nanos: u64| nanos / 1_000_000 % 1_000;
    assert_eq!((millis(spans[2].begin), millis(spans[2].end)), (20, 50));
    assert_eq!((millis(spans[3].begin), millis(spans[3].end)), (10, 70));
    assert_eq!(spans[5].parent, Some(spans[3].id));
}

#[test]
fn what_had_not_ended_is_there_when_the_job_ends() {
    let all = [batch(1), given(10, 1, 0, TWO, 0), run_ended(20, 1, 0, success(1.0))];
    assert_eq!(spans(&all, false).len(), 1);
    let spans = spans(&all, true);
    let open: Vec<&str> = spans
        .iter()
        .filter(|span| text(span, "rollway.outcome") == Some("unfinished"))
        .map(|span| span.name)
        .collect();
    assert_eq!(open, ["attempt", "run", "batch"]);
}

#[test]
fn tasks_that_come_too_fast_are_left_out_whole() {
    const TASKS: usize = 5_000;
    let mut filter = TraceSampler::new(SpanNamer::new("p/j"), 1.0);
    let mut marks = Vec::new();
    filter.keep(&[batch(TASKS)], true, &mut marks);
    let one = |task: usize| {
        let task = u32::try_from(task).unwrap();
        let attempt = u64::from(task);
        let kind = FailureKind::Workflow;
        let failed = Err(RunFailure { kind, message: "no".into() });
        let first = [
            given(1, attempt, task, TWO, 0),
            run_ended(1, attempt, 0, failed),
            attempt_ended(1, attempt, None),
        ];
        // Much later, when there is room again.
        let again = [given(9_000, attempt + (1 << 20), task, SECOND, 0), task_ended(9_000, task)];
        first.into_iter().chain(again)
    };
    let all: Vec<RunEvent> = (0..TASKS).flat_map(one).collect();
    let (firsts, laters): (Vec<RunEvent>, Vec<RunEvent>) =
        all.into_iter().partition(|seen| seen.at < batch(1).at + Duration::from_secs(5));
    filter.keep(&firsts, true, &mut marks);
    let begun = marks.iter().filter(|mark| matches!(mark.fact, TraceEventKind::Given(_))).count();
    assert!((1..TASKS).contains(&begun), "{begun}");
    assert_eq!(filter.ignored, (TASKS - begun) as u64);
    marks.clear();
    filter.keep(&laters, true, &mut marks);
    let begun_again =
        marks.iter().filter(|mark| matches!(mark.fact, TraceEventKind::Given(_))).count();
    let ended =
        marks.iter().filter(|mark| matches!(mark.fact, TraceEventKind::TaskEnded { .. })).count();
    assert_eq!((begun_again, ended), (begun, begun));
}

#[test]
fn a_queue_that_is_full_is_counted() {
    let shared = TracerShared {
        filter: Mutex::new(TraceSampler::new(SpanNamer::new("p/j"), 1.0)),
        queue: TraceQueue::default(),
        losses: Arc::default(),
    };
    let (end, over) = channel();
    let tracer = Tracer { shared: Arc::new(shared), over: over.into() };
    // Nobody takes anything.
    for _ in 0..=queue::QUEUE_CAPACITY {
        tracer.on_event(&JobEvent::Info("x".to_owned()));
    }
    assert_eq!(tracer.untraced(), UntracedCounts { facts: 1, ..UntracedCounts::default() });
    end.send(()).unwrap();
}

fn traced(folder: &std::path::Path, most: u64, all: &[RunEvent]) -> (PathBuf, UntracedCounts) {
    let mut config = Config::default();
    config.checkpoint_root_dir = folder.display().to_string();
    config.trace.file = true;
    config.trace.max_file_bytes = most;
    let tracer = Tracer::open(&config).unwrap().unwrap();
    tracer.observe(all);
    tracer.close();
    // A second time there is nothing to do.
    tracer.close();
    (file(&config), tracer.untraced())
}

fn some(tasks: u32) -> Vec<RunEvent> {
    let one = |task: u32| {
        let attempt = u64::from(task);
        [given(1, attempt, task, SECOND, task), attempt_ended(2, attempt, None)]
    };
    [batch(tasks as usize)].into_iter().chain((0..tasks).flat_map(one)).collect()
}

#[test]
fn the_file_does_not_grow_beyond_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let (path, untraced) = traced(folder.path(), 10_000, &some(100));
    let text = fs::read_to_string(path).unwrap();
    let events: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(text.len() < 10_200, "{}", text.len());
    let last = events.last().unwrap();
    assert_eq!(last["args"]["lost"], untraced.events);
    assert!(untraced.events > 100, "{untraced:?}");
}

#[test]
fn a_file_of_others_is_put_aside() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = traced(folder.path(), 1 << 20, &some(1));
    fs::write(&path, "[]\n").unwrap();
    traced(folder.path(), 1 << 20, &some(1));
    assert_eq!(fs::read_to_string(path.with_extension("json.old")).unwrap(), "[]\n");
    // Gone on with, it has what both have seen.
    let (path, _) = traced(folder.path(), 1 << 20, &some(1));
    let events: Vec<Value> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let begins = events.iter().filter(|event| event["name"] == "work 3/math/0").count();
    assert_eq!(begins, 2);
    assert_eq!(events[0]["args"]["processes"], 2);
}

#[test]
fn a_history_is_drawn_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.checkpoint_root_dir = folder.path().display().to_string();
    let options = rollway_telemetry::history::HistoryOptions::of(&config).unwrap();
    let history = rollway_telemetry::history::RunHistory::open(&options).unwrap();
    let call = |millis, moment| {
        let (attempt, run) = (AttemptId(1), RunId(0));
        seen(
            millis,
            RunEventKind::Call(rollway_engine::events::CallEvent { attempt, run, call: 4, moment }),
        )
    };
    let ended = rollway_engine::events::CallEventKind::Ended {
        status: 200,
        prompt_tokens: Some(3),
        answer_tokens: Some(5),
        version: Some(7),
    };
    let kind = FailureKind::Timeout;
    let failed = RunEnd::Failed(RunFailure { kind, message: "too long".into() });
    let all = [
        batch(1),
        given(10, 1, 0, TWO, 0),
        seen(11, RunEventKind::AttemptBegan { attempt: AttemptId(1) }),
        call(12, rollway_engine::events::CallEventKind::Began { model: "m".into() }),
        call(14, ended),
        run_ended(20, 1, 0, success(1.0)),
        over(20, 0, 0, RunEnd::Succeeded(())),
        run_ended(30, 1, 1, Err(RunFailure { kind, message: "too long".into() })),
        over(30, 0, 1, failed),
        attempt_ended(30, 1, None),
        task_ended(30, 0),
        seen(40, RunEventKind::BatchStateChanged { key: KEY, state: BatchState::Finalized }),
    ];
    history.observe(&all);
    let path = folder.path().join("drawn.json");
    // Whatever is there is replaced.
    fs::write(&path, "old").unwrap();
    let (runs, untraced) =
        write_trace(&*rollway_telemetry::live_job::live(history), &path, 1 << 20).unwrap();
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
