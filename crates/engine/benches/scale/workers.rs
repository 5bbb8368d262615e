//! Process of the workers: opens a connection for every token in its input.

use std::io::BufRead;
use std::time::Duration;

use rollway_base::{Address, Secret};
use rollway_core::metrics::Metrics;
use rollway_core::{Incarnation, RunOutput, RunnerId};
use rollway_protocol::worker_client::{
    ConnectedWorker, EngineSender, WorkerClientOptions, WorkerSendError, connect,
};
use rollway_protocol::{EngineMessage, Hello, StartAttempt, WorkerReport, env};
use tokio::sync::{Semaphore, mpsc};

/// Concurrent connection attempts, below the listen backlog.
const AT_ONCE: usize = 64;

static CONNECTING: Semaphore = Semaphore::const_new(AT_ONCE);

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() {
    let variable = |name| std::env::var(name).expect("the coordinator tells where it is");
    let secret = Secret::new(variable(env::SECRET)).expect("a secret");
    let address: Address = variable(env::ADDRESS).parse().expect("an address");
    let (tokens, mut lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = tokens.send(line);
        }
    });
    // The input ends with the coordinator.
    while let Some(token) = lines.recv().await {
        let hello = Hello::new(token, 1);
        let (address, secret) = (address.clone(), secret.clone());
        tokio::spawn(async move {
            let connected = {
                let _permit = CONNECTING.acquire().await;
                connect(&address, &secret, hello, WorkerClientOptions::default()).await
            };
            // A refused worker is not needed.
            if let Ok(connected) = connected {
                let _ = serve(connected).await;
            }
        });
    }
}

async fn serve(connected: ConnectedWorker) -> Result<(), WorkerSendError> {
    let ConnectedWorker { welcome, sender, mut receiver } = connected;
    for (runner, incarnation) in welcome.runners {
        sender.report(runner, incarnation, WorkerReport::Ready { after: None }).await?;
    }
    while let Ok(command) = receiver.recv().await {
        match command {
            EngineMessage::StartAttempt(start) => {
                let waits = wait(&start);
                if waits.is_zero() {
                    execute(start.runner, start.incarnation, &start, &sender).await?;
                    continue;
                }
                let sender = sender.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(waits).await;
                    let _ = execute(start.runner, start.incarnation, &start, &sender).await;
                });
            }
            EngineMessage::Shutdown { .. } => {
                sender.goodbye("shutdown").await?;
                return Ok(());
            }
            EngineMessage::CancelAttempt { .. }
            | EngineMessage::StartRunner { .. }
            | EngineMessage::StopRunner { .. } => {}
        }
    }
    Ok(())
}

/// Returns a pseudo-random duration up to the milliseconds in the task.
fn wait(start: &StartAttempt) -> Duration {
    let most: u64 =
        std::str::from_utf8(&start.task).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let chance = start.attempt.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    Duration::from_micros(most * 1000 * chance / u64::from(u32::MAX))
}

async fn execute(
    runner: RunnerId,
    incarnation: Incarnation,
    start: &StartAttempt,
    sender: &EngineSender,
) -> Result<(), WorkerSendError> {
    let attempt = start.attempt;
    sender.report(runner, incarnation, WorkerReport::AttemptBegan { attempt }).await?;
    for run in start.runs.iter() {
        let outcome = Ok(RunOutput { payload: None, metrics: Metrics::new() });
        let finished = WorkerReport::RunFinished { attempt, run, outcome };
        sender.report(runner, incarnation, finished).await?;
    }
    sender.report(runner, incarnation, WorkerReport::AttemptEnded { attempt }).await
}
