//! Monitors that are Python packages: a process that gets metrics as lines of JSON and calls the
//! package. The job does not depend on it: dropped lines are counted, its end is logged once.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rollway_config::{Config, Mode, MonitorType};
use rollway_core::metrics::Metrics;
use rollway_engine::job_event::{JobEvent, JobObserver};
use rollway_engine::process::python;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value, json};

use super::MonitorQueue;
use crate::dropped::DropCounters;
use crate::redact;

/// Maximum time that the end of a job waits for a package.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the monitor that the first argument names.
const SCRIPT: &str = "from rollway.monitors import main; main(sys.argv[1])";

/// Prints the name of the package if it is missing.
const CHECK: &str = "from rollway.monitors import check; check(sys.argv[1])";

/// Sends metrics to a Python package. Dropping it sends the queued lines within a deadline.
#[derive(Debug)]
pub(super) struct PythonMonitor {
    queue: MonitorQueue<Value>,
    process: Arc<Mutex<Option<Child>>>,
}

/// Line from the process.
#[derive(Debug, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
enum MonitorReply {
    Ready {
        place: Option<String>,
    },
    /// An error after which the process continues.
    Trouble {
        message: String,
    },
    Failed {
        message: String,
    },
}

#[derive(Debug)]
struct ProcessStart {
    name: &'static str,
    command: Command,
    log: PathBuf,
    begin: Value,
}

impl PythonMonitor {
    /// Starts the process of a monitor.
    pub(super) fn open(
        config: &Config,
        kind: MonitorType,
        drops: &DropCounters,
    ) -> io::Result<Self> {
        let folder = config.job_dir().join("monitor").join(kind.name());
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
        Self::start(ProcessStart { name: kind.name(), command, log, begin }, drops)
    }

    fn start(start: ProcessStart, drops: &DropCounters) -> io::Result<Self> {
        let process = Arc::<Mutex<Option<Child>>>::default();
        let (shared, counters) = (Arc::clone(&process), drops.clone());
        let queue = MonitorQueue::start(start.name, drops, move |lines: &Receiver<Value>| {
            run(start, lines, &shared, &counters);
        })?;
        Ok(Self { queue, process })
    }

    /// Kills the process with its children.
    fn kill(&self) {
        if let Some(child) = &*self.process.lock() {
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        }
    }
}

/// Returns the command that runs a script for a monitor with the job's Python.
fn command(config: &Config, script: &str, kind: MonitorType) -> Command {
    let mut command = Command::new(python::interpreter(config));
    let env = config.explorer.env_vars.iter();
    command.args(python::arguments(script)).arg(kind.name()).envs(env);
    command
}

impl JobObserver for PythonMonitor {
    fn on_event(&self, event: &JobEvent) {
        let log = |role: &str, step: u64, metrics: &Metrics| {
            let numbers: serde_json::Map<_, _> =
                metrics.iter().map(|(key, value)| (key.to_string(), value.into())).collect();
            json!({ "do": "log", "role": role, "step": step, "numbers": numbers })
        };
        self.queue.push(match event {
            JobEvent::StepDone { step, metrics, .. }
            | JobEvent::Evaluated { step, metrics, .. } => log("explorer", *step, metrics),
            JobEvent::Trained { step, metrics } => log("trainer", *step, metrics),
            JobEvent::Began {
                mode: Mode::Both | Mode::Explore | Mode::Train, done_steps, ..
            } => json!({ "do": "began", "step": done_steps }),
            _ => return,
        });
    }

    fn close(&self) {
        if !self.queue.close(SHUTDOWN_TIMEOUT) {
            let name = self.queue.name;
            tracing::warn!("monitor {name} killed: timeout of {SHUTDOWN_TIMEOUT:?} at its end");
            self.kill();
        }
    }
}

impl Drop for PythonMonitor {
    fn drop(&mut self) {
        self.close();
    }
}

/// Passes all lines to the process, until the queue is closed.
fn run(
    start: ProcessStart,
    lines: &Receiver<Value>,
    process: &Mutex<Option<Child>>,
    drops: &DropCounters,
) {
    let ProcessStart { name, command, log, begin } = start;
    let mut stdin = match spawn(command, &log) {
        Ok((child, stdin, stdout)) => {
            *process.lock() = Some(child);
            let reader = thread::Builder::new().name(format!("monitor-{name}-output"));
            let reader = reader.spawn(move || log_replies(name, stdout)).ok();
            Some((stdin, reader))
        }
        Err(error) => {
            tracing::warn!("cannot start monitor {name}: {error}; the job continues");
            None
        }
    };
    let mut write = |line: &Value| {
        let Some((pipe, _)) = &mut stdin else { return false };
        if writeln!(pipe, "{line}").and_then(|()| pipe.flush()).is_ok() {
            return true;
        }
        tracing::warn!("monitor {name} ended; the job continues without it, see {}", log.display());
        stdin = None;
        false
    };
    write(&begin);
    while let Ok(line) = lines.recv() {
        if !write(&line) {
            drops.count(name, 1);
        }
    }
    write(&json!({ "do": "end" }));
    if let Some((pipe, reader)) = stdin {
        drop(pipe);
        // Ends with the process.
        reader.map(thread::JoinHandle::join);
    }
    if let Some(child) = &mut *process.lock() {
        let _ = child.wait();
    }
}

