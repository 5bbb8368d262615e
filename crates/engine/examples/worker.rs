//! A worker in Rust with one runner, which knows a workflow that behaves, and some that do not.
//! The tests of the engine start it as a child process; it is also a short example of a worker.

use std::process::ExitCode;

use futures_util::FutureExt;
use rollway_core::metrics::Metrics;
use rollway_core::{AttemptId, FailureKind, RunId};
use rollway_wire::worker::{Connected, Options, SendError, Sender, connect};
use rollway_wire::{EngineMessage, Hello, Outcome, RunnerReport, Secret, StartAttempt, env};
use tokio::task::JoinHandle;

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
    let secret = Secret::new(variable(env::SECRET)?)?;
    let hello = Hello::new(secret, variable(env::TOKEN)?, 1);
    let address = variable(env::ADDRESS)?.parse()?;
    let Connected { welcome, sender, mut receiver } =
        connect(&address, hello, Options::default()).await?;
    let (runner, life) = *welcome.runners.first().ok_or("no runner to host")?;
    sender.report(runner, life, RunnerReport::Ready { after: None }).await?;
    let mut current: Option<(AttemptId, JoinHandle<()>)> = None;
    loop {
        match receiver.recv().await? {
            EngineMessage::StartAttempt(start) => {
                let attempt = start.attempt;
                // If nobody listens any more, the next receive ends the worker.
                let task = tokio::spawn(execute(start, sender.clone()).map(drop));
                current = Some((attempt, task));
            }
            EngineMessage::CancelAttempt { attempt, .. } => {
                if let Some((_, task)) = current.take_if(|(id, _)| *id == attempt) {
                    task.abort();
                    let ended = RunnerReport::AttemptEnded { attempt };
                    sender.report(runner, life, ended).await?;
                }
            }
            EngineMessage::Shutdown { .. } => {
                sender.goodbye("as told").await?;
                return Ok(());
            }
            EngineMessage::StartRunner { .. } | EngineMessage::StopRunner { .. } => {}
        }
    }
}

async fn execute(start: StartAttempt, sender: Sender) -> Result<(), SendError> {
    let (runner, life, attempt) = (start.runner, start.life, start.attempt);
    sender.report(runner, life, RunnerReport::AttemptBegan { attempt }).await?;
    for run in start.runs.iter() {
        let outcome = execute_run(&start, run).await;
        let finished = RunnerReport::RunFinished { attempt, run, outcome };
        sender.report(runner, life, finished).await?;
    }
    sender.report(runner, life, RunnerReport::AttemptEnded { attempt }).await
}

#[expect(clippy::exit, reason = "workflows do what they like")]
async fn execute_run(start: &StartAttempt, run: RunId) -> Outcome {
    match &*start.definition.name {
        "answer" => {
            let payload = format!("{}/{}/{}", start.batch, start.task_id.0, run.0);
            Outcome::Succeeded { payload: Some(payload.into()), metrics: Metrics::new() }
        }
        "exit" => std::process::exit(3),
        "hang" => std::future::pending().await,
        "deaf" => {
            // Let it be heard that the attempt has begun; then nobody gets a word in.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            loop {
                std::thread::park();
            }
        }
        name => {
            let message = format!("no workflow is called `{name}`").into();
            Outcome::Failed { kind: FailureKind::Workflow, message }
        }
    }
}
