//! Check of Python workflows by a short-lived process that imports them.

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rollway_base::suggest::instead;
use rollway_config::{BUILT_IN_REWARDS, BUILT_IN_WORKFLOWS};
use rollway_engine::WorkerPoolOptions;
use rollway_engine::process::python::{self, PYTHON};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::referenced::ReferencedWorkflow;
use super::{Result, WorkflowSetupError, WorkflowSetupErrorKind as Kind};

/// Reports the interpreter even if the package is missing. The reply goes to a file, because
/// modules may print.
const SCRIPT: &str = "\
import json
def reply(fields):
    with open(sys.argv[1], 'w') as file:
        json.dump({'python': sys.executable, 'release': sys.version.split()[0], **fields}, file)
try:
    from rollway.worker.workflow_check import main
except ModuleNotFoundError as error:
    if error.name not in ('rollway', 'rollway.worker.workflow_check'):
        raise
    reply({'missing': True})
else:
    reply(main(json.load(sys.stdin)))
";

/// Folders of modules that workers import; the variable of Trinity-RFT.
const PLUGIN_DIRS: &str = "TRINITY_PLUGIN_DIRS";

/// Limits of Python's error output: bytes kept, lines shown.
const MAX_OUTPUT_BYTES: usize = 16 * 1024;
const MAX_LINES: usize = 12;

#[derive(Debug, Deserialize)]
struct CheckReply {
    python: String,
    release: String,
    /// The package is missing.
    #[serde(default)]
    missing: bool,
    /// Version of the package.
    #[serde(default)]
    version: String,
    #[serde(default)]
    problems: Vec<FoundWorkflow>,
}

#[derive(Debug, Deserialize)]
struct FoundWorkflow {
    kind: String,
    #[serde(rename = "what")]
    message: String,
    hint: String,
}

/// Refuses unknown names without starting Python, if no module is named that could register them.
pub(super) fn spelling(sets: &[ReferencedWorkflow<'_>]) -> Result<()> {
    let named = || sets.iter().flat_map(|set| [set.workflow, set.reward_fn]).flatten();
    let is_imported = named().any(|name| name.contains([':', '.']));
    if is_imported || std::env::var_os(PLUGIN_DIRS).is_some() {
        return Ok(());
    }
    for set in sets {
        let names = [
            ("workflow", set.workflow, BUILT_IN_WORKFLOWS),
            ("reward function", set.reward_fn, BUILT_IN_REWARDS),
        ];
        for (kind, name, known) in names {
            if let Some(name) = name.filter(|name| !known.contains(name)) {
                let message = format!("{}: unknown {kind} `{name}`", set.key_path);
                let hint = instead(name, known.iter().copied());
                let hint = format!("{hint} (write your own as `package.module:name`)");
                return Err(WorkflowSetupError::new(Kind::Unknown, message, hint));
            }
        }
    }
    Ok(())
}

/// Imports all named workflows and reward functions in Python.
pub(super) async fn run_check(
    options: &WorkerPoolOptions,
    sets: &[ReferencedWorkflow<'_>],
    timeout: Duration,
) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("rollway-").tempdir().map_err(failed)?;
    let file = folder.path().join("reply");
    let requests = sets.iter().map(|set| {
        json!({
            "place": set.key_path,
            "workflow": set.workflow,
            "workflow_args": set.workflow_args,
            "reward_fn": set.reward_fn,
            "reward_fn_args": set.reward_fn_args,
            "rows_name_rewards": set.rows_name_rewards,
        })
    });
    let request = json!({ "sets": requests.collect::<Vec<_>>() }).to_string();
    let ended = tokio::time::timeout(timeout, run(options, &file, request)).await;
    let (status, message) = match ended {
        Ok(Ok(ended)) => ended,
        Ok(Err(error)) => return Err(no_python(options, &error)),
        Err(_) => {
            let message = format!("importing the workflows took longer than {timeout:?}");
            let hint = "check what their modules do at import, or raise \
                        `explorer.supervision.start_timeout`";
            return Err(WorkflowSetupError::new(Kind::Import, message, hint));
        }
    };
    let reply = std::fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
    match reply {
        Some(reply) => check_reply(reply),
        None => Err(check_failed(options, status, &message)),
    }
}

/// Returns the exit status of the process and the end of its error output.
async fn run(
    options: &WorkerPoolOptions,
    file: &Path,
    request: String,
) -> io::Result<(ExitStatus, Vec<u8>)> {
    let mut command = Command::new(&options.program);
    for name in &options.removed_env {
        command.env_remove(name);
    }
    let mut child = command
        .args(python::arguments(SCRIPT))
        .arg(file)
        .envs(options.env.iter().cloned())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A process that has ended reports its own error.
        let _ = stdin.write_all(request.as_bytes()).await;
    }
    let mut message = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        while stderr.read_buf(&mut message).await? > 0 {
            let excess = message.len().saturating_sub(MAX_OUTPUT_BYTES);
            message.drain(..excess);
        }
    }
    Ok((child.wait().await?, message))
}