fn spawn(mut command: Command, log: &PathBuf) -> io::Result<(Child, ChildStdin, ChildStdout)> {
    let log: File = OpenOptions::new().create(true).append(true).open(log)?;
    // Ctrl-C goes to the job, which ends the monitor and its children.
    command.process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn()?;
    let missing = || io::Error::other("no pipes to the process");
    let stdin = child.stdin.take().ok_or_else(missing)?;
    let stdout = child.stdout.take().ok_or_else(missing)?;
    Ok((child, stdin, stdout))
}

/// Logs the lines of the process.
fn log_replies(name: &'static str, stdout: ChildStdout) {
    for line in BufReader::new(stdout).lines().map_while(io::Result::ok) {
        match serde_json::from_str(&line) {
            Ok(MonitorReply::Ready { place }) => {
                tracing::info!("monitor {name} ready {}", place.unwrap_or_default());
            }
            Ok(MonitorReply::Trouble { message }) => tracing::warn!("monitor {name}: {message}"),
            Ok(MonitorReply::Failed { message }) => {
                tracing::warn!("monitor {name} failed, the job continues: {message}");
            }
            Err(_) => tracing::debug!(line, "output of monitor {name}"),
        }
    }
}

/// Checks that the job's Python has the package of a monitor; returns the problem and a remedy.
pub(super) async fn check(config: &Config, kind: MonitorType) -> Option<(String, String)> {
    let name = kind.name();
    let command = command(config, CHECK, kind);
    let python = command.get_program().to_string_lossy().into_owned();
    let mut command = tokio::process::Command::from(command);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let other = "or choose another `monitor.monitor_type`";
    let problem = |problem: String, hint: String| {
        Some((format!("monitor.monitor_type: `{name}`: {problem}"), hint))
    };
    match tokio::time::timeout(SHUTDOWN_TIMEOUT, output).await {
        Ok(Ok(output)) if output.status.success() => {
            let missing = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if missing.is_empty() {
                return None;
            }
            let message = format!("{python} has no package `{missing}`");
            problem(message, format!("install it: `{python} -m pip install {missing}`, {other}"))
        }
        Ok(Ok(output)) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let last = stderr.trim_end().lines().last().unwrap_or_default().to_owned();
            let hint = format!("make `{python} -c 'import rollway.monitors'` work, {other}");
            problem(format!("{python} failed: {last}"), hint)
        }
        Ok(Err(error)) => {
            let hint =
                format!("name a Python with the package `rollway`: `explorer.python`, {other}");
            problem(format!("cannot start {python}: {error}"), hint)
        }
        Err(_) => {
            let message = format!("no response from {python} within {SHUTDOWN_TIMEOUT:?}");
            problem(message, format!("check that it starts, {other}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, folder: &std::path::Path) -> ProcessStart {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let log = folder.join("log.txt");
        ProcessStart { name: "wandb", command, log, begin: json!({}) }
    }

    fn trained(step: u64) -> JobEvent {
        JobEvent::Trained { step, metrics: [(Arc::<str>::from("a"), 1.0)].into_iter().collect() }
    }

    #[test]
    fn lines_arrive_in_order_and_completely() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let start = shell(&format!("cat > {}", path.display()), folder.path());
        let drops = DropCounters::default();
        let monitor = PythonMonitor::start(start, &drops).unwrap();
        (1..=3).for_each(|step| monitor.on_event(&trained(step)));
        drop(monitor);
        let text = fs::read_to_string(path).unwrap();
        let steps: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let steps: Vec<_> = steps.iter().map(|line| line["step"].as_u64()).collect();
        assert_eq!(steps, [None, Some(1), Some(2), Some(3), None]);
        assert!(text.ends_with("{\"do\":\"end\"}\n"), "{text}");
        assert_eq!(drops.read()["wandb"], 0);
    }

    #[test]
    fn lines_for_an_exited_process_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let drops = DropCounters::default();
        let monitor = PythonMonitor::start(shell("exit 3", folder.path()), &drops).unwrap();
        // More than a pipe buffers.
        (1..=5000).for_each(|step| monitor.on_event(&trained(step)));
        drop(monitor);
        assert!(drops.read()["wandb"] > 0);
    }

    #[test]
    fn lines_for_a_hanging_process_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let drops = DropCounters::default();
        let monitor = PythonMonitor::start(shell("sleep 600", folder.path()), &drops).unwrap();
        let many = "x".repeat(10_000);
        for _ in 0..super::super::QUEUE_CAPACITY + 100 {
            monitor.queue.push(json!(many));
        }
        assert!(drops.read()["wandb"] > 0, "pipe and queue are full");
        // `close` does this after its timeout.
        *monitor.queue.sender.lock() = None;
        monitor.kill();
    }
}
