//! `rollway top` on a fake job, in a terminal and without one, and on a running job.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rollway_cli::top::client::{TopClient, TopError};
use rollway_cli::top::draw::full_table;
use rollway_cli::top::model::TopModel;
use serde_json::{Value, json};

use crate::workspace::{Workspace, signal};

/// Maximum wait for any condition.
const TIMEOUT: Duration = Duration::from_secs(60);

const TOKEN: &str = "open-sesame";

/// Serves the dashboard of a fake job with a run that hangs until it is cancelled.
fn serve_fake_job(job: &Path) -> Arc<AtomicBool> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let address_file = json!({ "url": url, "token": TOKEN, "pid": 1 });
    fs::write(job.join("dashboard.json"), address_file.to_string()).unwrap();
    let cancelled = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&cancelled);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            respond(stream, &shared);
        }
    });
    cancelled
}

/// Responds to one request.
fn respond(mut stream: TcpStream, cancelled: &AtomicBool) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let headers: Vec<String> =
        lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
    let has = |header: &str| headers.iter().any(|line| line == header);
    let mut parts = first.split(' ');
    let (method, path) = (parts.next().unwrap(), parts.next().unwrap());
    let is_authenticated = has(&format!("authorization: bearer {TOKEN}"));
    let (status, body) = match (method, path) {
        _ if !is_authenticated => ("401 Unauthorized", json!({ "error": "the token is missing" })),
        ("GET", "/api/job") => ("200 OK", job()),
        ("GET", "/api/overview") => ("200 OK", overview()),
        ("GET", "/api/runners") => ("200 OK", runners(cancelled.load(Ordering::SeqCst))),
        ("POST", "/api/runs/12%2Feval/1/2/cancel") if has("x-rollway: 1") => {
            cancelled.store(true, Ordering::SeqCst);
            ("200 OK", json!({ "done": true, "message": "the run is cancelled" }))
        }
        _ => ("404 Not Found", json!({ "error": path })),
    };
    let body = body.to_string();
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    let _ = stream.write_all((head + &body).as_bytes());
}

fn job() -> Value {
    json!({
        "name": "arithmetic", "project": "examples", "mode": "both", "job_dir": "jobs/arithmetic",
        "state": "running", "live": true, "started": 1000.0, "now": 1125.0, "step": 12,
        "total_steps": 80, "version": 11, "runners_wanted": 40,
    })
}

fn overview() -> Value {
    let sample =
        |at: f64, done: u64| json!({ "at": at, "done": done, "answer_tokens": done * 100 });
    json!({
        "samples": [sample(1100.0, 100), sample(1120.0, 140)],
        "runs": {
            "submitted": 200, "succeeded": 140, "failed": {"timeout": 3}, "cancelled": {},
            "pending": 56, "running": 1,
        },
        "runners": { "busy": 1, "idle": 39 },
        "alarms": [{ "at": 1110.0, "kind": "no_progress", "message": "no run has ended for 5 min",
                     "raised": true }],
    })
}

fn runners(cancelled: bool) -> Value {
    let idle = |runner: u32| json!({ "runner": runner, "state": "idle", "age": 5.0 });
    let hangs = json!({
        "runner": 7, "incarnation": 1, "state": "busy", "stuck": true, "age": 130.0,
        "batch": "12/eval", "task": 1, "run": 2, "attempt": 99,
        "stage": "compiling the tests", "stage_for": 125.0,
        "code_location": "flows/solve.py:41 compile",
        "model": "policy", "server": "http://127.0.0.1:8000", "location": "host-3",
    });
    let first = if cancelled { idle(7) } else { hangs };
    let others = (0..40).filter(|runner| *runner != 7).map(idle);
    [first].into_iter().chain(others).collect::<Vec<_>>().into()
}

/// Writes the address file of a dashboard that does not respond.
fn write_address(job: &Path, pid: u32) {
    let address = json!({ "url": "http://127.0.0.1:1", "token": TOKEN, "pid": pid });
    fs::write(job.join("dashboard.json"), address.to_string()).unwrap();
}

