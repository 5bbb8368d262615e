//! One worker process and its runners.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollway_base::Secret;
use rollway_core::{FailureKind, Incarnation, RunnerId, Suspicion};
use rollway_protocol::worker_server::{ConnectionSendError, PendingHandshake, WorkerConnection};
use rollway_protocol::{EngineMessage, StartAttempt};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::WorkerPoolShared;
use super::launcher::{LaunchStatus, Launcher, ProcessExit, Suspect};
use super::reports::ExpectedWorker;
use crate::run::RunnerReport;
use crate::runner_status::LaunchState;
use crate::workers::{AttemptSpec, Reporter, RunnerCommand};

/// Time to receive the last reports of a dead process.
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

/// A process, from its launch to its exit.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    number: u64,
    /// Maximum number of runners. `None`: unlimited.
    max_runners: Option<u32>,
    /// Hosts one runner only.
    isolated: bool,
    hosted: Mutex<HostedRunners>,
    end: CancellationToken,
}

#[derive(Debug, Default)]
struct HostedRunners {
    runners: BTreeMap<RunnerId, HostedRunner>,
    /// `None` before the handshake.
    connection: Option<WorkerConnection>,
    launch_state: LaunchState,
    /// Accepts no more runners.
    closed: bool,
}

#[derive(Debug)]
struct HostedRunner {
    reporter: Reporter,
    stage: HostedState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostedState {
    Starting,
    Idle,
    Busy,
}

impl WorkerProcess {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            max_runners: None,
            isolated: false,
            hosted: Mutex::default(),
            end: CancellationToken::new(),
        }
    }

    /// Returns a process for one runner.
    pub(super) fn isolated(number: u64) -> Self {
        Self { isolated: true, ..Self::new(number) }
    }

    /// Returns a manual worker with a number of runners.
    pub(super) fn manual(number: u64, max_runners: u32) -> Self {
        Self { max_runners: Some(max_runners), ..Self::new(number) }
    }

    /// Adds a runner. `false`: the process is closed or full.
    pub(super) fn add(&self, shared: &WorkerPoolShared, reporter: &Reporter) -> bool {
        let mut hosted = self.hosted.lock();
        let is_full = self
            .max_runners
            .is_some_and(|max_runners| hosted.runners.len() >= max_runners as usize);
        if hosted.closed || is_full {
            return false;
        }
        let (runner, incarnation) = (reporter.runner(), reporter.incarnation());
        shared.states.locate(reporter.runner(), reporter.incarnation(), &hosted.launch_state);
        if let Some(connection) = &hosted.connection {
            // If the worker is gone, its end is reported separately.
            let _ = connection.send(EngineMessage::StartRunner { runner, incarnation });
        } else if let Some(reason) = hosted.launch_state.waits.as_deref() {
            shared.report(reporter, RunnerReport::StartBlocked { reason: Some(reason.into()) });
        }
        let slot = HostedRunner { reporter: reporter.clone(), stage: HostedState::Starting };
        hosted.runners.insert(runner, slot);
        hosted.closed |= self.isolated;
        true
    }

    /// Removes an incarnation. A busy one ends the process. One that has not started closes the
    /// process for new runners, which it might block as well.
    pub(super) fn remove_runner(&self, runner: RunnerId, incarnation: Incarnation) {
        let mut hosted = self.hosted.lock();
        if hosted.runners.get(&runner).is_none_or(|slot| slot.reporter.incarnation() != incarnation)
        {
            return;
        }
        let stage = hosted.runners.remove(&runner).map(|slot| slot.stage);
        hosted.closed |= stage != Some(HostedState::Idle);
        // A manual worker stays for other runners.
        let useless = hosted.runners.is_empty() && (self.max_runners.is_none() || hosted.closed);
        if stage == Some(HostedState::Busy) || useless {
            hosted.closed = true;
            self.end.cancel();
        } else if let Some(connection) = &hosted.connection {
            let _ = connection.send(EngineMessage::StopRunner { runner, incarnation });
        }
    }

    pub(super) fn end(&self) {
        self.hosted.lock().closed = true;
        self.end.cancel();
    }

    /// Asks a manual worker to leave.
    pub(super) fn shut_down(&self, deadline: Duration) {
        let mut hosted = self.hosted.lock();
        hosted.closed = true;
        if let Some(connection) = &hosted.connection {
            let _ = connection.send(EngineMessage::Shutdown { deadline });
        }
    }

    pub(super) fn location(&self) -> String {
        self.hosted.lock().launch_state.location.clone().unwrap_or_default()
    }

    /// Accepts the handshake with all runners of the process.
    pub(super) fn welcome(&self, shared: &WorkerPoolShared, handshake: PendingHandshake) {
        let mut hosted = self.hosted.lock();
        let hello = handshake.hello();
        let launch_state =
            LaunchState { location: Some(format_location(&hello.host, hello.pid)), waits: None };
        let waited = std::mem::replace(&mut hosted.launch_state, launch_state).waits.is_some();
        for slot in hosted.runners.values() {
            let reporter = &slot.reporter;
            shared.states.locate(reporter.runner(), reporter.incarnation(), &hosted.launch_state);
            if waited {
                shared.report(&slot.reporter, RunnerReport::StartBlocked { reason: None });
            }
        }
        let incarnation =
            |(runner, slot): (&RunnerId, &HostedRunner)| (*runner, slot.reporter.incarnation());
        let offered = handshake.hello().runners as usize;
        let runners: Vec<_> = hosted.runners.iter().map(incarnation).collect();
        let (first, rest) = runners.split_at(offered.min(runners.len()));
        let env = match self.max_runners {
            Some(_) => shared.options.env.iter().cloned().collect(),
            None => BTreeMap::new(),
        };
        let connection = handshake.accept(first, shared.options.heartbeat, env);
        for (runner, incarnation) in rest {
            let _ = connection
                .send(EngineMessage::StartRunner { runner: *runner, incarnation: *incarnation });
        }
        hosted.connection = Some(connection);
    }

    /// Updates the state of a runner; returns its reporter. `None`: the incarnation has ended.
    pub(super) fn on_report(
        &self,
        runner: RunnerId,
        incarnation: Incarnation,
        report: &RunnerReport,
    ) -> Option<Reporter> {
        let mut hosted = self.hosted.lock();
        let slot = hosted
            .runners
            .get_mut(&runner)
            .filter(|slot| slot.reporter.incarnation() == incarnation)?;
        let reporter = slot.reporter.clone();
        match report {
            RunnerReport::Ready { .. } | RunnerReport::AttemptEnded { .. } => {
                slot.stage = HostedState::Idle
            }
            RunnerReport::Lost { .. } | RunnerReport::StartFailed { .. } => {
                hosted.runners.remove(&runner);
                // No new runner in a process that lost one.
                hosted.closed = true;
                if hosted.runners.is_empty() {
                    self.end.cancel();
                }
            }
            RunnerReport::Heartbeat
            | RunnerReport::StartBlocked { .. }
            | RunnerReport::AttemptBegan { .. }
            | RunnerReport::RunFinished { .. } => {}
        }
        Some(reporter)
    }

    /// Sends a command. If it is too large, returns the failure reports of its attempt.
    pub(super) fn send(
        &self,
        shared: &WorkerPoolShared,
        runner: RunnerId,
        incarnation: Incarnation,
        command: RunnerCommand,
    ) -> Option<(Reporter, Vec<RunnerReport>)> {
        let mut hosted = self.hosted.lock();
        let HostedRunners { runners, connection, .. } = &mut *hosted;
        let connection = connection.as_ref()?;
        let slot =
            runners.get_mut(&runner).filter(|slot| slot.reporter.incarnation() == incarnation)?;
        let mut started = None;
        let message = match command {
            RunnerCommand::Cancel { attempt, reason } => {
                EngineMessage::CancelAttempt { runner, incarnation, attempt, reason }
            }
            RunnerCommand::Start(mut attempt) => {
                slot.stage = HostedState::Busy;
                let message = start(shared, runner, incarnation, &mut attempt);
                started = Some(attempt);
                EngineMessage::StartAttempt(message)
            }
        };
        match connection.send(message) {
            Ok(()) => None,
            Err(ConnectionSendError::Gone) => {
                tracing::debug!(%runner, "command for a stopped runner ignored");
                None
            }
            Err(error @ ConnectionSendError::TooLarge { .. }) => {
                let attempt = started?;
                slot.stage = HostedState::Idle;
                let message = format!("the task cannot be sent: {error}");
                let reports = attempt.failed(FailureKind::InvalidOutput, &message);
                Some((slot.reporter.clone(), reports))
            }
        }
    }

    /// Waits for the end of the process and reports it to its runners.
    pub(super) async fn supervise(
        self: Arc<Self>,
        shared: &WorkerPoolShared,
        ends: impl Future<Output = ProcessExit>,
    ) {
        let ended = tokio::select! {
            biased;
            // Dropping `ends` kills the process.
            () = self.end.cancelled() => ProcessExit::unattributed("its process was ended"),
            ended = ends => ended,
        };
        let ordered = self.end.is_cancelled();
        let runners = {
            let mut hosted = self.hosted.lock();
            hosted.closed = true;
            hosted.connection = None;
            std::mem::take(&mut hosted.runners)
        };
        let suspects = if ordered { Vec::new() } else { self.suspects(shared, &runners, &ended) };
        for (runner, HostedRunner { reporter, stage }) in runners {
            let message = ended.message.as_str().into();
            let suspicion = match (suspects.as_slice(), suspects.contains(&runner)) {
                ([], _) => Suspicion::None,
                ([_], true) => Suspicion::Sole,
                (_, true) => Suspicion::Shared,
                (_, false) => Suspicion::Neighbour,
            };
            let report = match stage {
                HostedState::Starting if !ordered && suspects.is_empty() => {
                    RunnerReport::StartFailed { message }
                }
                _ => RunnerReport::Lost { message, suspicion },
            };
            shared.states.remove_location(runner, reporter.incarnation());
            reporter.send(vec![report]).await;
        }
    }

    /// Returns the runners whose attempts may have ended the process: those that were executing, or
    /// all busy ones if none was.
    fn suspects(
        &self,
        shared: &WorkerPoolShared,
        runners: &BTreeMap<RunnerId, HostedRunner>,
        ended: &ProcessExit,
    ) -> Vec<RunnerId> {
        let executing = match &ended.suspect {
            Suspect::None => return Vec::new(),
            Suspect::AnyAttempt => &[][..],
            Suspect::Executing(indices) => indices,
        };
        let runner_count = self.runner_count(shared);
        let busy = runners.iter().filter(|(_, slot)| slot.stage == HostedState::Busy);
        let busy: Vec<RunnerId> = busy.map(|(runner, _)| *runner).collect();
        let executes = |runner: &RunnerId| executing.contains(&(runner.0 % runner_count));
        let marked: Vec<RunnerId> = busy.iter().copied().filter(executes).collect();
        if marked.is_empty() { busy } else { marked }
    }

    /// Returns the number of runners that the process is started for.
    fn runner_count(&self, shared: &WorkerPoolShared) -> u32 {
        if self.isolated { 1 } else { shared.options.runners_per_worker.max(1) }
    }

    /// Publishes the launch state of a process before its handshake.
    fn publish_state(&self, shared: &WorkerPoolShared, launch_state: LaunchState) {
        let mut hosted = self.hosted.lock();
        for slot in hosted.runners.values() {
            let reporter = &slot.reporter;
            shared.states.locate(reporter.runner(), reporter.incarnation(), &launch_state);
            let reason = launch_state.waits.as_deref().map(Into::into);
            shared.report(&slot.reporter, RunnerReport::StartBlocked { reason });
        }
        hosted.launch_state = launch_state;
    }

    /// Launches the process and waits for its end.
    pub(super) async fn launched(
        self: Arc<Self>,
        shared: &WorkerPoolShared,
        launcher: &dyn Launcher,
    ) -> ProcessExit {
        // Random: a process that outlives another worker cannot connect in place of this one.
        let token = match Secret::random() {
            Ok(random) => format!("w{}-{}", self.number, random.reveal()),
            Err(error) => return ProcessExit::not_started(format!("no random token: {error}")),
        };
        let (connected, mut handshake) = oneshot::channel();
        let expected = ExpectedWorker { process: Arc::clone(&self), connected };
        shared.connections.lock().expected.insert(token.clone(), expected);
        let _forget = Forget { shared, token: &token };
        let status = LaunchStatus::default();
        let mut launch_state = status.subscribe();
        let spec = shared.launch_spec(self.number, &token, self.runner_count(shared), status);
        let mut launched = launcher.launch(spec);
        let mut left = loop {
            tokio::select! {
                connected = &mut handshake => match connected {
                    Ok(left) => break left,
                    Err(_) => return ProcessExit::unattributed("the engine removed its record"),
                },
                ended = launched.ended() => return before_handshake(ended),
                Ok(()) = launch_state.changed() => {
                    let launch_state = launch_state.borrow_and_update().clone();
                    self.publish_state(shared, launch_state);
                }
            }
        };
        tokio::select! {
            ended = launched.ended() => {
                // Its last reports may still arrive.
                let _ = timeout(FINAL_OUTPUT_TIMEOUT, &mut left).await;
                as_worker(ended)
            }
            _ = &mut left => match timeout(FINAL_OUTPUT_TIMEOUT, launched.ended()).await {
                Ok(ended) => as_worker(ended),
                Err(_) => ProcessExit::unattributed("worker closed its connection"),
            },
        }
    }
}

