//! Runners in this process, for workflows in Rust. Each is a tokio task.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use rollway_core::{FailureKind, Incarnation, RunId, RunnerId};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinError};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use crate::process::panic_message;
use crate::run::{RunFailure, RunOutcome, RunnerReport};
use crate::runner_status::{RUNNING, RunStages, RunnerStatusTable};
use crate::workers::workflow::{RunContext, RunModel, Workflow, WorkflowRegistry};
use crate::workers::{AttemptSpec, Reporter, RunnerBackend, RunnerCommand};

/// Unread commands after which a runner counts as lost.
const MAX_COMMANDS_UNREAD: usize = 8;

/// Execution of the runs of one attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concurrency {
    #[default]
    Sequential,
    /// Concurrently on one thread.
    Asynchronous,
    /// Concurrently on the threads of the runtime.
    MultiThreading,
}

/// Runners as tasks of the current runtime.
#[derive(Debug)]
pub struct LocalRunners {
    registry: Arc<WorkflowRegistry>,
    concurrency: Concurrency,
    heartbeat: Duration,
    running: HashMap<RunnerId, RunningAttempt>,
    states: RunnerStatusTable,
}

#[derive(Debug)]
struct RunningAttempt {
    incarnation: Incarnation,
    commands: mpsc::Sender<RunnerCommand>,
    task: AbortHandle,
}

impl LocalRunners {
    pub fn new(registry: WorkflowRegistry) -> Self {
        Self {
            registry: Arc::new(registry),
            concurrency: Concurrency::default(),
            heartbeat: Duration::from_secs(5),
            running: HashMap::new(),
            states: RunnerStatusTable::default(),
        }
    }

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
        let (runner, incarnation) = (reporter.runner(), reporter.incarnation());
        let registry = Arc::clone(&self.registry);
        let concurrency = self.concurrency;
        let stages = self.states.stages(runner, incarnation);
        let runner_loop = Runner { reporter, commands, registry, concurrency, heartbeat, stages };
        let task = tokio::spawn(runner_loop.run()).abort_handle();
        self.running.insert(runner, RunningAttempt { incarnation, commands: sender, task });
    }

    fn send(&mut self, runner: RunnerId, incarnation: Incarnation, command: RunnerCommand) -> bool {
        let running =
            self.running.get(&runner).filter(|running| running.incarnation == incarnation);
        running.is_some_and(|running| running.commands.try_send(command).is_ok())
    }

    fn stop(&mut self, runner: RunnerId, incarnation: Incarnation) {
        // A run that never yields cannot be stopped; its reports are ignored.
        if self.running.get(&runner).is_some_and(|running| running.incarnation == incarnation)
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

/// Runs in progress.
type Ends = FuturesUnordered<BoxFuture<'static, (RunId, RunOutcome)>>;

enum Interrupted {
    Cancelled,
    /// The runner was stopped.
    Dismissed,
}

impl Runner {
    async fn run(mut self) {
        self.reporter.send(vec![RunnerReport::Ready { after: None }]).await;
        loop {
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(RunnerCommand::Start(attempt)) => self.execute(*attempt).await,
                    // The attempt ended before the cancel arrived.
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
        let Some(workflow) = self.registry.get(&attempt.task.workflow).cloned() else {
            self.reporter
                .send(attempt.failed(FailureKind::Workflow, &self.unknown(&attempt)))
                .await;
            return;
        };
        let mut reports = vec![RunnerReport::AttemptBegan { attempt: id }];
        let mut waiting = attempt.runs.iter();
        let mut ends = Ends::new();
        let is_sequential = self.concurrency == Concurrency::Sequential;
        let width = if is_sequential { 1 } else { usize::MAX };
        loop {
            while ends.len() < width
                && let Some(run) = waiting.next()
            {
                ends.push(self.begin(&workflow, &attempt, run));
            }
            if ends.is_empty() {
                break;
            }
            match self.next_end(&mut ends, &mut reports).await {
                Ok((run, outcome)) => {
                    self.stages.end(run);
                    reports.push(RunnerReport::RunFinished { attempt: id, run, outcome });
                }
                Err(Interrupted::Cancelled) => break,
                Err(Interrupted::Dismissed) => return,
            }
        }
        drop(ends);
        self.stages.clear();
        reports.push(RunnerReport::AttemptEnded { attempt: id });
        self.reporter.send(reports).await;
    }

    fn unknown(&self, attempt: &AttemptSpec) -> String {
        let mut known: Vec<&str> = self.registry.names().collect();
        if known.is_empty() {
            known.push("none");
        }
        let (name, known) = (&attempt.task.workflow, known.join(", "));
        format!("unknown workflow `{name}`; there is {known}")
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
        let execution = async move {
            let caught = AssertUnwindSafe(workflow.run(context)).catch_unwind().await;
            caught.unwrap_or_else(|panic| {
                let message = format!("panicked: {}", panic_message(panic.as_ref()));
                Err(RunFailure::new(FailureKind::Workflow, message))
            })
        };
        match self.concurrency {
            Concurrency::Sequential | Concurrency::Asynchronous => {
                execution.map(move |outcome| (run, outcome)).boxed()
            }
            Concurrency::MultiThreading => {
                let task = AbortOnDropHandle::new(tokio::spawn(execution));
                let aborted = |error: JoinError| {
                    Err(RunFailure::new(FailureKind::Workflow, error.to_string()))
                };
                task.map(move |joined| (run, joined.unwrap_or_else(aborted))).boxed()
            }
        }
    }

    /// Waits for the next run to end. Pending reports are sent before waiting, so that a run that
    /// ends immediately costs one message and a long one is shown as begun.
    async fn next_end(
        &mut self,
        ends: &mut Ends,
        reports: &mut Vec<RunnerReport>,
    ) -> Result<(RunId, RunOutcome), Interrupted> {
        if let Poll::Ready(Some(end)) = futures_util::poll!(ends.next()) {
            return Ok(end);
        }
        self.reporter.send(std::mem::take(reports)).await;
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