#[tokio::test]
async fn end_of_the_job_is_shown_with_its_outcome() {
    let job = tempfile::tempdir().unwrap();
    write_address(job.path(), std::process::id());
    let client = TopClient::open(job.path()).unwrap();
    let error = client.snapshot().await.unwrap_err();
    assert!(matches!(error, TopError::NoResponse(_)), "its process is alive: {error:?}");

    // Of a process that has ended.
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    write_address(job.path(), ended.id());
    let killed = TopClient::open(job.path()).unwrap();
    let error = killed.snapshot().await.unwrap_err();
    let TopError::Ended(end) = error else { panic!("{error:?}") };
    assert!(end.message.contains("run its command again to resume"), "{}", end.message);

    fs::remove_file(job.path().join("dashboard.json")).unwrap();
    let summary = json!({ "state": "failed", "error": "no server\nhint: start it" });
    fs::write(job.path().join("summary.json"), summary.to_string()).unwrap();
    let error = client.snapshot().await.unwrap_err();
    let mut model = TopModel::default();
    model.on_snapshot(Err(error));
    let text: Vec<String> = full_table(&model, 120).iter().map(ToString::to_string).collect();
    let text = text.join("\n");
    assert!(text.contains("the job has ended: failed: no server; `rollway view "), "{text}");
    assert!(text.lines().next().unwrap().contains("failed"), "{text}");

    // A benchmark that ran later has its own summary.
    let file = fs::File::open(job.path().join("summary.json")).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let summary = json!({ "state": "finished" });
    fs::write(job.path().join("bench_summary.json"), summary.to_string()).unwrap();
    let TopError::Ended(end) = client.snapshot().await.unwrap_err() else { panic!() };
    assert!(end.message.contains("the job has ended: finished"), "{}", end.message);
}

fn rollway() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rollway"))
}

#[test]
fn without_a_terminal_the_table_is_printed_once_stuck_runners_first() {
    let job = tempfile::tempdir().unwrap();
    serve_fake_job(job.path());
    let ran = rollway().arg("top").arg(job.path()).output().unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(ran.status.code(), Some(0), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("arithmetic  running  both  step 12 of 80"), "{text}");
    assert!(lines[1].contains("1 running  56 waiting  140 done  3 failed"), "{text}");
    assert!(lines[2].contains("1 busy (1 stuck)  39 idle   2.0 runs/s  200 tokens/s"), "{text}");
    assert!(lines[3].contains("no run has ended for 5 min"), "{text}");
    let (heading, first) = (lines[5], lines[6]);
    for (name, value) in [
        ("runner", "7 !"),
        ("work", "12/eval/1/2"),
        ("stage", "compiling the tests"),
        ("since", "2m05s"),
        ("code", "solve.py:41 compile"),
        ("model", "policy at http://127.0.0.1:8000"),
    ] {
        assert_eq!(heading.find(name), first.find(value), "{name}\n{text}");
        assert!(first.contains(value), "{text}");
    }
    assert_eq!(lines.len(), 6 + 40, "{text}");
    assert!(!text.contains('\x1b'));
}

#[test]
fn job_without_a_dashboard_is_an_input_error() {
    let job = tempfile::tempdir().unwrap();
    let ran = rollway().arg("top").arg(job.path()).output().unwrap();
    let stderr = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("has no dashboard.json") && stderr.contains("rollway view"),
        "{stderr}"
    );
    // A killed job leaves its address file behind.
    let address_file = json!({ "url": "http://127.0.0.1:9", "token": TOKEN, "pid": 1 });
    fs::write(job.path().join("dashboard.json"), address_file.to_string()).unwrap();
    let ran = rollway().arg("top").arg(job.path()).output().unwrap();
    let stderr = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("no response from") && stderr.contains("rollway view"), "{stderr}");
}

/// The command in a terminal that `script` creates, with its screen as `vt100` sees it.
struct TerminalSession {
    child: Child,
    keys: ChildStdin,
    bytes: mpsc::Receiver<Vec<u8>>,
    parser: vt100::Parser,
}

