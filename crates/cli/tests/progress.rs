//! Layout of the progress view as text, and its interplay with log lines on one terminal.
//!
//! `progress/screens.txt` has all screens; `UPDATE_EXPECT=1` rewrites it.

#![expect(clippy::unwrap_used, reason = "a panic fails the test and names the line")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rollway::config::Mode;
use rollway::explorer::{JobEvent, JobWait, StatsSample, WaitLimit, WaitReason};
use rollway_cli::output::{Output, OutputKind, TerminalSize};
use rollway_cli::progress::draw::draw;
use rollway_cli::progress::model::ProgressModel;
use rollway_cli::progress::summary::block;
use rollway_cli::progress::{JobTitle, ProgressEnd, json, plain};
use rollway_cli::styled_line::{StyledLine, TextStyle, width};
use rollway_core::metrics::Metrics;
use rollway_core::{
    BatchId, BatchKey, BatchResult, BatchState, BatchType, ByDropReason, FailureKind, RunTally,
    TaskTally,
};

fn model(name: &str, total: u64) -> ProgressModel {
    let mut model = ProgressModel::new(JobTitle {
        name: name.to_owned(),
        mode: Mode::Both,
        model: "tiny".to_owned(),
        job_dir: PathBuf::from("/jobs/first"),
        has_history: true,
        curves: Some(PathBuf::from("/jobs/first/monitor/tensorboard")),
        has_evals: true,
        command: Some("rollway run first.yaml".to_owned()),
    });
    model.on_event(&began(total), Duration::from_secs(1));
    model
}

fn began(total: u64) -> JobEvent {
    JobEvent::Began {
        mode: Mode::Both,
        job_dir: PathBuf::from("/jobs/first"),
        done_steps: 0,
        total_steps: Some(total),
        tasks_per_step: 10,
        runners: 16,
    }
}

fn result(failed: u64) -> Arc<BatchResult> {
    let mut runs = RunTally { submitted: 80, succeeded: 80 - failed, ..RunTally::default() };
    runs.failed[FailureKind::Timeout] = failed;
    Arc::new(BatchResult {
        batch: BatchId::Number(1),
        key: BatchKey(1),
        kind: BatchType::Train,
        state: BatchState::Finalized,
        reason: None,
        tasks: TaskTally { ok: 10 - failed, failed, ..TaskTally::default() },
        runs,
        delivered: 80 - failed,
        dropped: ByDropReason::default(),
        uncertain: 0,
        statuses: Vec::new(),
        sink_metrics: Metrics::new(),
    })
}

fn step(step: u64, reward: f64, failed: u64) -> JobEvent {
    JobEvent::StepDone {
        step,
        result: result(failed),
        metrics: [("rollout/reward/mean", reward)].into_iter().collect(),
        waited: Duration::from_millis(1500),
    }
}

fn evaluated(step: u64, set: &str, score: Option<f64>) -> JobEvent {
    JobEvent::Evaluated {
        step,
        version: step,
        set: set.into(),
        score,
        result: result(0),
        metrics: Metrics::new(),
    }
}

/// Plays steps of two seconds each with rising rewards.
fn play(model: &mut ProgressModel, steps: u64, sets: &[&str], failed: u64) {
    let total = model.total_steps.unwrap();
    let skill = |step: u64| 0.3 + 0.65 * step as f64 / total as f64;
    for set in sets {
        model.on_event(&evaluated(0, set, Some(skill(0))), Duration::from_secs(2));
    }
    for number in 1..=steps {
        let now = Duration::from_secs(2 * number);
        model.on_event(&JobEvent::StepBegun { step: number, tasks: 10, runs: 80 }, now);
        let now = now + Duration::from_secs(2);
        let noise = [0.02, -0.03, 0.0][number as usize % 3];
        model.on_event(&step(number, skill(number) + noise, failed), now);
        let (waited, loading) = (Duration::from_millis(310), Duration::from_millis(42));
        model.on_event(&JobEvent::Synced { step: number, version: number, waited, loading }, now);
        model.on_event(&JobEvent::Trained { step: number, metrics: Metrics::new() }, now);
        if number % (total / 10).max(1) == 0 {
            for set in sets {
                model.on_event(&evaluated(number, set, Some(skill(number))), now);
            }
        }
    }
    let sample = StatsSample {
        pending: 40,
        running: 16,
        done: (steps + sets.len() as u64) * 80 + 1020,
        failed: steps * failed + 4 * failed,
        runners: 16,
        busy: 15,
        answer_tokens: 1_000_000,
        ..StatsSample::default()
    };
    let now = model.now;
    for tenths in 0..20 {
        let answer_tokens = 1_000_000 + 2450 * tenths;
        let now = now + Duration::from_millis(100 * tenths);
        model.on_sample(StatsSample { answer_tokens, ..sample }, now);
    }
}

