//! Runners in this process, for workflows in Rust. Each is a task of the runtime.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use rollway_core::{FailureKind, Incarnation, RunId, RunnerId};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::run::{RunFailure, RunOutcome, RunnerReport};
use crate::runner_status::RunnerStatusTable;
use crate::runner_status::{RUNNING, RunStages};
use crate::workers::workflow::{RunContext, RunModel, Workflow, WorkflowRegistry};
use crate::workers::{AttemptSpec, Reporter, RunnerBackend, RunnerCommand};

/// How many commands a runner may leave unread before it counts as lost. It gets one attempt at a
/// time, so that more than a few mean that nobody reads.
const MAX_COMMANDS_UNREAD: usize = 8;

/// How the runs of one attempt are executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concurrency {
    /// One after another.
    #[default]
    Sequential,
    /// All at once, taking turns on one thread.
    Asynchronous,
    /// All at once, on the threads of the runtime.
    MultiThreading,
}

/// Runners that are tasks of the current runtime.
#[derive(Debug)]
pub struct LocalRunners {
    registry: Arc<WorkflowRegistry>,
    concurrency: Concurrency,
    heartbeat: Duration,
    running: HashMap<RunnerId, RunningAttempt>,
    states: RunnerStatusTable,
}

/// A runner that was started.
#[derive(Debug)]
struct RunningAttempt {
    life: Incarnation,
    commands: mpsc::Sender<RunnerCommand>,
    task: AbortHandle,
}

impl LocalRunners {
    /// Returns runners that know these workflows.
    pub fn new(registry: WorkflowRegistry) -> Self {
        Self {
            registry: Arc::new(registry),
            concurrency: Concurrency::default(),
            heartbeat: Duration::from_secs(5),
            running: HashMap::new(),
            states: RunnerStatusTable::default(),
        }
    }

    /// Sets how the runs of one attempt are executed.
    #[must_use]
    pub fn concurrency(self, concurrency: Concurrency) -> Self {
        Self { concurrency, ..self }
    }
}

