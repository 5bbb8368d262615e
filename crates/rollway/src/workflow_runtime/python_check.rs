//! Whether Python has what a configuration names, asked of a process that is thrown away.

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rollway_base::suggest::instead;
use rollway_engine::WorkerPoolOptions;
use rollway_engine::process::python::{self, PYTHON};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::referenced::ReferencedWorkflow;
use super::{Result, WorkflowSetupError, WorkflowSetupErrorKind as Kind};
use crate::workflows::{PYTHON_NAMES, PYTHON_REWARDS};

/// Says which Python it is even if that lacks the package. Answers go to a file, because modules
/// may print what they like.
const SCRIPT: &str = "\
import json
def tell(said):
    with open(sys.argv[1], 'w') as file:
        json.dump({'python': sys.executable, 'release': sys.version.split()[0], **said}, file)
try:
    from rollway.worker.workflow_check import main
except ModuleNotFoundError as error:
    if error.name not in ('rollway', 'rollway.worker.workflow_check'):
        raise
    tell({'missing': True})
else:
    tell(main(json.load(sys.stdin)))
";

/// How much of what Python complains about is kept, in bytes, and shown, in lines: the end says
/// most.
const MAX_WORDS: usize = 16 * 1024;
const MAX_LINES: usize = 12;

/// What the process found out.
#[derive(Debug, Deserialize)]
struct CheckReply {
    python: String,
    release: String,
    /// There is no package.
    #[serde(default)]
    missing: bool,
    /// The version of the package.
    #[serde(default)]
    version: String,
    #[serde(default)]
    problems: Vec<FoundWorkflow>,
}

#[derive(Debug, Deserialize)]
struct FoundWorkflow {
    kind: String,
    what: String,
    hint: String,
}

/// Refuses a name that nothing can be behind, without starting anything: it is not built in, and no
/// module is imported that could register it.
pub(super) fn spelling(sets: &[ReferencedWorkflow<'_>]) -> Result<()> {
    let named = || sets.iter().flat_map(|set| [set.workflow, set.reward_fn]).flatten();
    if named().any(|name| name.contains(':')) {
        return Ok(());
    }
    for set in sets {
        let asked = [
            ("workflow", set.workflow, PYTHON_NAMES),
            ("reward function", set.reward_fn, PYTHON_REWARDS),
        ];
        for (what, name, known) in asked {
            if let Some(name) = name.filter(|name| !known.contains(name)) {
                let what = format!("{}: no {what} is called `{name}`", set.place);
                let hint = instead(name, known.iter().copied());
                let hint = format!("{hint} (your own are called `package.module:name`)");
                return Err(WorkflowSetupError::new(Kind::Unknown, what, hint));
            }
        }
    }
    Ok(())
}

/// Has Python import everything that is named.
pub(super) async fn ask(
    options: &WorkerPoolOptions,
    sets: &[ReferencedWorkflow<'_>],
    timeout: Duration,
) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("rollway-").tempdir().map_err(failed)?;
    let file = folder.path().join("answer");
    let questions = sets.iter().map(|set| {
        json!({
            "place": set.place,
            "workflow": set.workflow,
            "workflow_args": set.workflow_args,
            "reward_fn": set.reward_fn,
            "reward_fn_args": set.reward_fn_args,
            "rows_name_rewards": set.rows_name_rewards,
        })
    });
    let questions = json!({ "sets": questions.collect::<Vec<_>>() }).to_string();
    let ended = tokio::time::timeout(timeout, run(options, &file, questions)).await;
    let (status, words) = match ended {
        Ok(Ok(ended)) => ended,
        Ok(Err(error)) => return Err(no_python(options, &error)),
        Err(_) => {
            let what = format!("importing the workflows took longer than {timeout:?}");
            let hint = "see what their modules do when they are imported, or raise \
                        `explorer.supervision.start_timeout`";
            return Err(WorkflowSetupError::new(Kind::Import, what, hint));
        }
    };
    let answer = std::fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
    match answer {
        Some(answer) => judge(answer),
        None => Err(broken(options, status, &words)),
    }
}

/// Returns how the process ended, and the last of its words.
async fn run(
    options: &WorkerPoolOptions,
    file: &Path,
    questions: String,
) -> io::Result<(ExitStatus, Vec<u8>)> {
    let mut child = Command::new(&options.program)
        .args(python::arguments(SCRIPT))
        .arg(file)
        .envs(options.env.iter().cloned())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A process that has ended already says itself why.
        let _ = stdin.write_all(questions.as_bytes()).await;
    }
    let mut words = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        while stderr.read_buf(&mut words).await? > 0 {
            let excess = words.len().saturating_sub(MAX_WORDS);
            words.drain(..excess);
        }
    }
    Ok((child.wait().await?, words))
}

fn judge(answer: CheckReply) -> Result<()> {
    let CheckReply { python, release, missing, version, problems } = answer;
    let ours = env!("CARGO_PKG_VERSION");
    let elsewhere = format!("or name another Python with `explorer.python` or {PYTHON}");
    if missing {
        let what = format!("{python} (Python {release}) has no package `rollway`");
        let hint = format!("install it: `{python} -m pip install rollway=={ours}`, {elsewhere}");
        return Err(WorkflowSetupError::new(Kind::NoPackage, what, hint));
    }
    if version != ours {
        let what = format!("{python} has `rollway` {version}, and this is {ours}");
        let hint =
            format!("install the same: `{python} -m pip install rollway=={ours}`, {elsewhere}");
        return Err(WorkflowSetupError::new(Kind::NoPackage, what, hint));
    }
    let mut problems = problems.into_iter();
    let Some(first) = problems.next() else { return Ok(()) };
    let mut error = WorkflowSetupError::new(first.kind(), first.what, first.hint);
    for other in problems {
        error.hint = format!("{}\n{}; {}", error.hint, other.what, other.hint);
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
    let what = match error.kind() {
        io::ErrorKind::NotFound => format!("there is no Python called `{program}`"),
        _ => format!("Python cannot be started as `{program}`: {error}"),
    };
    let hint = format!(
        "workflows that are not built into Rust need Python 3.10 or later with the package \
         `rollway`: name it with `explorer.python` or {PYTHON}"
    );
    WorkflowSetupError::new(Kind::NoPython, what, hint)
}

fn broken(options: &WorkerPoolOptions, status: ExitStatus, words: &[u8]) -> WorkflowSetupError {
    let text = String::from_utf8_lossy(words);
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let last = lines[lines.len().saturating_sub(MAX_LINES)..].join("\n");
    let program = options.program.display();
    let what = format!("`{program}` did not say what it has ({status}):\n{last}");
    let hint = format!("\nsee that `{program} -c 'import rollway'` works");
    WorkflowSetupError::new(Kind::NoPackage, what, hint)
}

fn failed(error: io::Error) -> WorkflowSetupError {
    let what = format!("there is no folder for temporary files: {error}");
    WorkflowSetupError::new(Kind::Io, what, "see that TMPDIR can be written to")
}
