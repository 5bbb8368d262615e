//! Monitors that are Python packages: a process that is told numbers in lines of JSON, and calls
//! the package. Whatever becomes of it, the job goes on: what it has no time for is dropped and
//! counted, and its end is said once.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rollway_config::{Config, Mode, MonitorType};
use rollway_engine::job_event::{JobEvent, JobObserver};
use rollway_engine::process::python;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value, json};

use super::redact;
use crate::dropped::DropCounters;

/// What may wait for the process: many steps.
const QUEUE_CAPACITY: usize = 1024;

/// How long the end of a job waits for a package to send its last numbers.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the monitor that the first argument names.
const SCRIPT: &str = "from rollway.monitors import main; main(sys.argv[1])";

/// Says whether the package is there, in one word.
const CHECK: &str = "from rollway.monitors import check; check(sys.argv[1])";

/// Tells a Python package what happens to a job. What was told before it is dropped is sent then,
/// within a deadline.
#[derive(Debug)]
pub(super) struct Outside {
    name: &'static str,
    sender: Mutex<Option<SyncSender<String>>>,
    drops: DropCounters,
    process: Arc<Mutex<Option<Child>>>,
    over: Mutex<Receiver<()>>,
}

/// What the process says.
#[derive(Debug, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
enum MonitorReply {
    /// The package has begun.
    Ready { place: Option<String> },
    /// Something went wrong; numbers are tried on.
    Trouble { what: String },
    /// The package cannot be used.
    Failed { what: String },
}

/// What is needed to start the process.
#[derive(Debug)]
struct Start {
    name: &'static str,
    command: Command,
    log: PathBuf,
    begin: String,
}

impl Outside {
    /// Starts the process of a monitor.
    pub(super) fn open(
        config: &Config,
        kind: MonitorType,
        drops: &DropCounters,
    ) -> io::Result<Self> {
        let name = kind.name();
        let folder = config.job_dir().join("monitor").join(name);
        fs::create_dir_all(&folder)?;
        let begin = json!({
            "do": "begin",
            "project": config.project,
            "group": config.group,
            "name": config.name,
            "mode": config.mode,
            "folder": folder,
            "config": redact::masked(config),
            "args": config.monitor.args(kind),
        });
        let command = command(config, SCRIPT, kind);
        let log = folder.join("log.txt");
        let start = Start { name, command, log, begin: begin.to_string() };
        drops.expect(name);
        Self::start(start, drops)
    }

    fn start(start: Start, drops: &DropCounters) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(QUEUE_CAPACITY);
        let (end, over) = channel();
        let process = Arc::default();
        let outside = Self {
            name: start.name,
            sender: Some(sender).into(),
            drops: drops.clone(),
            process: Arc::clone(&process),
            over: over.into(),
        };
        let drops = drops.clone();
        let work = move || {
            work(start, &receiver, &process, &drops);
            // Nobody may be waiting.
            let _ = end.send(());
        };
        thread::Builder::new().name(format!("monitor-{}", outside.name)).spawn(work)?;
        Ok(outside)
    }

    fn tell(&self, line: &Value) {
        let sent = self.sender.lock().as_ref().map(|sender| sender.try_send(line.to_string()));
        if let Some(Err(_)) = sent {
            self.drops.count(self.name, 1);
        }
    }

    /// Ends the process, and everything that it has started.
    fn kill(&self) {
        let process = self.process.lock();
        if let Some(child) = &*process {
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        }
    }
}

/// Returns how the Python of a job executes something for a monitor.
fn command(config: &Config, script: &str, kind: MonitorType) -> Command {
    let mut command = Command::new(python::interpreter(config));
    let env = config.explorer.env_vars.iter();
    command.args(python::arguments(script)).arg(kind.name()).envs(env);
    command
}

impl JobObserver for Outside {
    fn on_event(&self, event: &JobEvent) {
        let line = match event {
            JobEvent::StepDone { step, metrics, .. }
            | JobEvent::Evaluated { step, metrics, .. } => {
                let numbers: serde_json::Map<_, _> =
                    metrics.iter().map(|(key, value)| (key.to_string(), value.into())).collect();
                json!({ "do": "log", "role": "explorer", "step": step, "numbers": numbers })
            }
            JobEvent::Trained { step, metrics } => {
                let numbers: serde_json::Map<_, _> =
                    metrics.iter().map(|(key, value)| (key.to_string(), value.into())).collect();
                json!({ "do": "log", "role": "trainer", "step": step, "numbers": numbers })
            }
            JobEvent::Began {
                mode: Mode::Both | Mode::Explore | Mode::Train, done_steps, ..
            } => {
                json!({ "do": "began", "step": done_steps })
            }
            _ => return,
        };
        self.tell(&line);
    }

    fn close(&self) {
        drop(self.sender.lock().take());
        let over = self.over.lock();
        if over.recv_timeout(SHUTDOWN_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                "the monitor {} did not send its last numbers within {} s, and is ended",
                self.name,
                SHUTDOWN_TIMEOUT.as_secs()
            );
            self.kill();
        }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.close();
    }
}
/// Tells the process everything, until nobody says anything any more.
fn work(
    start: Start,
    told: &Receiver<String>,
    process: &Mutex<Option<Child>>,
    drops: &DropCounters,
) {
    let Start { name, command, log, begin } = start;
    let mut stdin = match spawn(command, &log) {
        Ok((child, stdin, stdout)) => {
            *process.lock() = Some(child);
            let listening = thread::Builder::new().name(format!("monitor-{name}-says"));
            let heard = listening.spawn(move || listen(name, stdout)).ok();
            Some((stdin, heard))
        }
        Err(error) => {
            tracing::warn!("the monitor {name} cannot be started: {error}; the job goes on");
            None
        }
    };
    let mut write = |line: &str| {
        let Some((pipe, _)) = &mut stdin else { return false };
        if writeln!(pipe, "{line}").and_then(|()| pipe.flush()).is_ok() {
            return true;
        }
        tracing::warn!(
            "the monitor {name} has ended and gets no more numbers; the job goes on. {} says more",
            log.display()
        );
        stdin = None;
        false
    };
    write(&begin);
    while let Ok(line) = told.recv() {
        if !write(&line) {
            drops.count(name, 1);
        }
    }
    write(&json!({ "do": "end" }).to_string());
    if let Some((pipe, heard)) = stdin {
        drop(pipe);
        // It says nothing more when it has ended.
        heard.map(thread::JoinHandle::join);
    }
    if let Some(child) = &mut *process.lock() {
        let _ = child.wait();
    }
}