fn shown(lines: &[StyledLine]) -> String {
    lines.iter().map(|line| format!("|{line}\n")).collect()
}

/// Returns all screens.
fn gallery() -> String {
    let mut ready = model("first", 60);
    ready.has_started = false;
    let mut early = model("first", 60);
    play(&mut early, 1, &["held_out"], 0);
    let mut half = model("first", 60);
    play(&mut half, 30, &["held_out"], 1);
    let mut whole = model("first", 60);
    play(&mut whole, 60, &["held_out"], 1);
    let long = "a-job-with-a-name-that-is-much-longer-than-any-reader-would-want-to-read";
    let mut many = model(long, 10_000);
    play(&mut many, 7321, &["held_out", "harder", "other", "words", "more"], 0);
    let mut bare = model("仕事", 8);
    play(&mut bare, 3, &[], 0);
    bare.sample = None;
    let screens = [
        ("before the loop begins", &ready),
        ("after the first step", &early),
        ("half-way, with failures", &half),
        ("long, with many sets", &many),
        ("nothing to evaluate on, no live numbers", &bare),
    ];
    let mut text = String::new();
    for (title, model) in screens {
        for (columns, rows) in [(100, 30), (80, 24), (60, 20), (30, 6)] {
            text += &format!("{title}, {columns} × {rows}\n");
            text += &(shown(&draw(model, TerminalSize { columns, rows })) + "\n");
        }
    }
    for ending in [ProgressEnd::Done, ProgressEnd::Stopped, ProgressEnd::Failed] {
        text += &format!("{ending:?}\n{}\n", shown(&block(&whole, &whole.summary, ending, 80)));
    }
    text +=
        &format!("Done, narrow\n{}", shown(&block(&many, &many.summary, ProgressEnd::Done, 60)));
    text
}

#[test]
fn screens_match_the_expected_file() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/progress/screens.txt");
    let text = gallery();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{} is out of date; UPDATE_EXPECT=1 rewrites it", path.display());
}

#[test]
fn screens_fit_every_terminal_size() {
    let mut model = model("a rather long name for a job, but not too long", 500);
    play(&mut model, 321, &["one", "two", "three", "four"], 2);
    for columns in 1..130 {
        for rows in 1..16 {
            let lines = draw(&model, TerminalSize { columns, rows });
            assert!(lines.len() <= 12.min(rows.saturating_sub(2).max(1)), "{columns} × {rows}");
            let widest = lines.iter().map(StyledLine::width).max().unwrap();
            assert!(widest < columns.max(2), "{columns} × {rows}: {widest}");
        }
    }
}

#[test]
fn remaining_time_follows_the_pace_of_the_last_steps() {
    let mut model = model("first", 100);
    assert_eq!(model.time_left(), None, "unknown before the first step");
    let mut now = 500;
    for number in 1..=50 {
        let begun = JobEvent::StepBegun { step: number, tasks: 10, runs: 80 };
        model.on_event(&begun, Duration::from_secs(now));
        // A slow start and one slow step do not dominate the estimate.
        now += if number == 40 { 90 } else { 4 };
        model.on_event(&step(number, 0.5, 0), Duration::from_secs(now));
    }
    let left = model.time_left().unwrap().as_secs();
    assert!((200..=400).contains(&left), "50 steps of 4 s, or a little more: {left}");
    let begun = JobEvent::StepBegun { step: 51, tasks: 10, runs: 80 };
    model.on_event(&begun, Duration::from_secs(now + 1));
    assert!(model.time_left().unwrap().as_secs() < left, "time passes between steps");
    model.advance_clock(Duration::from_secs(now + 10_000));
    let stuck = model.time_left().unwrap().as_secs();
    assert!(stuck >= left * 48 / 50, "a stuck step does not speed up the others: {stuck}");
}

