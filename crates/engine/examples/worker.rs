//! Example of a worker in Rust. The engine's tests run it: it has one correct workflow and several
//! faulty ones.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use rollway_base::Secret;
use rollway_core::metrics::Metrics;
use rollway_core::{AttemptId, FailureKind, RunFailure, RunId, RunOutcome, RunOutput, RunnerId};
use rollway_protocol::worker_client::{
    ConnectedWorker, EngineSender, WorkerClientOptions, WorkerSendError, connect,
};
use rollway_protocol::{EngineMessage, Hello, StartAttempt, StopCause, WorkerReport, env};
use tokio::task::JoinHandle;

/// Keepalive interval in milliseconds.
const KEEPALIVE: &str = "ROLLWAY_EXAMPLE_KEEPALIVE_MS";

/// Number of a runner that never reports.
const MUTE: &str = "ROLLWAY_EXAMPLE_MUTE";

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stderr, reason = "a program tells why it ends")]
async fn main() -> ExitCode {
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Failure> {
    let variable = |name| std::env::var(name).map_err(|_| format!("{name} is not set"));
    let number = |name, default| std::env::var(name).map_or(Ok(default), |text| text.parse());
    let secret = Secret::new(variable(env::SECRET)?)?;
    // Manual workers have no token.
    let token = std::env::var(env::TOKEN).unwrap_or_default();
    let hello = Hello::new(token, u32::try_from(number(env::RUNNERS, 1)?)?);
    let keepalive = Duration::from_millis(number(KEEPALIVE, 10_000)?);
    let address = variable(env::ADDRESS)?.parse()?;
    let options = WorkerClientOptions { keepalive, ..WorkerClientOptions::default() };
    let ConnectedWorker { welcome, sender, mut receiver } =
        connect(&address, &secret, hello, options).await?;
    let ready = WorkerReport::Ready { after: None };
    let mute = std::env::var(MUTE).ok().and_then(|number| number.parse().ok()).map(RunnerId);
    let speaks = |runner: RunnerId| Some(runner) != mute;
    for (runner, incarnation) in welcome.runners.into_iter().filter(|(runner, _)| speaks(*runner)) {
        sender.report(runner, incarnation, ready.clone()).await?;
    }
    let mut current: BTreeMap<RunnerId, (AttemptId, JoinHandle<()>)> = BTreeMap::new();
    loop {
        match receiver.recv().await? {
            EngineMessage::StartAttempt(start) => {
                let (runner, attempt) = (start.runner, start.attempt);
                // If the connection is lost, the next receive ends the worker.
                let task = tokio::spawn(execute(start, sender.clone()).map(drop));
                current.insert(runner, (attempt, task));
            }
            EngineMessage::CancelAttempt { runner, incarnation, attempt, .. } => {
                if current.get(&runner).is_some_and(|(id, _)| *id == attempt)
                    && let Some((_, task)) = current.remove(&runner)
                {
                    task.abort();
                    let ended = WorkerReport::AttemptEnded { attempt };
                    sender.report(runner, incarnation, ended).await?;
                }
            }
            EngineMessage::StartRunner { runner, incarnation } if speaks(runner) => {
                sender.report(runner, incarnation, ready.clone()).await?;
            }
            EngineMessage::StopRunner { runner, incarnation } => {
                if let Some((_, task)) = current.remove(&runner) {
                    task.abort();
                }
                let stopped = WorkerReport::Stopped(StopCause::Requested);
                sender.report(runner, incarnation, stopped).await?;
            }
            EngineMessage::StartRunner { .. } => {}
            EngineMessage::Shutdown { .. } => {
                sender.goodbye("shutdown").await?;
                // The engine closes the stream after the goodbye.
                let _ = receiver.recv().await;
                return Ok(());
            }
        }
    }
}

async fn execute(start: StartAttempt, sender: EngineSender) -> Result<(), WorkerSendError> {
    let (runner, incarnation, attempt) = (start.runner, start.incarnation, start.attempt);
    sender.report(runner, incarnation, WorkerReport::AttemptBegan { attempt }).await?;
    for run in start.runs.iter() {
        let outcome = execute_run(&start, run).await;
        let finished = WorkerReport::RunFinished { attempt, run, outcome };
        sender.report(runner, incarnation, finished).await?;
    }
    sender.report(runner, incarnation, WorkerReport::AttemptEnded { attempt }).await
}

#[expect(clippy::exit, reason = "workflows do what they like")]
async fn execute_run(start: &StartAttempt, run: RunId) -> RunOutcome<Bytes> {
    match &*start.definition.name {
        "answer" => {
            let payload = format!("{}/{}/{}", start.batch, start.task_id.0, run.0);
            Ok(RunOutput { payload: Some(payload.into()), metrics: Metrics::new() })
        }
        "exit" => std::process::exit(3),
        "variable" => {
            let name = String::from_utf8_lossy(&start.task);
            let value = std::env::var(&*name).unwrap_or_else(|_| "not set".to_owned());
            Ok(RunOutput { payload: Some(value.into()), metrics: Metrics::new() })
        }
        "spawn" => {
            spawn_programs(&String::from_utf8_lossy(&start.task));
            // Lets the report of the beginning be sent before the event loop blocks.
            tokio::time::sleep(Duration::from_millis(50)).await;
            loop {
                std::thread::park();
            }
        }
        "hang" => std::future::pending().await,
        "wait" => {
            // Until the file named by the task exists.
            let path = String::from_utf8_lossy(&start.task).into_owned();
            while !std::path::Path::new(&path).exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok(RunOutput { payload: Some("waited".into()), metrics: Metrics::new() })
        }
        "deaf" => {
            // Lets the report of the beginning be sent before the event loop blocks.
            tokio::time::sleep(Duration::from_millis(50)).await;
            loop {
                std::thread::park();
            }
        }
        name => {
            let message = format!("no workflow is called `{name}`").into();
            Err(RunFailure { kind: FailureKind::Workflow, message })
        }
    }
}

/// Starts one program in the process group of this worker and one in a session of its own, writes
/// their process ids to a file, and leaves them running.
fn spawn_programs(file: &str) {
    let start = |program: &str, args: &[&str]| {
        let child = std::process::Command::new(program).args(args).spawn();
        child.expect("the program starts").id()
    };
    let own = start("sleep", &["1000"]);
    let detached = start("setsid", &["sleep", "1000"]);
    let partial = format!("{file}.partial");
    std::fs::write(&partial, format!("{own} {detached}")).expect("the file is writable");
    std::fs::rename(partial, file).expect("the file is writable");
}