impl TerminalSession {
    fn start(job: &Path) -> Self {
        // Without `exec`, some shells stay the parent of the command and receive its signals.
        let command = format!("exec {} top '{}'", env!("CARGO_BIN_EXE_rollway"), job.display());
        let mut child = Command::new("script")
            .args(["-qefc", &command, "/dev/null"])
            .envs([("TERM", "xterm"), ("COLUMNS", "100"), ("LINES", "16")])
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let keys = child.stdin.take().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (sender, bytes) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut buffer) {
                let _ = sender.send(buffer[..count].to_vec());
            }
        });
        Self { child, keys, bytes, parser: vt100::Parser::new(16, 100, 0) }
    }

    /// Waits until the screen satisfies a condition.
    fn wait_until(&mut self, condition_name: &str, condition: impl Fn(&vt100::Screen) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !condition(self.parser.screen()) {
            match self.bytes.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.parser.process(&bytes),
                Err(_) => {
                    panic!("not shown: {condition_name}\n{}", self.parser.screen().contents())
                }
            }
        }
    }

    /// Waits until the screen contains a text.
    fn wait_for(&mut self, text: &str) {
        self.wait_until(text, |screen| screen.contents().contains(text));
    }

    /// Waits until the terminal is as before the command, and the command has ended.
    fn wait_for_exit(&mut self) {
        self.wait_until("restored terminal", |screen| {
            !screen.alternate_screen() && !screen.hide_cursor()
        });
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }
}

impl Drop for TerminalSession {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn keys_find_and_cancel_a_run_and_the_terminal_is_restored() {
    let job = tempfile::tempdir().unwrap();
    let cancelled = serve_fake_job(job.path());
    let mut terminal = TerminalSession::start(job.path());
    terminal.wait_for("compiling the tests");
    assert!(terminal.parser.screen().alternate_screen());
    terminal.press("h");
    terminal.wait_for("any key closes the help");
    terminal.press(" ");
    terminal.wait_for("stuck first");
    terminal.press("\x1b[6~");
    terminal.wait_until("second page", |screen| !screen.contents().contains("1-"));
    terminal.press("/compil\r");
    terminal.wait_for("only `compil`");
    terminal.press("c");
    terminal.wait_for("cancel run 2 of task 1 of batch 12/eval?");
    terminal.press("n");
    terminal.wait_for("nothing was cancelled");
    assert!(!cancelled.load(Ordering::SeqCst));
    terminal.press("cy");
    terminal.wait_for("the run is cancelled");
    assert!(cancelled.load(Ordering::SeqCst));
    terminal.wait_for("no runner matches `compil`");
    terminal.press("\x03");
    terminal.wait_for_exit();
}

#[test]
fn sigterm_restores_the_terminal() {
    let job = tempfile::tempdir().unwrap();
    serve_fake_job(job.path());
    let mut terminal = TerminalSession::start(job.path());
    terminal.wait_for("stuck first");
    let script = terminal.child.id().to_string();
    let found = Command::new("pgrep").args(["-P", &script]).output().unwrap();
    let id = String::from_utf8(found.stdout).unwrap().trim().parse().unwrap();
    signal(id, "TERM");
    terminal.wait_for_exit();
}

#[test]
fn running_job_is_shown_until_the_user_quits() {
    let workspace = Workspace::new();
    // Enough steps to outlast the test.
    let mut running = workspace.start(&[
        "buffer.total_steps=100000",
        "buffer.batch_size=4",
        "explorer.eval_interval=100000",
    ]);
    let runners = running.wait_for("began")["runners"].as_u64().unwrap();
    running.wait_for("step_done");
    let (id, running) = running.into_background();
    let ran = rollway().arg("top").arg(workspace.job()).output().unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(ran.status.code(), Some(0), "{text}");
    assert!(text.starts_with("arithmetic  running  both  step "), "{text}");
    let mut rows = text.lines().skip_while(|line| !line.trim().starts_with("runner  state"));
    assert!(rows.next().is_some(), "{text}");
    let shown: BTreeSet<u64> =
        rows.map(|row| row.split_whitespace().next().unwrap().parse().unwrap()).collect();
    assert_eq!(shown, (0..runners).collect(), "{text}");

    let mut terminal = TerminalSession::start(&workspace.job());
    terminal.wait_for("  both  step ");
    terminal.wait_for("stuck first");
    // The view follows the job.
    let first_line = |screen: &vt100::Screen| screen.rows(0, 100).next();
    for _ in 0..2 {
        let before = first_line(terminal.parser.screen());
        terminal.wait_until("a change", |screen| first_line(screen) != before);
    }
    terminal.press("q");
    terminal.wait_for_exit();

    // The job continues, and after its end `rollway top` is an error.
    assert!(!running.is_finished());
    signal(id, "INT");
    assert_eq!(running.join().unwrap().0, Some(130));
    let ran = rollway().arg("top").arg(workspace.job()).output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
}