#[test]
fn steps_evaluations_and_syncs_are_one_line_each() {
    let mut model = model("first", 3);
    let events = [
        began(3),
        evaluated(0, "held_out", None),
        JobEvent::StepBegun { step: 1, tasks: 10, runs: 80 },
        step(1, 0.25, 1),
        JobEvent::Synced {
            step: 1,
            version: 7,
            waited: Duration::from_secs(75),
            loading: Duration::from_millis(20),
        },
        JobEvent::Trained { step: 1, metrics: Metrics::new() },
        evaluated(1, "held_out", Some(0.5)),
    ];
    let mut lines = Vec::new();
    for (event, at) in events.iter().zip(1..) {
        model.on_event(event, Duration::from_secs(at));
        lines.extend(plain::event(&model, event));
    }
    let expected = [
        "first: mode both, 3 steps, 10 tasks a step, 16 runners, in /jobs/first",
        "eval at step 0 on held_out: no score, 10 tasks, version 0",
        "step 1 of 3: 10 tasks, 1 failed, reward 0.250, waited 1.5 s, about 2 s left",
        "weights after step 1: version 7, waited 1 min 15 s, loaded in 20 ms",
        "eval at step 1 on held_out: 0.500, 10 tasks, version 1",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn train_steps_are_the_progress_of_mode_train() {
    let mut model = model("first", 8);
    model.title.mode = Mode::Train;
    let metrics = || [("trainer/loss", 0.25), ("trainer/reward", 0.5)].into_iter().collect();
    let trained = |step| JobEvent::Trained { step, metrics: metrics() };
    for step in 3..=4 {
        model.on_event(&trained(step), Duration::from_secs(10 * step));
    }
    let line = plain::event(&model, &trained(4)).unwrap();
    assert_eq!(line, "train step 4 of 8, loss 0.250, reward 0.500, about 40 s left");
    let lines = draw(&model, TerminalSize { columns: 100, rows: 30 });
    let screen: String = lines.iter().map(|line| line.encode(false) + "\n").collect();
    assert!(screen.contains("4 of 8 · 40 s left"), "{screen}");
    assert!(!screen.contains("in flight"), "{screen}");
}

#[test]
fn json_events_have_stable_names() {
    let at = UNIX_EPOCH + Duration::from_secs(1);
    let expected = serde_json::json!({
        "time": "1970-01-01T00:00:01Z",
        "event": "step_done",
        "step": 4,
        "tasks": { "ok": 9, "partial": 0, "failed": 1, "cancelled": 0 },
        "runs_failed": { "timeout": 1 },
        "delivered": 79,
        "waited": 1.5,
        "metrics": { "rollout/reward/mean": null },
    });
    assert_eq!(json::event(&step(4, f64::NAN, 1), at), expected);
    let mut model = model("first", 2);
    play(&mut model, 2, &["held_out"], 1);
    let ended = json::ended(&model, &model.summary, ProgressEnd::Done, SystemTime::now());
    assert_eq!(ended["scores"]["held_out"]["last"]["step"], 2);
    assert_eq!((&ended["outcome"], &ended["tasks_failed"]), (&"done".into(), &2.into()));
}

/// A terminal of 24 columns and 12 rows, with the rows that have scrolled away.
#[derive(Clone)]
struct SharedTerminal(Arc<Mutex<vt100::Parser>>);

impl SharedTerminal {
    /// Returns all rows down to the cursor, without trailing spaces.
    fn rows(&self) -> Vec<String> {
        let mut parser = self.0.lock().unwrap();
        let screen = parser.screen_mut();
        screen.set_scrollback(usize::MAX);
        let mut rows = Vec::new();
        for offset in (1..=screen.scrollback()).rev() {
            screen.set_scrollback(offset);
            rows.extend(screen.rows(0, 24).next());
        }
        screen.set_scrollback(0);
        let visible = usize::from(screen.cursor_position().0) + 1;
        rows.extend(screen.rows(0, 24).take(visible));
        rows.iter().map(|row| row.trim_end().to_owned()).collect()
    }
}

impl io::Write for SharedTerminal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The driver of a terminal adds the carriage return.
        let text = std::str::from_utf8(bytes).unwrap().replace('\n', "\r\n");
        self.0.lock().unwrap().process(text.as_bytes());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn lines_scroll_above_the_view_and_old_frames_are_erased() {
    let terminal = SharedTerminal(Arc::new(Mutex::new(vt100::Parser::new(12, 24, 1000))));
    let size = || TerminalSize { columns: 24, rows: 12 };
    let writer = terminal.clone();
    let output = Output::new(OutputKind::Live, true, Box::new(writer), Box::new(size));
    let line = |text: &str| StyledLine::new().with(text, TextStyle::Green);
    output.print(&[line("before")]);
    for frame in 0..30 {
        let height = 1 + frame % 4;
        let rows = (0..height).map(|row| line(&format!("frame {frame} row {row}")));
        output.show(rows.collect());
        if frame % 3 == 0 {
            output.print(&[line(&format!("line {frame}")), line(&"long ".repeat(8))]);
        }
        let shown = terminal.rows();
        let (logged, view) = shown.split_at(shown.len() - height - 1);
        let expected = (0..height).map(|row| format!("frame {frame} row {row}"));
        assert_eq!(view[..height], expected.collect::<Vec<_>>(), "{shown:#?}");
        assert!(logged.iter().all(|row| !row.starts_with("frame")), "{shown:#?}");
    }
    output.end(&[line("the end")]);
    let mut expected = vec!["before".to_owned()];
    for frame in (0..30).step_by(3) {
        let logged = format!("line {frame}");
        expected.extend([
            logged,
            "long long long long long".to_owned(),
            " long long long".to_owned(),
        ]);
    }
    expected.extend(["the end".to_owned(), String::new()]);
    let rows = terminal.rows();
    assert_eq!(rows, expected);
    assert!(rows.iter().all(|row| width(row) <= 24));
}

#[test]
fn view_shows_at_once_what_the_job_waits_for() {
    let mut model = model("first", 4);
    let limit = WaitLimit { key: "synchronizer.sync_timeout", timeout: Duration::from_secs(60) };
    let reason = WaitReason::Weights { step: 3, at_least: 4 };
    let wait = JobWait { id: 2, reason, since: UNIX_EPOCH, limit: Some(limit) };
    model.on_event(&JobEvent::WaitBegun(wait.clone()), Duration::from_secs(10));
    model.advance_clock(Duration::from_secs(30));
    let screen = |model: &ProgressModel| -> String {
        let size = TerminalSize { columns: 120, rows: 30 };
        draw(model, size).iter().map(|line| line.encode(false) + "\n").collect()
    };
    let shown = screen(&model);
    let sentence = "   waiting  the job waits after step 3 for weights of version 4\n";
    assert!(shown.contains(sentence), "{shown}");
    let until = "for 20 s, at most 40 s more (`synchronizer.sync_timeout`); check that";
    assert!(shown.contains(until), "{shown}");
    let line = json::event(&JobEvent::WaitBegun(wait.clone()), UNIX_EPOCH);
    assert_eq!((&line["event"], &line["reason"]), (&"wait_begun".into(), &"weights".into()));
    model.on_event(&JobEvent::WaitEnded(wait), Duration::from_secs(40));
    assert!(!screen(&model).contains("waiting  the job"));
    for (reason, sentence) in [
        (WaitReason::Start { message: None }, "   waiting  the job waits for its first runners\n"),
        (
            WaitReason::Runner {
                batch: 3.into(),
                pending: 2,
                message: Some("no worker is connected".to_owned()),
            },
            "   waiting  2 runs of batch 3 wait for a runner, none is ready: no worker is \
             connected\n",
        ),
        (
            WaitReason::Reader { batch: 3.into(), unread: 64 },
            "   waiting  batch 3 waits for a reader: the buffer is full (64 unread)\n",
        ),
    ] {
        let wait = JobWait { id: 3, reason, since: UNIX_EPOCH, limit: None };
        model.wait = Some((wait.clone(), Duration::from_secs(40)));
        let shown = screen(&model);
        assert!(shown.contains(sentence), "{shown}");
        assert!(shown.contains(&format!("; {}", wait.reason.remedy())), "{shown}");
    }
}

#[test]
fn mode_bench_is_recommended_only_with_evaluation_tasks() {
    let mut model = model("first", 4);
    let text = |model: &ProgressModel| -> String {
        let lines = block(model, &model.summary, ProgressEnd::Done, 80);
        lines.iter().map(|line| line.encode(false) + "\n").collect()
    };
    assert!(text(&model).contains("bench    rollway run first.yaml mode=bench"));
    model.title.has_evals = false;
    assert!(!text(&model).contains("bench"), "{}", text(&model));
}

#[test]
fn name_of_a_stopped_job_is_shown_in_a_narrow_terminal() {
    let model = model("arithmetic", 20);
    let lines = block(&model, &model.summary, ProgressEnd::Stopped, 40);
    let shown: Vec<String> = lines.iter().map(|line| line.encode(false)).collect();
    assert!(shown[1].contains("arithmetic stopped"), "{shown:?}");
}