impl RunnerBackend for LocalRunners {
    fn start(&mut self, reporter: Reporter) {
        let (sender, commands) = mpsc::channel(MAX_COMMANDS_UNREAD);
        let mut heartbeat = interval(self.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeat.reset();
        let (runner, life) = (reporter.runner(), reporter.incarnation());
        let registry = Arc::clone(&self.registry);
        let concurrency = self.concurrency;
        let stages = self.states.stages(runner, life);
        let runner_loop = Runner { reporter, commands, registry, concurrency, heartbeat, stages };
        let task = tokio::spawn(runner_loop.run()).abort_handle();
        self.running.insert(runner, RunningAttempt { life, commands: sender, task });
    }

    fn send(&mut self, runner: RunnerId, life: Incarnation, command: RunnerCommand) -> bool {
        let running = self.running.get(&runner).filter(|running| running.life == life);
        running.is_some_and(|running| running.commands.try_send(command).is_ok())
    }

    fn stop(&mut self, runner: RunnerId, life: Incarnation) {
        // A run that never yields to the runtime cannot be stopped; nothing it says counts.
        if self.running.get(&runner).is_some_and(|running| running.life == life)
            && let Some(running) = self.running.remove(&runner)
        {
            running.task.abort();
        }
    }

    fn states(&self) -> RunnerStatusTable {
        self.states.clone()
    }
}

struct Runner {
    reporter: Reporter,
    commands: mpsc::Receiver<RunnerCommand>,
    registry: Arc<WorkflowRegistry>,
    concurrency: Concurrency,
    heartbeat: Interval,
    stages: RunStages,
}

/// Runs under way, each ending with its number.
type Ends = FuturesUnordered<BoxFuture<'static, (RunId, RunOutcome)>>;

/// Why an attempt is not waited for any longer.
enum Interrupted {
    Cancelled,
    /// The engine has let go of the runner.
    Dismissed,
}

impl Runner {
    async fn run(mut self) {
        self.reporter.send(vec![RunnerReport::Ready { after: None }]).await;
        loop {
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(RunnerCommand::Start(attempt)) => self.execute(*attempt).await,
                    // It crossed the end of its attempt on the way.
                    Some(RunnerCommand::Cancel { .. }) => {}
                    None => return,
                },
                _ = self.heartbeat.tick() => {
                    self.reporter.send(vec![RunnerReport::Heartbeat]).await;
                }
            }
        }
    }

    async fn execute(&mut self, attempt: AttemptSpec) {
        let id = attempt.id;
        let mut said = vec![RunnerReport::AttemptBegan { attempt: id }];
        let Some(workflow) = self.registry.get(&attempt.task.workflow).cloned() else {
            self.unknown_workflow(&attempt, said).await;
            return;
        };
        let mut waiting = attempt.runs.iter();
        let mut ends = Ends::new();
        let width = match self.concurrency {
            Concurrency::Sequential => 1,
            Concurrency::Asynchronous | Concurrency::MultiThreading => usize::MAX,
        };
        loop {
            while ends.len() < width
                && let Some(run) = waiting.next()
            {
                ends.push(self.begin(&workflow, &attempt, run));
            }
            if ends.is_empty() {
                break;
            }
            match self.next_end(&mut ends, &mut said).await {
                Ok((run, end)) => {
                    self.stages.end(run);
                    said.push(RunnerReport::RunFinished { attempt: id, run, outcome: end });
                }
                Err(Interrupted::Cancelled) => break,
                Err(Interrupted::Dismissed) => return,
            }
        }
        drop(ends);
        self.stages.clear();
        said.push(RunnerReport::AttemptEnded { attempt: id });
        self.reporter.send(said).await;
    }

    async fn unknown_workflow(&self, attempt: &AttemptSpec, mut said: Vec<RunnerReport>) {
        let known: Vec<&str> = self.registry.names().collect();
        let message: Arc<str> = format!(
            "no workflow is registered as `{}`; there is {}",
            attempt.task.workflow,
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        )
        .into();
        let kind = FailureKind::Workflow;
        said.extend(attempt.runs.iter().map(|run| {
            let message = Arc::clone(&message);
            RunnerReport::RunFinished {
                attempt: attempt.id,
                run,
                outcome: Err(RunFailure { kind, message }),
            }
        }));
        said.push(RunnerReport::AttemptEnded { attempt: attempt.id });
        self.reporter.send(said).await;
    }

    fn begin(
        &self,
        workflow: &Arc<dyn Workflow>,
        attempt: &AttemptSpec,
        run: RunId,
    ) -> BoxFuture<'static, (RunId, RunOutcome)> {
        let model = attempt.models.as_ref().and_then(|models| {
            let position = run.0.checked_sub(attempt.runs.first)?;
            let api_key = models.keys.get(position as usize)?.clone();
            Some(RunModel { base_url: Arc::clone(&models.base_url), api_key })
        });
        let context = RunContext {
            batch: attempt.batch.clone(),
            task_id: attempt.task_id,
            task: Arc::clone(&attempt.task),
            run,
            model,
            stages: self.stages.clone(),
        };
        context.stage(RUNNING);
        let workflow = Arc::clone(workflow);
        let whole = async move {
            let caught = AssertUnwindSafe(workflow.run(context)).catch_unwind().await;
            caught.unwrap_or_else(|panic| Err(panicked(panic.as_ref())))
        };
        match self.concurrency {
            Concurrency::Sequential | Concurrency::Asynchronous => {
                whole.map(move |outcome| (run, outcome)).boxed()
            }
            Concurrency::MultiThreading => {
                let task = AbortOnDrop(tokio::spawn(whole));
                async move { (run, task.join().await) }.boxed()
            }
        }
    }

    /// Waits for the next run to end. What was to be said is said before waiting, so that a run
    /// that ends at once costs one message and a long one is seen to have begun.
    async fn next_end(
        &mut self,
        ends: &mut Ends,
        said: &mut Vec<RunnerReport>,
    ) -> Result<(RunId, RunOutcome), Interrupted> {
        if let Poll::Ready(Some(end)) = futures_util::poll!(ends.next()) {
            return Ok(end);
        }
        self.reporter.send(std::mem::take(said)).await;
        loop {
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(RunnerCommand::Cancel { .. }) => return Err(Interrupted::Cancelled),
                    // The engine sends one attempt at a time.
                    Some(RunnerCommand::Start(_)) => {}
                    None => return Err(Interrupted::Dismissed),
                },
                next = ends.next() => {
                    if let Some(end) = next {
                        return Ok(end);
                    }
                }
                _ = self.heartbeat.tick() => {
                    self.reporter.send(vec![RunnerReport::Heartbeat]).await;
                }
            }
        }
    }
}

/// A spawned run that ends when nobody waits for it any more.
struct AbortOnDrop(JoinHandle<RunOutcome>);

impl AbortOnDrop {
    async fn join(mut self) -> RunOutcome {
        let joined = (&mut self.0).await;
        joined
            .unwrap_or_else(|error| Err(RunFailure::new(FailureKind::Workflow, error.to_string())))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> RunFailure {
    let words = panic
        .downcast_ref::<&str>()
        .map(|words| (*words).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    RunFailure::new(FailureKind::Workflow, format!("panicked: {words}"))
}