fn check_reply(reply: CheckReply) -> Result<()> {
    let CheckReply { python, release, missing, version, problems } = reply;
    let expected = env!("CARGO_PKG_VERSION");
    let other = format!("or set another Python with `explorer.python` or {PYTHON}");
    let wheel = format!("the wheel of rollway {expected} (`{python} -m pip install WHEEL`)");
    if missing {
        let message = format!("{python} (Python {release}) has no package `rollway`");
        let hint = format!("install {wheel}, {other}");
        return Err(WorkflowSetupError::new(Kind::NoPackage, message, hint));
    }
    if version != expected {
        let message = format!("{python} has `rollway` {version}, but this release is {expected}");
        let hint = format!("install {wheel}, {other}");
        return Err(WorkflowSetupError::new(Kind::NoPackage, message, hint));
    }
    let mut problems = problems.into_iter();
    let Some(first) = problems.next() else { return Ok(()) };
    let mut error = WorkflowSetupError::new(first.kind(), first.message, first.hint);
    for other in problems {
        error.hint = format!("{}\n{}; {}", error.hint, other.message, other.hint);
    }
    Err(error)
}

impl FoundWorkflow {
    fn kind(&self) -> Kind {
        match self.kind.as_str() {
            "missing" => Kind::Missing,
            "unknown" => Kind::Unknown,
            "arguments" => Kind::Arguments,
            "package" => Kind::NoPackage,
            _ => Kind::Import,
        }
    }
}

fn no_python(options: &WorkerPoolOptions, error: &io::Error) -> WorkflowSetupError {
    let program = options.program.display();
    let message = match error.kind() {
        io::ErrorKind::NotFound => format!("Python interpreter `{program}` not found"),
        _ => format!("Python interpreter `{program}` cannot be started: {error}"),
    };
    let hint = format!(
        "workflows that are not built into Rust need Python 3.10 or later with the package \
         `rollway`: set `explorer.python` or {PYTHON}"
    );
    WorkflowSetupError::new(Kind::NoPython, message, hint)
}

fn check_failed(
    options: &WorkerPoolOptions,
    status: ExitStatus,
    message: &[u8],
) -> WorkflowSetupError {
    let text = String::from_utf8_lossy(message);
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let last = lines[lines.len().saturating_sub(MAX_LINES)..].join("\n");
    let program = options.program.display();
    let message = format!("the check of workflows by `{program}` failed ({status}):\n{last}");
    let hint = format!("check that `{program} -c 'import rollway'` works");
    WorkflowSetupError::new(Kind::NoPackage, message, hint)
}

fn failed(error: io::Error) -> WorkflowSetupError {
    let message = format!("no temporary folder can be created: {error}");
    WorkflowSetupError::new(Kind::Io, message, "set TMPDIR to a writable folder")
}