fn spawn(mut command: Command, log: &PathBuf) -> io::Result<(Child, ChildStdin, ChildStdout)> {
    let log: File = OpenOptions::new().create(true).append(true).open(log)?;
    // Ctrl-C is for the job, which ends it in time; and what it starts itself ends with it.
    command.process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn()?;
    let missing = || io::Error::other("it has no pipes");
    let stdin = child.stdin.take().ok_or_else(missing)?;
    let stdout = child.stdout.take().ok_or_else(missing)?;
    Ok((child, stdin, stdout))
}

/// Passes on what the process says.
fn listen(name: &'static str, stdout: ChildStdout) {
    for line in BufReader::new(stdout).lines().map_while(io::Result::ok) {
        match serde_json::from_str(&line) {
            Ok(MonitorReply::Ready { place: Some(place) }) => {
                tracing::info!("the monitor {name} is ready: {place}");
            }
            Ok(MonitorReply::Ready { place: None }) => {
                tracing::info!("the monitor {name} is ready")
            }
            Ok(MonitorReply::Trouble { what }) => tracing::warn!("the monitor {name}: {what}"),
            Ok(MonitorReply::Failed { what }) => {
                tracing::warn!("the monitor {name} cannot be used, and the job goes on: {what}");
            }
            Err(_) => tracing::debug!(line, "the monitor {name} says"),
        }
    }
}

/// Asks the Python of a job whether it has the package of a monitor. Returns what is wrong.
pub(super) async fn check(config: &Config, kind: MonitorType) -> Option<(String, String)> {
    let name = kind.name();
    let command = command(config, CHECK, kind);
    let python = command.get_program().to_string_lossy().into_owned();
    let mut command = tokio::process::Command::from(command);
    let asked = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let other = "or choose another `monitor.monitor_type`";
    let wrong = |what: String, hint: String| {
        Some((format!("monitor.monitor_type: `{name}`: {what}"), hint))
    };
    match tokio::time::timeout(SHUTDOWN_TIMEOUT, asked).await {
        Ok(Ok(output)) if output.status.success() => {
            let missing = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if missing.is_empty() {
                return None;
            }
            let what = format!("{python} has no package `{missing}`");
            wrong(what, format!("install it: `{python} -m pip install {missing}`, {other}"))
        }
        Ok(Ok(output)) => {
            let words = String::from_utf8_lossy(&output.stderr);
            let last = words.trim_end().lines().last().unwrap_or_default().to_owned();
            let hint = format!("see that `{python} -c 'import rollway.monitors'` works, {other}");
            wrong(format!("it goes through {python}, which says: {last}"), hint)
        }
        Ok(Err(error)) => {
            let hint =
                format!("name a Python with the package `rollway`: `explorer.python`, {other}");
            wrong(format!("{python} cannot be started: {error}"), hint)
        }
        Err(_) => {
            let what =
                format!("{python} did not say within {} s what it has", SHUTDOWN_TIMEOUT.as_secs());
            wrong(what, format!("see what it waits for, {other}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, folder: &std::path::Path) -> Start {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let log = folder.join("log.txt");
        Start { name: "wandb", command, log, begin: "{}".to_owned() }
    }

    fn trained(step: u64) -> JobEvent {
        JobEvent::Trained { step, metrics: [(Arc::<str>::from("a"), 1.0)].into_iter().collect() }
    }

    #[test]
    fn what_was_told_is_told_in_order_and_to_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let start = shell(&format!("cat > {}", path.display()), folder.path());
        let drops = DropCounters::default();
        let outside = Outside::start(start, &drops).unwrap();
        (1..=3).for_each(|step| outside.on_event(&trained(step)));
        drop(outside);
        let text = fs::read_to_string(path).unwrap();
        let steps: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let steps: Vec<_> = steps.iter().map(|line| line["step"].as_u64()).collect();
        assert_eq!(steps, [None, Some(1), Some(2), Some(3), None]);
        assert!(text.ends_with("{\"do\":\"end\"}\n"), "{text}");
        assert!(drops.read().is_empty());
    }

    #[test]
    fn a_process_that_is_gone_costs_numbers_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let drops = DropCounters::default();
        let outside = Outside::start(shell("exit 3", folder.path()), &drops).unwrap();
        // More than the pipe of a process that is about to end could take in.
        (1..=5000).for_each(|step| outside.on_event(&trained(step)));
        drop(outside);
        assert!(drops.read()["wandb"] > 0);
    }

    #[test]
    fn a_process_that_hangs_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let drops = DropCounters::default();
        let outside = Outside::start(shell("sleep 600", folder.path()), &drops).unwrap();
        let many = "x".repeat(10_000);
        for _ in 0..QUEUE_CAPACITY + 100 {
            outside.tell(&json!(many));
        }
        assert!(drops.read()["wandb"] > 0, "the pipe is full, and then the queue is");
        // The end of a job would wait for its deadline and do this.
        *outside.sender.lock() = None;
        outside.kill();
    }
}