/// Formats a location.
fn format_location(host: &str, pid: Option<u32>) -> String {
    let host = if host.is_empty() { "unknown" } else { host };
    match pid {
        Some(pid) => format!("{host}, pid {pid}"),
        None => host.to_owned(),
    }
}

/// End of a process after its handshake.
fn as_worker(ended: ProcessExit) -> ProcessExit {
    ProcessExit { message: format!("worker ended: {}", ended.message), ..ended }
}

/// End of a process before its handshake.
fn before_handshake(ended: ProcessExit) -> ProcessExit {
    if !ended.started {
        return ended;
    }
    ProcessExit { message: format!("ended before its handshake: {}", ended.message), ..ended }
}

fn start(
    shared: &WorkerPoolShared,
    runner: RunnerId,
    incarnation: Incarnation,
    attempt: &mut AttemptSpec,
) -> StartAttempt {
    StartAttempt {
        runner,
        incarnation,
        attempt: attempt.id,
        batch: attempt.batch.clone(),
        kind: attempt.kind,
        task_id: attempt.task_id,
        runs: attempt.runs,
        task: attempt.task.body.clone(),
        definition: shared.definitions.lock().of(attempt),
        timeout: attempt.timeout,
        suspected_losses: attempt.suspected_losses,
        model_keys: attempt.models.take().map(|models| models.keys).unwrap_or_default(),
    }
}

/// Removes the token of a process that has ended.
struct Forget<'a> {
    shared: &'a WorkerPoolShared,
    token: &'a str,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.shared.connections.lock().expected.remove(self.token);
    }
}
